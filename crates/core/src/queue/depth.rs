//! How many requests a backend takes in at once: beyond that they wait inside it.
//!
//! A light request that goes beside heavy ones is done soon, if there is a worker for it. If there
//! is none it waits for a heavy one to end, in an order that is not ours, and the clock runs: so it
//! seems to cost many times what it should. When that is seen twice in a row, so many are not sent
//! any more, and what such a request seemed to cost is not believed. Whether there is room again is
//! tried after a while, with one request, and each time in vain it takes twice as long until the
//! next. Does not tell what the backend can do with those that it takes in: see `concurrency`.

use crate::units::{Cost, Nanos, Time};

/// How many times what it was thought to cost says that a light request has waited.
const TIMES: u64 = 4;
/// So many requests that waited, less those that did not, are believed: on a busy machine some take
/// longer for no reason.
const ENOUGH: u32 = 6;
/// How long until room is looked for again, the first time and at most.
const RETRY: Nanos = Nanos::from_secs(10);
const RETRY_MAX: Nanos = Nanos::from_secs(160);

/// What is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depth {
    /// With so many there, or more, some wait.
    full: usize,
    /// When one more is tried.
    retry_at: Time,
    retry: Nanos,
    /// The least with which one seems to have waited, and how sure that is.
    suspect: usize,
    doubt: u32,
}

impl Depth {
    pub fn new() -> Depth {
        let full = usize::MAX;
        Depth { full, retry_at: Time::ZERO, retry: RETRY, suspect: usize::MAX, doubt: 0 }
    }

    /// How many are taken in at once, if that is known.
    pub fn most(&self) -> Option<usize> {
        (self.full < usize::MAX).then(|| self.full - 1)
    }

    /// Whether one more may go beside the others, so that there are `count`.
    pub fn has_room(&self, count: usize, now: Time) -> bool {
        count < self.full || (count == self.full && now >= self.retry_at)
    }

    /// A request goes beside the others, so that there are `count`.
    pub fn handle_beside(&mut self, count: usize, now: Time) {
        if count >= self.full {
            self.retry = self.retry.plus(self.retry).min(RETRY_MAX);
        }
        self.retry_at = now.plus(self.retry);
    }

    /// A light request that made them `count` was thought to cost `estimate`, and seems to have
    /// cost `cost`. Whether that is to be believed. `beside`: it had a reserved slot; only those
    /// say how many are taken in.
    pub fn handle_done(&mut self, count: usize, beside: bool, estimate: Cost, cost: Cost) -> bool {
        let waited = cost.0 / TIMES > estimate.0;
        match (beside, waited) {
            (false, _) => return !waited || count < self.full,
            (true, true) => self.suspect(count),
            (true, false) if count >= self.full => {
                *self = Depth { full: count + 1, ..Depth::new() };
            }
            (true, false) if count >= self.suspect => self.doubt = self.doubt.saturating_sub(1),
            (true, false) => {}
        }
        !waited
    }

    /// With `count` there, one has waited.
    fn suspect(&mut self, count: usize) {
        self.suspect = self.suspect.min(count);
        self.doubt += 1;
        if self.doubt >= ENOUGH {
            self.full = self.full.min(self.suspect);
            (self.suspect, self.doubt) = (usize::MAX, 0);
        }
    }
}
