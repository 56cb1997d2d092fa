//! The virtual CPU clock: the cost of a request is read from it at the start and at the end.
//!
//! ```text
//! wall:    dV/dt = 1               what a stopwatch would say
//! shared:  dV/dt = min(1, C / n)   n requests share C processors equally
//! cgroup:  dV/dt = p * min(1, C / n)   p so that all charges together are the CPU time used
//! cost of a request = V(leave) - V(enter)
//! ```
//!
//! Why: with eight requests on two cores a second of wall time is a quarter of a CPU-second, so
//! under load all clients would be overcharged. One clock serves any number of requests.
//!
//! Invariant: the sum of all charges is exactly the integral of min(n, C); with `cgroup` it is the
//! CPU time used while requests ran, up to the CPU time used between two samples (`pace`).
//! Remainders are carried over, never dropped. If several instances are before one backend, n
//! includes the requests of the others ([`Meter::set_elsewhere`]), and the invariant holds for the
//! sum over all of them. It fails if the backend works for other sources too.
//!
//! While a request is being sent, it is unknown whether the backend works on it. That time is
//! measured on a separate, provisional clock and charged only if the response shows that it was
//! work ([`Meter::enter_provisionally`]).
//!
//! A meter has no lock: code that shares one between threads must lock it. For costs that a backend
//! reports itself, see [`header`].

pub mod estimate;
pub mod header;
mod pace;

pub use header::{HeaderCostError, header_cost};

use crate::units::{Cost, Nanos, Time};
use pace::ClockPace;

/// The base of the virtual clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CpuClock {
    /// Wall time: a request costs as much as it lasts.
    Wall,
    /// Processors that the running requests share equally.
    Shared {
        /// The CPU-seconds per second that the backend has; fractions are quotas. Clamped to 0.001
        /// to 1 048 576. Too high: all clients are overcharged under load. Too low: all are
        /// undercharged.
        cpus: f64,
    },
    /// Like `Shared`, corrected by the CPU time that was really used ([`Meter::used`]).
    Cgroup {
        /// As for [`CpuClock::Shared`].
        cpus: f64,
    },
}

/// How the cost of a request was found. Decision logs and the dashboard show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// By [`CpuClock::Wall`].
    Wall,
    /// By [`CpuClock::Shared`].
    Shared,
    /// By [`CpuClock::Cgroup`].
    Cgroup,
    /// Reported by the backend in a header.
    Header,
    /// The tokens that the backend reports in its answer, or that were counted in it.
    Tokens,
    /// Reported afterwards by the program that had the request served.
    Report,
    /// Not reported: the usual cost of requests on its route.
    Estimate,
}

impl Measure {
    /// The name in the configuration and in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Measure::Wall => "wall",
            Measure::Shared => "shared",
            Measure::Cgroup => "cgroup",
            Measure::Header => "header",
            Measure::Tokens => "tokens",
            Measure::Report => "report",
            Measure::Estimate => "estimate",
        }
    }
}

impl CpuClock {
    /// The measure of costs that are read from this clock.
    #[must_use]
    pub const fn measure(self) -> Measure {
        match self {
            CpuClock::Wall => Measure::Wall,
            CpuClock::Shared { .. } => Measure::Shared,
            CpuClock::Cgroup { .. } => Measure::Cgroup,
        }
    }
}

/// Fractional bits of the clock's arithmetic: its unit is a quarter of a billionth of a nanosecond.
const FRACTION_BITS: u32 = 32;
/// One nanosecond in that arithmetic.
const NANO_UNITS: u128 = 1 << FRACTION_BITS;
/// The smallest and the largest number of processors that are accepted.
const CPUS_RANGE: (f64, f64) = (0.001, 1_048_576.0);

/// The time on the virtual clock when a request entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading(u128);

/// The time on the provisional clock when a request entered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvisionalReading(u128);

/// The virtual clock, with the number of requests that the backend works on.
///
/// A request is counted only while the backend works on it: it leaves while Evenkeel waits for a
/// slow client and enters again afterwards, and its cost is the sum. Times may arrive slightly out
/// of order, because they come from several threads; the clock never goes back.
#[derive(Clone, Debug)]
pub struct Meter {
    clock: CpuClock,
    working: u32,
    /// The number of requests that the backend may be working on.
    provisional: u32,
    /// The number of requests of other instances that the backend works on.
    elsewhere: u32,
    last: Time,
    /// V, with [`FRACTION_BITS`] fractional bits.
    virtual_time: u128,
    /// The provisional clock: the same, as if the backend worked on the provisional requests too.
    provisional_time: u128,
    /// The integral of min(n, C) in the same form, or the CPU time charged with `cgroup`, and
    /// confirmed costs.
    total: u128,
    /// Processor time left over from divisions by n; less than n.
    undivided: u128,
    /// The correction of the clock by the CPU time that was really used.
    pace: ClockPace,
    /// The fraction of a nanosecond by which the charges so far were rounded down in total.
    unbilled: u128,
}

impl Meter {
    /// A clock at zero, without requests.
    #[must_use]
    pub fn new(clock: CpuClock) -> Meter {
        Meter {
            clock,
            working: 0,
            provisional: 0,
            elsewhere: 0,
            last: Time::ZERO,
            virtual_time: 0,
            provisional_time: 0,
            total: 0,
            undivided: 0,
            pace: ClockPace::default(),
            unbilled: 0,
        }
    }

    /// Follows another clock from `now` on. Readings taken before stay valid.
    pub fn set_clock(&mut self, clock: CpuClock, now: Time) {
        self.advance(now);
        if self.clock.measure() != clock.measure() {
            self.pace.forget();
        }
        self.clock = clock;
    }

    /// Notes that the backend works on `count` requests of other instances from `now` on.
    pub fn set_elsewhere(&mut self, count: usize, now: Time) {
        self.advance(now);
        self.elsewhere = u32::try_from(count).unwrap_or(u32::MAX);
    }

    /// Notes the CPU time that was really used since the last call. To be called several times a
    /// second. Affects only [`CpuClock::Cgroup`].
    pub fn used(&mut self, used: Cost, now: Time) {
        self.advance(now);
        self.pace.sample(u128::from(used.0).saturating_mul(NANO_UNITS));
    }

    /// Notes that the CPU time used is unknown: from `now` on, requests cost the same as with
    /// [`CpuClock::Shared`].
    pub fn note_usage_unknown(&mut self, now: Time) {
        self.advance(now);
        self.pace.forget();
    }

    /// CPU time that was used while no request ran, so that it was not charged.
    #[must_use]
    pub fn unpaid(&self) -> Cost {
        whole(self.pace.unpaid)
    }

    /// The clock that is followed.
    #[must_use]
    pub fn clock(&self) -> CpuClock {
        self.clock
    }

    /// Notes that the backend starts or continues to work on a request. Keep the reading for
    /// [`leave`].
    ///
    /// [`leave`]: Meter::leave
    pub fn enter(&mut self, now: Time) -> Reading {
        self.advance(now);
        self.working = self.working.saturating_add(1);
        Reading(self.virtual_time)
    }

    /// Notes that the backend no longer works on the request that entered at `from`. Returns its
    /// cost since.
    pub fn leave(&mut self, from: Reading, now: Time) -> Cost {
        self.advance(now);
        self.working = self.working.saturating_sub(1);
        let exact = self.virtual_time.saturating_sub(from.0).saturating_add(self.unbilled);
        self.unbilled = exact % NANO_UNITS;
        whole(exact)
    }

    /// Notes that the backend may be working on a request from now on. Keep the reading for
    /// [`restart`] and [`leave_provisionally`].
    ///
    /// [`restart`]: Meter::restart
    /// [`leave_provisionally`]: Meter::leave_provisionally
    pub fn enter_provisionally(&mut self, now: Time) -> ProvisionalReading {
        self.advance(now);
        self.provisional = self.provisional.saturating_add(1);
        ProvisionalReading(self.provisional_time)
    }

    /// Replaces the provisional reading of a request, because the backend only waited for the
    /// client so far.
    pub fn restart(&mut self, now: Time) -> ProvisionalReading {
        self.advance(now);
        ProvisionalReading(self.provisional_time)
    }

    /// The cost since `from`, if the backend worked on the request all the time.
    pub fn leave_provisionally(&mut self, from: ProvisionalReading, now: Time) -> Cost {
        self.advance(now);
        self.provisional = self.provisional.saturating_sub(1);
        whole(self.provisional_time.saturating_sub(from.0))
    }

    /// Adds a provisional cost to the total, because it was work.
    pub fn confirm(&mut self, cost: Cost) {
        self.total = self.total.saturating_add(u128::from(cost.0) << FRACTION_BITS);
    }

    /// The number of requests that the backend works on.
    #[must_use]
    pub fn working(&self) -> u32 {
        self.working
    }

    /// The cost of all requests until `now`, including those that still run: the integral of min(n,
    /// C), and the confirmed costs.
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
        let n = u128::from(self.working) + u128::from(self.elsewhere);
        if self.provisional > 0 {
            let n = n + u128::from(self.provisional);
            let shared = u128::from(elapsed.0).saturating_mul(self.processors(n));
            self.provisional_time = self.provisional_time.saturating_add(shared / n);
        }
        if n == 0 {
            return;
        }
        let shared = u128::from(elapsed.0).saturating_mul(self.processors(n));
        let spent = match self.clock {
            CpuClock::Cgroup { .. } => self.pace.spend(shared),
            CpuClock::Wall | CpuClock::Shared { .. } => shared,
        };
        let divisible = spent.saturating_add(self.undivided);
        let each = divisible / n;
        self.virtual_time = self.virtual_time.saturating_add(each);
        self.undivided = divisible % n;
        // The rest is charged by other instances.
        let own = match self.elsewhere {
            0 => spent,
            _ => each.saturating_mul(u128::from(self.working)),
        };
        self.total = self.total.saturating_add(own);
    }

    /// The processors that work for `n` requests, with [`FRACTION_BITS`] fractional bits.
    fn processors(&self, n: u128) -> u128 {
        match self.clock {
            CpuClock::Wall => n * NANO_UNITS,
            CpuClock::Shared { cpus } | CpuClock::Cgroup { cpus } => {
                let all = (cpus.max(CPUS_RANGE.0).min(CPUS_RANGE.1) * NANO_UNITS as f64) as u128;
                all.min(n * NANO_UNITS)
            }
        }
    }
}

/// Rounds down to whole nanoseconds.
fn whole(exact: u128) -> Cost {
    Cost(u64::try_from(exact >> FRACTION_BITS).unwrap_or(u64::MAX))
}
