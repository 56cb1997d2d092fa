//! A set of networks that is searched in the logarithm of its size.
//!
//! Overlapping and adjacent networks are merged, so the ranges are disjoint and sorted.

use alloc::vec::Vec;
use core::net::IpAddr;

/// A set of IP addresses: disjoint ranges in ascending order, as IPv6 numbers. IPv4 addresses are
/// in it as IPv4-mapped ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet(Vec<(u128, u128)>);

impl AddressSet {
    /// The set of the networks with these first addresses and prefix lengths. A length beyond that
    /// of the address counts as the whole address.
    pub fn new(networks: impl IntoIterator<Item = (IpAddr, u8)>) -> AddressSet {
        let mut ranges: Vec<(u128, u128)> = networks.into_iter().map(range).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last)
                }
                _ => merged.push((first, last)),
            }
        }
        AddressSet(merged)
    }

    /// Whether the set contains the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let number = number(address);
        let after = self.0.partition_point(|(first, _)| *first <= number);
        let range = after.checked_sub(1).and_then(|at| self.0.get(at));
        range.is_some_and(|(_, last)| number <= *last)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn range((address, bits): (IpAddr, u8)) -> (u128, u128) {
    let bits =
        if address.is_ipv4() { 96 + u32::from(bits.min(32)) } else { u32::from(bits.min(128)) };
    let host = u128::MAX.checked_shr(bits).unwrap_or(0);
    let first = number(address) & !host;
    (first, first | host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn set(networks: &[(&str, u8)]) -> AddressSet {
        let parsed = networks.iter().map(|(at, bits)| (at.parse().expect("an address"), *bits));
        AddressSet::new(parsed.collect::<Vec<_>>())
    }

    fn has(set: &AddressSet, address: &str) -> bool {
        set.contains(address.parse().expect("an address"))
    }

    #[test]
    fn networks_contain_their_first_and_last_address() {
        let some = set(&[("192.0.2.0", 25), ("192.0.2.128", 25), ("198.51.100.7", 32)]);
        assert_eq!(some.0.len(), 2, "adjacent networks are one range");
        for inside in ["192.0.2.0", "192.0.2.255", "::ffff:192.0.2.9", "198.51.100.7"] {
            assert!(has(&some, inside), "{inside}");
        }
        for outside in ["192.0.1.255", "192.0.3.0", "198.51.100.8", "::1", "2001:db8::1"] {
            assert!(!has(&some, outside), "{outside}");
        }
    }

    #[test]
    fn the_widest_and_the_narrowest_networks_work() {
        let all = set(&[("::", 0)]);
        assert!(has(&all, "255.255.255.255") && has(&all, "ffff::") && has(&all, "::"));
        let v4 = set(&[("0.0.0.0", 0)]);
        assert!(has(&v4, "0.0.0.0") && has(&v4, "255.255.255.255") && !has(&v4, "2001:db8::"));
        let one = set(&[("2001:db8::1", 128), ("2001:db8::", 200)]);
        assert!(has(&one, "2001:db8::1") && has(&one, "2001:db8::") && !has(&one, "2001:db8::2"));
        assert!(!has(&AddressSet::default(), "::"));
    }
}
