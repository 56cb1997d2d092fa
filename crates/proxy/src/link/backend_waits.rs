//! The waits of a link's running request for its backend: to read the request's body, to begin its
//! answer, and to continue it.
//!
//! The first two waits end before the third begins. Only the sweep finds that a wait is too long;
//! the task that waits then reads that here.

use crate::timer::WaitTimer;
use evenkeel_config::settings::ProxyTimeouts;
use std::cell::Cell;
use std::rc::Rc;

/// The waits for the backend of one request after the other.
#[derive(Default)]
pub(crate) struct BackendWaits {
    /// The backend has all of the request and has not begun its answer.
    head: WaitTimer,
    /// The timer of writes to the backend that the request's body is sent to, until the answer
    /// begins.
    sending: Cell<Option<Rc<WaitTimer>>>,
    /// The backend has begun its answer and sends no more of it.
    body: WaitTimer,
    /// One of these took too long.
    late: Cell<bool>,
}

impl BackendWaits {
    /// A request begins: the backend is not late with it.
    pub(super) fn begin(&self) {
        self.late.set(false);
    }

    /// Begins to send the request's body. `stuck` runs while the backend does not read it.
    pub(crate) fn begin_sending(&self, stuck: &Rc<WaitTimer>) {
        self.sending.set(Some(Rc::clone(stuck)));
    }

    /// Begins to wait for the head of the answer: the backend has all of the request.
    pub(crate) fn begin_head(&self, now: u64) {
        self.head.begin(now);
    }

    /// The answer has begun, or is not awaited any more.
    pub(crate) fn end_head(&self) {
        self.head.end();
        self.sending.take();
    }

    /// Begins to wait for more of the answer's body.
    pub(crate) fn begin_body(&self, now: u64) {
        self.body.begin(now);
    }

    /// More of the answer's body has arrived, or its end.
    pub(crate) fn end_body(&self) {
        self.body.end();
    }

    /// Ends all waits: the whole answer is handed over.
    pub(super) fn end(&self) {
        self.end_head();
        self.end_body();
    }

    /// Whether the backend was silent for too long.
    pub(crate) fn is_late(&self) -> bool {
        self.late.get()
    }

    /// Records whether one of the waits is too long. Returns whether one is.
    pub(super) fn check(&self, timeouts: &ProxyTimeouts, now: u64, slack: u64) -> bool {
        let sending = self.sending.take();
        let stalled = |stuck: &Rc<WaitTimer>| stuck.exceeds(timeouts.idle, now, slack);
        let is_stalled = sending.as_ref().is_some_and(stalled);
        self.sending.set(sending);
        let late = self.head.exceeds(timeouts.backend, now, slack)
            || is_stalled
            || self.body.exceeds(timeouts.idle, now, slack);
        if late {
            self.late.set(true);
        }
        late
    }
}
