//! The charge of one request, shared by whoever works for it: the exchange, the body on its way to
//! the backend, the body on its way back. It settles when the last of them lets go, or earlier.
//!
//! A request never leaves its thread, so this is a cell and no lock. What is charged: `engine`.

use crate::engine::{Charge, Entered, Quota, Refusal, Turned};
use evenkeel_core::units::{Nanos, Time};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

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

    /// Waits for room before the backend.
    ///
    /// # Errors
    /// There is none.
    pub(super) async fn turn(&self) -> Result<(), Refusal> {
        match self.enter() {
            Entered::Room => Ok(()),
            Entered::Refused(refusal) => Err(refusal),
            Entered::Waits(turn) => self.turned(turn.await),
        }
    }

    /// Asks for room.
    pub(super) fn enter(&self) -> Entered {
        self.0.charge.borrow_mut().as_mut().map_or(Entered::Room, Charge::enter)
    }

    /// Waiting for room is over.
    pub(super) fn turned(&self, turned: Turned) -> Result<(), Refusal> {
        self.0.charge.borrow_mut().as_mut().map_or(Ok(()), |charge| charge.turned(turned))
    }

    /// The client takes no more of the answer: others may have the slot meanwhile.
    pub(super) fn give_way(&self) {
        if let Some(charge) = self.0.charge.borrow_mut().as_mut() {
            charge.give_way();
        }
    }

    /// The client keeps the backend waiting for the rest of the request; `flows`: it is uploading.
    /// Whether others have the slot meanwhile.
    pub(super) fn stall(&self, flows: bool) -> bool {
        self.0.charge.borrow_mut().as_mut().is_none_or(|charge| charge.stall(flows))
    }

    /// The backend has the head of the request, and not yet the rest.
    pub(super) fn delivery_begins(&self) {
        if let Some(charge) = self.0.charge.borrow_mut().as_mut() {
            charge.delivery_begins();
        }
    }

    /// The backend is passed so many bytes of the rest.
    pub(super) fn delivers(&self, bytes: usize) {
        if let Some(charge) = self.0.charge.borrow_mut().as_mut() {
            charge.delivers(bytes);
        }
    }

    /// Whether the backend has begun its answer.
    pub(super) fn is_answered(&self) -> bool {
        self.0.answered.get()
    }

    /// The same, for whoever must not keep it open.
    pub(super) fn shadow(&self) -> Shadow {
        Shadow(Rc::downgrade(&self.0))
    }

    /// The answer is one without an end.
    pub(super) fn leave(&self) {
        if let Some(charge) = self.0.charge.borrow_mut().as_mut() {
            charge.leave();
        }
    }

    /// There is no answer. If the backend has a part of the request, it may have worked on that:
    /// the time in which it waited for the client is charged up to `most`.
    pub(super) fn abandon(&self, most: Duration) {
        if let Some(charge) = self.0.charge.borrow_mut().as_mut() {
            charge.abandon(nanos(most));
        }
    }

    /// The connection to the backend was closed before its answer had come. The time in which it
    /// waited for the client is charged up to `most`.
    pub(super) fn cut(&self, most: Duration) {
        if let Some(charge) = self.0.charge.borrow_mut().as_mut() {
            charge.cut(nanos(most));
        }
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
        if let (true, Some(charge)) = (works, self.0.charge.borrow_mut().as_mut()) {
            charge.delivered();
            charge.work();
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

    /// How the client stands by limits in requests.
    pub(super) fn quotas(&self) -> Vec<Quota> {
        self.0.charge.borrow().as_ref().map(Charge::quotas).unwrap_or_default()
    }

    /// Closes the account now, whoever still holds it.
    pub(super) fn settle(&self) {
        // In its place: it is too large to be moved for this.
        *self.0.charge.borrow_mut() = None;
    }
}

fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// An account that may have been closed.
#[derive(Default)]
pub(super) struct Shadow(Weak<Open>);

impl Shadow {
    /// The client keeps the backend waiting for the rest of the request, unless that has answered.
    pub(super) fn stall(&self, flows: bool) {
        if let Some(account) = self.unanswered() {
            account.stall(flows);
        }
    }

    /// Whether the backend has not answered yet a request that goes through the queue.
    pub(super) fn stalls(&self) -> bool {
        self.unanswered()
            .is_some_and(|account| account.0.charge.borrow().as_ref().is_some_and(Charge::queues))
    }

    fn unanswered(&self) -> Option<Account> {
        self.0.upgrade().map(Account).filter(|account| !account.is_answered())
    }
}
