//! When to ask for a certificate: pure functions of times, without a clock.
//!
//! A certificate is renewed when two thirds of its lifetime are over, a little earlier at random,
//! so that many instances do not ask at once. After a failure the next attempt comes after a
//! minute, then four times later each time: authorities allow few failures per hour and name.

use evenkeel_core::units::{Nanos, Time};
use evenkeel_tls::pem::CertificateValidity;

/// The wait after the first failure.
const RETRY_FIRST: Nanos = Nanos::from_secs(60);
/// The longest wait after a failure.
const RETRY_MAX: Nanos = Nanos::from_secs(6 * 3_600);
/// The longest wait after a restart.
const AFTER_RESTART_MAX: Nanos = Nanos::from_secs(13 * 60);
/// The shortest wait after the authority has refused because of a rate limit.
pub const RATE_LIMITED: Nanos = Nanos::from_secs(3_600);

/// When to renew a certificate. `chance` is a random number; the time is up to a fiftieth of the
/// lifetime earlier than two thirds of it.
#[must_use]
pub fn renewal(validity: CertificateValidity, chance: u64) -> Time {
    let lifetime = Nanos::from_secs(validity.until.saturating_sub(validity.from)).0;
    let earlier = match lifetime / 50 {
        0 => 0,
        range => chance % range,
    };
    Time::ZERO.plus(Nanos::from_secs(validity.from)).plus(Nanos(lifetime / 3 * 2 - earlier))
}

/// How long to wait after this many failures in a row, at least one. `chance` adds up to a quarter.
#[must_use]
pub fn retry(failures: u32, chance: u64) -> Nanos {
    let factor = 4_u64.saturating_pow(failures.saturating_sub(1).min(16));
    let wait = RETRY_FIRST.0.saturating_mul(factor).min(RETRY_MAX.0);
    Nanos(wait + chance % (wait / 4))
}

/// How long to wait after the last attempt of a previous process that was the last of this many
/// failures. The operator may have removed the cause, so it is never as long as [`retry`]: with it
/// there are at most five attempts an hour, which Let's Encrypt allows.
#[must_use]
pub fn after_restart(failures: u32, chance: u64) -> Nanos {
    retry(failures, chance).min(AFTER_RESTART_MAX)
}

/// The shortest time between two certificates: a third of the lifetime, at most that after many
/// failures.
#[must_use]
pub fn pause(validity: Option<CertificateValidity>) -> Nanos {
    let lifetime = |valid: CertificateValidity| valid.until.saturating_sub(valid.from);
    let third = validity.map_or(RETRY_MAX, |valid| Nanos::from_secs(lifetime(valid) / 3));
    third.clamp(Nanos::from_secs(1), RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_lifetime() {
        let day = 86_400;
        let validity = CertificateValidity { from: 100 * day, until: 190 * day };
        assert_eq!(renewal(validity, 0).second(), 160 * day);
        for chance in [1, 77, u64::MAX / 3, u64::MAX] {
            let at = renewal(validity, chance).second();
            assert!((158 * day..=160 * day).contains(&at), "{at}");
        }
        // Nonsense is renewed at once.
        let none = CertificateValidity { from: 7, until: 7 };
        assert_eq!(renewal(none, u64::MAX).second(), 7);
    }

    #[test]
    fn failures_are_tried_again_ever_later() {
        let minutes = |failures| retry(failures, 0).0 / 60_000_000_000;
        assert_eq!([1, 2, 3, 4, 5, 6, 100].map(minutes), [1, 4, 16, 64, 256, 360, 360]);
        assert!(retry(u32::MAX, u64::MAX).0 <= RETRY_MAX.0 / 4 * 5);
        assert!(retry(1, u64::MAX).0 < RETRY_FIRST.0 / 4 * 5);
    }

    #[test]
    fn restarts_and_wrong_clocks_order_seldom() {
        let seconds = |failures| after_restart(failures, 0).0 / 1_000_000_000;
        assert_eq!([1, 2, 3, 100].map(seconds), [60, 240, 780, 780]);
        let pause = |until| pause(Some(CertificateValidity { from: 0, until })).0 / 1_000_000_000;
        assert_eq!([0, 12, 90 * 86_400, u64::MAX].map(pause), [1, 4, 21_600, 21_600]);
        assert_eq!(super::pause(None), RETRY_MAX);
    }
}
