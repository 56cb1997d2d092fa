//! A table from ranges of addresses to small numbers: compact, immutable, built once.
//!
//! Each family has a list of the addresses where another value begins, with the values. A stretch
//! without a value between two ranges is an entry too. Above the list is one of every 16th entry,
//! and so on, as in a B-tree: a lookup compares 16 neighbours in each, so it waits for few parts of
//! the memory. Most ranges of IPv6 are networks of up to 64 bits, so the first list of IPv6 knows
//! only the first 64 bits; the few networks with several values inside are in a second one. An
//! entry takes some 8 bytes for IPv4, 13 for IPv6, and 21 in the second list.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;

/// Maximum number of ranges that a table is built from.
pub const RANGES_MAX: usize = 1 << 22;
/// Number of neighbours that a lookup compares in each list.
const PART_ENTRIES: usize = 16;

/// The value of an address without a range.
const NO_VALUE: u32 = 0;
/// In the first list of IPv6: the values of this network are in the second list.
const SEVERAL_VALUES: u32 = u32::MAX;

/// An immutable table from ranges of addresses to numbers above 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressTable {
    v4: RangeStarts<u32>,
    v6_networks: RangeStarts<u64>,
    v6_hosts: RangeStarts<u128>,
    ranges: usize,
}

/// A range that does not fit into a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressRangeError {
    /// One end is an IPv4 address and the other one an IPv6 address.
    #[error("one end of the range is an IPv4 address, the other one an IPv6 address")]
    Mixed,
    /// The last address comes before the first one.
    #[error("the range ends before it begins")]
    Reversed,
    /// The value is the largest one, which has another meaning. No AS has this number (RFC 7300).
    #[error("the number {} is reserved", u32::MAX)]
    Value,
    /// The table is full.
    #[error("more than {RANGES_MAX} ranges")]
    TooMany,
}

/// Collects the ranges of a table.
///
/// Ranges may overlap and come in any order. For an address in several ranges the smallest one
/// applies; of two ranges of the same size the one that begins later, and of two equal ranges the
/// one that was added last.
#[derive(Debug, Default)]
pub struct AddressTableBuilder {
    v4: Vec<ValueRange<u32>>,
    v6: Vec<ValueRange<u128>>,
}

impl AddressTable {
    /// The value of an address. An IPv4 address that is mapped into IPv6 counts as IPv4.
    #[must_use]
    pub fn get(&self, address: IpAddr) -> Option<u32> {
        let value = match address.to_canonical() {
            IpAddr::V4(v4) => self.v4.value(v4.to_bits()),
            IpAddr::V6(v6) => match self.v6_networks.value(network_bits(v6.to_bits())) {
                SEVERAL_VALUES => self.v6_hosts.value(v6.to_bits()),
                value => value,
            },
        };
        (value != NO_VALUE).then_some(value)
    }

    /// The number of ranges that the table was built from.
    #[must_use]
    pub const fn ranges(&self) -> usize {
        self.ranges
    }

    /// Whether no address has a value.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.v4.values.is_empty() && self.v6_networks.values.is_empty()
    }

    /// The memory of the table, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.v4.bytes() + self.v6_networks.bytes() + self.v6_hosts.bytes()
    }
}

impl AddressTableBuilder {
    /// Adds the range from `first` to `last`, both included. The value 0 stands for no value: it
    /// takes the value away from addresses that a larger range gives one.
    ///
    /// # Errors
    /// [`AddressRangeError`]. The range is not added.
    pub fn add(
        &mut self,
        first: IpAddr,
        last: IpAddr,
        value: u32,
    ) -> Result<(), AddressRangeError> {
        if self.ranges() >= RANGES_MAX {
            return Err(AddressRangeError::TooMany);
        }
        if value == SEVERAL_VALUES {
            return Err(AddressRangeError::Value);
        }
        match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                push(&mut self.v4, first.to_bits(), last.to_bits(), value)
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                push(&mut self.v6, first.to_bits(), last.to_bits(), value)
            }
            _ => Err(AddressRangeError::Mixed),
        }
    }

    /// The number of ranges so far.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Builds the table.
    #[must_use]
    pub fn build(self) -> AddressTable {
        let ranges = self.ranges();
        let (v6_networks, v6_hosts) = split(&stretches(self.v6));
        AddressTable {
            v4: RangeStarts::new(&stretches(self.v4)),
            v6_networks: RangeStarts::new(&v6_networks),
            v6_hosts: RangeStarts::new(&v6_hosts),
            ranges,
        }
    }
}

fn push<A: Ord>(
    ranges: &mut Vec<ValueRange<A>>,
    first: A,
    last: A,
    value: u32,
) -> Result<(), AddressRangeError> {
    if last < first {
        return Err(AddressRangeError::Reversed);
    }
    ranges.push(ValueRange { first, last, value });
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct ValueRange<A> {
    first: A,
    last: A,
    value: u32,
}

/// An address as a number.
trait AddressBits: Copy + Ord + Default {
    /// The address after this one; `None` after the last one.
    fn next(self) -> Option<Self>;
    /// The distance from a smaller address.
    fn since(self, first: Self) -> Self;
}

impl AddressBits for u32 {
    fn next(self) -> Option<u32> {
        self.checked_add(1)
    }

    fn since(self, first: u32) -> u32 {
        self - first
    }
}

impl AddressBits for u128 {
    fn next(self) -> Option<u128> {
        self.checked_add(1)
    }

    fn since(self, first: u128) -> u128 {
        self - first
    }
}

/// The addresses of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RangeStarts<A> {
    /// The addresses at which another value begins. The last list has those of all entries. Each
    /// list above has the entries of the next one at the multiples of [`PART_ENTRIES`].
    levels: Vec<Box<[A]>>,
    /// The values of the entries.
    values: Box<[u32]>,
}

impl<A: Copy + Ord> RangeStarts<A> {
    /// `stretches` are the first addresses of stretches with one value, in ascending order.
    fn new(stretches: &[(A, u32)]) -> RangeStarts<A> {
        let starts = stretches.iter().map(|(start, _)| *start).collect();
        let values = stretches.iter().map(|(_, value)| *value).collect();
        let mut levels: Vec<Box<[A]>> = vec![starts];
        while let Some(long) = levels.last().filter(|level| level.len() > PART_ENTRIES) {
            let above = long.iter().copied().step_by(PART_ENTRIES).collect();
            levels.push(above);
        }
        levels.reverse();
        RangeStarts { levels, values }
    }

    fn value(&self, address: A) -> u32 {
        let mut from = 0;
        for level in &self.levels {
            let part = &level[from..level.len().min(from + PART_ENTRIES)];
            let begun = part.iter().filter(|start| **start <= address).count();
            // Only before the first entry of all has none begun.
            let Some(at) = (from + begun).checked_sub(1) else { return NO_VALUE };
            from = at * PART_ENTRIES;
        }
        self.values.get(from / PART_ENTRIES).copied().unwrap_or(NO_VALUE)
    }

    fn bytes(&self) -> usize {
        let levels: usize = self.levels.iter().map(|level| size_of_val(&**level)).sum();
        levels + size_of_val(&*self.values)
    }
}

/// The stretches of addresses with one value: their first addresses and values, in ascending order.
/// The addresses before the first one have no value.
fn stretches<A: AddressBits>(mut ranges: Vec<ValueRange<A>>) -> Vec<(A, u32)> {
    // Equal ranges stay in the order in which they were added.
    ranges.sort_by_key(|range| range.first);
    let mut stretches: Vec<(A, u32)> = Vec::new();
    for_each_stretch(&ranges, |start, value| {
        if stretches.last().map_or(NO_VALUE, |(_, last)| *last) != value {
            stretches.push((start, value));
        }
    });
    stretches
}

/// The entries of the two lists of IPv6.
#[expect(clippy::type_complexity, reason = "two lists of entries")]
fn split(stretches: &[(u128, u32)]) -> (Vec<(u64, u32)>, Vec<(u128, u32)>) {
    let (mut networks, mut hosts) = (Vec::new(), Vec::<(u128, u32)>::new());
    let set = |networks: &mut Vec<(u64, u32)>, network, value| match networks.last_mut() {
        Some((last, old)) if *last == network => *old = value,
        _ => networks.push((network, value)),
    };
    let mut before = NO_VALUE;
    for (start, value) in stretches.iter().copied() {
        let network = network_bits(start);
        if start == u128::from(network) << 64 {
            set(&mut networks, network, value);
        } else {
            if hosts.last().is_none_or(|(last, _)| network_bits(*last) != network) {
                hosts.push((u128::from(network) << 64, before));
                set(&mut networks, network, SEVERAL_VALUES);
            }
            hosts.push((start, value));
            if let Some(next) = network.checked_add(1) {
                set(&mut networks, next, value);
            }
        }
        before = value;
    }
    (networks, hosts)
}

/// The first 64 bits of an IPv6 address.
const fn network_bits(address: u128) -> u64 {
    (address >> 64) as u64
}

/// Calls `stretch` with the start and the value of each stretch of addresses in which the same
/// ranges apply, in ascending order. `ranges` must be sorted by their first address.
fn for_each_stretch<A: AddressBits>(ranges: &[ValueRange<A>], mut stretch: impl FnMut(A, u32)) {
    let mut coming = ranges.iter().enumerate().peekable();
    // The ranges that have begun, the smallest on top. Those that have ended leave when they are on
    // top.
    let mut begun = BinaryHeap::new();
    let mut at = A::default();
    loop {
        while let Some((index, range)) = coming.next_if(|(_, range)| range.first <= at) {
            begun.push((Reverse(range.last.since(range.first)), index));
        }
        while begun.peek().is_some_and(|(_, index)| ranges[*index].last < at) {
            begun.pop();
        }
        let top = begun.peek().map(|(_, index)| ranges[*index]);
        stretch(at, top.map_or(NO_VALUE, |range| range.value));
        let next = coming.peek().map(|(_, range)| range.first);
        // At the last address of all no range can begin later.
        let end = top.map(|range| range.last.next());
        at = match (next, end) {
            (Some(next), Some(Some(end))) => next.min(end),
            (Some(at), _) | (None, Some(Some(at))) => at,
            (None, _) => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn table(ranges: &[(&str, &str, u32)]) -> AddressTable {
        let mut builder = AddressTableBuilder::default();
        for (first, last, value) in ranges {
            builder.add(ip(first), ip(last), *value).expect("a range");
        }
        builder.build()
    }

    #[test]
    fn an_address_has_the_value_of_its_range() {
        let table = table(&[
            ("192.0.2.0", "192.0.2.255", 1),
            ("10.0.0.0", "10.255.255.255", 2),
            ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", 3),
        ]);
        for (address, value) in [
            ("192.0.2.0", Some(1)),
            ("192.0.2.255", Some(1)),
            ("192.0.1.255", None),
            ("192.0.3.0", None),
            ("10.20.30.40", Some(2)),
            ("0.0.0.0", None),
            ("255.255.255.255", None),
            ("::ffff:10.1.1.1", Some(2)),
            ("2001:db8::1", Some(3)),
            ("2001:db9::", None),
            ("::", None),
            ("::192.0.2.1", None),
        ] {
            assert_eq!(table.get(ip(address)), value, "{address}");
        }
        assert_eq!(table.ranges(), 3);
        assert_eq!(AddressTable::default().get(ip("192.0.2.1")), None);
    }

    #[test]
    fn the_smallest_range_applies() {
        let table = table(&[
            ("10.0.0.0", "10.255.255.255", 1),
            ("10.1.0.0", "10.1.255.255", 2),
            ("10.1.2.0", "10.1.2.255", 3),
            ("10.1.3.0", "10.1.3.255", 0),
            // Of two equal ones the later; of two that overlap in part the one that begins later.
            ("10.9.0.0", "10.9.0.255", 4),
            ("10.9.0.0", "10.9.0.255", 5),
            ("10.9.0.128", "10.9.1.127", 6),
        ]);
        for (address, value) in [
            ("10.0.255.255", Some(1)),
            ("10.1.0.0", Some(2)),
            ("10.1.2.9", Some(3)),
            ("10.1.3.9", None),
            ("10.1.4.0", Some(2)),
            ("10.2.0.0", Some(1)),
            ("10.9.0.127", Some(5)),
            ("10.9.0.128", Some(6)),
            ("10.9.1.127", Some(6)),
            ("10.9.1.128", Some(1)),
        ] {
            assert_eq!(table.get(ip(address)), value, "{address}");
        }
    }

    #[test]
    fn the_ends_of_the_address_space_belong_to_ranges() {
        let ends = table(&[
            ("0.0.0.0", "0.0.0.0", 1),
            ("255.255.255.255", "255.255.255.255", 2),
            ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 3),
        ]);
        assert_eq!(ends.get(ip("0.0.0.0")), Some(1));
        assert_eq!(ends.get(ip("0.0.0.1")), None);
        assert_eq!(ends.get(ip("255.255.255.255")), Some(2));
        assert_eq!(ends.get(ip("::")), Some(3));
        assert_eq!(ends.get(ip("2001:db8::1")), Some(3));
        assert_eq!(ends.get(ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")), Some(3));
    }

    #[test]
    fn neighbours_with_one_value_are_one_entry() {
        let table = table(&[("10.0.0.0", "10.0.0.255", 1), ("10.0.1.0", "10.0.1.255", 1)]);
        assert_eq!(table.v4.values.len(), 2);
        assert_eq!(table.bytes(), 2 * 8);
    }

    #[test]
    fn ranges_that_are_none_are_refused() {
        let mut builder = AddressTableBuilder::default();
        let mut add = |first, last| builder.add(ip(first), ip(last), 1);
        assert_eq!(add("10.0.0.1", "10.0.0.0"), Err(AddressRangeError::Reversed));
        assert_eq!(add("10.0.0.1", "::1"), Err(AddressRangeError::Mixed));
        assert_eq!(builder.ranges(), 0);
        let reserved = builder.add(ip("10.0.0.1"), ip("10.0.0.1"), u32::MAX);
        assert_eq!(reserved, Err(AddressRangeError::Value));
    }

    fn naive(ranges: &[(u8, u8, u32)], address: u8) -> Option<u32> {
        let holds = |range: &&(u8, u8, u32)| range.0 <= address && address <= range.1;
        // Of equal keys `min_by_key` returns the first one.
        let mut later = ranges.iter().rev();
        let best =
            later.by_ref().filter(holds).min_by_key(|range| (range.1 - range.0, Reverse(range.0)));
        best.map(|range| range.2).filter(|value| *value != 0)
    }

    proptest! {
        #[test]
        fn it_is_the_naive_search(
            ranges in proptest::collection::vec((any::<u8>(), any::<u8>(), 0..5u32), 0..300),
        ) {
            let ranges: Vec<(u8, u8, u32)> =
                ranges.into_iter().map(|(a, b, value)| (a.min(b), a.max(b), value)).collect();
            let v4 = |end: u8| IpAddr::V4(Ipv4Addr::from([end; 4]));
            // Eight addresses in each network, so ranges begin and end inside of networks.
            let v6 = |end: u8| {
                let network = u128::from(u64::MAX - 31 + u64::from(end >> 3));
                IpAddr::V6(Ipv6Addr::from_bits(network << 64 | u128::from(end & 7) << 61))
            };
            let mut builder = AddressTableBuilder::default();
            for (first, last, value) in &ranges {
                builder.add(v4(*first), v4(*last), *value).expect("a range");
                builder.add(v6(*first), v6(*last), *value).expect("a range");
            }
            let table = builder.build();
            for address in 0..=u8::MAX {
                prop_assert_eq!(table.get(v4(address)), naive(&ranges, address));
                prop_assert_eq!(table.get(v6(address)), naive(&ranges, address));
            }
        }
    }
}
