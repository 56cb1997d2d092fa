//! One thread's idle HTTP/1.1 connections to one backend. Each carries one request at a time.
//!
//! The connection used last is used first, so connections that are not needed grow old and are
//! closed. No connection crosses threads. Retries are in `exchange/ask.rs`.

use crate::wire::Http1Connection;
use std::cell::RefCell;
use std::task::{Context, Waker};

/// The maximum number of idle connections that a thread keeps per backend. Beyond it the oldest is
/// closed.
const IDLE_MAX: usize = 512;

/// How long an idle connection is kept, in milliseconds. After a longer time, more and more
/// backends have closed their end, and a request that meets a closed connection has to be sent
/// twice.
pub(super) const IDLE_MS: u64 = 30_000;

#[derive(Default)]
pub(super) struct Http1Pool(RefCell<Vec<IdleConnection>>);

struct IdleConnection {
    wire: Box<Http1Connection>,
    since: u64,
}

impl Http1Pool {
    /// Takes a connection that is ready now, for the task of `cx`. `may_repeat`: the request can be
    /// sent again if the connection turns out to be closed.
    pub(super) fn take(
        &self,
        cx: &mut Context<'_>,
        may_repeat: bool,
    ) -> Option<Box<Http1Connection>> {
        let mut idle = self.0.borrow_mut();
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            match idle[at].wire.poll_ready(cx, may_repeat) {
                Some(true) => return Some(idle.remove(at).wire),
                Some(false) => {}
                None => drop(idle.remove(at)),
            }
        }
        None
    }

    /// Returns a connection to the pool, if another request may follow on it.
    pub(super) fn put(&self, mut wire: Box<Http1Connection>, now: u64) {
        if !wire.check_reusable() {
            return;
        }
        let mut idle = self.0.borrow_mut();
        if idle.len() >= IDLE_MAX {
            idle.remove(0);
        }
        idle.push(IdleConnection { wire, since: now });
    }

    /// Drops connections that are old or closed.
    pub(super) fn prune(&self, now: u64) {
        let mut cx = Context::from_waker(Waker::noop());
        let young = |idle: &IdleConnection| now.saturating_sub(idle.since) < IDLE_MS;
        let open = |idle: &mut IdleConnection| idle.wire.poll_ready(&mut cx, false).is_some();
        let mut open = open;
        self.0.borrow_mut().retain_mut(|idle| young(idle) && open(idle));
    }

    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}
