//! Pseudo-random numbers from a seed (splitmix64).

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// Divides `length` bytes into pieces of random lengths.
    pub fn cut(&mut self, length: usize, pieces: usize) -> Vec<std::ops::Range<usize>> {
        let mut ends: Vec<usize> = (1..pieces).map(|_| self.index(length + 1)).collect();
        ends.extend([0, length]);
        ends.sort_unstable();
        ends.windows(2).map(|pair| pair[0]..pair[1]).filter(|piece| !piece.is_empty()).collect()
    }
}
