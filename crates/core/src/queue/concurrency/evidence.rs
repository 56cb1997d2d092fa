//! Whether more in flight raises completions: what windows of a second or so say, and how surely.
//!
//! How many requests end in a window is a matter of chance: of n expected ones, the square root
//! of n more or fewer. So no window is believed for its own sake; what is to be decided waits
//! until the difference is larger than chance makes it. Knows no time and changes nothing.

/// How many times the spread of chance a difference must be: one verdict in ten is wrong.
const SURE: f64 = 1.3;
/// The same where times say so too: one in six.
const LIKELY: f64 = 1.0;
/// What was seen longer ago weighs less.
const FADE: f64 = 0.97;
/// The part of what more in flight could bring at best that makes it worth having.
const WORTH: f64 = 0.35;

/// What a window showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
    /// How many were in flight at most.
    pub limit: usize,
    /// What was completed per second.
    pub rate: f64,
    /// How many requests that were.
    pub count: u32,
}

impl Seen {
    /// This window and another one at the same limit together.
    pub fn with(self, other: Seen) -> Seen {
        let (a, b) = (f64::from(self.count), f64::from(other.count));
        let rate = (a + b) / (a / self.rate.max(1e-9) + b / other.rate.max(1e-9)).max(1e-9);
        Seen { rate, count: self.count.saturating_add(other.count), ..self }
    }

    /// How much further in flight this is than `other`.
    pub fn growth(&self, other: &Seen) -> f64 {
        self.limit as f64 / other.limit.max(1) as f64
    }

    /// Whether this can be the window after `last`: no less than what the change of the limit
    /// accounts for and a third, nor more than that and half as much again; by chance a little
    /// further. Else it is another backend, or other work, that is seen.
    pub fn can_follow(&self, last: &Seen) -> bool {
        let growth = self.growth(last);
        let rate = self.rate / last.rate.max(1e-9);
        let (least, most) = (growth.min(1.0), growth.max(1.0));
        let beyond = (rate / most).max(least / rate.max(1e-9)) - 1.0;
        let chance = 1.0 / f64::from(self.count) + 1.0 / f64::from(last.count);
        beyond <= 0.0 || beyond * beyond <= 0.25 + 6.0 * chance
    }

    /// Whether the rate is surely above (`Some(true)`) or below `part` of what `other` had.
    pub fn surely_above(&self, part: f64, other: &Seen) -> Option<bool> {
        self.above(part, other, SURE)
    }

    /// The same, a little less sure: for where something else says so too.
    pub fn likely_above(&self, part: f64, other: &Seen) -> Option<bool> {
        self.above(part, other, LIKELY)
    }

    fn above(&self, part: f64, other: &Seen, spreads: f64) -> Option<bool> {
        let above = self.rate / other.rate.max(1e-9) - part;
        let chance = part * part * (1.0 / f64::from(self.count) + 1.0 / f64::from(other.count));
        (above * above > spreads * spreads * chance).then_some(above > 0.0)
    }
}

/// What pairs of windows with less and with more in flight have said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    /// The gains, each weighed by how sure it is, and these weights.
    gains: f64,
    weight: f64,
}

/// What it is worth to have more in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nearly as much more is completed.
    Much,
    /// It is worth it.
    Some,
    /// It is not.
    Nothing,
}

impl Evidence {
    /// One more pair; what is sure by now.
    pub fn weigh(&mut self, low: &Seen, high: &Seen) -> Option<Verdict> {
        let part = |a: f64, b: f64| 2.0 * (b - a) / (a + b).max(1e-9);
        let full = part(low.limit as f64, high.limit as f64);
        let weight = 1.0 / (1.0 / f64::from(low.count) + 1.0 / f64::from(high.count));
        self.gains = FADE * self.gains + weight * part(low.rate, high.rate);
        self.weight = FADE * self.weight + weight;
        let above = self.gains / self.weight - WORTH * full;
        if above * above * self.weight < SURE * SURE {
            return None;
        }
        Some(match above {
            _ if above < 0.0 => Verdict::Nothing,
            _ if above < 0.25 * full => Verdict::Some,
            _ => Verdict::Much,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(limit: usize, rate: f64, count: u32) -> Seen {
        Seen { limit, rate, count }
    }

    #[test]
    fn many_requests_settle_at_once_what_few_leave_open() {
        let (low, high) = (seen(8, 100.0, 1_000), seen(12, 150.0, 1_500));
        assert_eq!(Evidence::default().weigh(&low, &high), Some(Verdict::Much));
        let flat = seen(12, 101.0, 1_010);
        assert_eq!(Evidence::default().weigh(&low, &flat), Some(Verdict::Nothing));
        let (low, flat) = (seen(8, 10.0, 10), seen(12, 10.0, 10));
        let mut evidence = Evidence::default();
        let pairs = (1..100).find(|_| evidence.weigh(&low, &flat).is_some());
        assert!(pairs.is_some_and(|pairs| (5..50).contains(&pairs)), "{pairs:?}");
    }

    #[test]
    fn a_rate_is_compared_as_surely_as_it_is_known() {
        assert_eq!(seen(6, 60.0, 600).surely_above(0.8, &seen(10, 100.0, 900)), Some(false));
        assert_eq!(seen(6, 95.0, 600).surely_above(0.8, &seen(10, 100.0, 900)), Some(true));
        assert_eq!(seen(6, 7.0, 7).surely_above(0.8, &seen(10, 10.0, 9)), None);
        let both = seen(6, 50.0, 50).with(seen(6, 100.0, 100));
        assert!((both.rate - 75.0).abs() < 1e-9 && both.count == 150);
    }
}
