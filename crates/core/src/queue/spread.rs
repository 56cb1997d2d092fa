//! Hash maps over what is hashed already.
//!
//! Keys are the output of a keyed hash (`key`), request numbers are counted by ourselves: nobody
//! outside can aim two of them at one place, so one multiplication is hash enough. Not for
//! anything that a client chooses.

use core::hash::{BuildHasherDefault, Hasher};

/// A map by hashed keys or numbers of our own.
pub(super) type Map<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<Spread>>;

/// An odd number without a pattern: 2^64 over the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplies what it is given, so that the upper bits depend on all of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(ODD);
    }
}
