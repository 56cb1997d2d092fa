//! Finds out how many requests a backend accepts at once; any more would wait inside the backend.
//!
//! A light request that is sent beside heavy ones ends soon if a worker is free for it. If none is,
//! it waits inside the backend until a heavy request ends, in an order that Evenkeel does not
//! choose, and that time counts as its cost: it seems to cost many times its estimate. It then ends
//! soon after a heavy request that was there before it, and before all light ones that were sent
//! later. (Otherwise it had a worker: the machine is slow, or the estimate is wrong.) Each heavy
//! request that others waited for raises a doubt by one, and each light request that did not wait
//! at the same depth lowers it by one. When the doubt
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

/// A request that was with the backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestRun {
    pub estimate: Cost,
    pub cost: Cost,
    pub sent: Time,
    pub ended: Time,
}

impl RequestRun {
    /// Whether it cost many times its estimate.
    pub fn is_late(self) -> bool {
        seems_to_wait(self.estimate, self.cost)
    }

    /// Whether it probably waited for the worker of `heavy`, which has ended: it was sent while
    /// that was running, and what it cost from the end of that on is what it was estimated at.
    fn waited_for(self, heavy: RequestRun) -> bool {
        let RequestRun { estimate, cost, sent, ended } = self;
        let part = |of: Nanos| u128::from(cost.0) * u128::from(of.0);
        let after = part(ended.since(heavy.ended)) / u128::from(ended.since(sent).0.max(1));
        let after = Cost(u64::try_from(after).unwrap_or(u64::MAX));
        self.is_late()
            && !seems_to_wait(estimate, after)
            && (heavy.sent..heavy.ended).contains(&sent)
    }
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
    /// The heavy request that ended last, and whether others seem to have waited for it.
    heavy: Option<RequestRun>,
    is_noted: bool,
    /// Of the light requests that have ended and did not wait, when the one that was sent last was
    /// sent.
    light_sent: Time,
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
            heavy: None,
            is_noted: false,
            light_sent: Time::ZERO,
        }
    }

    /// Forgets the measured room, but keeps the request that others may be waiting for.
    pub fn forget_room(&mut self) {
        if self.full.min(self.suspect) < usize::MAX {
            let CapacityProbe { heavy, is_noted, light_sent, .. } = *self;
            *self = CapacityProbe { heavy, is_noted, light_sent, ..CapacityProbe::new() };
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
    /// cost is to be believed: it is not if the request probably waited inside the backend.
    /// `stayed`: how many of `count` were in flight all the time until then, itself included; only
    /// they show that there is room.
    pub fn handle_done(
        &mut self,
        count: usize,
        run: RequestRun,
        stayed: impl FnOnce() -> usize,
    ) -> bool {
        let overtaken = self.light_sent > run.sent;
        let waited = !overtaken && self.heavy.is_some_and(|heavy| run.waited_for(heavy));
        // One that cost nothing was never sent, or was given up.
        if !run.is_late() && run.cost > Cost::ZERO {
            self.light_sent = self.light_sent.max(run.sent);
        }
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

    /// Notes the end of a heavy request, whether it was expected to be heavy or not.
    pub fn handle_heavy_done(&mut self, run: RequestRun) {
        if run.cost > Cost::ZERO {
            self.heavy = Some(run);
            self.is_noted = false;
        }
    }

    /// Notes that a request has waited with `count` in flight.
    fn suspect(&mut self, count: usize) {
        self.suspect = self.suspect.min(count);
        // Those that waited for the same heavy request are one piece of evidence.
        self.doubt += u32::from(!core::mem::replace(&mut self.is_noted, true));
        if self.doubt >= DOUBT_MAX {
            self.full = self.full.min(self.suspect);
            self.retry_at = self.sent_at.plus(self.retry);
            (self.suspect, self.doubt) = (usize::MAX, 0);
        }
    }
}
