//! Databases as several publishers write them, and damaged ones. The files are written here, by the
//! specification of the format (version 2.0), with records of 32 bits.

use super::*;
use evenkeel_fuzz::fuzz;
use ipnet::IpNet;
use std::net::Ipv6Addr;

/// A value of a record.
enum Field {
    Text(&'static str),
    Number(u32),
    Section(Vec<(&'static str, Field)>),
}

fn header(kind: u8, size: usize, out: &mut Vec<u8>) {
    let (size, more) = (size.min(29) as u8, size.checked_sub(29));
    match kind {
        0..=7 => out.push(kind << 5 | size),
        _ => out.extend([size, kind - 7]),
    }
    out.extend(more.map(|more| u8::try_from(more).expect("larger sizes have another form")));
}

fn text(value: &str, out: &mut Vec<u8>) {
    header(2, value.len(), out);
    out.extend(value.as_bytes());
}

fn number(kind: u8, value: u64, out: &mut Vec<u8>) {
    let bytes = value.to_be_bytes();
    let bytes = &bytes[value.leading_zeros() as usize / 8..];
    header(kind, bytes.len(), out);
    out.extend(bytes);
}

fn field(value: &Field, out: &mut Vec<u8>) {
    match value {
        Field::Text(value) => text(value, out),
        Field::Number(value) => number(6, u64::from(*value), out),
        Field::Section(fields) => {
            header(7, fields.len(), out);
            for (name, value) in fields {
                text(name, out);
                field(value, out);
            }
        }
    }
}

/// The end of a branch without a record.
const EMPTY: u32 = u32::MAX;
/// The first number that stands for a record instead of a node.
const RECORDS: u32 = 1 << 31;

struct MmdbWriter {
    nodes: Vec<[u32; 2]>,
    records: Vec<u8>,
    database: &'static str,
}

impl MmdbWriter {
    fn new(database: &'static str) -> MmdbWriter {
        MmdbWriter { nodes: vec![[EMPTY; 2]], records: Vec::new(), database }
    }

    /// Adds a network with its record. Smaller networks must come after larger ones.
    fn add(&mut self, network: &str, record: &Field) {
        let network: IpNet = network.parse().expect("a network");
        let at = RECORDS + self.records.len() as u32;
        field(record, &mut self.records);
        let (bits, length) = match network {
            IpNet::V4(v4) => (u128::from(v4.addr().to_bits()), v4.prefix_len() + 96),
            IpNet::V6(v6) => (v6.addr().to_bits(), v6.prefix_len()),
        };
        let mut node = 0;
        for depth in 0..length {
            let side = (bits >> (127 - depth) & 1) as usize;
            if depth + 1 == length {
                self.nodes[node][side] = at;
                return;
            }
            let next = self.nodes[node][side];
            if next >= RECORDS {
                self.nodes[node][side] = self.nodes.len() as u32;
                self.nodes.push([next; 2]);
            }
            node = self.nodes[node][side] as usize;
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let count = self.nodes.len() as u32;
        let number_of = |next: u32| match next {
            EMPTY => count,
            RECORDS.. => count + 16 + (next - RECORDS),
            node => node,
        };
        let ends = self.nodes.iter().flatten().map(|next| number_of(*next));
        let mut out: Vec<u8> = ends.flat_map(u32::to_be_bytes).collect();
        out.extend([0; 16]);
        out.extend(&self.records);
        out.extend(MARK);
        header(7, 9, &mut out);
        for (name, kind, value) in [
            ("binary_format_major_version", 5, 2),
            ("binary_format_minor_version", 5, 0),
            ("build_epoch", 9, 1_770_000_000),
            ("ip_version", 5, 6),
            ("node_count", 6, u64::from(count)),
            ("record_size", 5, 32),
        ] {
            text(name, &mut out);
            number(kind, value, &mut out);
        }
        text("database_type", &mut out);
        text(self.database, &mut out);
        text("description", &mut out);
        header(7, 0, &mut out);
        text("languages", &mut out);
        header(11, 0, &mut out);
        out
    }
}

/// As GeoLite2-ASN and DB-IP's ASN Lite.
fn asn_file() -> Vec<u8> {
    let mut writer = MmdbWriter::new("GeoLite2-ASN");
    let asn = |number| {
        let name = ("autonomous_system_organization", Field::Text("EXAMPLE"));
        Field::Section(vec![("autonomous_system_number", Field::Number(number)), name])
    };
    writer.add("1.0.0.0/16", &asn(64_500));
    writer.add("1.0.4.0/22", &asn(64_501));
    writer.add("1.1.0.0/16", &asn(64_500));
    writer.add("2001:db8::/32", &asn(64_502));
    writer.bytes()
}

fn value(field: NetworkField, bytes: &[u8], address: &str) -> Option<u32> {
    let (builder, _) = read(field, bytes).unwrap_or_else(|error| panic!("{error}"));
    builder.build().get(address.parse().expect("an address"))
}

fn error(field: NetworkField, bytes: &[u8]) -> String {
    read(field, bytes).expect_err("refused").to_string()
}

#[test]
fn as_numbers_of_both_families_are_read() {
    let file = asn_file();
    assert!(is_mmdb(&file) && !is_mmdb(b"1.0.0.0\t1.0.0.255\t1\n"));
    let asn = |address| value(NetworkField::Asn, &file, address);
    for (address, expected) in [
        ("1.0.0.0", Some(64_500)),
        ("1.0.3.255", Some(64_500)),
        ("1.0.4.0", Some(64_501)),
        ("1.0.8.0", Some(64_500)),
        ("1.1.255.255", Some(64_500)),
        ("1.2.0.0", None),
        ("2001:db8:ffff::", Some(64_502)),
        ("2001:db9::", None),
    ] {
        assert_eq!(asn(address), expected, "{address}");
    }
    let (builder, created) = read(NetworkField::Asn, &file).expect("a database");
    assert_eq!(created, Some(1_770_000_000));
    // Neighbours with one value are one range: up to 1.0.3.255, 1.0.4.0, from 1.0.8.0 on.
    assert_eq!(builder.ranges(), 4);
}

#[test]
fn the_fields_of_other_publishers_are_read() {
    let mut ipinfo = MmdbWriter::new("ipinfo ipinfo_lite.mmdb");
    let fields = |code, asn| {
        let name = ("country", Field::Text("Germany"));
        Field::Section(vec![name, ("country_code", Field::Text(code)), ("asn", Field::Text(asn))])
    };
    ipinfo.add("1.0.0.0/16", &fields("DE", "AS64500"));
    ipinfo.add("1.1.0.0/16", &fields("", ""));
    let ipinfo = ipinfo.bytes();
    let mut country = MmdbWriter::new("GeoLite2-Country");
    let code = |code| Field::Section(vec![("iso_code", Field::Text(code))]);
    country.add("1.0.0.0/16", &Field::Section(vec![("country", code("DE"))]));
    country.add("1.1.0.0/16", &Field::Section(vec![("registered_country", code("FR"))]));
    country.add("1.2.0.0/16", &Field::Section(vec![("continent", code("EU"))]));
    let country = country.bytes();
    let mut short = MmdbWriter::new("country");
    short.add("1.0.0.0/16", &Field::Section(vec![("country", Field::Text("DE"))]));
    let german = NetworkField::Country.parse("DE");
    for (file, address, expected) in [
        (&ipinfo, "1.0.0.1", german),
        (&ipinfo, "1.1.0.1", None),
        (&country, "1.0.0.1", german),
        (&country, "1.1.0.1", NetworkField::Country.parse("FR")),
        (&country, "1.2.0.1", None),
        (&short.bytes(), "1.0.0.1", german),
    ] {
        assert_eq!(value(NetworkField::Country, file, address), expected, "{address}");
    }
    assert_eq!(value(NetworkField::Asn, &ipinfo, "1.0.0.1"), Some(64_500));
    assert_eq!(value(NetworkField::Asn, &ipinfo, "1.1.0.1"), None);
    let told = error(NetworkField::Asn, &country);
    assert_eq!(told, " this MaxMind DB (GeoLite2-Country) states an AS number for no network");
}

#[test]
fn damaged_files_are_refused() {
    let file = asn_file();
    let metadata = memchr::memmem::find(&file, MARK).expect("the mark");
    assert!(error(NetworkField::Asn, &file[..file.len() - 20]).contains("damaged"));
    assert!(error(NetworkField::Asn, &file[metadata..]).contains("damaged"));
    // A download that broke off has no metadata, which is at the end.
    assert!(!is_mmdb(&file[..metadata]));
}

#[test]
fn a_tree_that_leads_to_one_node_in_many_ways_ends() {
    let mut writer = MmdbWriter::new("loops");
    writer.nodes = (1..=127).map(|next| [next; 2]).chain([[EMPTY; 2]]).collect();
    let told = read_up_to(10_000, NetworkField::Asn, &writer.bytes()).expect_err("refused");
    assert_eq!(told.to_string(), " this MaxMind DB has more than 10000 networks");
    writer.nodes = vec![[0; 2]];
    assert!(error(NetworkField::Asn, &writer.bytes()).contains("damaged"));
}

#[test]
fn fuzz_mmdb() {
    let file = asn_file();
    fuzz().for_each(|bytes: &[u8]| {
        let mut mixed = file.clone();
        for piece in bytes.chunks_exact(3) {
            let at = usize::from(u16::from_be_bytes([piece[0], piece[1]])) % mixed.len();
            mixed[at] = piece[2];
        }
        for file in [&mixed[..], bytes, &[bytes, MARK, bytes].concat()] {
            for field in [NetworkField::Asn, NetworkField::Country] {
                if let Ok((builder, _)) = read_up_to(10_000, field, file) {
                    let _ = builder.build().get(Ipv6Addr::LOCALHOST.into());
                }
            }
        }
    });
}
