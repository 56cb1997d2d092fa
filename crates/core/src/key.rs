//! From what a limit counts by to the number its bucket is found under.
//!
//! A key is never stored: it is hashed with a secret seed, so that nobody outside can aim two
//! clients at one bucket. Two keys share a bucket by chance once in 2^63 pairs. Address prefixes
//! are cut here. Names for people are made in `classify`.

use core::hash::Hasher;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use siphasher::sip::SipHasher13;

/// The secret that keys the hash. Instances that count together share one; a snapshot keeps it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u8; 16]);

/// The longest name of a key that is made for people, in bytes.
pub const NAME_BYTES_MAX: usize = 120;

/// A hashed key: 63 bits, never zero. (The table keeps its writer's bit in the 64th.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// The bits that a hash may use.
    pub const MASK: u64 = u64::MAX >> 1;

    /// From raw bits, as peers and snapshots send them.
    #[must_use]
    pub const fn from_bits(bits: u64) -> KeyHash {
        let bits = bits & KeyHash::MASK;
        KeyHash(if bits == 0 { 1 } else { bits })
    }

    /// The 63 bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// Collects the parts of a key. Every part is preceded by its length, so that `("ab", "c")` and
/// `("a", "bc")` differ.
pub struct KeyHasher(SipHasher13);

impl KeyHasher {
    /// An empty key under `seed`.
    #[must_use]
    pub fn new(seed: &Seed) -> KeyHasher {
        KeyHasher(SipHasher13::new_with_key(&seed.0))
    }

    /// Adds one part.
    pub fn part(&mut self, bytes: &[u8]) {
        self.0.write(&(bytes.len() as u64).to_le_bytes());
        self.0.write(bytes);
    }

    /// Adds an address.
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

/// The network of `address`: its first `v4` or `v6` bits, the rest zero. An IPv4 address written
/// as IPv6 (`::ffff:192.0.2.1`) counts as the IPv4 address that it is.
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
        let mut hasher = KeyHasher::new(&Seed([7; 16]));
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
