//! What the engine and its clients have in common: the text of a token, and random numbers.
//!
//! A token is four bytes, in a prompt as in an output. The engine is `bin/model-engine`, its
//! clients are `bin/model-load`.

/// A token of an output. Its first byte occurs only once in it.
pub const TOKEN: &str = " tok";
/// Bytes of a text that are one token.
pub const TOKEN_BYTES: usize = TOKEN.len();

/// A small generator of random numbers (SplitMix64): the same on every machine.
pub struct Random(pub u64);

impl Random {
    /// A number, any of those that have 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is above 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }
}
