//! The time of a lookup in a table of networks, and its memory.
//!
//! `cargo bench -p evenkeel-identity --bench networks`. The ranges are made up: neighbours without
//! gaps, each with another value than the one before, as in a table of AS numbers. The fastest of
//! some rounds is shown, because other work on the machine only adds time.

#![allow(missing_docs)]

use evenkeel_identity::networks::address_table::{AddressTable, AddressTableBuilder};
use evenkeel_identity::networks::database::NetworkDatabase;
use evenkeel_identity::networks::network_field::NetworkField;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

const ROUNDS: usize = 20;
const CALLS: usize = 1 << 20;

/// Numbers that look random (Knuth's generator).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        self.0 ^ (self.0 >> 29)
    }
}

fn measure(name: &str, table: &AddressTable, addresses: &[IpAddr]) {
    let round = |_| {
        let begun = Instant::now();
        let found = addresses.iter().filter(|address| table.get(**address).is_some()).count();
        black_box(found);
        begun.elapsed().as_nanos() / addresses.len() as u128
    };
    let fastest = (0..ROUNDS).map(round).min().unwrap_or_default();
    println!("{name:<48} {fastest:>6} ns");
}

/// `count` ranges between addresses at random, with their values.
fn table(starts: &mut Vec<u128>, address: impl Fn(u128) -> IpAddr) -> AddressTable {
    starts.sort_unstable();
    starts.dedup();
    let mut builder = AddressTableBuilder::default();
    for (index, pair) in starts.windows(2).enumerate() {
        builder.add(address(pair[0]), address(pair[1] - 1), index as u32 + 1).expect("a range");
    }
    builder.build()
}

/// The time to read a file of text, and the memory of what is kept.
fn read_text(lines: u32) {
    let mut text = String::new();
    for line in 0..lines {
        let (first, last) = (Ipv4Addr::from(line << 12), Ipv4Addr::from((line << 12) + 4_095));
        text += &format!("{first}\t{last}\t{}\tDE\tEXAMPLE - Example Networks\n", line + 1);
    }
    let begun = Instant::now();
    let read = NetworkDatabase::parse(NetworkField::Asn, text.as_bytes()).expect("a table");
    let (took, bytes) = (begun.elapsed().as_millis(), read.bytes());
    println!("{lines} lines of text ({} bytes): read in {took} ms, {bytes} bytes", text.len());
}

fn main() {
    read_text(500_000);
    let mut numbers = Numbers(7);
    let v4 = |bits: u128| IpAddr::V4((bits as u32).into());
    let v6 = |bits: u128| IpAddr::V6(bits.into());
    for count in [50_000, 500_000, 1_000_000] {
        for (family, address) in [("IPv4", &v4 as &dyn Fn(u128) -> IpAddr), ("IPv6", &v6)] {
            let mut any = || match family {
                "IPv4" => u128::from(numbers.next() as u32),
                // The addresses in use begin with few different bits. Ranges are networks of up to
                // 64 bits.
                _ => {
                    (0x2000 + u128::from(numbers.next() % 0xa10)) << 112
                        | u128::from(numbers.next() >> 16) << 64
                }
            };
            let mut starts: Vec<u128> = (0..=count).map(|_| any()).collect();
            let begun = Instant::now();
            let table = table(&mut starts, address);
            let built = begun.elapsed().as_millis();
            let addresses: Vec<IpAddr> = (0..CALLS).map(|_| address(any())).collect();
            let name = format!("{count} ranges of {family}, any address");
            measure(&name, &table, &addresses);
            let one = vec![addresses[0]; CALLS];
            measure(&format!("{count} ranges of {family}, one address"), &table, &one);
            let (ranges, bytes) = (table.ranges(), table.bytes());
            let each = bytes as f64 / ranges as f64;
            println!("  {ranges} ranges: {bytes} bytes, {each:.1} each, built in {built} ms");
        }
    }
}
