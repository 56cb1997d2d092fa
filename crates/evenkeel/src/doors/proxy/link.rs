//! One client connection: what it waits for and since when.
//!
//! No timer is armed per request. Whoever begins to wait notes the worker's coarse time in a cell;
//! the worker's sweep, a few times a second, looks at all links and wakes whoever has waited too
//! long. So a timeout costs a request two stores, and is late by at most one sweep.
//!
//! A stream of an HTTP/2 connection has a link of its own, over the connection's. What is done with
//! a request: `exchange.rs`; how its bytes move: `front/stream.rs`; where links are kept:
//! `list.rs`.

pub(super) mod list;
mod upload;

use super::account::Shadow;
use super::connect::Handshake;
use super::download::Download;
use super::wire::{Far, Wire};
use super::worker::Room;
use crate::config::settings::Timeouts;
use http::HeaderValue;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;
pub(super) use upload::UploadFault;
use upload::UploadState;

/// How long a connection that is being closed is read from, so that the peer gets to read our
/// last answer before its unread bytes make the system reset the connection.
const LINGER: Duration = Duration::from_secs(2);

/// How long a head may take when all room is taken. Connections that send nothing, or a byte now
/// and then, would otherwise keep everybody out for `timeouts.header`.
const HEAD_PATIENCE: Duration = Duration::from_secs(1);

/// A connection that is idle for so long gives back its buffers.
const REST_AFTER: Duration = Duration::from_secs(1);

/// A stream whose client takes nothing for so long counts as a connection of its own.
pub(super) const STREAM_PATIENCE: Duration = Duration::from_millis(100);

/// So many streams that their client takes back before the answer, and half of all, are a flood.
const RESETS_MIN: u64 = 100;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Connected, without a byte.
    Silent,
    /// Between two requests, without a byte of the next.
    Idle,
    /// Waiting for the rest of a head.
    Head,
    /// A request runs.
    Busy,
    /// Something else than HTTP is spoken.
    Tunnel,
    /// Being closed.
    Closing,
}

/// Since when somebody has been waiting, in the worker's coarse milliseconds and one more; zero:
/// nobody waits. (An `Option` would take twice the room.)
#[derive(Default)]
pub(super) struct Since(Cell<u64>);

impl Since {
    /// Begins to wait, unless it waits already.
    pub(super) fn begin(&self, now: u64) {
        if !self.waits() {
            self.0.set(now.saturating_add(1));
        }
    }

    /// Waits no longer.
    pub(super) fn end(&self) {
        self.0.set(0);
    }

    /// For how long it has been waiting, in milliseconds.
    fn elapsed(&self, now: u64) -> u32 {
        let elapsed = if self.waits() { now.saturating_sub(self.0.get() - 1) } else { 0 };
        u32::try_from(elapsed).unwrap_or(u32::MAX)
    }

    /// Whether it waits.
    fn waits(&self) -> bool {
        self.0.get() > 0
    }

    pub(super) fn exceeds(&self, limit: Duration, now: u64, slack: u64) -> bool {
        self.waits() && exceeds(self.0.get() - 1, limit, now, slack)
    }
}

/// A time of zero means: for ever.
fn exceeds(since: u64, limit: Duration, now: u64, slack: u64) -> bool {
    let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    limit > 0 && now.saturating_sub(since) > limit.saturating_add(slack)
}

/// A change of protocols.
#[derive(Default)]
enum Switch {
    #[default]
    Nothing,
    /// A CONNECT of HTTP/2 waits for it, and has the room that it will take.
    Connect(Box<(Handshake, Room)>),
    /// The backend has switched on this connection.
    Done(Box<Switched>),
}

/// A connection to a backend that has switched, and the room that the tunnel takes if its client's
/// connection is not all its own.
pub(super) type Switched = (Wire, Option<Room>);

/// A client connection, as the worker and its exchanges know it.
pub(super) struct Link {
    /// The connection whose stream this is (HTTP/2).
    pub(super) over: Option<Rc<Link>>,
    /// The other end, in canonical form; or whom it says that it speaks for (PROXY protocol).
    peer: Cell<IpAddr>,
    /// Who asks, behind trusted proxies; the other end until that is known.
    pub(super) client: Cell<IpAddr>,
    /// The same, as it is forwarded.
    peer_value: OnceCell<HeaderValue>,
    /// Whether it is under TLS, here or before a front that says so.
    secure: Cell<bool>,
    /// Its place in the worker's list.
    pub(super) place: Cell<usize>,
    /// Requests so far.
    requests: Cell<u64>,
    /// Streams that run, where there are streams.
    streams: Cell<Option<usize>>,
    /// Streams that the client took back before their answer began.
    resets: Cell<u64>,
    /// No more requests are taken.
    ending: Cell<bool>,
    /// The answer has begun.
    answered: Cell<bool>,
    /// It waits for its client without a slot, and is counted for its connection to the backend.
    pub(super) aside: Cell<bool>,
    phase: Cell<Phase>,
    since: Cell<u64>,
    /// Set by the sweep: it has been idle for long enough to give back its buffers.
    rests: Cell<bool>,
    /// The client does not take what we write.
    pub(super) stuck: Since,
    /// The answer's body, and whether the task that sends it has found that the backend has no
    /// more of it, since it began to run.
    download: RefCell<Weak<RefCell<Download>>>,
    drained: Cell<bool>,
    /// The request's body.
    pub(super) upload: UploadState,
    /// The backend has all of the request and has not begun its answer.
    pub(super) head: Since,
    /// Whom the request's body goes to, until the answer begins.
    sending: RefCell<Option<Rc<Far>>>,
    /// The backend has begun it and sends no more.
    pub(super) answer: Since,
    /// Set by the sweep: the backend was silent for too long.
    pub(super) backend_late: Cell<bool>,
    /// The request that runs asks for another protocol.
    switches: Cell<bool>,
    /// How far that has come.
    switch: RefCell<Switch>,
    /// The account of the request that runs.
    account: RefCell<Shadow>,
    close: Cell<bool>,
    /// Set by the sweep: a head has begun and did not end in time.
    head_late: Cell<bool>,
    task: RefCell<Option<Waker>>,
}

impl Link {
    /// A connection from `peer`.
    pub(super) fn new(peer: SocketAddr, secure: bool, now: u64) -> Link {
        Link::of(peer.ip().to_canonical(), secure, now)
    }

    /// A stream of the connection `over`, which is told.
    pub(super) fn stream(over: &Rc<Link>, now: u64) -> Link {
        let link = Link::of(over.peer.get(), over.secure.get(), now);
        over.requests.set(over.requests.get() + 1);
        over.streams.set(Some(over.streams.get().unwrap_or(0) + 1));
        over.enter(Phase::Busy, now);
        Link { over: Some(Rc::clone(over)), ..link }
    }

    fn of(peer: IpAddr, secure: bool, now: u64) -> Link {
        Link {
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
            phase: Cell::new(Phase::Silent),
            since: Cell::new(now),
            rests: Cell::new(false),
            stuck: Since::default(),
            download: RefCell::default(),
            drained: Cell::new(false),
            upload: UploadState::default(),
            head: Since::default(),
            sending: RefCell::default(),
            answer: Since::default(),
            backend_late: Cell::new(false),
            switches: Cell::new(false),
            switch: RefCell::default(),
            account: RefCell::default(),
            close: Cell::new(false),
            head_late: Cell::new(false),
            task: RefCell::default(),
        }
    }

    /// The other end, in canonical form.
    pub(super) fn peer(&self) -> IpAddr {
        self.peer.get()
    }

    /// The same as it is forwarded; of streams their connection's.
    pub(super) fn peer_value(&self) -> &HeaderValue {
        if let Some(over) = &self.over {
            return over.peer_value();
        }
        self.peer_value.get_or_init(|| {
            let text = HeaderValue::from_str(&self.peer.get().to_string());
            text.unwrap_or(HeaderValue::from_static("unknown"))
        })
    }

    /// Whether requests come under TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.secure.get()
    }

    /// The other end speaks for a client at `peer`, who came to it under TLS or not.
    pub(super) fn speaks_for(&self, peer: IpAddr, secure: bool) {
        self.peer.set(peer.to_canonical());
        self.client.set(self.peer.get());
        self.secure.set(self.secure.get() || secure);
    }

    /// From now on its requests are streams.
    pub(super) fn multiplexes(&self) {
        self.streams.set(Some(0));
    }

    /// Whether no more than one stream of this connection runs.
    pub(super) fn has_one_stream(&self) -> bool {
        self.streams.get().is_some_and(|streams| streams <= 1)
    }

    /// Whether it is one of the streams of a connection.
    pub(super) fn is_stream(&self) -> bool {
        self.over.is_some()
    }

    /// The stream is over, with an answer or without; so may be its connection: returns whether
    /// that was closed because its client takes back what it asks for.
    pub(super) fn stream_ended(&self, now: u64) -> bool {
        let Some(over) = &self.over else { return false };
        let left = over.streams.get().unwrap_or(1).saturating_sub(1);
        over.streams.set(Some(left));
        if left == 0 {
            over.enter(Phase::Idle, now);
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

    /// The head of an answer goes out.
    pub(super) fn answered(&self) {
        self.answered.set(true);
    }

    /// Whether the connection has had as many requests as it may have, of which zero is no bound.
    pub(super) fn is_spent(&self, bound: u64) -> bool {
        let all = self.over.as_ref().map_or(self.requests.get(), |over| over.requests.get());
        bound > 0 && all >= bound
    }

    /// Has the connection of this stream take no more requests. False if this is no stream.
    pub(super) fn end_connection(&self) -> bool {
        if let Some(over) = &self.over {
            over.ending.set(true);
            over.wake();
        }
        self.over.is_some()
    }

    /// Whether the connection takes no more requests.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// A frame is handed to the stream, which asks for the next one when this is on its way.
    pub(super) fn hands_over(&self, now: u64) {
        if self.is_stream() {
            self.stuck.begin(now);
        }
    }

    /// The answer's body waits to be asked for.
    pub(super) fn offers(&self, download: &Rc<RefCell<Download>>) {
        *self.download.borrow_mut() = Rc::downgrade(download);
    }

    /// A frame of it is asked for.
    pub(super) fn is_asked(&self) {
        if self.is_stream() {
            self.stuck.end();
        }
    }

    /// All that the backend has sent of it is handed over.
    pub(super) fn is_drained(&self) {
        self.drained.set(true);
    }

    /// The task that sends the answer has done what it can. If it left something of the body, the
    /// client gives it no room to send that.
    pub(super) fn ran(&self, cx: &mut Context<'_>, now: u64) {
        if self.drained.take() {
            return;
        }
        let download = self.download.borrow().upgrade();
        if let Some(download) = download {
            if self.is_stream() {
                self.stuck.begin(now);
            }
            download.borrow_mut().read_ahead(cx);
        }
    }

    /// A request's head is here.
    pub(super) fn begin(&self) {
        self.phase.set(Phase::Busy);
        self.client.set(self.peer.get());
        self.requests.set(self.requests.get() + 1);
        self.backend_late.set(false);
    }

    /// A request runs on this account.
    pub(super) fn runs_on(&self, account: Shadow) {
        *self.account.borrow_mut() = account;
    }

    /// The backend waits for the rest of the request: others may have its slot.
    pub(super) fn stall(&self, now: u64) {
        self.account.borrow().stall(self.upload.flows(now));
    }

    /// Whether the backend waits for the rest of a request that goes through the queue.
    pub(super) fn stalls(&self) -> bool {
        self.account.borrow().stalls()
    }

    /// The request asks for another protocol, or does not.
    pub(super) fn switches(&self, asked: bool) {
        self.switches.set(asked);
    }

    /// Whether the backend may switch protocols.
    pub(super) fn may_switch(&self) -> bool {
        self.switches.get()
    }

    /// It is asked to as HTTP/2 has it.
    pub(super) fn connects(&self, handshake: Handshake, room: Room) {
        *self.switch.borrow_mut() = Switch::Connect(Box::new((handshake, room)));
    }

    /// What is known of the handshake then.
    pub(super) fn handshake(&self) -> Option<Handshake> {
        match &*self.switch.borrow() {
            Switch::Connect(connect) => Some(connect.0),
            Switch::Nothing | Switch::Done(_) => None,
        }
    }

    /// It has.
    pub(super) fn switched(&self, wire: Wire) {
        let room = match self.switch.take() {
            Switch::Connect(connect) => Some(connect.1),
            Switch::Nothing | Switch::Done(_) => None,
        };
        *self.switch.borrow_mut() = Switch::Done(Box::new((wire, room)));
    }

    /// What is left of it then, once.
    pub(super) fn tunnel(&self) -> Option<Switched> {
        match self.switch.take() {
            Switch::Done(switched) => Some(*switched),
            Switch::Nothing | Switch::Connect(_) => None,
        }
    }

    /// Something else than HTTP is spoken, and a byte of it has just come.
    pub(super) fn tunnels(&self, now: u64) {
        self.enter(Phase::Tunnel, now);
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
        self.rests.set(false);
    }

    /// Whether it is to give back its buffers until bytes come.
    pub(super) fn rests(&self) -> bool {
        self.rests.get() && self.phase.get() == Phase::Idle
    }

    /// Somebody reads it again, be it an end, after which nothing arrives.
    pub(super) fn wakes(&self) {
        self.rests.set(false);
    }

    /// Whether nothing is on its way on it, and has not been for a while: all of the answer before
    /// is with the client, and of its request nothing is left to come.
    fn may_rest(&self, now: u64, slack: u64) -> bool {
        self.phase.get() == Phase::Idle
            && self.streams.get().is_none()
            && !self.is_stream()
            && !self.upload.runs()
            && !self.stuck.waits()
            && exceeds(self.since.get(), REST_AFTER, now, slack)
    }

    /// It is being closed. Returns whether bytes that nobody will read may still be on their way,
    /// or `None` if it was being closed already.
    pub(super) fn closing(&self, now: u64) -> Option<bool> {
        let before = self.phase.get();
        (before != Phase::Closing).then(|| {
            self.enter(Phase::Closing, now);
            self.upload.runs() || matches!(before, Phase::Silent | Phase::Head)
        })
    }

    /// Bytes have come. (Between streams they need not be a request's.)
    pub(super) fn arrived(&self, now: u64) {
        match self.phase.get() {
            Phase::Idle if self.streams.get().is_none() => self.enter(Phase::Head, now),
            Phase::Silent => self.phase.set(Phase::Head),
            _ => {}
        }
    }

    /// Since when it has been idle, or been waited for longer than a head or a body may take when
    /// others want its room. `trickling`: the bodies of all its streams do.
    pub(super) fn spare_since(&self, now: u64, trickling: bool) -> Option<u64> {
        let since = self.since.get();
        let spare = match self.phase.get() {
            // One of HTTP/2 may want the room itself, for a stream that has just been refused.
            Phase::Idle => self.streams.get().is_none() || exceeds(since, HEAD_PATIENCE, now, 0),
            Phase::Silent | Phase::Head => exceeds(since, HEAD_PATIENCE, now, 0),
            Phase::Busy => trickling || self.upload.is_spare(now),
            Phase::Tunnel | Phase::Closing => false,
        };
        (spare && !self.close.get()).then_some(since)
    }

    /// Whether nothing was asked on it for so long that nobody is likely to be about to.
    pub(super) fn is_forsaken(&self, now: u64) -> bool {
        let silent = matches!(self.phase.get(), Phase::Idle | Phase::Silent);
        silent && exceeds(self.since.get(), HEAD_PATIENCE, now, 0)
    }

    /// TLS is agreed on: the time for a head begins.
    pub(super) fn is_secured(&self, now: u64) {
        self.enter(Phase::Silent, now);
    }

    /// Whether a head has begun and did not end in time.
    pub(super) fn is_head_late(&self) -> bool {
        self.head_late.get()
    }

    /// Remembers which task serves the connection.
    pub(super) fn served_by(&self, waker: &Waker) {
        remember(&self.task, waker);
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
    /// Returns whether the connection was closed because a request or its answer was too slow.
    pub(super) fn sweep(&self, timeouts: &Timeouts, now: u64, slack: u64) -> bool {
        let over = |since, limit| exceeds(since, limit, now, slack);
        let phase_over = match self.phase.get() {
            Phase::Idle => over(self.since.get(), timeouts.idle),
            Phase::Silent | Phase::Head => over(self.since.get(), timeouts.header),
            Phase::Tunnel => over(self.since.get(), timeouts.tunnel),
            Phase::Closing => over(self.since.get(), LINGER),
            Phase::Busy => false,
        };
        if phase_over && self.phase.get() == Phase::Head && self.streams.get().is_none() {
            // Whoever has sent some of a request is told. The time to do so begins.
            self.since.set(now);
            self.head_late.set(true);
            self.wake();
            return true;
        }
        if phase_over || self.stuck.exceeds(timeouts.idle, now, slack) {
            self.close();
            return !matches!(self.phase.get(), Phase::Idle | Phase::Tunnel | Phase::Closing);
        }
        if self.upload.is_late(timeouts.idle, now, slack) {
            self.upload.give_up();
        }
        let stalled = |far: &Rc<Far>| far.stuck.exceeds(timeouts.idle, now, slack);
        if self.head.exceeds(timeouts.backend, now, slack)
            || self.sending.borrow().as_ref().is_some_and(stalled)
            || self.answer.exceeds(timeouts.idle, now, slack)
        {
            self.backend_late.set(true);
            self.wake();
        }
        if !self.rests.get() && self.may_rest(now, slack) {
            self.rests.set(true);
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
