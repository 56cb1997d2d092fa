//! One thread's HTTP/2 connections to one backend.
//!
//! The first session that has room is taken, so sessions that are not needed become idle and are
//! closed. While one is being made, other requests wait for it instead of making another: otherwise
//! a burst of requests would open a connection each. If it cannot be made, all requests that waited
//! fail. One session: `wire/session.rs`. Retries are in `exchange/ask.rs`.

use super::pool::IDLE_MS;
use crate::wire::Http2Session;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct Http2Pool {
    all: RefCell<Vec<Rc<Http2Session>>>,
    /// A task is making a session.
    making: Cell<bool>,
    /// The number of sessions that could not be made.
    failed: Cell<u64>,
    /// Notified when a session was made or could not be.
    ended: Notify,
}

/// How a request gets its session.
pub(super) enum SessionChoice<'a> {
    Take(Rc<Http2Session>),
    Make(SessionTurn<'a>),
    /// Another task tried to make one in the meantime and failed.
    Failed,
}

impl Http2Pool {
    pub(super) fn with_room(&self) -> Option<Rc<Http2Session>> {
        self.all.borrow().iter().find(|session| session.has_room()).cloned()
    }

    /// Returns a session that has room, after waiting for one that is being made, or the turn to
    /// make one.
    pub(super) async fn next(&self) -> SessionChoice<'_> {
        let failed = self.failed.get();
        loop {
            if let Some(session) = self.with_room() {
                return SessionChoice::Take(session);
            }
            if self.failed.get() != failed {
                return SessionChoice::Failed;
            }
            let ended = self.ended.notified();
            if !self.making.replace(true) {
                return SessionChoice::Make(SessionTurn(self));
            }
            ended.await;
        }
    }

    pub(super) fn add(&self, session: &Rc<Http2Session>) {
        self.all.borrow_mut().push(Rc::clone(session));
    }

    /// Drops sessions that are over or have been idle for long.
    pub(super) fn prune(&self, now: u64) {
        let young = |since| now.saturating_sub(since) < IDLE_MS;
        let stays = |session: &Rc<Http2Session>| {
            !session.is_over() && session.idle_since(now).is_none_or(young)
        };
        self.all.borrow_mut().retain(stays);
    }

    /// Retires and drops all sessions.
    pub(super) fn clear(&self) {
        self.all.take().iter().for_each(|session| session.retire());
    }
}

/// The turn to make a session. Dropping it passes the turn on to another task.
pub(super) struct SessionTurn<'a>(&'a Http2Pool);

impl SessionTurn<'_> {
    /// Reports that the session cannot be made.
    pub(super) fn failed(self) {
        self.0.failed.set(self.0.failed.get() + 1);
    }
}

impl Drop for SessionTurn<'_> {
    fn drop(&mut self) {
        self.0.making.set(false);
        self.0.ended.notify_waiters();
    }
}
