//! The state of one client connection or stream: what it waits for, and since when.
//!
//! No timer is armed per request. A task that begins to wait stores the worker's coarse time in a
//! cell. The worker's sweep checks all links a few times a second and wakes the tasks that have
//! waited too long. So a timeout costs a request two stores, and is late by at most one sweep.
//!
//! A stream of an HTTP/2 connection has its own link, which points to the connection's. A request:
//! `exchange.rs`. Its bytes: `front/stream.rs`. Where links are kept: `list.rs`.

pub(super) mod list;
mod upload;
mod wake;

use super::account::WeakAccount;
use super::room::TunnelRoom;
use super::timer::{WaitTimer, exceeds};
use super::wire::halves::UpstreamTunnel;
use evenkeel_config::settings::ProxyTimeouts;
use http::HeaderValue;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;
use upload::UploadState;
use wake::WakerSlot;

/// How long a connection that is being closed is read from, so that the peer can read the last
/// answer before its unread bytes make the system reset the connection.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a head may take when there is no room for more connections. Otherwise connections that
/// send nothing, or a byte now and then, would block all others for `timeouts.header`.
const CONTENDED_HEAD_TIMEOUT: Duration = Duration::from_secs(1);

/// The idle time after which a connection releases its buffers.
const REST_AFTER: Duration = Duration::from_secs(1);

/// A stream whose client reads nothing for this time counts as a connection of its own.
pub(super) const STREAM_STUCK_AFTER: Duration = Duration::from_millis(100);

/// Streams reset before their answer are a flood from this number on, if they are half of all.
const RESETS_MIN: u64 = 100;

/// The phase of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkPhase {
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
    /// The connection is being closed.
    Closing,
}

/// What reads an answer ahead of its client.
///
/// The one implementation is the answer's body (`download.rs`). It holds the link of its client, so
/// the link can name it only by this trait.
pub(super) trait ReadAhead {
    /// Reads on from the backend although the client takes nothing at the moment.
    fn read_ahead(&mut self, cx: &mut Context<'_>);
}

/// A connection to a backend that has switched protocols, and the room that the tunnel holds if it
/// is a stream.
pub(super) type SwitchedConnection = (UpstreamTunnel, Option<TunnelRoom>);

/// A client connection or a stream, as the worker and its exchanges see it. Legal states, by kind:
/// - HTTP/1.1 (`over` and `streams` are `None`): `phase` cycles through Silent, Head, Busy and
///   Idle, and becomes Tunnel from Busy once `switched` was set. Only here can `should_rest` be
///   set (Idle, `upload` read, `stuck` not waiting) and `head_late` (Head).
/// - HTTP/2 (`streams` is `Some`): Silent or Head before the first stream, then Busy while streams
///   run and Idle otherwise. Only here do `ending` and `resets` change.
/// - Stream (`over` is `Some`): Silent, Busy, then Idle or Tunnel. Only here can `aside` be set.
///
/// Any phase can become Closing. `close` and `head_late` are never reset. `head` and `sending` end
/// before `answer` begins to wait. `answered` is never reset and only read for streams.
pub(super) struct ClientLink {
    /// The connection that this link is a stream of (HTTP/2).
    pub(super) over: Option<Rc<ClientLink>>,
    /// The peer's address in canonical form, or the client that it names (PROXY protocol).
    peer: Cell<IpAddr>,
    /// The client behind trusted proxies; the peer until that is known.
    pub(super) client: Cell<IpAddr>,
    /// The peer's address as a header value, for forwarding.
    peer_value: OnceCell<HeaderValue>,
    /// Whether the client uses TLS, towards Evenkeel or a front that says so.
    secure: Cell<bool>,
    /// The index in the worker's list.
    pub(super) place: Cell<usize>,
    /// The number of requests so far.
    requests: Cell<u64>,
    /// The number of streams that run; `None` on an HTTP/1.1 connection or a stream.
    streams: Cell<Option<usize>>,
    /// The number of streams that the client reset before their answer began.
    resets: Cell<u64>,
    /// The connection accepts no more requests.
    ending: Cell<bool>,
    /// The answer has begun.
    answered: Cell<bool>,
    /// The stream waits for its client without a slot, and is counted as a connection because it
    /// keeps its connection to the backend.
    pub(super) aside: Cell<bool>,
    phase: Cell<LinkPhase>,
    since: Cell<u64>,
    /// Set by the sweep: the connection has been idle long enough to release its buffers.
    rest_requested: Cell<bool>,
    /// The client does not read what is written to it.
    pub(super) stuck: WaitTimer,
    /// The answer's body. `drained`: since the task that sends it last ran, that task has found
    /// that the backend has no more of it.
    download: RefCell<Option<Weak<RefCell<dyn ReadAhead>>>>,
    drained: Cell<bool>,
    /// The request's body.
    pub(super) upload: UploadState,
    /// The backend has all of the request and has not begun its answer.
    pub(super) head: WaitTimer,
    /// The timer of writes to the backend that the request's body is sent to, until the answer
    /// begins.
    sending: RefCell<Option<Rc<WaitTimer>>>,
    /// The backend has begun its answer and sends no more of it.
    pub(super) answer: WaitTimer,
    /// Set by the sweep: the backend was silent for too long.
    pub(super) backend_late: Cell<bool>,
    /// The running request asks for another protocol.
    switches: Cell<bool>,
    /// The connection to the backend that has switched.
    switched: RefCell<Option<Box<SwitchedConnection>>>,
    /// The account of the running request.
    account: RefCell<WeakAccount>,
    close: Cell<bool>,
    /// Set by the sweep: a head has begun and did not end in time.
    head_late: Cell<bool>,
    task: WakerSlot,
}

impl ClientLink {
    /// Creates the link of a connection from `peer`.
    pub(super) fn new(peer: SocketAddr, secure: bool, now: u64) -> ClientLink {
        ClientLink::of(peer.ip().to_canonical(), secure, now)
    }

    /// Creates the link of a stream of the connection `over`, and counts it there.
    pub(super) fn stream(over: &Rc<ClientLink>, now: u64) -> ClientLink {
        let link = ClientLink::of(over.peer.get(), over.secure.get(), now);
        over.requests.set(over.requests.get() + 1);
        over.streams.set(Some(over.streams.get().unwrap_or(0) + 1));
        over.enter(LinkPhase::Busy, now);
        ClientLink { over: Some(Rc::clone(over)), ..link }
    }

    fn of(peer: IpAddr, secure: bool, now: u64) -> ClientLink {
        ClientLink {
            over: None,
            peer: Cell::new(peer),
            client: Cell::new(peer),
            peer_value: OnceCell::new(),
            secure: Cell::new(secure),
            place: Cell::new(0),
            requests: Cell::new(0),
            streams: Cell::new(None),
            resets: Cell::new(0),
            ending: Cell::new(false),
            answered: Cell::new(false),
            aside: Cell::new(false),
            phase: Cell::new(LinkPhase::Silent),
            since: Cell::new(now),
            rest_requested: Cell::new(false),
            stuck: WaitTimer::default(),
            download: RefCell::default(),
            drained: Cell::new(false),
            upload: UploadState::default(),
            head: WaitTimer::default(),
            sending: RefCell::default(),
            answer: WaitTimer::default(),
            backend_late: Cell::new(false),
            switches: Cell::new(false),
            switched: RefCell::default(),
            account: RefCell::default(),
            close: Cell::new(false),
            head_late: Cell::new(false),
            task: WakerSlot::default(),
        }
    }

    /// Returns the peer's address in canonical form.
    pub(super) fn peer(&self) -> IpAddr {
        self.peer.get()
    }

    /// Returns the peer's address as it is forwarded. A stream has that of its connection.
    pub(super) fn peer_value(&self) -> &HeaderValue {
        if let Some(over) = &self.over {
            return over.peer_value();
        }
        self.peer_value.get_or_init(|| {
            let text = HeaderValue::from_str(&self.peer.get().to_string());
            text.unwrap_or(HeaderValue::from_static("unknown"))
        })
    }

    /// Whether requests come over TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.secure.get()
    }

    /// The peer forwards for a client at `peer`, which uses TLS or not (`secure`).
    pub(super) fn set_client(&self, peer: IpAddr, secure: bool) {
        self.peer.set(peer.to_canonical());
        self.client.set(self.peer.get());
        self.secure.set(self.secure.get() || secure);
    }

    /// From now on the requests are streams.
    pub(super) fn begin_streams(&self) {
        self.streams.set(Some(0));
    }

    /// Whether at most one stream of this connection runs.
    pub(super) fn has_one_stream(&self) -> bool {
        self.streams.get().is_some_and(|streams| streams <= 1)
    }

    /// Whether this is a stream of a connection.
    pub(super) fn is_stream(&self) -> bool {
        self.over.is_some()
    }

    /// The stream has ended, with an answer or without. Returns whether its connection was closed
    /// because the client resets too many of its requests.
    pub(super) fn stream_ended(&self, now: u64) -> bool {
        let Some(over) = &self.over else { return false };
        let left = over.streams.get().unwrap_or(1).saturating_sub(1);
        over.streams.set(Some(left));
        // A connection that is being closed stays so, with the time limit for that.
        if left == 0 && over.phase.get() != LinkPhase::Closing {
            over.enter(LinkPhase::Idle, now);
        }
        if self.answered.get() || self.close.get() || over.close.get() {
            return false;
        }
        let resets = over.resets.get() + 1;
        over.resets.set(resets);
        let flood = resets >= RESETS_MIN && resets * 2 >= over.requests.get();
        if flood {
            over.close();
        }
        flood
    }

    /// The head of an answer is sent.
    pub(super) fn answered(&self) {
        self.answered.set(true);
    }

    /// Whether the connection has reached its maximum number of requests. Zero is no bound.
    pub(super) fn is_spent(&self, bound: u64) -> bool {
        let all = self.over.as_ref().map_or(self.requests.get(), |over| over.requests.get());
        bound > 0 && all >= bound
    }

    /// Makes the connection of this stream accept no more requests. Returns false if this is no
    /// stream.
    pub(super) fn end_connection(&self) -> bool {
        if let Some(over) = &self.over {
            over.ending.set(true);
            over.wake();
        }
        self.over.is_some()
    }

    /// Whether the connection accepts no more requests.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// A frame is handed to the stream, which asks for the next one once this one is sent.
    pub(super) fn note_frame_sent(&self, now: u64) {
        if self.is_stream() {
            self.stuck.begin(now);
        }
    }

    /// The answer's body is ready to be read by hyper.
    pub(super) fn set_download(&self, download: Weak<RefCell<dyn ReadAhead>>) {
        *self.download.borrow_mut() = Some(download);
    }

    /// A frame of the answer's body is asked for.
    pub(super) fn note_frame_requested(&self) {
        if self.is_stream() {
            self.stuck.end();
        }
    }

    /// Everything that the backend has sent of the body so far is handed over.
    pub(super) fn note_drained(&self) {
        self.drained.set(true);
    }

    /// The task that sends the answer has run. If it left some of the body, the client leaves it no
    /// room to send more.
    pub(super) fn ran(&self, cx: &mut Context<'_>, now: u64) {
        if self.drained.take() {
            return;
        }
        let download = self.download.borrow().as_ref().and_then(Weak::upgrade);
        if let Some(download) = download {
            if self.is_stream() {
                self.stuck.begin(now);
            }
            download.borrow_mut().read_ahead(cx);
        }
    }

    /// The head of a request has arrived.
    pub(super) fn begin(&self) {
        self.phase.set(LinkPhase::Busy);
        self.client.set(self.peer.get());
        self.requests.set(self.requests.get() + 1);
        self.backend_late.set(false);
    }

    /// Sets the account of the running request.
    pub(super) fn set_account(&self, account: WeakAccount) {
        *self.account.borrow_mut() = account;
    }

    /// The backend waits for the rest of the request: others may use its slot.
    pub(super) fn stall(&self, now: u64) {
        self.account.borrow().stall(self.upload.flows(now));
    }

    /// Whether the backend waits for the rest of a request that goes through the queue.
    pub(super) fn stalls(&self) -> bool {
        self.account.borrow().stalls()
    }

    /// Sets whether the request asks for another protocol.
    pub(super) fn set_switch_requested(&self, asked: bool) {
        self.switches.set(asked);
    }

    /// Whether the backend may switch protocols.
    pub(super) fn may_switch(&self) -> bool {
        self.switches.get()
    }

    /// The backend has switched protocols.
    pub(super) fn switched(&self, backend: UpstreamTunnel, room: Option<TunnelRoom>) {
        *self.switched.borrow_mut() = Some(Box::new((backend, room)));
    }

    /// Takes the connection to the backend after a switch, once.
    pub(super) fn tunnel(&self) -> Option<SwitchedConnection> {
        self.switched.take().map(|switched| *switched)
    }

    /// Bytes of another protocol have just been moved.
    pub(super) fn note_tunnel_bytes(&self, now: u64) {
        self.enter(LinkPhase::Tunnel, now);
    }

    /// The request's body begins to be sent to the backend.
    pub(super) fn begin_sending(&self, stuck: &Rc<WaitTimer>) {
        *self.sending.borrow_mut() = Some(Rc::clone(stuck));
    }

    /// The backend's answer has begun, or is not awaited any more.
    pub(super) fn end_answer_wait(&self) {
        self.head.end();
        self.sending.take();
    }

    /// The whole answer has been handed over.
    pub(super) fn done(&self, now: u64) {
        self.end_answer_wait();
        self.answer.end();
        if self.phase.get() == LinkPhase::Busy {
            self.enter(LinkPhase::Idle, now);
        }
    }

    fn enter(&self, phase: LinkPhase, now: u64) {
        self.phase.set(phase);
        self.since.set(now);
        self.rest_requested.set(false);
    }

    /// Whether the connection is to release its buffers until bytes arrive.
    pub(super) fn should_rest(&self) -> bool {
        self.rest_requested.get() && self.phase.get() == LinkPhase::Idle
    }

    /// The connection is read again. Needed because at its end no bytes arrive.
    pub(super) fn end_rest(&self) {
        self.rest_requested.set(false);
    }

    /// Whether nothing has been in transit for a while: the client has all of the last answer, and
    /// no rest of its request is to come.
    fn may_rest(&self, now: u64, slack: u64) -> bool {
        self.phase.get() == LinkPhase::Idle
            && self.streams.get().is_none()
            && !self.is_stream()
            && !self.upload.runs()
            && !self.stuck.waits()
            && exceeds(self.since.get(), REST_AFTER, now, slack)
    }

    /// The connection is being closed. Returns whether bytes that nothing will read may still
    /// arrive, or `None` if it was already being closed.
    pub(super) fn closing(&self, now: u64) -> Option<bool> {
        let before = self.phase.get();
        (before != LinkPhase::Closing).then(|| {
            self.enter(LinkPhase::Closing, now);
            self.upload.runs() || matches!(before, LinkPhase::Silent | LinkPhase::Head)
        })
    }

    /// Bytes have arrived. (Between streams they need not belong to a request.)
    pub(super) fn arrived(&self, now: u64) {
        match self.phase.get() {
            LinkPhase::Idle if self.streams.get().is_none() => self.enter(LinkPhase::Head, now),
            LinkPhase::Silent => self.phase.set(LinkPhase::Head),
            _ => {}
        }
    }

    /// Returns the time since when it could be closed to make room: it is idle, or slower with a
    /// head or a body than is acceptable when others need its room. `trickling`: the bodies of all
    /// its streams trickle.
    pub(super) fn spare_since(&self, now: u64, trickling: bool) -> Option<u64> {
        let since = self.since.get();
        let spare = match self.phase.get() {
            // An HTTP/2 connection may need the room itself, for a stream that has just been
            // refused.
            LinkPhase::Idle => {
                self.streams.get().is_none() || exceeds(since, CONTENDED_HEAD_TIMEOUT, now, 0)
            }
            LinkPhase::Silent | LinkPhase::Head => exceeds(since, CONTENDED_HEAD_TIMEOUT, now, 0),
            LinkPhase::Busy => trickling || self.upload.is_spare(now),
            LinkPhase::Tunnel | LinkPhase::Closing => false,
        };
        (spare && !self.close.get()).then_some(since)
    }

    /// Whether no request came for so long that none is likely to be in transit.
    pub(super) fn is_long_silent(&self, now: u64) -> bool {
        let silent = matches!(self.phase.get(), LinkPhase::Idle | LinkPhase::Silent);
        silent && exceeds(self.since.get(), CONTENDED_HEAD_TIMEOUT, now, 0)
    }

    /// The TLS handshake is done: the time limit for a head begins.
    pub(super) fn start_head_timeout(&self, now: u64) {
        self.enter(LinkPhase::Silent, now);
    }

    /// Whether a head has begun and did not end in time.
    pub(super) fn is_head_late(&self) -> bool {
        self.head_late.get()
    }

    /// Remembers the task that serves the connection.
    pub(super) fn served_by(&self, waker: &Waker) {
        self.task.set(waker);
    }

    /// Closes the connection at once.
    pub(super) fn close(&self) {
        self.close.set(true);
        self.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.close.get()
    }

    /// Wakes the connection's task to check its state.
    pub(super) fn wake(&self) {
        self.task.wake();
    }

    /// Wakes a task that has waited too long. `slack`: the maximum age of a stored time, in
    /// milliseconds. Returns whether the connection was closed because a request or its answer was
    /// too slow.
    pub(super) fn sweep(&self, timeouts: &ProxyTimeouts, now: u64, slack: u64) -> bool {
        let over = |since, limit| exceeds(since, limit, now, slack);
        let phase_over = match self.phase.get() {
            LinkPhase::Idle => over(self.since.get(), timeouts.idle),
            LinkPhase::Silent | LinkPhase::Head => over(self.since.get(), timeouts.header),
            LinkPhase::Tunnel => over(self.since.get(), timeouts.tunnel),
            LinkPhase::Closing => over(self.since.get(), LINGER_TIMEOUT),
            LinkPhase::Busy => false,
        };
        if phase_over && self.phase.get() == LinkPhase::Head && self.streams.get().is_none() {
            // A client that has sent part of a request gets an answer. The time limit for that
            // begins.
            self.since.set(now);
            self.head_late.set(true);
            self.wake();
            return true;
        }
        if phase_over || self.stuck.exceeds(timeouts.idle, now, slack) {
            self.close();
            return !matches!(
                self.phase.get(),
                LinkPhase::Idle | LinkPhase::Tunnel | LinkPhase::Closing
            );
        }
        if self.upload.is_late(timeouts.idle, now, slack) {
            self.upload.give_up();
        }
        let stalled = |stuck: &Rc<WaitTimer>| stuck.exceeds(timeouts.idle, now, slack);
        if self.head.exceeds(timeouts.backend, now, slack)
            || self.sending.borrow().as_ref().is_some_and(stalled)
            || self.answer.exceeds(timeouts.idle, now, slack)
        {
            self.backend_late.set(true);
            self.wake();
        }
        if !self.rest_requested.get() && self.may_rest(now, slack) {
            self.rest_requested.set(true);
            self.wake();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ClientLink::new(SocketAddr::from(([127, 0, 0, 1], 1)), false, 0)
    }

    #[test]
    fn a_stream_that_ends_does_not_prolong_the_end_of_its_connection() {
        let over = Rc::new(connection());
        over.begin_streams();
        let stream = ClientLink::stream(&over, 0);
        assert_eq!(over.closing(0), Some(false));
        stream.stream_ended(100);
        over.sweep(&timeouts(), 1_900, 0);
        assert!(!over.is_closed(), "the peer may still read the last answer");
        over.sweep(&timeouts(), 2_100, 0);
        assert!(over.is_closed());
    }
}
