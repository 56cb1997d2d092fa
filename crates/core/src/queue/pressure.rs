//! Pressure: whether the requests of clients in credit need more than the backend can do.
//!
//! It begins when the work that waits exceeds what the backend's processors do in a second, as
//! estimated, so before any request has waited that long. It ends when the work has stayed below a
//! quarter of that for ten seconds. Of each client only the first waiting request counts: a client
//! with many connections is no crowd, and fair turns deal with it. Clients in debt do not count
//! either: they wait behind all others.

use crate::units::{Cost, Nanos, Time};

/// The pressure begins with more work than this, in time that all processors need for it.
const BEGINS_ABOVE: Nanos = Nanos::from_secs(1);
/// The pressure ends if there was less work than this for [`ENDS_AFTER`].
const ENDS_BELOW: Nanos = Nanos::from_millis(250);
const ENDS_AFTER: Nanos = Nanos::from_secs(10);

const _: () = assert!(ENDS_BELOW.0 < BEGINS_ABOVE.0);

/// The time that all processors need for `work`.
pub(super) fn time_for(work: Cost, cpus_milli: u64) -> Nanos {
    let nanos = u128::from(work.0) * 1_000 / u128::from(cpus_milli.max(1));
    Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// The work that all processors do in this time.
pub(super) fn cost_in(time: Nanos, cpus_milli: u64) -> Cost {
    let nanos = u128::from(time.0) * u128::from(cpus_milli) / 1_000;
    Cost(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// No pressure by default.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pressure {
    since: Option<Time>,
    /// Since when there has been little work.
    quiet: Option<Time>,
}

impl Pressure {
    /// When the pressure began, if there is pressure.
    pub fn since(&self) -> Option<Time> {
        self.since
    }

    /// Notes how much work waits. Returns whether the pressure begins.
    pub fn handle_work(&mut self, work: Nanos, now: Time) -> bool {
        if self.since.is_none() {
            let begins = work > BEGINS_ABOVE;
            if begins {
                (self.since, self.quiet) = (Some(now), None);
            }
            return begins;
        }
        if self.quiet.is_some_and(|quiet| now.since(quiet) >= ENDS_AFTER) {
            *self = Pressure::default();
            return self.handle_work(work, now);
        }
        let quiet = self.quiet.unwrap_or(now);
        self.quiet = (work < ENDS_BELOW).then_some(quiet);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time(Nanos::from_millis(millis).0)
    }

    #[test]
    fn it_begins_above_a_second_of_work_and_ends_after_ten_quiet_ones() {
        let mut pressure = Pressure::default();
        let second = Nanos::from_secs(1);
        assert!(!pressure.handle_work(second, at(1)));
        assert!(pressure.handle_work(Nanos(second.0 + 1), at(2)));
        assert!(!pressure.handle_work(Nanos::from_secs(9), at(3)), "it has begun already");
        pressure.handle_work(Nanos::from_millis(249), at(1_000));
        pressure.handle_work(Nanos::from_millis(250), at(10_000));
        pressure.handle_work(Nanos::ZERO, at(20_000));
        pressure.handle_work(Nanos::ZERO, at(29_999));
        assert_eq!(pressure.since(), Some(at(2)));
        pressure.handle_work(Nanos::ZERO, at(30_000));
        assert_eq!(pressure.since(), None);
        assert!(pressure.handle_work(Nanos::from_secs(2), at(30_001)));
        assert_eq!(time_for(Cost(3_000_000), 1_500), Nanos::from_millis(2));
    }

    /// A pause without any request ends the pressure too.
    #[test]
    fn it_begins_anew_after_a_pause() {
        let mut pressure = Pressure::default();
        assert!(pressure.handle_work(Nanos::from_secs(2), at(0)));
        pressure.handle_work(Nanos::ZERO, at(1_000));
        assert!(pressure.handle_work(Nanos::from_secs(2), at(60_000)));
        assert_eq!(pressure.since(), Some(at(60_000)));
    }
}
