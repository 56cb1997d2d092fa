//! One client connection: what it waits for and since when.
//!
//! No timer is armed per request. Whoever begins to wait notes the worker's coarse time in a cell;
//! the worker's sweep, a few times a second, looks at all links and wakes whoever has waited too
//! long. So a timeout costs a request two stores, and is late by at most one sweep.
//!
//! What is done with a request: `exchange.rs`; how its bytes move: `stream.rs`.

use super::account::Shadow;
use super::wire::Far;
use crate::config::settings::Timeouts;
use http::HeaderValue;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

/// How long a connection that is being closed is read from, so that the peer gets to read our
/// last answer before its unread bytes make the system reset the connection.
const LINGER: Duration = Duration::from_secs(2);

/// How long a head may take when all room is taken. Connections that send nothing, or a byte now
/// and then, would otherwise keep everybody out for `timeouts.header`.
const HEAD_PATIENCE: Duration = Duration::from_secs(1);

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Between two requests, without a byte of the next.
    Idle,
    /// Waiting for the rest of a head.
    Head,
    /// A request runs.
    Busy,
    /// Being closed.
    Closing,
}

/// Since when somebody has been waiting, in the worker's coarse milliseconds.
#[derive(Default)]
pub(super) struct Since(Cell<Option<u64>>);

impl Since {
    /// Begins to wait, unless it waits already.
    pub(super) fn begin(&self, now: u64) {
        if self.0.get().is_none() {
            self.0.set(Some(now));
        }
    }

    /// Waits no longer.
    pub(super) fn end(&self) {
        self.0.set(None);
    }

    fn exceeds(&self, limit: Duration, now: u64, slack: u64) -> bool {
        self.0.get().is_some_and(|since| exceeds(since, limit, now, slack))
    }
}

/// A time of zero means: for ever.
fn exceeds(since: u64, limit: Duration, now: u64, slack: u64) -> bool {
    let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    limit > 0 && now.saturating_sub(since) > limit.saturating_add(slack)
}

/// A client connection, as the worker and its exchanges know it.
pub(super) struct Link {
    /// The other end, in canonical form.
    pub(super) peer: IpAddr,
    /// Who asks, behind trusted proxies; the other end until that is known.
    pub(super) client: Cell<IpAddr>,
    /// The other end, as it is forwarded.
    pub(super) peer_value: HeaderValue,
    /// Its place in the worker's list.
    pub(super) place: Cell<usize>,
    /// Requests so far.
    pub(super) requests: Cell<u64>,
    phase: Cell<Phase>,
    since: Cell<u64>,
    /// The client does not take what we write.
    pub(super) stuck: Since,
    /// The backend's reader waits for bytes of the request's body.
    pub(super) upload: Since,
    /// The backend has all of the request and has not begun its answer.
    pub(super) head: Since,
    /// Whom the request's body goes to, until the answer begins.
    sending: RefCell<Option<Rc<Far>>>,
    /// The backend has begun it and sends no more.
    pub(super) answer: Since,
    /// Set by the sweep: the client sent nothing of its body for too long.
    pub(super) upload_late: Cell<bool>,
    /// Set by the sweep: the backend was silent for too long.
    pub(super) backend_late: Cell<bool>,
    /// The request's body was longer than it may be.
    pub(super) upload_too_long: Cell<bool>,
    /// The request's body broke off or could not be read.
    pub(super) upload_broken: Cell<bool>,
    /// There was no room before the backend for the rest of the request's body.
    pub(super) upload_refused: Cell<bool>,
    /// The request's body is being read still.
    pub(super) uploading: Cell<bool>,
    /// The account of the request that runs.
    account: RefCell<Shadow>,
    close: Cell<bool>,
    task: RefCell<Option<Waker>>,
    upload_task: RefCell<Option<Waker>>,
}

impl Link {
    pub(super) fn new(peer: SocketAddr, now: u64) -> Link {
        let peer = peer.ip().to_canonical();
        let text = HeaderValue::from_str(&peer.to_string());
        Link {
            peer,
            client: Cell::new(peer),
            peer_value: text.unwrap_or(HeaderValue::from_static("unknown")),
            place: Cell::new(0),
            requests: Cell::new(0),
            phase: Cell::new(Phase::Head),
            since: Cell::new(now),
            stuck: Since::default(),
            upload: Since::default(),
            head: Since::default(),
            sending: RefCell::default(),
            answer: Since::default(),
            upload_late: Cell::new(false),
            backend_late: Cell::new(false),
            upload_too_long: Cell::new(false),
            upload_broken: Cell::new(false),
            upload_refused: Cell::new(false),
            uploading: Cell::new(false),
            account: RefCell::default(),
            close: Cell::new(false),
            task: RefCell::default(),
            upload_task: RefCell::default(),
        }
    }

    /// A request's head is here.
    pub(super) fn begin(&self) {
        self.phase.set(Phase::Busy);
        self.client.set(self.peer);
        self.requests.set(self.requests.get() + 1);
        self.upload_late.set(false);
        self.backend_late.set(false);
        self.upload_too_long.set(false);
        self.upload_broken.set(false);
        self.upload_refused.set(false);
    }

    /// A request runs on this account.
    pub(super) fn runs_on(&self, account: Shadow) {
        *self.account.borrow_mut() = account;
    }

    /// The client does not take what we write: the backend's slot is of use to others.
    pub(super) fn sticks(&self, now: u64) {
        self.stuck.begin(now);
        self.account.take().give_way();
    }

    /// The request's body begins its way to the backend.
    pub(super) fn sends(&self, far: &Rc<Far>) {
        *self.sending.borrow_mut() = Some(Rc::clone(far));
    }

    /// The backend's answer has begun, or is not waited for any more.
    pub(super) fn heard(&self) {
        self.head.end();
        self.sending.take();
    }

    /// Whether the client is to blame for a body that did not get through.
    pub(super) fn upload_failed(&self) -> bool {
        self.upload_too_long.get() || self.upload_late.get() || self.upload_broken.get()
    }

    /// Its answer is through our hands.
    pub(super) fn done(&self, now: u64) {
        self.heard();
        self.answer.end();
        if self.phase.get() == Phase::Busy {
            self.enter(Phase::Idle, now);
        }
    }

    fn enter(&self, phase: Phase, now: u64) {
        self.phase.set(phase);
        self.since.set(now);
    }

    /// It is being closed. Returns whether bytes that nobody will read may still be on their way,
    /// or `None` if it was being closed already.
    pub(super) fn closing(&self, now: u64) -> Option<bool> {
        let before = self.phase.get();
        (before != Phase::Closing).then(|| {
            self.enter(Phase::Closing, now);
            self.uploading.get() || before == Phase::Head
        })
    }

    /// Bytes have come.
    pub(super) fn arrived(&self, now: u64) {
        if self.phase.get() == Phase::Idle {
            self.enter(Phase::Head, now);
        }
    }

    /// Since when it has been idle, or been waited for longer than a head may take when others
    /// want its room.
    pub(super) fn spare_since(&self, now: u64) -> Option<u64> {
        let since = self.since.get();
        let spare = match self.phase.get() {
            Phase::Idle => true,
            Phase::Head => exceeds(since, HEAD_PATIENCE, now, 0),
            Phase::Busy | Phase::Closing => false,
        };
        (spare && !self.close.get()).then_some(since)
    }

    /// Remembers which task serves the connection.
    pub(super) fn served_by(&self, waker: &Waker) {
        remember(&self.task, waker);
    }

    /// Remembers which task waits for the request's body.
    pub(super) fn uploaded_by(&self, waker: &Waker) {
        remember(&self.upload_task, waker);
    }

    /// Closes the connection at once.
    pub(super) fn close(&self) {
        self.close.set(true);
        self.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.close.get()
    }

    /// Has the connection's task look around.
    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.task.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Wakes whoever has waited too long; `slack` is the age that a noted time may have had.
    /// Returns whether the connection was closed for it.
    pub(super) fn sweep(&self, timeouts: &Timeouts, now: u64, slack: u64) -> bool {
        let over = |since, limit| exceeds(since, limit, now, slack);
        let phase_over = match self.phase.get() {
            Phase::Idle => over(self.since.get(), timeouts.idle),
            Phase::Head => over(self.since.get(), timeouts.header),
            Phase::Closing => over(self.since.get(), LINGER),
            Phase::Busy => false,
        };
        if phase_over || self.stuck.exceeds(timeouts.idle, now, slack) {
            self.close();
            return self.phase.get() != Phase::Idle;
        }
        if self.upload.exceeds(timeouts.idle, now, slack) {
            self.upload_late.set(true);
            if let Some(waker) = &*self.upload_task.borrow() {
                waker.wake_by_ref();
            }
        }
        let stalled = |far: &Rc<Far>| far.stuck.exceeds(timeouts.idle, now, slack);
        if self.head.exceeds(timeouts.backend, now, slack)
            || self.sending.borrow().as_ref().is_some_and(stalled)
            || self.answer.exceeds(timeouts.idle, now, slack)
        {
            self.backend_late.set(true);
            self.wake();
        }
        false
    }
}

fn remember(place: &RefCell<Option<Waker>>, waker: &Waker) {
    let mut place = place.borrow_mut();
    if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
        *place = Some(waker.clone());
    }
}
