//! One thread's HTTP/2 connections to one backend.
//!
//! The first session that has room is taken, so sessions that are not needed become idle and are
//! closed. While one is being made, other requests wait for it instead of making another: otherwise
//! a burst of requests would open a connection each. If it cannot be made, all requests that waited
//! fail. One session: `wire/session.rs`. Retries are in `exchange.rs`.

use super::pool::IDLE_MS;
use crate::wire::Session;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct Sessions {
    all: RefCell<Vec<Rc<Session>>>,
    /// A task is making a session.
    making: Cell<bool>,
    /// The number of sessions that could not be made.
    failed: Cell<u64>,
    /// Notified when a session was made or could not be.
    ended: Notify,
}

/// How a request gets its session.
pub(super) enum Next<'a> {
    /// Take this session.
    Take(Rc<Session>),
    /// Make a session.
    Make(Making<'a>),
    /// Another task tried to make one in the meantime and failed.
    Failed,
}

impl Sessions {
    /// Returns a session that has room.
    pub(super) fn with_room(&self) -> Option<Rc<Session>> {
        self.all.borrow().iter().find(|session| session.has_room()).cloned()
    }

    /// Returns a session that has room, after waiting for one that is being made, or the turn to
    /// make one.
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

    /// Adds a new session.
    pub(super) fn add(&self, session: &Rc<Session>) {
        self.all.borrow_mut().push(Rc::clone(session));
    }

    /// Drops sessions that are over or have been idle for long.
    pub(super) fn prune(&self, now: u64) {
        let young = |since| now.saturating_sub(since) < IDLE_MS;
        let stays =
            |session: &Rc<Session>| !session.is_over() && session.idle_since(now).is_none_or(young);
        self.all.borrow_mut().retain(stays);
    }

    /// Retires and drops all sessions.
    pub(super) fn clear(&self) {
        self.all.take().iter().for_each(|session| session.retire());
    }
}

/// The turn to make a session. Dropping it passes the turn on to another task.
pub(super) struct Making<'a>(&'a Sessions);

impl Making<'_> {
    /// Reports that the session cannot be made.
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
