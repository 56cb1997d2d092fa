//! One thread's idle connections to the backend.
//!
//! The one used last is used first, so that those not needed grow old and are closed. Nothing here
//! crosses threads. Retries are not its business: `exchange.rs`.

use super::body::Upload;
use super::stream::Far;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::SendRequest;
use std::cell::RefCell;
use std::rc::Rc;

/// Idle connections that a thread keeps; what is over is closed, the oldest first.
const IDLE_MAX: usize = 512;

/// How long one is kept, in milliseconds. Longer than this, more and more backends have closed
/// their end, and a request that meets a closed connection has to be sent twice.
const IDLE_MS: u64 = 30_000;

/// A connection to the backend, ready or soon ready for a request.
pub(super) struct Sender {
    requests: SendRequest<Upload>,
    pub(super) far: Rc<Far>,
}

impl Sender {
    pub(super) fn new(requests: SendRequest<Upload>, far: Rc<Far>) -> Sender {
        Sender { requests, far }
    }

    /// Sends a request; a failure may give it back.
    pub(super) fn try_send_request(
        &mut self,
        request: Request<Upload>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Upload>>>> + use<>
    {
        self.requests.try_send_request(request)
    }

    fn is_ready(&self) -> bool {
        self.requests.is_ready()
    }

    fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }
}

#[derive(Default)]
pub(super) struct Pool(RefCell<Vec<Idle>>);

struct Idle {
    sender: Sender,
    since: u64,
}

impl Pool {
    /// A connection that is ready now.
    pub(super) fn take(&self) -> Option<Sender> {
        let mut idle = self.0.borrow_mut();
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            if idle[at].sender.is_ready() {
                return Some(idle.remove(at).sender);
            }
            if idle[at].sender.is_closed() {
                idle.remove(at);
            }
        }
        None
    }

    /// Gives a connection back.
    pub(super) fn put(&self, sender: Sender, now: u64) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.0.borrow_mut();
        if idle.len() >= IDLE_MAX {
            idle.remove(0);
        }
        idle.push(Idle { sender, since: now });
    }

    /// Lets go of what is old or closed.
    pub(super) fn prune(&self, now: u64) {
        let kept =
            |idle: &Idle| !idle.sender.is_closed() && now.saturating_sub(idle.since) < IDLE_MS;
        self.0.borrow_mut().retain(kept);
    }

    /// Lets go of all.
    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}
