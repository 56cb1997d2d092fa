//! The one-word state of a counter, and how hits change it.
//!
//! A word holds either the hits of a window and the second until which they count, or the time at
//! which a bucket is full again; the lowest bit says which. So one table holds counters of every
//! kind and length, and knows the worth of each without its rule. Seconds have 31 bits and are
//! compared modulo 2^31, so the format does not end in 2038 or 2106. For that reason no window may
//! be longer than 34 years.

use super::Hit;
use super::calendar::CounterWindow;
use crate::bucket::debt::DebtBucket;
use crate::key::KeyHash;
use crate::units::{Cost, Nanos, Rate, SECOND, Time};

/// The algorithm of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WindowAlgorithm {
    /// Hits in consecutive windows. Twice the limit can pass within a moment around the boundary.
    /// Hits over the limit are counted too.
    #[default]
    Fixed,
    /// Hits in the present window, plus those of the window before in proportion to the part of it
    /// that a window ending now still covers. Hits over the limit are not counted.
    Sliding,
    /// A bucket for the number of hits of the limit, refilled evenly within the window. Hits over
    /// the limit are not counted.
    Bucket,
}

/// The lowest bit, set in the word of a bucket.
const BUCKET_BIT: u64 = 1;
/// The bits of a second.
const SECOND_MASK: u32 = u32::MAX >> 1;
/// Seconds from this distance on lie in the past, not in the future.
const SECONDS_AHEAD_MAX: u32 = 1 << 30;
/// Changes the key of a sliding counter into that of its other window: odd and even windows
/// alternate.
const OTHER_WINDOW_KEY_MASK: u64 = 0x5bd1_e995_9d1b_54a5;
/// The rounding error of times by which a bucket may exceed its limit.
const ROUNDING_ERROR_MAX: Nanos = Nanos(4);

const _: () = {
    assert!(SECONDS_AHEAD_MAX == (SECOND_MASK >> 1) + 1, "half of all seconds lie ahead");
    assert!(SECONDS_AHEAD_MAX > 34 * 365 * 86_400, "the header says 34 years");
};

/// The word of a window with `hits` that count until `end`.
const fn window_word(end: u32, hits: u32) -> u64 {
    (((end & SECOND_MASK) as u64) << 33) | ((hits as u64) << 1)
}

const fn end(word: u64) -> u32 {
    (word >> 33) as u32
}

const fn hits(word: u64) -> u32 {
    (word >> 1) as u32
}

/// The loss if the counter is evicted: its hits, or the seconds until it is full. Zero once it has
/// ended.
pub(super) fn worth(word: u64, now: Time) -> u64 {
    if word & BUCKET_BIT != 0 {
        return Time(word).since(now).0.div_ceil(SECOND);
    }
    let ahead = end(word).wrapping_sub(now.second() as u32) & SECOND_MASK;
    if ahead > 0 && ahead < SECONDS_AHEAD_MAX { hits(word).into() } else { 0 }
}

impl Hit {
    /// The key of the present window and, for a sliding counter, that of the window before.
    pub(super) fn keys(&self) -> (KeyHash, Option<KeyHash>) {
        if self.algorithm != WindowAlgorithm::Sliding {
            return (self.key, None);
        }
        let odd = KeyHash::from_bits(self.key.bits() ^ OTHER_WINDOW_KEY_MASK);
        match self.window.end / self.window.seconds.max(1) % 2 {
            0 => (self.key, Some(odd)),
            _ => (odd, Some(self.key)),
        }
    }

    /// The hits that count against the limit now.
    pub(super) fn used(&self, word: u64, previous: u64, now: Time) -> u32 {
        match self.algorithm {
            WindowAlgorithm::Fixed => live_hits(word, self.window),
            WindowAlgorithm::Sliding => {
                let before = u64::from(live_hits(previous, self.window));
                let length = u64::from(self.window.seconds) * SECOND;
                let left = (u64::from(self.window.end) * SECOND).saturating_sub(now.0).min(length);
                let reaching = u128::from(before) * u128::from(left);
                let reaching = reaching.div_ceil(u128::from(length.max(1))) as u32;
                reaching.saturating_add(live_hits(word, self.kept()))
            }
            WindowAlgorithm::Bucket => {
                self.bucket().map_or(0, |bucket| bucket_used(&bucket, word, now))
            }
        }
    }

    /// The word after this request's hits are added, or given back.
    pub(super) fn counted(&self, word: u64, now: Time) -> u64 {
        let window = match self.algorithm {
            WindowAlgorithm::Fixed => self.window,
            WindowAlgorithm::Sliding => self.kept(),
            WindowAlgorithm::Bucket => return self.bucket_counted(word, now),
        };
        let before = live_hits(word, window);
        let after = match self.give_back {
            true => before.saturating_sub(self.hits),
            false => before.saturating_add(self.hits),
        };
        let end = if is_live(word, window) { end(word) } else { window.end };
        window_word(end, after)
    }

    /// The word of a counter of which `used` hits are used.
    pub(super) fn standing_at(&self, used: u32, previous: u64, now: Time) -> u64 {
        match self.algorithm {
            WindowAlgorithm::Fixed => window_word(self.window.end, used),
            WindowAlgorithm::Sliding => {
                let reaching = self.used(0, previous, now);
                window_word(self.kept().end, used.saturating_sub(reaching))
            }
            WindowAlgorithm::Bucket => self.bucket().map_or(0, |bucket| {
                let (after, _) = bucket.charge(Time::ZERO, Cost::hits(used.into()), now);
                after.0 & !BUCKET_BIT | BUCKET_BIT
            }),
        }
    }

    /// The window for which the hits of a sliding counter are stored: one window longer, for the
    /// next one.
    fn kept(&self) -> CounterWindow {
        let CounterWindow { end, seconds } = self.window;
        CounterWindow { end: end.saturating_add(seconds), seconds }
    }

    /// The bucket with the rate and burst of this counter; `None` if the limit is zero.
    fn bucket(&self) -> Option<DebtBucket> {
        let limit = Cost::hits(self.limit.into());
        let rate = Rate::per(limit, Nanos::from_secs(self.window.seconds.into()))?;
        Some(DebtBucket::new(rate, limit))
    }

    fn bucket_counted(&self, word: u64, now: Time) -> u64 {
        let Some(bucket) = self.bucket() else { return word };
        let (full_at, cost) = (full_at(word), Cost::hits(self.hits.into()));
        let after = match self.give_back {
            true => full_at.minus(bucket.rate().time_for(cost)),
            false => bucket.charge(full_at, cost, now).0,
        };
        after.0 & !BUCKET_BIT | BUCKET_BIT
    }
}

/// Whether a word counts in `window`. A word of the window after it counts too: a thread that read
/// the clock just before the boundary and writes just after another thread must not discard that
/// thread's hits. A word further ahead was written before the clock was set back, and is void.
fn is_live(word: u64, window: CounterWindow) -> bool {
    word & BUCKET_BIT == 0 && end(word).wrapping_sub(window.end) & SECOND_MASK <= window.seconds
}

fn live_hits(word: u64, window: CounterWindow) -> u32 {
    if is_live(word, window) { hits(word) } else { 0 }
}

fn full_at(word: u64) -> Time {
    if word & BUCKET_BIT == 0 { Time::ZERO } else { Time(word) }
}

/// The hits used in a bucket. A part of a hit counts as a whole one, but rounding errors do not.
fn bucket_used(bucket: &DebtBucket, word: u64, now: Time) -> u32 {
    let missing = full_at(word).since(now).minus(ROUNDING_ERROR_MAX);
    u32::try_from(bucket.rate().cost_in(missing).0.div_ceil(SECOND)).unwrap_or(u32::MAX)
}
