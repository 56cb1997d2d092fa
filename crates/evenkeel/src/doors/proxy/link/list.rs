//! Lists of links, from which each goes in one step whatever their number.
//!
//! A link is in one list at most: it knows its place there. What is done with those in a list:
//! `worker.rs`.

use super::Link;
use std::cell::{Ref, RefCell};
use std::rc::Rc;

/// Links that are open.
#[derive(Default)]
pub(in crate::doors::proxy) struct List(RefCell<Vec<Rc<Link>>>);

impl List {
    /// Takes one in.
    pub(in crate::doors::proxy) fn add(&self, link: &Rc<Link>) {
        let mut links = self.0.borrow_mut();
        link.place.set(links.len());
        links.push(Rc::clone(link));
    }

    /// Lets one go. Its place is taken by the last.
    pub(in crate::doors::proxy) fn remove(&self, link: &Link) {
        let mut links = self.0.borrow_mut();
        let place = link.place.get();
        if place < links.len() {
            links.swap_remove(place);
            if let Some(moved) = links.get(place) {
                moved.place.set(place);
            }
        }
    }

    /// All of them. Nothing that is done with one may add or remove another.
    pub(in crate::doors::proxy) fn all(&self) -> Ref<'_, Vec<Rc<Link>>> {
        self.0.borrow()
    }

    /// How many there are.
    pub(in crate::doors::proxy) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Whether there is none.
    pub(in crate::doors::proxy) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}
