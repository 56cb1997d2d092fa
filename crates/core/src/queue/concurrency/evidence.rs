//! Decides whether more requests in flight raise the completion rate, and with what confidence.
//!
//! The number of requests that end in a window is a matter of chance: if `n` are expected, it
//! varies by about the square root of `n`. So no single window is decisive; a decision waits until
//! the difference is larger than chance explains. This module knows no time and changes no limit:
//! see `concurrency`.

/// The number of standard deviations that a difference must have. One verdict in ten is wrong.
const SURE_DEVIATIONS: f64 = 1.3;
/// The same if request times point the same way. One verdict in six is wrong.
const LIKELY_DEVIATIONS: f64 = 1.0;
/// The factor by which earlier evidence fades with each new pair of windows.
const EVIDENCE_FADE_FACTOR: f64 = 0.97;
/// More in flight is worth it from this part of the largest possible gain on.
const WORTHWHILE_GAIN_PART: f64 = 0.35;
/// More in flight is worth much from this part of the largest possible gain on.
const LARGE_GAIN_PART: f64 = 0.6;
/// The part by which the completion rate may differ from that of the window before, apart from
/// chance. A larger difference means that the backend has changed.
const FOLLOWING_CHANGE_MAX: f64 = 0.5;
/// The variance that chance adds to [`FOLLOWING_CHANGE_MAX`], as a multiple of that of the two
/// counts: two and a half standard deviations.
const FOLLOWING_CHANCE_RATIO: f64 = 6.0;

const _: () = {
    assert!(LIKELY_DEVIATIONS < SURE_DEVIATIONS);
    assert!(WORTHWHILE_GAIN_PART < LARGE_GAIN_PART && LARGE_GAIN_PART < 1.0);
    assert!(EVIDENCE_FADE_FACTOR < 1.0, "earlier evidence fades");
};

/// The measurements of one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WindowSample {
    /// The limit: the most requests that were in flight.
    pub limit: usize,
    /// The work completed per second.
    pub rate: f64,
    /// The number of requests that ended.
    pub count: u32,
}

impl WindowSample {
    /// This window and another one at the same limit, taken together.
    pub fn with(self, other: WindowSample) -> WindowSample {
        let (a, b) = (f64::from(self.count), f64::from(other.count));
        let rate = (a + b) / (a / self.rate.max(1e-9) + b / other.rate.max(1e-9)).max(1e-9);
        WindowSample { rate, count: self.count.saturating_add(other.count), ..self }
    }

    /// The limit as a multiple of that of `other`.
    pub fn growth(&self, other: &WindowSample) -> f64 {
        self.limit as f64 / other.limit.max(1) as f64
    }

    /// Whether this can be the window after `last`. The rate must not fall by more than a third,
    /// nor rise by more than a half, beyond what the change of the limit accounts for; chance adds
    /// a little to both. Otherwise the backend, or its work, has changed.
    pub fn can_follow(&self, last: &WindowSample) -> bool {
        let growth = self.growth(last);
        let rate = self.rate / last.rate.max(1e-9);
        let (least, most) = (growth.min(1.0), growth.max(1.0));
        let beyond = (rate / most).max(least / rate.max(1e-9)) - 1.0;
        let chance = 1.0 / f64::from(self.count) + 1.0 / f64::from(last.count);
        let most = FOLLOWING_CHANGE_MAX * FOLLOWING_CHANGE_MAX + FOLLOWING_CHANCE_RATIO * chance;
        beyond <= 0.0 || beyond * beyond <= most
    }

    /// Whether the rate is surely above (`Some(true)`) or below (`Some(false)`) `part` times that
    /// of `other`. `None`: undecided.
    pub fn surely_above(&self, part: f64, other: &WindowSample) -> Option<bool> {
        self.above(part, other, SURE_DEVIATIONS)
    }

    /// The same with less confidence, for cases in which other evidence agrees.
    pub fn likely_above(&self, part: f64, other: &WindowSample) -> Option<bool> {
        self.above(part, other, LIKELY_DEVIATIONS)
    }

    fn above(&self, part: f64, other: &WindowSample, spreads: f64) -> Option<bool> {
        let above = self.rate / other.rate.max(1e-9) - part;
        let chance = part * part * (1.0 / f64::from(self.count) + 1.0 / f64::from(other.count));
        (above * above > spreads * spreads * chance).then_some(above > 0.0)
    }
}

/// The evidence from pairs of windows, one with fewer and one with more requests in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    /// The sum of the relative gains, each weighted by its confidence, and (`weight`) the sum of
    /// the weights.
    gains: f64,
    weight: f64,
}

/// Whether it is worth it to have more in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GainVerdict {
    /// Nearly in proportion more is completed.
    Much,
    /// Worth it.
    Some,
    /// Not worth it.
    Nothing,
}

impl Evidence {
    /// Adds a pair of windows. Returns the verdict, as soon as there is one.
    pub fn weigh(&mut self, low: &WindowSample, high: &WindowSample) -> Option<GainVerdict> {
        let part = |a: f64, b: f64| 2.0 * (b - a) / (a + b).max(1e-9);
        let full = part(low.limit as f64, high.limit as f64);
        let weight = 1.0 / (1.0 / f64::from(low.count) + 1.0 / f64::from(high.count));
        self.gains = EVIDENCE_FADE_FACTOR * self.gains + weight * part(low.rate, high.rate);
        self.weight = EVIDENCE_FADE_FACTOR * self.weight + weight;
        let above = self.gains / self.weight - WORTHWHILE_GAIN_PART * full;
        if above * above * self.weight < SURE_DEVIATIONS * SURE_DEVIATIONS {
            return None;
        }
        Some(match above {
            _ if above < 0.0 => GainVerdict::Nothing,
            _ if above < (LARGE_GAIN_PART - WORTHWHILE_GAIN_PART) * full => GainVerdict::Some,
            _ => GainVerdict::Much,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(limit: usize, rate: f64, count: u32) -> WindowSample {
        WindowSample { limit, rate, count }
    }

    #[test]
    fn many_requests_settle_at_once_what_few_leave_open() {
        let (low, high) = (seen(8, 100.0, 1_000), seen(12, 150.0, 1_500));
        assert_eq!(Evidence::default().weigh(&low, &high), Some(GainVerdict::Much));
        let flat = seen(12, 101.0, 1_010);
        assert_eq!(Evidence::default().weigh(&low, &flat), Some(GainVerdict::Nothing));
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
