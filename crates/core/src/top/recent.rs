//! A list's memory of the recent requests of one client, beside their cost: how long they
//! took, and the route and the user agent that most of them have.
//!
//! It is for display, and takes some 60 bytes for each client.

use crate::key::KeyHash;
use crate::units::Nanos;

/// The number of durations that are kept. An odd number, so that there is one in the middle.
const TIMES_MAX: usize = 5;

/// How long the last requests of a client took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerTimes {
    /// In microseconds; a ring.
    times: [u32; TIMES_MAX],
    next: u8,
    len: u8,
}

impl AnswerTimes {
    pub(super) fn note(&mut self, took: Nanos) {
        let next = usize::from(self.next);
        self.times[next] = u32::try_from(took.0.div_ceil(1_000)).unwrap_or(u32::MAX);
        self.next = ((next + 1) % TIMES_MAX) as u8;
        self.len = self.len.saturating_add(1).min(TIMES_MAX as u8);
    }

    /// The median of the last requests; of an even number, the shorter one of the two in the
    /// middle. `None` if no request has ended yet.
    pub(super) fn median(&self) -> Option<Nanos> {
        let mut times = self.times;
        let times = &mut times[..usize::from(self.len)];
        times.sort_unstable();
        let middle = times.get(times.len().checked_sub(1)? / 2)?;
        Some(Nanos(u64::from(*middle) * 1_000))
    }
}

/// The key that the majority of requests have, if there is a majority (Boyer and Moore's vote);
/// otherwise one that is frequent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MajorityKey {
    key: Option<KeyHash>,
    votes: u32,
}

/// The most votes of a key: after that number of requests of another kind, the other one takes its
/// place.
const VOTES_MAX: u32 = 20;

impl MajorityKey {
    pub(super) fn note(&mut self, key: KeyHash) {
        match self.key {
            Some(known) if known == key => self.votes = (self.votes + 1).min(VOTES_MAX),
            Some(_) if self.votes > 0 => self.votes -= 1,
            _ => *self = MajorityKey { key: Some(key), votes: 1 },
        }
    }

    pub(super) fn get(&self) -> Option<KeyHash> {
        self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_last_requests_only() {
        let mut times = AnswerTimes::default();
        assert_eq!(times.median(), None);
        times.note(Nanos::from_secs(9));
        assert_eq!(times.median(), Some(Nanos::from_secs(9)));
        times.note(Nanos::from_millis(1));
        assert_eq!(times.median(), Some(Nanos::from_millis(1)), "of two, the shorter one");
        for _ in 0..3 {
            times.note(Nanos::from_millis(7));
        }
        assert_eq!(times.median(), Some(Nanos::from_millis(7)));
        for _ in 0..TIMES_MAX {
            times.note(Nanos::from_secs(1 << 30));
        }
        let most = Nanos(u64::from(u32::MAX) * 1_000);
        assert_eq!(times.median(), Some(most), "bounded by an hour and 11 minutes");
    }

    #[test]
    fn most_requests_decide_and_an_old_majority_gives_way() {
        let (often, seldom) = (KeyHash::from_bits(1), KeyHash::from_bits(2));
        let mut key = MajorityKey::default();
        assert_eq!(key.get(), None);
        for n in 0..1_000 {
            key.note(if n % 3 == 0 { seldom } else { often });
        }
        assert_eq!(key.get(), Some(often));
        for _ in 0..=VOTES_MAX {
            key.note(seldom);
        }
        assert_eq!(key.get(), Some(seldom));
    }
}
