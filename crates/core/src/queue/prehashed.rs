//! Hash maps over keys that are hashed already.
//!
//! The keys are outputs of a keyed hash (`key`) or request numbers that the queue itself counts. No
//! client can choose two of them that collide, so one multiplication is hash enough. Not to be used
//! for anything that a client chooses.

use core::hash::{BuildHasherDefault, Hasher};

/// A map from hashed keys or internal numbers.
pub(super) type Map<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<PrehashedHasher>>;

/// An odd number without a pattern: 2^64 divided by the golden ratio.
const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A hasher that multiplies its input, so that the upper bits depend on all of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PrehashedHasher(u64);

impl Hasher for PrehashedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(HASH_MULTIPLIER);
    }
}
