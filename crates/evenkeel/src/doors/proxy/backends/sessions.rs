//! One thread's connections with streams to one backend (HTTP/2).
//!
//! The first that has room is taken, so that those not needed become idle and are closed. While one
//! is being made, who needs it waits for that instead of making another: a burst of requests would
//! otherwise have a connection each. If it cannot be made, all who waited have failed. One
//! connection: `wire/session.rs`. Retries are not its business: `exchange.rs`.

use super::pool::IDLE_MS;
use crate::doors::proxy::wire::Session;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct Sessions {
    all: RefCell<Vec<Rc<Session>>>,
    /// Somebody is making one.
    making: Cell<bool>,
    /// How many could not be made.
    failed: Cell<u64>,
    /// One was made, or could not be.
    ended: Notify,
}

/// What is to be done about a connection.
pub(super) enum Next<'a> {
    /// Take this one.
    Take(Rc<Session>),
    /// Make one.
    Make(Making<'a>),
    /// Somebody tried to make one meanwhile, in vain.
    Failed,
}

impl Sessions {
    /// One that has room.
    pub(super) fn with_room(&self) -> Option<Rc<Session>> {
        self.all.borrow().iter().find(|session| session.has_room()).cloned()
    }

    /// One that has room, waiting for the one that is being made; or the turn to make one.
    pub(super) async fn next(&self) -> Next<'_> {
        let failed = self.failed.get();
        loop {
            if let Some(session) = self.with_room() {
                return Next::Take(session);
            }
            if self.failed.get() != failed {
                return Next::Failed;
            }
            let ended = self.ended.notified();
            if !self.making.replace(true) {
                return Next::Make(Making(self));
            }
            ended.await;
        }
    }

    /// One more was made.
    pub(super) fn add(&self, session: &Rc<Session>) {
        self.all.borrow_mut().push(Rc::clone(session));
    }

    /// Lets go of what is over or has been idle for long.
    pub(super) fn prune(&self, now: u64) {
        let young = |since| now.saturating_sub(since) < IDLE_MS;
        let stays =
            |session: &Rc<Session>| !session.is_over() && session.idle_since(now).is_none_or(young);
        self.all.borrow_mut().retain(stays);
    }

    /// Lets go of all.
    pub(super) fn clear(&self) {
        self.all.take().iter().for_each(|session| session.retire());
    }
}

/// The turn to make one, which is somebody else's when it is dropped.
pub(super) struct Making<'a>(&'a Sessions);

impl Making<'_> {
    /// It cannot be made.
    pub(super) fn failed(self) {
        self.0.failed.set(self.0.failed.get() + 1);
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.making.set(false);
        self.0.ended.notify_waiters();
    }
}
