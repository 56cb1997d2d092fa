//! The nonces of valid signatures, so that each counts once.
//!
//! Only a holder of a trusted key can add one, so strangers cannot fill the memory. A nonce is
//! remembered as a keyed hash until its signature expires. There are two generations; when the
//! younger one is full of nonces that are still good, the older one is dropped: a robot with more
//! than 131 072 requests within the lifetime of its signatures can be replayed after that number of
//! other requests. Each process remembers its own nonces.

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::BuildHasher as _;

/// Nonces of one generation, some 20 bytes each.
const GENERATION_MAX: usize = 131_072;

#[derive(Default)]
struct NonceGenerations {
    /// Hashes of nonces, with the second when their signature expires.
    young: HashMap<u64, u64>,
    old: HashMap<u64, u64>,
}

/// The nonces that were used.
#[derive(Default)]
pub struct SeenNonces {
    seed: RandomState,
    seen: Mutex<NonceGenerations>,
}

impl SeenNonces {
    /// Remembers the nonce of a valid signature of this key until the second `expires`. Returns
    /// false if it was used before.
    #[must_use]
    pub fn use_once(&self, key: &str, nonce: &str, expires: u64, now: u64) -> bool {
        let hash = self.seed.hash_one((key, nonce));
        let mut seen = self.seen.lock();
        let used = |until: Option<&u64>| until.is_some_and(|until| *until >= now);
        if used(seen.young.get(&hash)) || used(seen.old.get(&hash)) {
            return false;
        }
        if seen.young.len() >= GENERATION_MAX {
            seen.make_room(now);
        }
        seen.young.insert(hash, expires);
        true
    }
}

impl NonceGenerations {
    fn make_room(&mut self, now: u64) {
        self.young.retain(|_, until| *until >= now);
        if self.young.len() > GENERATION_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_counts_once_until_its_signature_expires() {
        let seen = SeenNonces::default();
        assert!(seen.use_once("key", "a", 100, 50));
        assert!(!seen.use_once("key", "a", 100, 100), "in its last second");
        assert!(seen.use_once("other", "a", 100, 50), "a nonce belongs to its key");
        assert!(
            seen.use_once("key", "a", 300, 101),
            "the signature that had it is no longer valid"
        );
        assert!(!seen.use_once("key", "a", 300, 102));
    }

    #[test]
    fn memory_is_bounded_and_recent_nonces_stay() {
        let seen = SeenNonces::default();
        let total = 3 * GENERATION_MAX;
        for number in 0..total {
            assert!(seen.use_once("key", &number.to_string(), 1000, 1));
        }
        let generations = seen.seen.lock();
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION_MAX);
        drop(generations);
        for number in total - GENERATION_MAX..total {
            assert!(!seen.use_once("key", &number.to_string(), 1000, 1), "{number}");
        }
    }

    #[test]
    fn expired_nonces_make_room_without_a_loss() {
        let seen = SeenNonces::default();
        assert!(seen.use_once("key", "long", 1_000_000, 1));
        for number in 0..4 * GENERATION_MAX as u64 {
            assert!(seen.use_once("key", &number.to_string(), number + 10, number));
        }
        assert!(!seen.use_once("key", "long", 1_000_000, 2));
    }
}
