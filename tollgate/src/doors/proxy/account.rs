//! The charge of one request, shared by whoever works for it: the exchange, the body on its way to
//! the backend, the body on its way back. It settles when the last of them lets go, or earlier.
//!
//! A request never leaves its thread, so this is a cell and no lock. What is charged: `engine`.

use crate::engine::Charge;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tollgate_core::units::Time;

/// The open account of one request.
#[derive(Clone)]
pub(super) struct Account(Rc<Open>);

struct Open {
    charge: RefCell<Option<Charge>>,
    /// Whether the backend has begun its answer.
    answered: Cell<bool>,
}

impl Account {
    pub(super) fn open(charge: Charge) -> Account {
        Account(Rc::new(Open { charge: RefCell::new(Some(charge)), answered: Cell::new(false) }))
    }

    /// The backend works for this request from now on.
    pub(super) fn work(&self) {
        if let Some(charge) = self.0.charge.borrow_mut().as_mut() {
            charge.work();
        }
    }

    /// The last byte of the request is with the backend. It works from now on, unless it has
    /// answered already. Returns whether it works.
    pub(super) fn sent(&self) -> bool {
        let works = !self.0.answered.get();
        if works {
            self.work();
        }
        works
    }

    /// It does not, or we wait for the client.
    pub(super) fn rest(&self) {
        if let Some(charge) = self.0.charge.borrow_mut().as_mut() {
            charge.rest();
        }
    }

    /// The head of the answer is here. Returns until when it is to be held.
    pub(super) fn head(&self, headers: &mut http::HeaderMap, keep: bool) -> Option<Time> {
        self.0.answered.set(true);
        let mut charge = self.0.charge.borrow_mut();
        let charge = charge.as_mut()?;
        let name = charge.cost_header().and_then(|name| http::HeaderName::try_from(name).ok());
        let stated = name.as_ref().and_then(|name| headers.get(name).cloned());
        if let (Some(name), false) = (&name, keep) {
            headers.remove(name);
        }
        charge.head(stated.as_ref().map(http::HeaderValue::as_bytes))
    }

    /// Closes the account now, whoever still holds it.
    pub(super) fn settle(&self) {
        let charge = self.0.charge.borrow_mut().take();
        drop(charge);
    }
}
