//! The state of one client connection or stream: what it waits for, and since when.
//!
//! No timer is armed per request. A task that begins to wait stores the thread's coarse time in a
//! cell. The thread's sweep checks all links a few times a second and wakes the tasks that have
//! waited too long. So a timeout costs a request two stores, and is late by at most one sweep.
//!
//! Each part of the state has a file: `phase.rs`, `peer.rs`, `prints.rs`, `streams.rs`,
//! `upload.rs`, `backend_waits.rs`, `client_writes.rs`, `upgrade.rs`. A stream of an HTTP/2
//! connection has its own link, which points to the connection's. A request: `exchange.rs`. Where
//! links are kept: `list.rs`.

mod backend_waits;
mod client_writes;
pub(super) mod list;
mod peer;
mod phase;
mod prints;
mod streams;
mod upgrade;
mod upload;
mod wake;

use super::account::WeakAccount;
use super::outbox::UnsentBytes;
use backend_waits::BackendWaits;
use client_writes::ClientWrites;
pub(super) use client_writes::ReadAhead;
use evenkeel_config::settings::ProxyTimeouts;
use evenkeel_core::fact::ClientFact;
use http::HeaderValue;
use peer::LinkPeer;
pub(super) use phase::LinkPhase;
use phase::PhaseState;
use prints::LinkPrints;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Context;
use streams::StreamCounts;
use upgrade::UpgradeState;
pub(super) use upload::TRICKLE_AFTER;
use upload::UploadState;
use wake::WakerSlot;

/// A client connection or a stream, as its thread and its exchanges see it. Legal states, by kind:
/// - HTTP/1.1 (`over` is `None`, `streams` not enabled): the phase cycles through Silent, Head,
///   Busy and Idle, and becomes Tunnel from Busy once `upgrade` is finished. Only here can it rest
///   (Idle, the upload read, no write stuck) and be `head_late` (Head).
/// - HTTP/2 (`streams` enabled): Silent or Head before the first stream, then Busy while streams
///   run and Idle otherwise.
/// - Stream (`over` is `Some`): Silent, Busy, then Idle or Tunnel. Only here can `aside` be set.
///
/// Any phase can become Closing. `closed` and `head_late` are never reset. `answered` is never
/// reset and only read for streams.
pub(super) struct ClientLink {
    /// The connection that this link is a stream of (HTTP/2).
    pub(super) over: Option<Rc<ClientLink>>,
    pub(super) peer: LinkPeer,
    /// The fingerprints of a connection. Those of a stream are its connection's.
    pub(super) prints: LinkPrints,
    /// The index in the thread's list.
    pub(super) place: Cell<usize>,
    pub(super) phase: PhaseState,
    /// The requests of a connection.
    pub(super) streams: StreamCounts,
    /// The answer has begun.
    pub(super) answered: Cell<bool>,
    /// The stream waits for its client without a slot, and is counted as a connection because it
    /// keeps its connection to the backend.
    pub(super) aside: Cell<bool>,
    /// The request's body.
    pub(super) upload: UploadState,
    /// The waits of the running request for its backend.
    pub(super) backend: BackendWaits,
    /// The answer on its way to the client.
    pub(super) writes: ClientWrites,
    /// The switch to another protocol.
    pub(super) upgrade: UpgradeState,
    /// The account of the running request.
    pub(super) account: RefCell<WeakAccount>,
    closed: Cell<bool>,
    /// Set by the sweep: a head has begun and did not end in time.
    pub(super) head_late: Cell<bool>,
    pub(super) task: WakerSlot,
}

impl ClientLink {
    /// Creates the link of a connection. `unsent`: its bytes that wait for room in the socket.
    pub(super) fn new(peer: SocketAddr, secure: bool, unsent: UnsentBytes, now: u64) -> ClientLink {
        let writes = ClientWrites::new(unsent);
        ClientLink { writes, ..ClientLink::of(None, LinkPeer::new(peer.ip(), secure), now) }
    }

    /// Creates the link of a stream of the connection `over`, and counts it there.
    pub(super) fn stream(over: &Rc<ClientLink>, now: u64) -> ClientLink {
        over.streams.add_stream();
        over.phase.begin_stream(now);
        let peer = LinkPeer::new(over.peer.address(), over.peer.is_secure());
        ClientLink::of(Some(Rc::clone(over)), peer, now)
    }

    fn of(over: Option<Rc<ClientLink>>, peer: LinkPeer, now: u64) -> ClientLink {
        ClientLink {
            over,
            peer,
            prints: LinkPrints::default(),
            place: Cell::new(0),
            phase: PhaseState::new(now),
            streams: StreamCounts::default(),
            answered: Cell::new(false),
            aside: Cell::new(false),
            upload: UploadState::default(),
            backend: BackendWaits::default(),
            writes: ClientWrites::default(),
            upgrade: UpgradeState::default(),
            account: RefCell::default(),
            closed: Cell::new(false),
            head_late: Cell::new(false),
            task: WakerSlot::default(),
        }
    }
}

/// Who it is.
impl ClientLink {
    pub(super) fn is_stream(&self) -> bool {
        self.over.is_some()
    }

    /// Returns a fact that the start of the connection told.
    pub(super) fn print(&self, fact: ClientFact) -> Option<&str> {
        self.over.as_ref().map_or(&self.prints, |over| &over.prints).fact(fact)
    }

    /// Returns the fingerprints of the connection if not all that it tells is known yet.
    pub(super) fn undecided_prints(&self) -> Option<&LinkPrints> {
        let prints = self.over.as_ref().map_or(&self.prints, |over| &over.prints);
        Some(prints).filter(|prints| prints.is_undecided())
    }

    /// Returns the peer's address as it is forwarded. A stream has that of its connection.
    pub(super) fn peer_value(&self) -> &HeaderValue {
        self.over.as_ref().map_or_else(|| self.peer.value(), |over| over.peer_value())
    }
}

/// Streams and their connection.
impl ClientLink {
    /// Ends the stream, with an answer or without. Returns whether its connection was closed
    /// because the client resets too many of its requests.
    pub(super) fn end_stream(&self, now: u64) -> bool {
        let Some(over) = &self.over else { return false };
        if over.streams.remove_stream() {
            over.phase.end_last_stream(now);
        }
        if self.answered.get() || self.closed.get() || over.closed.get() {
            return false;
        }
        let flood = over.streams.add_reset();
        if flood {
            over.close();
        }
        flood
    }

    /// Whether the connection has reached its maximum number of requests. Zero is no bound.
    pub(super) fn is_spent(&self, bound: u64) -> bool {
        self.over.as_ref().map_or(&self.streams, |over| &over.streams).is_spent(bound)
    }

    /// Makes the connection of this stream accept no more requests. Returns false if this is no
    /// stream.
    pub(super) fn end_connection(&self) -> bool {
        if let Some(over) = &self.over {
            over.streams.end();
            over.task.wake();
        }
        self.over.is_some()
    }

    /// Whether the client of the stream has read nothing for a while.
    pub(super) fn is_slow_stream(&self, now: u64) -> bool {
        self.is_stream() && self.writes.is_stream_stuck(now)
    }
}

/// The running request.
impl ClientLink {
    /// Begins a request, the head of which has arrived.
    pub(super) fn begin_request(&self) {
        self.phase.begin_request();
        self.peer.reset_client();
        self.streams.add_request();
        self.backend.begin();
    }

    /// Ends the request: the whole answer has been handed over.
    pub(super) fn end_request(&self, now: u64) {
        self.backend.end();
        // A weak reference keeps the memory allocated.
        self.account.take();
        self.writes.end();
        self.phase.end_request(now);
    }

    /// Lets others use the slot: the backend waits for the rest of the request.
    pub(super) fn stall(&self, now: u64) {
        self.account.borrow().stall(self.upload.flows(now));
    }

    /// Notes that a frame is handed to the stream, which asks for the next one once this one is
    /// sent.
    pub(super) fn note_frame_sent(&self, now: u64) {
        if self.is_stream() {
            self.writes.stuck().begin(now);
        }
    }

    /// Notes that a frame of the answer's body is asked for.
    pub(super) fn note_frame_requested(&self) {
        if self.is_stream() {
            self.writes.stuck().end();
        }
    }

    /// Notes that the task that sends the answer has run.
    pub(super) fn note_task_ran(&self, cx: &mut Context<'_>, now: u64) {
        self.writes.read_ahead(cx, self.is_stream(), now);
    }
}

/// The connection and its end.
impl ClientLink {
    /// Notes that bytes have arrived.
    pub(super) fn receive(&self, now: u64) {
        self.phase.receive(now, self.streams.is_enabled());
    }

    /// Begins to close the connection. Returns whether bytes that nothing will read may still
    /// arrive, or `None` if it was already being closed.
    pub(super) fn begin_close(&self, now: u64) -> Option<bool> {
        let before = self.phase.close(now)?;
        Some(self.upload.runs() || matches!(before, LinkPhase::Silent | LinkPhase::Head))
    }

    pub(super) fn close(&self) {
        self.closed.set(true);
        self.task.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Returns the time since when it could be closed to make room: it is idle and its client has
    /// all of the last answer, or slower with a head or a body than is acceptable when others need
    /// its room. `trickling`: the bodies of all its streams trickle.
    pub(super) fn spare_since(&self, now: u64, trickling: bool) -> Option<u64> {
        let spare_body = trickling || self.upload.is_spare(now);
        let since = self.phase.spare_since(now, self.streams.is_enabled(), spare_body);
        since.filter(|_| !self.closed.get() && !self.ends_answer())
    }

    /// Whether no request came for so long that none is likely to be in transit, and the client has
    /// all of the last answer.
    pub(super) fn is_long_silent(&self, now: u64) -> bool {
        self.phase.is_long_silent(now) && !self.ends_answer()
    }

    /// Whether the last answer has been handed over, but its client still has to read some of it.
    fn ends_answer(&self) -> bool {
        self.phase.get() == LinkPhase::Idle && self.writes.wait_for_client()
    }

    /// Wakes a task that has waited too long. `slack`: the maximum age of a stored time, in
    /// milliseconds. Returns whether the connection was closed because a request or its answer was
    /// too slow.
    pub(super) fn sweep(&self, timeouts: &ProxyTimeouts, now: u64, slack: u64) -> bool {
        let overdue = self.phase.is_overdue(timeouts, now, slack);
        let has_streams = self.streams.is_enabled();
        if overdue && self.phase.get() == LinkPhase::Head && !has_streams {
            // A client that has sent part of a request gets an answer. The time limit for that
            // begins.
            self.phase.restart(now);
            self.head_late.set(true);
            self.task.wake();
            return true;
        }
        if overdue || self.writes.stuck().exceeds(timeouts.idle, now, slack) {
            self.close();
            let quiet = [LinkPhase::Idle, LinkPhase::Tunnel, LinkPhase::Closing];
            return !quiet.contains(&self.phase.get());
        }
        if self.upload.is_late(timeouts.idle, now, slack) {
            self.upload.give_up();
        }
        if self.backend.check(timeouts, now, slack) {
            self.task.wake();
        }
        // No byte is in transit: the client has all of the last answer, and no rest of its request
        // is to come.
        let in_transit = self.upload.runs() || self.writes.wait_for_client();
        let may_rest = !has_streams && !self.is_stream() && !in_transit;
        if may_rest && self.phase.request_rest(now, slack) {
            self.task.wake();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn timeouts() -> ProxyTimeouts {
        let long = Duration::from_secs(60);
        ProxyTimeouts {
            header: long,
            idle: long,
            connect: long,
            backend: long,
            tunnel: long,
            abort_linger: long,
            drain: long,
        }
    }

    fn connection() -> ClientLink {
        ClientLink::new(SocketAddr::from(([127, 0, 0, 1], 1)), false, UnsentBytes::default(), 0)
    }

    #[test]
    fn a_stream_that_ends_does_not_prolong_the_end_of_its_connection() {
        let over = Rc::new(connection());
        over.streams.enable();
        let stream = ClientLink::stream(&over, 0);
        assert_eq!(over.begin_close(0), Some(false));
        stream.end_stream(100);
        over.sweep(&timeouts(), 1_900, 0);
        assert!(!over.is_closed(), "the peer may still read the last answer");
        over.sweep(&timeouts(), 2_100, 0);
        assert!(over.is_closed());
    }
}
