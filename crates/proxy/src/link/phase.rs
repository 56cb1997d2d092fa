//! The phase of a link: what it waits for, since when, and how long it may.
//!
//! Each method is one transition. A phase that a transition does not start from stays as it is.
//! [`LinkPhase::Closing`] is left only by a tunnel: one of its directions may go on after the other
//! one was shut.

use crate::timer::exceeds;
use evenkeel_config::settings::ProxyTimeouts;
use std::cell::Cell;
use std::time::Duration;

/// How long a connection that is being closed is read from, so that the peer can read the last
/// answer before its unread bytes make the system reset the connection.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a head may take when there is no room for more connections. Otherwise connections that
/// send nothing, or a byte now and then, would block all others for `timeouts.header`.
const CONTENDED_HEAD_TIMEOUT: Duration = Duration::from_secs(1);

/// The idle time after which a connection releases its buffers.
const REST_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkPhase {
    /// Connected, without a byte received.
    Silent,
    /// Between two requests, without a byte of the next.
    Idle,
    /// Waiting for the rest of a head.
    Head,
    /// A request runs.
    Busy,
    /// A protocol other than HTTP is spoken.
    Tunnel,
    Closing,
}

/// The phase and its beginning, in the thread's coarse milliseconds.
pub(crate) struct PhaseState {
    phase: Cell<LinkPhase>,
    since: Cell<u64>,
    /// Set by the sweep in Idle: the connection is to release its buffers.
    rest_requested: Cell<bool>,
}

impl PhaseState {
    /// Creates the state of a link that is open since `now`.
    pub(crate) fn new(now: u64) -> PhaseState {
        PhaseState {
            phase: Cell::new(LinkPhase::Silent),
            since: Cell::new(now),
            rest_requested: Cell::new(false),
        }
    }

    fn enter(&self, phase: LinkPhase, now: u64) {
        self.phase.set(phase);
        self.since.set(now);
        self.rest_requested.set(false);
    }

    pub(crate) fn get(&self) -> LinkPhase {
        self.phase.get()
    }

    /// Starts the time limit for a head (again).
    pub(crate) fn start_head_timeout(&self, now: u64) {
        self.enter(LinkPhase::Silent, now);
    }

    /// Silent or Idle to Head: bytes have arrived. Between streams (`has_streams`) they need not
    /// belong to a request, so Idle stays.
    pub(crate) fn receive(&self, now: u64, has_streams: bool) {
        match self.phase.get() {
            LinkPhase::Idle if !has_streams => self.enter(LinkPhase::Head, now),
            LinkPhase::Silent => self.phase.set(LinkPhase::Head),
            _ => {}
        }
    }

    /// To Busy: the head of a request is complete.
    pub(crate) fn begin_request(&self) {
        self.phase.set(LinkPhase::Busy);
    }

    /// Busy to Idle: the whole answer is handed over.
    pub(crate) fn end_request(&self, now: u64) {
        if self.phase.get() == LinkPhase::Busy {
            self.enter(LinkPhase::Idle, now);
        }
    }

    /// To Busy: a stream of the connection begins.
    pub(crate) fn begin_stream(&self, now: u64) {
        self.enter(LinkPhase::Busy, now);
    }

    /// To Idle: the last stream of the connection has ended. A connection that is being closed
    /// stays so, with the time limit for that.
    pub(crate) fn end_last_stream(&self, now: u64) {
        if self.phase.get() != LinkPhase::Closing {
            self.enter(LinkPhase::Idle, now);
        }
    }

    /// To Tunnel, from any phase: bytes of another protocol have been moved.
    pub(crate) fn note_tunnel_bytes(&self, now: u64) {
        self.enter(LinkPhase::Tunnel, now);
    }

    /// To Closing. Returns the phase before, or `None` if that was Closing.
    pub(crate) fn close(&self, now: u64) -> Option<LinkPhase> {
        let before = self.phase.get();
        (before != LinkPhase::Closing).then(|| {
            self.enter(LinkPhase::Closing, now);
            before
        })
    }

    /// Whether the connection is to release its buffers until bytes arrive.
    pub(crate) fn should_rest(&self) -> bool {
        self.rest_requested.get() && self.phase.get() == LinkPhase::Idle
    }

    /// Asks the connection to release its buffers if it has been idle for long enough. Returns
    /// whether that is asked for the first time.
    pub(crate) fn request_rest(&self, now: u64, slack: u64) -> bool {
        let asks = !self.rest_requested.get()
            && self.phase.get() == LinkPhase::Idle
            && exceeds(self.since.get(), REST_AFTER, now, slack);
        if asks {
            self.rest_requested.set(true);
        }
        asks
    }

    /// The connection is read again. Needed because at its end no bytes arrive.
    pub(crate) fn end_rest(&self) {
        self.rest_requested.set(false);
    }

    /// Whether the phase has lasted for longer than it may. `slack`: the maximum age of a stored
    /// time, in milliseconds.
    pub(crate) fn is_overdue(&self, timeouts: &ProxyTimeouts, now: u64, slack: u64) -> bool {
        let limit = match self.phase.get() {
            LinkPhase::Idle => timeouts.idle,
            LinkPhase::Silent | LinkPhase::Head => timeouts.header,
            LinkPhase::Tunnel => timeouts.tunnel,
            LinkPhase::Closing => LINGER_TIMEOUT,
            // The waits of a request have time limits of their own.
            LinkPhase::Busy => return false,
        };
        exceeds(self.since.get(), limit, now, slack)
    }

    /// Starts the time limit of the phase again.
    pub(crate) fn restart(&self, now: u64) {
        self.since.set(now);
    }

    /// Returns the time since when the connection could be closed to make room: it is idle, or
    /// slower with a head than is acceptable when others need its room, or with a body
    /// (`spare_body`).
    pub(crate) fn spare_since(&self, now: u64, has_streams: bool, spare_body: bool) -> Option<u64> {
        let since = self.since.get();
        let late = exceeds(since, CONTENDED_HEAD_TIMEOUT, now, 0);
        let spare = match self.phase.get() {
            // An HTTP/2 connection may need the room itself, for a stream that has just been
            // refused.
            LinkPhase::Idle => !has_streams || late,
            LinkPhase::Silent | LinkPhase::Head => late,
            LinkPhase::Busy => spare_body,
            LinkPhase::Tunnel | LinkPhase::Closing => false,
        };
        spare.then_some(since)
    }

    /// Whether no request came for so long that none is likely to be in transit.
    pub(crate) fn is_long_silent(&self, now: u64) -> bool {
        let silent = matches!(self.phase.get(), LinkPhase::Idle | LinkPhase::Silent);
        silent && exceeds(self.since.get(), CONTENDED_HEAD_TIMEOUT, now, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(phase: LinkPhase) -> PhaseState {
        let state = PhaseState::new(0);
        state.enter(phase, 0);
        state
    }

    #[test]
    fn each_transition_starts_where_it_may() {
        use LinkPhase::{Busy, Closing, Head, Idle, Silent, Tunnel};
        type Transition = fn(&PhaseState);
        let all = [Silent, Idle, Head, Busy, Tunnel, Closing];
        let transitions: [(&str, Transition, [LinkPhase; 6]); 5] = [
            ("receive", |s| s.receive(1, false), [Head, Head, Head, Busy, Tunnel, Closing]),
            ("between streams", |s| s.receive(1, true), [Head, Idle, Head, Busy, Tunnel, Closing]),
            ("end request", |s| s.end_request(1), [Silent, Idle, Head, Idle, Tunnel, Closing]),
            ("end stream", |s| s.end_last_stream(1), [Idle, Idle, Idle, Idle, Idle, Closing]),
            ("tunnel", |s| s.note_tunnel_bytes(1), [Tunnel; 6]),
        ];
        for (name, transition, after) in transitions {
            for (before, after) in all.into_iter().zip(after) {
                let state = at(before);
                transition(&state);
                assert_eq!(state.get(), after, "{name} from {before:?}");
            }
        }
        for before in all {
            let state = at(before);
            assert_eq!(state.close(1), (before != Closing).then_some(before));
            assert_eq!((state.get(), state.close(2)), (Closing, None));
        }
    }

    #[test]
    fn an_idle_connection_is_asked_to_rest_once() {
        let state = at(LinkPhase::Idle);
        assert!(!state.request_rest(1_000, 0));
        assert!(state.request_rest(1_001, 0) && !state.request_rest(1_002, 0));
        assert!(state.should_rest());
        state.receive(1_003, false);
        assert!(!state.should_rest());
        assert!(!at(LinkPhase::Busy).request_rest(9_999, 0));
    }
}
