//! Lists of links with removal in constant time.
//!
//! A link is in one list at most, and stores its index there (`place`). What is done with the
//! links: `sweep.rs`, `context/make_room.rs`.

use super::ClientLink;
use std::cell::{Ref, RefCell};
use std::rc::Rc;

/// A list of open links. Invariant: `list[i].place == i`.
#[derive(Default)]
pub(crate) struct LinkList(RefCell<Vec<Rc<ClientLink>>>);

impl LinkList {
    pub(crate) fn add(&self, link: &Rc<ClientLink>) {
        let mut links = self.0.borrow_mut();
        link.place.set(links.len());
        links.push(Rc::clone(link));
    }

    /// Removes a link. The last link moves to its index.
    pub(crate) fn remove(&self, link: &ClientLink) {
        let mut links = self.0.borrow_mut();
        let place = link.place.get();
        if place < links.len() {
            links.swap_remove(place);
            if let Some(moved) = links.get(place) {
                moved.place.set(place);
            }
        }
    }

    /// Borrows all links. Adding or removing a link during this borrow panics.
    pub(crate) fn all(&self) -> Ref<'_, Vec<Rc<ClientLink>>> {
        self.0.borrow()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}
