//! Seeded pseudo-random numbers for simulations: xoshiro256++ (Blackman, Vigna, 2019), with its
//! state filled by splitmix64. The same seed gives the same run on every machine.
//!
//! They are not for secrets and not for production; only `sim` uses them.

use crate::units::Nanos;

/// The distribution of a duration or of the gap between events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomDuration {
    /// Always the same duration.
    Fixed(Nanos),
    /// Uniformly distributed from the first to the second duration.
    Between(Nanos, Nanos),
    /// Exponentially distributed with this mean. Gaps between arrivals then form a Poisson process.
    Exponential(Nanos),
}

impl RandomDuration {
    /// Always a duration of zero.
    pub const ZERO: RandomDuration = RandomDuration::Fixed(Nanos::ZERO);
}

/// One stream of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct SimRandom([u64; 4]);

impl SimRandom {
    /// Stream number `stream` of `seed`; streams are independent of each other.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> SimRandom {
        let mut state = seed ^ stream.wrapping_mul(0xd605_bbb5_8c8a_be7d);
        SimRandom([(); 4].map(|()| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let drawn = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        drawn
    }

    /// A number from 0 (included) to 1 (excluded).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws a duration.
    pub fn length(&mut self, length: RandomDuration) -> Nanos {
        match length {
            RandomDuration::Fixed(length) => length,
            RandomDuration::Between(least, most) => {
                let span = most.minus(least).0.saturating_add(1);
                let part = (u128::from(self.bits()) * u128::from(span)) >> 64;
                least.plus(Nanos(part as u64))
            }
            RandomDuration::Exponential(mean) => Nanos((self.exponential() * mean.0 as f64) as u64),
        }
    }

    /// Exponentially distributed with mean 1, by von Neumann's comparisons (1951): a falling run of
    /// odd length has exactly the right probability, and needs no logarithm.
    fn exponential(&mut self) -> f64 {
        let mut whole = 0.0;
        loop {
            let first = self.unit();
            let (mut last, mut falls) = (first, 1_u32);
            loop {
                let next = self.unit();
                if next >= last {
                    break;
                }
                last = next;
                falls += 1;
            }
            if falls % 2 == 1 {
                return whole + first;
            }
            whole += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_largest(length: RandomDuration) -> (f64, Nanos) {
        let mut random = SimRandom::new(1, 2);
        let drawn = (0..100_000).map(|_| random.length(length));
        let (sum, most) =
            drawn.fold((0, Nanos::ZERO), |(sum, most), one| (sum + one.0, most.max(one)));
        (sum as f64 / 1e5, most)
    }

    #[test]
    fn lengths_have_their_means_and_bounds() {
        let second = Nanos::from_secs(1);
        let (mean, most) = mean_and_largest(RandomDuration::Exponential(second));
        assert!((mean / 1e9 - 1.0).abs() < 0.02, "{mean}");
        assert!(most > Nanos::from_secs(8) && most < Nanos::from_secs(25), "{most}");
        let (mean, most) = mean_and_largest(RandomDuration::Between(second, Nanos::from_secs(3)));
        assert!((mean / 2e9 - 1.0).abs() < 0.01, "{mean}");
        assert!(most <= Nanos::from_secs(3));
        assert_eq!(mean_and_largest(RandomDuration::Fixed(second)), (1e9, second));
    }

    #[test]
    fn streams_are_repeatable_and_differ() {
        let draw = |seed, stream| SimRandom::new(seed, stream).bits();
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }
}
