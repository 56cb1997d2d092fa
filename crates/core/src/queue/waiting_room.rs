//! Which waiting requests are answered with a waiting page, and when.
//!
//! A request that may be is sent there after two seconds (three for a visitor with a ticket or a
//! pass), if the lines hold more than three seconds of work; otherwise its turn may come sooner
//! than a visitor would come back, and it has two seconds more. If the queue is nearly full, the
//! newest requests are sent there at once: those of strangers, and those of visitors if these are
//! the crowd. If it is full, so is one that would be refused. The queue keeps nothing for a visitor
//! in the waiting room: the ticket has it all.

use super::known_clients::LineAccount;
use super::place::{Line, Place};
use super::request::RequestId;
use super::share::WaitingRequest;
use super::standing::{STRANGER_WAIT, VISITOR_WAIT, WaitingRoomEntry};
use crate::units::{Nanos, Time};
use alloc::collections::{BTreeSet, VecDeque};

/// With no more work than this in the lines, requests wait for their turn.
pub(super) const WORK_MIN: Nanos = Nanos::from_secs(3);
/// The additional time that a request has otherwise. Strangers may wait for longer than the work
/// suggests, because the other lines go first.
const EXTRA_WAIT: Nanos = Nanos::from_secs(2);
/// A visitor comes back after this part of the time since it first came.
const COME_BACK_PERCENT: u64 = 30;
pub(super) const COME_BACK_MIN: Nanos = Nanos::from_secs(1);
pub(super) const COME_BACK_MAX: Nanos = Nanos::from_secs(15);
/// The time over which the pace of visitors is averaged, in nanoseconds.
const PACE_MEMORY_NANOS: f64 = 10e9;
/// The least pace that is reckoned with.
const PACE_MIN: f64 = 0.01;

/// The waiting requests that may be sent to the waiting room, by the time when they are due.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingRoom {
    strangers: BTreeSet<(Time, RequestId)>,
    visitors: BTreeSet<(Time, RequestId)>,
    sent: VecDeque<WaitingRoomEntry>,
}

impl WaitingRoom {
    /// Notes that a request begins to wait.
    pub fn join(&mut self, id: RequestId, waiting: &WaitingRequest) {
        if let Some((line, due)) = self.due(waiting) {
            line.insert((due, id));
        }
    }

    /// Notes that a request no longer waits.
    pub fn leave(&mut self, id: RequestId, waiting: &WaitingRequest) {
        if let Some((line, due)) = self.due(waiting) {
            line.remove(&(due, id));
        }
    }

    fn due(
        &mut self,
        waiting: &WaitingRequest,
    ) -> Option<(&mut BTreeSet<(Time, RequestId)>, Time)> {
        match waiting.place {
            _ if !admits(waiting) => None,
            Place::Line(Line::Strangers | Line::Burning) => {
                Some((&mut self.strangers, waiting.since.plus(STRANGER_WAIT)))
            }
            Place::Line(_) => Some((&mut self.visitors, waiting.since.plus(VISITOR_WAIT))),
            Place::Credit | Place::Debt(_) => None,
        }
    }

    /// Whether no request may be sent there.
    pub fn is_empty(&self) -> bool {
        self.strangers.is_empty() && self.visitors.is_empty()
    }

    /// The time at which the next request is due. `is_long`: whether there is more work in the
    /// lines than [`WORK_MIN`].
    pub fn poll_timeout(&self, is_long: bool) -> Option<Time> {
        let first = |line: &BTreeSet<(Time, RequestId)>| line.first().map(|(due, _)| *due);
        [first(&self.strangers), first(&self.visitors)]
            .into_iter()
            .flatten()
            .min()
            .map(|due| due.plus(extra(is_long)))
    }

    /// A request that is due.
    pub fn next_due(&self, is_long: bool, now: Time) -> Option<RequestId> {
        let now = now.minus(extra(is_long));
        let mut firsts = [self.strangers.first(), self.visitors.first()].into_iter().flatten();
        firsts.find(|(due, _)| *due <= now).map(|(_, id)| *id)
    }

    /// The request that makes room in a queue with more than `crowd` requests: the newest one of a
    /// stranger. One of a visitor only if that many visitors wait: a visitor that comes back while
    /// programs fill the queue has to wait for its turn, or it would never get it.
    pub fn newest(&self, crowd: usize) -> Option<RequestId> {
        let visitor = || self.visitors.last().filter(|_| self.visitors.len() > crowd);
        self.strangers.last().or_else(visitor).map(|(_, id)| *id)
    }

    /// Sends a request to the waiting room.
    pub fn send(&mut self, entry: WaitingRoomEntry) {
        self.sent.push_back(entry);
    }

    /// The next request that was sent to the waiting room.
    pub fn poll(&mut self) -> Option<WaitingRoomEntry> {
        self.sent.pop_front()
    }
}

/// Whether a request may be sent to the waiting room.
pub(super) fn admits(waiting: &WaitingRequest) -> bool {
    waiting.accepts_waiting_page && matches!(waiting.place, Place::Line(_))
}

/// The entry of a request that is sent to the waiting room; it is expected to get its turn when it
/// comes back.
pub(super) fn entry(id: RequestId, waiting: &WaitingRequest, now: Time) -> WaitingRoomEntry {
    let LineAccount { base, keeps_visit, .. } = waiting.account();
    let part = Nanos(now.since(base).0 / 100 * COME_BACK_PERCENT);
    let come_back_after = part.clamp(COME_BACK_MIN, COME_BACK_MAX);
    WaitingRoomEntry {
        id,
        needs_ticket: !keeps_visit,
        first_came: if keeps_visit { base.min(now) } else { waiting.since },
        come_back_after,
        expected_wait: come_back_after,
    }
}

/// How fast visitors with tickets are served: the time between the first requests of two of them,
/// per time between their turns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VisitorPace {
    /// When the visitors had first come that get their turn at present, and when the last one got
    /// it.
    last: Option<(Time, Time)>,
    came: f64,
    time: f64,
}

impl VisitorPace {
    /// Notes that a visitor gets its turn.
    pub fn serve(&mut self, first_came: Time, now: Time) {
        let (reached, then) = self.last.unwrap_or((first_came, now));
        self.came += first_came.since(reached).0 as f64;
        self.time += now.since(then).0 as f64;
        let faded = (PACE_MEMORY_NANOS / self.time).min(1.0);
        self.came *= faded;
        self.time *= faded;
        self.last = Some((first_came.max(reached), now));
    }

    /// The time until the turn of a visitor that first came then; zero if it is unknown.
    pub fn time_until(&self, first_came: Time) -> Nanos {
        let Some((reached, _)) = self.last else { return Nanos::ZERO };
        let speed = if self.time > 0.0 { (self.came / self.time).max(PACE_MIN) } else { 1.0 };
        Nanos((first_came.since(reached).0 as f64 / speed) as u64)
    }
}

fn extra(is_long: bool) -> Nanos {
    if is_long { Nanos::ZERO } else { EXTRA_WAIT }
}
