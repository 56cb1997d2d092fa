//! Hashes the attributes that a limit counts by to the number under which its bucket is stored.
//!
//! A key itself is never stored: it is hashed with a secret seed, so that an outsider cannot make
//! two clients share a bucket. Two keys share a bucket by chance once in 2^63 pairs. This module
//! also cuts addresses to networks. Readable names are made in `classify`.

use core::hash::Hasher;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::num::NonZeroU64;
use siphasher::sip::SipHasher13;

/// The secret seed of the hash. Instances that count together share it, and a snapshot stores it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeySeed(pub [u8; 16]);

/// The maximum length of a readable key name, in bytes.
pub const NAME_BYTES_MAX: usize = 120;

/// A hashed key: 63 bits, never zero. (The table uses the 64th bit as its writer's bit.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(NonZeroU64);

impl KeyHash {
    /// Mask of the bits that a hash may use.
    pub const MASK: u64 = u64::MAX >> 1;

    /// Converts raw bits, as peers and snapshots send them. The top bit is cleared, and zero
    /// becomes 1.
    #[must_use]
    pub const fn from_bits(bits: u64) -> KeyHash {
        match NonZeroU64::new(bits & KeyHash::MASK) {
            Some(bits) => KeyHash(bits),
            None => KeyHash(NonZeroU64::MIN),
        }
    }

    /// The 63 bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0.get()
    }
}

/// Collects the parts of a key. The hash includes the length before each part, so that
/// `("ab", "c")` and `("a", "bc")` differ.
#[derive(Clone)]
pub struct KeyHasher(SipHasher13);

impl KeyHasher {
    /// An empty key under `seed`.
    #[must_use]
    pub fn new(seed: &KeySeed) -> KeyHasher {
        KeyHasher(SipHasher13::new_with_key(&seed.0))
    }

    /// Adds one part.
    pub fn part(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.write(bytes);
    }

    /// Adds two parts of less than 4 GiB at once, which is faster than one after the other.
    pub fn pair(&mut self, first: &[u8], second: &[u8]) {
        self.number((first.len() as u64) << 32 | second.len() as u64);
        self.0.write(first);
        self.0.write(second);
    }

    /// Adds a number as one part. It needs no length because all numbers have eight bytes.
    pub fn number(&mut self, number: u64) {
        // The same as its bytes, least first, and faster.
        self.0.write_u64(number.to_le());
    }

    /// Adds bytes to the last part, which needs no length because nothing follows it.
    pub fn last_part(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Adds an address as one part.
    pub fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.part(&v4.octets()),
            IpAddr::V6(v6) => self.part(&v6.octets()),
        }
    }

    /// The hash of all parts.
    #[must_use]
    pub fn finish(self) -> KeyHash {
        KeyHash::from_bits(self.0.finish())
    }
}

/// The network of `address`: its first `v4` or `v6` bits, with the rest zero. An IPv4 address
/// written as IPv6 (`::ffff:192.0.2.1`) counts as an IPv4 address.
#[must_use]
pub fn network(address: IpAddr, v4: u8, v6: u8) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(v4.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask))
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(v6.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(parts: &[&str]) -> KeyHash {
        let mut hasher = KeyHasher::new(&KeySeed([7; 16]));
        parts.iter().for_each(|part| hasher.part(part.as_bytes()));
        hasher.finish()
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_ne!(hash(&["a"]), hash(&["a", ""]));
        assert_eq!(hash(&["a", "b"]), hash(&["a", "b"]));
    }

    #[test]
    fn no_hash_is_zero_or_wider_than_63_bits() {
        assert_eq!(KeyHash::from_bits(0).bits(), 1);
        assert_eq!(KeyHash::from_bits(1 << 63).bits(), 1);
        assert_eq!(KeyHash::from_bits(u64::MAX).bits(), KeyHash::MASK);
    }

    #[test]
    fn networks_are_cut_per_family() {
        let net = |text: &str, v4, v6| network(text.parse().expect("an address"), v4, v6);
        assert_eq!(net("192.0.2.77", 24, 48), net("192.0.2.0", 32, 64));
        assert_eq!(net("192.0.2.77", 0, 0), net("0.0.0.0", 32, 64));
        assert_eq!(net("2001:db8:1:2:3::4", 24, 48), net("2001:db8:1::", 32, 128));
        assert_eq!(net("::ffff:192.0.2.77", 32, 64), net("192.0.2.77", 32, 64));
    }
}
