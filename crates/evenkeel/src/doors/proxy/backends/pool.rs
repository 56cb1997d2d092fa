//! One thread's idle connections to one backend, for one request at a time (HTTP/1.1).
//!
//! The one used last is used first, so that those not needed grow old and are closed. Nothing here
//! crosses threads. Retries are not its business: `exchange.rs`.

use crate::doors::proxy::wire::Connection;
use std::cell::RefCell;
use std::task::{Context, Waker};

/// Idle connections that a thread keeps; what is over is closed, the oldest first.
const IDLE_MAX: usize = 512;

/// How long one is kept, in milliseconds. Longer than this, more and more backends have closed
/// their end, and a request that meets a closed connection has to be sent twice.
pub(super) const IDLE_MS: u64 = 30_000;

#[derive(Default)]
pub(super) struct Pool(RefCell<Vec<Idle>>);

struct Idle {
    wire: Box<Connection>,
    since: u64,
}

impl Pool {
    /// A connection that is ready now, for the task of `cx`.
    pub(super) fn take(&self, cx: &mut Context<'_>) -> Option<Box<Connection>> {
        let mut idle = self.0.borrow_mut();
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            match idle[at].wire.poll_ready(cx) {
                Some(true) => return Some(idle.remove(at).wire),
                Some(false) => {}
                None => drop(idle.remove(at)),
            }
        }
        None
    }

    /// Gives a connection back.
    pub(super) fn put(&self, mut wire: Box<Connection>, now: u64) {
        if !wire.may_stay() {
            return;
        }
        let mut idle = self.0.borrow_mut();
        if idle.len() >= IDLE_MAX {
            idle.remove(0);
        }
        idle.push(Idle { wire, since: now });
    }

    /// Lets go of what is old or closed.
    pub(super) fn prune(&self, now: u64) {
        let mut cx = Context::from_waker(Waker::noop());
        let young = |idle: &Idle| now.saturating_sub(idle.since) < IDLE_MS;
        let open = |idle: &mut Idle| idle.wire.poll_ready(&mut cx).is_some();
        let mut open = open;
        self.0.borrow_mut().retain_mut(|idle| young(idle) && open(idle));
    }

    /// Lets go of all.
    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}
