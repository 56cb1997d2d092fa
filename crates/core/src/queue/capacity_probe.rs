//! Finds out how many requests a backend accepts at once; any more would wait inside the backend.
//!
//! A light request that is sent beside heavy ones ends soon if a worker is free for it. If none is,
//! it waits inside the backend until a heavy request ends, in an order that Evenkeel does not
//! choose, and that time counts as its cost: it seems to cost many times its estimate. (If no heavy
//! request has ended since it was sent, or one that was sent later has ended before it, it had a
//! worker: the machine is slow, or the estimate is wrong.) Each such request raises a doubt by one,
//! and each light request that did not wait at the same depth lowers it by one. When the doubt
//! reaches six, the queue no longer sends that many requests at once. The seeming cost of a light
//! request that waited is not believed. After a while one request probes whether there is room
//! again; the delay doubles with each probe that fails. How much the backend can do with the
//! requests that it accepts is not decided here: see `concurrency`. Why: docs/adr/0005.

use crate::units::{Cost, Nanos, Time};

/// A light request has waited inside the backend if it seems to cost more than this many times its
/// estimate.
const WAITED_COST_RATIO: u64 = 4;
/// The number of light requests that waited, less those that did not, from which on the backend is
/// believed to be full. On a busy machine some requests take longer for no reason.
const DOUBT_MAX: u32 = 6;
/// The delay until the first probe for more room. It runs from the last light request that was sent
/// before the backend was found to be full, then from each probe, and doubles with each probe that
/// fails.
const PROBE_DELAY_FIRST: Nanos = Nanos::from_secs(10);
/// The upper bound of the delay until a probe.
const PROBE_DELAY_MAX: Nanos = Nanos::from_secs(160);

const _: () = assert!(PROBE_DELAY_FIRST.0 <= PROBE_DELAY_MAX.0);

/// Whether a light request that was estimated at `estimate` cost so much that it may have waited
/// for a worker.
pub(super) fn seems_to_wait(estimate: Cost, cost: Cost) -> bool {
    cost.0 / WAITED_COST_RATIO > estimate.0
}

/// The observations about one backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct CapacityProbe {
    /// With this number of requests in flight, or more, some wait; `usize::MAX`: not known.
    full: usize,
    /// The time from which on one request more may be sent as a probe.
    retry_at: Time,
    retry: Nanos,
    /// When a request that may show whether there is room was last sent.
    sent_at: Time,
    /// The least number in flight at which a request seems to have waited, and the doubt: such
    /// requests less those that did not wait.
    suspect: usize,
    doubt: u32,
}

impl CapacityProbe {
    pub fn new() -> CapacityProbe {
        let full = usize::MAX;
        CapacityProbe {
            full,
            retry_at: Time::ZERO,
            retry: PROBE_DELAY_FIRST,
            sent_at: Time::ZERO,
            suspect: usize::MAX,
            doubt: 0,
        }
    }

    /// The number of requests that the backend accepts at once, if it is known.
    pub fn most(&self) -> Option<usize> {
        (self.full < usize::MAX).then(|| self.full - 1)
    }

    /// Whether one more request may be sent, so that `count` are in flight. At `full` only as a
    /// probe.
    pub fn has_room(&self, count: usize, now: Time) -> bool {
        count < self.full || (count == self.full && now >= self.retry_at)
    }

    /// Notes that a light request, or one in a reserved slot, is sent, so that `count` are in
    /// flight.
    pub fn handle_dispatch(&mut self, count: usize, now: Time) {
        self.sent_at = now;
        // Requests in slots that the backend is known to accept do not delay the probe.
        if count >= self.full {
            self.retry = self.retry.plus(self.retry).min(PROBE_DELAY_MAX);
            self.retry_at = now.plus(self.retry);
        }
    }

    /// Notes the end of a light request that made `count` requests in flight. Returns whether its
    /// cost is to be believed. `waited`: whether it seems to have waited inside the backend.
    /// `stayed`: how many of `count` were in flight all the time until then, itself included; only
    /// they show that there is room.
    pub fn handle_done(
        &mut self,
        count: usize,
        waited: bool,
        stayed: impl FnOnce() -> usize,
    ) -> bool {
        if waited {
            self.suspect(count);
        } else if count >= self.suspect.min(self.full) {
            let stayed = stayed();
            if stayed >= self.full {
                *self = CapacityProbe { full: stayed + 1, ..CapacityProbe::new() };
            } else if stayed >= self.suspect {
                self.doubt = self.doubt.saturating_sub(1);
            }
        }
        !waited
    }

    /// Notes that a request has waited with `count` in flight.
    fn suspect(&mut self, count: usize) {
        self.suspect = self.suspect.min(count);
        self.doubt += 1;
        if self.doubt >= DOUBT_MAX {
            self.full = self.full.min(self.suspect);
            self.retry_at = self.sent_at.plus(self.retry);
            (self.suspect, self.doubt) = (usize::MAX, 0);
        }
    }
}
