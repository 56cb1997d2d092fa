//! The processors of a site, shared equally by the running requests, on the caller's clock.
//!
//! The CPU time of each request is read from one virtual clock, as in the core's meter: dV/dt =
//! min(1, C / n). A request with a known need ends when the clock has advanced by that need. A
//! request with a known end in the log ends then, and the advance of the clock is its need. So the
//! same traffic without any limit ends here exactly as it ended in the log.

use evenkeel_core::units::{Nanos, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The number of fraction bits of the virtual clock.
const FRACTION_BITS: u32 = 24;
const ONE: u128 = 1 << FRACTION_BITS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedRequest {
    /// The id that the caller gave the request.
    pub id: u64,
    /// The CPU time that the request used.
    pub used: Nanos,
}

/// The processors and the requests that share them.
#[derive(Clone, Debug)]
pub struct Processors {
    /// The number of processors, with [`FRACTION_BITS`] bits.
    cpus: u128,
    clock: u128,
    now: Time,
    /// Requests with a known need: the virtual time at which they end, the id, and the virtual time
    /// at which they began.
    needing: BinaryHeap<Reverse<(u128, u64, u128)>>,
    /// Requests with a known end: the time, the id, and the virtual time at which they began.
    ending: BinaryHeap<Reverse<(Time, u64, u128)>>,
}

impl Processors {
    /// Makes `cpus` idle processors; 0.001 at least.
    pub fn new(cpus: f64) -> Processors {
        let cpus = (cpus.clamp(0.001, 1_048_576.0) * ONE as f64) as u128;
        let (needing, ending) = (BinaryHeap::new(), BinaryHeap::new());
        Processors { cpus, clock: 0, now: Time::ZERO, needing, ending }
    }

    /// The number of running requests.
    pub fn running(&self) -> usize {
        self.needing.len() + self.ending.len()
    }

    /// Begins a request that needs `needed` CPU time.
    pub fn begin(&mut self, id: u64, needed: Nanos, now: Time) {
        self.advance(now);
        let needed = u128::from(needed.0) << FRACTION_BITS;
        self.needing.push(Reverse((self.clock + needed, id, self.clock)));
    }

    /// Begins a request that ends at `end`, whatever it needs.
    pub fn begin_until(&mut self, id: u64, end: Time, now: Time) {
        self.advance(now);
        self.ending.push(Reverse((end.max(now), id, self.clock)));
    }

    /// The time at which the next request ends, if none begins before.
    pub fn poll_timeout(&self) -> Option<Time> {
        let needing = self.needing.peek().map(|Reverse((at, ..))| {
            let left = at.saturating_sub(self.clock);
            let nanos = left.div_ceil(self.pace());
            self.now.plus(Nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
        });
        let ending = self.ending.peek().map(|Reverse((at, ..))| *at);
        [needing, ending].into_iter().flatten().min()
    }

    /// Returns a request that has ended by `now`. Invariant: `now` is not after
    /// [`Processors::poll_timeout`].
    pub fn poll_over(&mut self, now: Time) -> Option<FinishedRequest> {
        self.advance(now);
        if self.ending.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Reverse((_, id, from)) = self.ending.pop()?;
            return Some(FinishedRequest { id, used: nanos(self.clock.saturating_sub(from)) });
        }
        let over = self.needing.peek().is_some_and(|Reverse((at, ..))| *at <= self.clock);
        let Reverse((at, id, from)) = over.then(|| self.needing.pop()).flatten()?;
        Some(FinishedRequest { id, used: nanos(at.saturating_sub(from)) })
    }

    /// The fraction of a processor that each request gets now, with [`FRACTION_BITS`] bits.
    fn pace(&self) -> u128 {
        (self.cpus / (self.running().max(1) as u128)).clamp(1, ONE)
    }

    fn advance(&mut self, now: Time) {
        let elapsed = u128::from(now.since(self.now).0);
        if self.running() > 0 {
            self.clock += elapsed * self.pace();
        }
        self.now = self.now.max(now);
    }
}

fn nanos(clock: u128) -> Nanos {
    Nanos(u64::try_from(clock >> FRACTION_BITS).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::sim::random::{RandomDuration, SimRandom};

    fn run(processors: &mut Processors, until: Option<Time>) -> Vec<(u64, Time, Nanos)> {
        let mut over = Vec::new();
        while let Some(at) = processors.poll_timeout() {
            if until.is_some_and(|until| at > until) {
                break;
            }
            while let Some(one) = processors.poll_over(at) {
                over.push((one.id, at, one.used));
            }
        }
        over
    }

    #[test]
    fn processors_are_shared_equally() {
        let millis = Nanos::from_millis;
        let mut one = Processors::new(1.0);
        for (id, needed) in [(1, 10), (2, 20), (3, 30)] {
            one.begin(id, millis(needed), Time::ZERO);
        }
        let at = |ms: u64| Time::ZERO.plus(millis(ms));
        let over: Vec<_> = run(&mut one, None);
        let ends: Vec<_> = over.iter().map(|(id, end, _)| (*id, end.since(Time::ZERO))).collect();
        for ((id, end), (want, ms)) in ends.iter().zip([(1, 30), (2, 50), (3, 60)]) {
            assert_eq!(*id, want);
            let off = end.minus(at(ms).since(Time::ZERO)).0 + millis(ms).minus(*end).0;
            assert!(off < 10, "{id} ended at {end}");
        }
    }

    #[test]
    fn what_was_worked_off_a_log_ends_as_it_did_there() {
        let mut chance = SimRandom::new(3, 0);
        let mut then = Processors::new(2.0);
        let (mut begun, mut now) = (Vec::new(), Time(1_000));
        let mut needed = Vec::new();
        for id in 0..2_000 {
            now = now.plus(chance.length(RandomDuration::Exponential(Nanos::from_millis(20))));
            needed.extend(run(&mut then, Some(now)));
            let end = now.plus(chance.length(RandomDuration::Exponential(Nanos::from_millis(100))));
            then.begin_until(id, end, now);
            begun.push((id, now, end));
        }
        needed.extend(run(&mut then, None));
        needed.sort_unstable();
        let mut again = Processors::new(2.0);
        let mut ends = Vec::new();
        for (id, at, _) in &begun {
            ends.extend(run(&mut again, Some(*at)));
            again.begin(*id, needed[*id as usize].2, *at);
        }
        ends.extend(run(&mut again, None));
        ends.sort_unstable();
        assert_eq!(ends.len(), begun.len());
        for ((_, end, _), (_, _, want)) in ends.iter().zip(&begun) {
            let off = end.since(*want).max(want.since(*end));
            assert!(off < Nanos(50_000), "{off} off");
        }
    }
}
