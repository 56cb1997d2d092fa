//! The virtual CPU clock: what a request cost, read off at its start and at its end.
//!
//! ```text
//! wall:    dV/dt = 1               what a stopwatch would say
//! shared:  dV/dt = min(1, C / n)   n requests share C processors equally
//! cgroup:  dV/dt = p * min(1, C / n)   p so that all charges together are the CPU time used
//! cost of a request = V(leave) - V(enter)
//! ```
//!
//! Why: with eight requests on two cores a second of wall time is a quarter of a CPU-second, and
//! everybody would be overcharged just when it matters. One clock serves all requests, so
//! entering and leaving take the same short time whatever their number.
//!
//! Invariant: all charges together are the integral of min(n, C), exactly; under `cgroup` the CPU
//! time used while requests ran, to within what is used between two looks (`pace`). What does not
//! divide evenly is carried over, never dropped. It fails where the backend works for somebody who
//! is not counted here.
//!
//! While a request is on its way to the backend nobody knows whether the backend works on it: most
//! wait for its end, some begin at its head. That time is measured provisionally, on a clock of its
//! own, and charged only if the answer shows that it was work ([`Meter::enter_provisionally`]).
//!
//! No lock is taken: whoever shares a meter between threads brings one. What a
//! backend says of itself is read in [`header`].

pub mod estimate;
pub mod header;
mod pace;

pub use header::{HeaderFault, header_cost};

use crate::units::{Cost, Nanos, Time};
use pace::Pace;

/// What the virtual clock follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clock {
    /// Time itself: a request costs as long as it runs.
    Wall,
    /// Processors shared equally by the requests that run.
    Shared {
        /// CPU-seconds per second that the backend has; fractions are quotas. From 0.001 to
        /// 1 048 576, brought within that. Too high: everybody is overcharged under load. Too
        /// low: everybody is undercharged.
        cpus: f64,
    },
    /// The same, brought into line with what was really used ([`Meter::used`]).
    Cgroup {
        /// As for [`Clock::Shared`].
        cpus: f64,
    },
}

/// How the cost of a request came to be known; decision logs and the dashboard say which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// By [`Clock::Wall`].
    Wall,
    /// By [`Clock::Shared`].
    Shared,
    /// By [`Clock::Cgroup`].
    Cgroup,
    /// The backend said so in a header.
    Header,
    /// Whoever had it served said so afterwards.
    Report,
    /// Nobody said: it is what requests of its route cost.
    Estimate,
}

impl Measure {
    /// As it is written in the configuration and in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Measure::Wall => "wall",
            Measure::Shared => "shared",
            Measure::Cgroup => "cgroup",
            Measure::Header => "header",
            Measure::Report => "report",
            Measure::Estimate => "estimate",
        }
    }
}

impl Clock {
    /// What a cost read off this clock is called.
    #[must_use]
    pub const fn measure(self) -> Measure {
        match self {
            Clock::Wall => Measure::Wall,
            Clock::Shared { .. } => Measure::Shared,
            Clock::Cgroup { .. } => Measure::Cgroup,
        }
    }
}

/// Bits behind the point of the clock's own arithmetic: a quarter of a billionth of a nanosecond.
const FRACTION: u32 = 32;
/// One nanosecond in that arithmetic.
const ONE: u128 = 1 << FRACTION;
/// The fewest and the most processors that are taken at their word.
const CPUS: (f64, f64) = (0.001, 1_048_576.0);

/// What the clock showed when a request entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading(u128);

/// What the provisional clock showed when a request entered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provisional(u128);

/// The clock, and how many requests the backend works on.
///
/// A request is in here only while the backend works for it: it leaves while we wait for a slow
/// client and enters again afterwards, and its cost is the sum. Times may come slightly out of
/// order, as several threads bring them; the clock never goes back.
#[derive(Clone, Debug)]
pub struct Meter {
    clock: Clock,
    working: u32,
    /// Requests that the backend may be working on.
    provisional: u32,
    last: Time,
    /// V, with [`FRACTION`] bits behind the point.
    virtual_time: u128,
    /// The same for those that it may be working on, as if it worked on all of them.
    provisional_time: u128,
    /// The integral of min(n, C), in the same form.
    total: u128,
    /// Processor time that did not divide by n yet.
    undivided: u128,
    /// What the clock has in common with the CPU time that was really used.
    pace: Pace,
    /// The part of a nanosecond by which charges made so far were rounded down.
    unbilled: u128,
}

impl Meter {
    /// A clock at zero, nobody working.
    #[must_use]
    pub fn new(clock: Clock) -> Meter {
        Meter {
            clock,
            working: 0,
            provisional: 0,
            last: Time::ZERO,
            virtual_time: 0,
            provisional_time: 0,
            total: 0,
            undivided: 0,
            pace: Pace::default(),
            unbilled: 0,
        }
    }

    /// Follows another clock from `now` on. Readings taken before stay good.
    pub fn set_clock(&mut self, clock: Clock, now: Time) {
        self.advance(now);
        if self.clock.measure() != clock.measure() {
            self.pace.forget();
        }
        self.clock = clock;
    }

    /// So much CPU time was really used since this was said last, some times a second. Matters to
    /// [`Clock::Cgroup`] alone.
    pub fn used(&mut self, used: Cost, now: Time) {
        self.advance(now);
        self.pace.sample(u128::from(used.0).saturating_mul(ONE));
    }

    /// It is not known what is used: requests cost what they do by [`Clock::Shared`] from `now` on.
    pub fn used_is_unknown(&mut self, now: Time) {
        self.advance(now);
        self.pace.forget();
    }

    /// CPU time that was used while no request ran, so that nobody was charged for it.
    #[must_use]
    pub fn unpaid(&self) -> Cost {
        whole(self.pace.unpaid)
    }

    /// What the clock follows.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The backend starts, or goes on, to work on a request. Keep the reading for [`leave`].
    ///
    /// [`leave`]: Meter::leave
    pub fn enter(&mut self, now: Time) -> Reading {
        self.advance(now);
        self.working = self.working.saturating_add(1);
        Reading(self.virtual_time)
    }

    /// The backend no longer works on the request that got `from`. What it cost since.
    pub fn leave(&mut self, from: Reading, now: Time) -> Cost {
        self.advance(now);
        self.working = self.working.saturating_sub(1);
        let exact = self.virtual_time.saturating_sub(from.0).saturating_add(self.unbilled);
        self.unbilled = exact % ONE;
        whole(exact)
    }

    /// The backend may be working on a request from now on. Keep the reading for [`restart`] and
    /// [`leave_provisionally`].
    ///
    /// [`restart`]: Meter::restart
    /// [`leave_provisionally`]: Meter::leave_provisionally
    pub fn enter_provisionally(&mut self, now: Time) -> Provisional {
        self.advance(now);
        self.provisional = self.provisional.saturating_add(1);
        Provisional(self.provisional_time)
    }

    /// The backend has waited for the client so far: what it may have worked counts from now on.
    pub fn restart(&mut self, now: Time) -> Provisional {
        self.advance(now);
        Provisional(self.provisional_time)
    }

    /// What the request that got `from` has cost since, if the backend worked on it all the time.
    pub fn leave_provisionally(&mut self, from: Provisional, now: Time) -> Cost {
        self.advance(now);
        self.provisional = self.provisional.saturating_sub(1);
        whole(self.provisional_time.saturating_sub(from.0))
    }

    /// What was measured provisionally was work.
    pub fn confirm(&mut self, cost: Cost) {
        self.total = self.total.saturating_add(u128::from(cost.0) << FRACTION);
    }

    /// How many requests the backend works on.
    #[must_use]
    pub fn working(&self) -> u32 {
        self.working
    }

    /// All that requests have cost until `now`, those that still run included: the integral of
    /// min(n, C), and what was confirmed beside it.
    #[must_use]
    pub fn total(&self, now: Time) -> Cost {
        let mut later = self.clone();
        later.advance(now);
        whole(later.total)
    }

    fn advance(&mut self, now: Time) {
        let elapsed = now.since(self.last);
        self.last = self.last.max(now);
        if elapsed == Nanos::ZERO {
            return;
        }
        if self.provisional > 0 {
            let n = u128::from(self.working) + u128::from(self.provisional);
            let shared = u128::from(elapsed.0).saturating_mul(self.processors(n));
            self.provisional_time = self.provisional_time.saturating_add(shared / n);
        }
        if self.working == 0 {
            return;
        }
        let n = u128::from(self.working);
        let shared = u128::from(elapsed.0).saturating_mul(self.processors(n));
        let spent = match self.clock {
            Clock::Cgroup { .. } => self.pace.spend(shared),
            Clock::Wall | Clock::Shared { .. } => shared,
        };
        self.total = self.total.saturating_add(spent);
        let divisible = spent.saturating_add(self.undivided);
        self.virtual_time = self.virtual_time.saturating_add(divisible / n);
        self.undivided = divisible % n;
    }

    /// Processors at work for `n` requests, with [`FRACTION`] bits behind the point.
    fn processors(&self, n: u128) -> u128 {
        match self.clock {
            Clock::Wall => n * ONE,
            Clock::Shared { cpus } | Clock::Cgroup { cpus } => {
                let all = (cpus.max(CPUS.0).min(CPUS.1) * ONE as f64) as u128;
                all.min(n * ONE)
            }
        }
    }
}

/// Rounded down to whole nanoseconds.
fn whole(exact: u128) -> Cost {
    Cost(u64::try_from(exact >> FRACTION).unwrap_or(u64::MAX))
}
