//! What has been learned about the knee: the number of requests at once up to which a backend's
//! throughput grows.
//!
//! The belief is a probability for each possible knee. Throughput is assumed to follow [`curve`]:
//! in proportion to the requests in flight well below the knee, level well above it. So each knee
//! predicts by how much the throughput at two levels differs. An experiment measures that
//! difference, and makes the knees that predicted it more probable (Bayes' rule).
//!
//! This module knows neither time nor limit. For these see `concurrency`.

/// The number of knees: ten doublings in steps of a quarter.
const KNEES: usize = 41;
/// The four quarters of a doubling.
const QUARTERS: [f64; 4] = [1.0, 1.189_207_115, core::f64::consts::SQRT_2, 1.681_792_831];
/// The probability that the knee is not above the expected one, before any experiment.
const EXPECTED: f64 = 0.5;
/// At the knee, one percent more requests in flight raise the throughput by this part of a percent.
const GAIN_AT_KNEE: f64 = 0.15;
/// The standard deviation by which real backends depart from [`curve`], as a part of the step.
const CURVE_ERROR: f64 = 0.2;
/// No result is surer than this variance, so no knee becomes impossible.
const CHANCE_MIN: f64 = 1e-6;

/// A probability for each knee. Their sum is 1.
#[derive(Clone, Debug)]
pub(super) struct KneeBelief {
    /// The lowest knee.
    least: f64,
    parts: [f64; KNEES],
}

/// A comparison of two levels (mean numbers of requests in flight).
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelExperiment {
    pub low: f64,
    pub high: f64,
    /// The relative difference of the throughput between them.
    pub gain: f64,
    /// The variance of `gain` by chance.
    pub chance: f64,
}

impl KneeBelief {
    /// Each knee from `least` to `most` is equally probable.
    pub fn even(least: f64, most: f64) -> KneeBelief {
        let mut belief = KneeBelief { least, parts: [0.0; KNEES] };
        let most = belief.nearest(most);
        belief.parts[..=most].fill(1.0);
        belief.normalise();
        belief
    }

    /// What is believed before any experiment: the knee is at most `expected` with the probability
    /// [`EXPECTED`], and each doubling above that is half as probable as the one before.
    pub fn prior(least: f64, expected: f64) -> KneeBelief {
        let mut belief = KneeBelief::above(least, expected);
        belief.mix(&KneeBelief::even(least, expected), EXPECTED);
        belief
    }

    /// The knee is above `most`, each doubling half as probable as the one before.
    pub fn above(least: f64, most: f64) -> KneeBelief {
        let mut belief = KneeBelief { least, parts: [0.0; KNEES] };
        let first = (belief.nearest(most) + 1).min(KNEES - 1);
        let mut weight = 1.0;
        for part in &mut belief.parts[first..] {
            *part = weight;
            weight /= QUARTERS[1];
        }
        belief.normalise();
        belief
    }

    fn knee(&self, index: usize) -> f64 {
        self.least * QUARTERS[index % 4] * (1_u64 << (index / 4)) as f64
    }

    /// The last knee that is less than half a step above `number`.
    fn nearest(&self, number: f64) -> usize {
        (1..KNEES)
            .find(|index| self.knee(*index) > 1.09 * number)
            .map_or(KNEES - 1, |next| next - 1)
    }

    /// The number that the knee does not exceed with the probability `part`.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut sum = 0.0;
        let reached = |of: &f64| {
            sum += of;
            sum >= part
        };
        self.knee(self.parts.iter().position(reached).unwrap_or(KNEES - 1))
    }

    /// Moves towards `other`, by `part` of the way.
    pub fn mix(&mut self, other: &KneeBelief, part: f64) {
        for (own, other) in self.parts.iter_mut().zip(other.parts) {
            *own += part * (other - *own);
        }
    }

    /// Replaces the prior from which this belief began, and keeps what was learned since.
    pub fn replace_prior(&mut self, before: &KneeBelief, after: &KneeBelief) {
        for (own, (before, after)) in
            self.parts.iter_mut().zip(before.parts.iter().zip(after.parts))
        {
            *own *= after / before.max(f64::MIN_POSITIVE);
        }
        self.normalise();
    }

    /// Learns from an experiment. `noise`: how many times the variance is larger than by chance.
    /// Returns the square of the surprise: how far off the prediction was, in relation to chance.
    pub fn learn(&mut self, experiment: &LevelExperiment, noise: f64) -> f64 {
        let LevelExperiment { low, high, gain, chance } = *experiment;
        let step = CURVE_ERROR * difference(low, high);
        let chance = chance + step * step + CHANCE_MIN;
        let mut expected = 0.0;
        for index in 0..KNEES {
            let knee = self.knee(index);
            let predicted = difference(curve(low / knee), curve(high / knee));
            expected += self.parts[index] * predicted;
            let off = gain - predicted;
            // Student's t with three degrees of freedom: an outlier says little.
            let odds = 1.0 + off * off / (3.0 * noise * chance);
            self.parts[index] /= odds * odds;
        }
        self.normalise();
        (gain - expected) * (gain - expected) / chance
    }

    fn normalise(&mut self) {
        let sum: f64 = self.parts.iter().sum();
        self.parts.iter_mut().for_each(|part| *part /= sum.max(f64::MIN_POSITIVE));
    }
}

/// The relative difference of two numbers, from -2 to 2.
pub(super) fn difference(from: f64, to: f64) -> f64 {
    2.0 * (to - from) / (to + from).max(f64::MIN_POSITIVE)
}

/// The throughput, in some unit, with `level` times the knee in flight.
fn curve(level: f64) -> f64 {
    level / cube_root(1.0 + (1.0 / GAIN_AT_KNEE - 1.0) * level * level * level)
}

/// The cube root of a number of at least 1, by Newton's method; `core` has no such function.
fn cube_root(x: f64) -> f64 {
    let exponent = (x.to_bits() >> 52).saturating_sub(1_023);
    let mut root = (1_u64 << (exponent / 3).min(63)) as f64;
    for _ in 0..6 {
        root += (x / (root * root) - root) / 3.0;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cube_root_is_that_of_the_standard_library() {
        for i in 0..4_000 {
            let x = 1.01_f64.powi(i);
            assert!((cube_root(x) / x.cbrt() - 1.0).abs() < 1e-9, "{x}");
        }
    }

    #[test]
    fn before_any_experiment_the_median_is_within_a_step_of_the_expected_knee() {
        for (least, expected) in [(1.0, 1.0), (2.0, 2.0), (2.0, 64.0), (3.0, 400.0)] {
            let prior = KneeBelief::prior(least, expected);
            let median = prior.quantile(0.5);
            assert!((0.84..=1.19).contains(&(median / expected)), "{median} of {expected}");
            assert!((prior.parts.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn experiments_reveal_the_knee() {
        for (low, high, gain, from, to) in [
            (2.0, 4.0, 0.667, 5.0, 2_048.0), // in proportion
            (2.0, 4.0, 0.0, 2.0, 2.4),       // nothing
            (32.0, 64.0, 0.667, 60.0, 2_048.0),
            (64.0, 128.0, 0.0, 2.0, 64.0),
        ] {
            let mut belief = KneeBelief::even(2.0, 2_048.0);
            let experiment = LevelExperiment { low, high, gain, chance: 0.001 };
            for _ in 0..20 {
                belief.learn(&experiment, 1.0);
            }
            let (least, most) = (belief.quantile(0.05), belief.quantile(0.95));
            assert!(from <= least && most <= to, "{low} to {high}: {least} to {most}");
        }
    }

    #[test]
    fn another_prior_keeps_what_was_learned() {
        let (low, high) = (KneeBelief::prior(2.0, 2.0), KneeBelief::prior(2.0, 256.0));
        let experiment = LevelExperiment { low: 8.0, high: 16.0, gain: 0.3, chance: 0.01 };
        let (mut exchanged, mut straight) = (low.clone(), high.clone());
        exchanged.learn(&experiment, 1.0);
        straight.learn(&experiment, 1.0);
        exchanged.replace_prior(&low, &high);
        for (a, b) in exchanged.parts.iter().zip(straight.parts) {
            assert!((a - b).abs() < 1e-9, "{a} {b}");
        }
    }
}
