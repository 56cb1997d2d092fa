//! The system's clock, which gatekeepers use for times, next to Evenkeel's own clock, which is
//! never set.
//!
//! Times on the wire are milliseconds since the Unix epoch. The difference between the two clocks
//! is rounded to whole milliseconds, so that a time that is sent back is exactly the same.

use evenkeel_core::units::Time;
use evenkeel_runtime::clock::Clock;

/// Nanoseconds per millisecond.
const NANOS_PER_MILLI: u64 = 1_000_000;
/// The maximum rounding error, in nanoseconds.
const ROUNDING_NANOS_MAX: u64 = 1_000;

/// Both clocks at one time.
pub struct WallClock {
    /// The time of Evenkeel's clock.
    pub now: Time,
    /// How far the system's clock is ahead, in nanoseconds.
    step: i64,
}

impl WallClock {
    pub fn read(clock: &Clock) -> WallClock {
        let milli = NANOS_PER_MILLI as i64;
        WallClock { now: clock.now(), step: (clock.step() + milli / 2).div_euclid(milli) * milli }
    }

    #[cfg(test)]
    pub fn fixed(now: Time) -> WallClock {
        WallClock { now, step: 0 }
    }

    /// Parses a time from the wire and converts it to Evenkeel's clock. A fraction is kept. Returns
    /// `None` if it is invalid.
    pub fn time(&self, frame: &[u8]) -> Option<Time> {
        let text = std::str::from_utf8(frame).ok()?;
        let nanos = match text.parse::<u64>() {
            Ok(millis) => millis.saturating_mul(NANOS_PER_MILLI),
            Err(_) => {
                let millis: f64 = text.parse().ok()?;
                let fits = millis.is_finite() && millis >= 0.0;
                let fraction = (millis.fract() * NANOS_PER_MILLI as f64) as u64;
                fits.then(|| {
                    (millis as u64).saturating_mul(NANOS_PER_MILLI).saturating_add(fraction)
                })?
            }
        };
        Some(Time(nanos.saturating_add_signed(self.step.saturating_neg())))
    }

    /// Converts a past time for the wire. Rounds down, so that the result is never in the future.
    pub fn millis_before(&self, at: Time) -> u64 {
        at.0.saturating_add_signed(self.step) / NANOS_PER_MILLI
    }

    /// Converts a time for the wire. Rounds up, so that a request at that time is not too early,
    /// except for the rounding of a rate that is not a whole number of nanoseconds.
    pub fn millis(&self, at: Time) -> u64 {
        at.0.saturating_add_signed(self.step)
            .saturating_sub(ROUNDING_NANOS_MAX)
            .div_ceil(NANOS_PER_MILLI)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_as_they_were_sent() {
        for step in [0, 7 * NANOS_PER_MILLI as i64, -3_600_000 * NANOS_PER_MILLI as i64] {
            let wall = WallClock { now: Time(0), step };
            for millis in [1_795_206_188_293, u64::MAX / NANOS_PER_MILLI - 3_600_000] {
                let time = wall.time(millis.to_string().as_bytes()).expect("a time");
                assert_eq!(wall.millis(time), millis);
            }
            let half = wall.time(b"1795206188293.5").expect("a time");
            assert_eq!(wall.millis(half), 1_795_206_188_294);
            assert_eq!(wall.millis_before(half), 1_795_206_188_293);
        }
        let wall = WallClock { now: Time(0), step: 0 };
        for text in [&b""[..], b"soon", b"-1", b"NaN", b"inf", b"1 ", b"\xff"] {
            assert_eq!(wall.time(text), None, "{}", text.escape_ascii());
        }
        assert_eq!(wall.time(b"1e300"), Some(Time(u64::MAX)));
    }

    #[test]
    fn fuzz_any_time_is_read_or_refused_and_what_is_read_can_be_sent() {
        evenkeel_fuzz::fuzz().with_type::<(i64, Vec<u8>)>().for_each(|(step, frame)| {
            let wall = WallClock { now: Time(0), step: *step };
            if let Some(time) = wall.time(frame) {
                assert!(wall.millis_before(time) <= wall.millis(time));
            }
        });
    }
}
