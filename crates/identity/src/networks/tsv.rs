//! Tables of ranges as text: one range a line, its columns separated by tabs.
//!
//! This is the form in which iptoasn.com publishes its tables: first address, last address, AS
//! number, country, description; or first address, last address, country. Addresses may be whole
//! numbers, as in the tables with `u32` in their name.

use super::address_table::AddressTableBuilder;
use super::network_field::NetworkField;
use super::network_file::{NetworkFileError, lines, shown};
use std::net::{IpAddr, Ipv4Addr};

/// Reads the ranges of a table with their values.
pub(super) fn read(
    field: NetworkField,
    bytes: &[u8],
) -> Result<AddressTableBuilder, NetworkFileError> {
    let mut builder = AddressTableBuilder::default();
    for (number, line) in lines(bytes) {
        row(field, line, &mut builder).map_err(|what| NetworkFileError::line(number, what))?;
    }
    Ok(builder)
}

fn row(field: NetworkField, line: &[u8], builder: &mut AddressTableBuilder) -> Result<(), String> {
    let columns: Vec<&[u8]> = line.splitn(5, |byte| *byte == b'\t').collect();
    let (first, last, value) = match (&*columns, field) {
        ([first, last, value, ..], NetworkField::Asn)
        | ([first, last, value], NetworkField::Country)
        | ([first, last, _, value, ..], NetworkField::Country) => (first, last, value),
        _ => {
            return Err(format!(
                "`{}` is not a range; write first address, last address, AS number and country, \
                 separated by tabs",
                shown(line)
            ));
        }
    };
    let text = std::str::from_utf8(value).unwrap_or_default().trim();
    let value =
        field.parse(text).ok_or_else(|| format!("`{}` is not {}", shown(value), field.what()))?;
    builder.add(address(first)?, address(last)?, value).map_err(|error| error.to_string())
}

fn address(bytes: &[u8]) -> Result<IpAddr, String> {
    let text = std::str::from_utf8(bytes).unwrap_or_default().trim();
    let number = || text.parse().ok().map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
    let address = text.parse().ok().or_else(number);
    address.ok_or_else(|| format!("`{}` is not an address", shown(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_fuzz::fuzz;

    const TABLE: &str = "# a comment\n\
        1.0.0.0\t1.0.0.255\t64500\tDE\tEXAMPLE - with\ttabs\n\
        1.0.1.0\t1.0.3.255\t0\tNone\tNot routed\n\
        2001:db8::\t2001:db8:0:ffff:ffff:ffff:ffff:ffff\t64501\tfr\t\r\n\
        16909056\t16909311\t4200000000\tZZ\tA NUMBER\n";

    fn value(field: NetworkField, text: &str, address: &str) -> Option<u32> {
        let builder = read(field, text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        builder.build().get(address.parse().expect("an address"))
    }

    #[test]
    fn the_columns_of_iptoasn_are_read() {
        let asn = |address| value(NetworkField::Asn, TABLE, address);
        assert_eq!(asn("1.0.0.7"), Some(64_500));
        assert_eq!(asn("1.0.2.7"), None);
        assert_eq!(asn("1.2.3.4"), Some(4_200_000_000));
        assert_eq!(asn("2001:db8::7"), Some(64_501));
        let code = |code: &str| NetworkField::Country.parse(code);
        let country = |address| value(NetworkField::Country, TABLE, address);
        assert_eq!(country("1.0.0.7"), code("DE"));
        assert_eq!(country("1.0.2.7"), None);
        assert_eq!(country("1.2.3.4"), None);
        assert_eq!(country("2001:db8::7"), code("FR"));
        let three = "1.0.0.0\t1.0.0.255\tAU\n";
        assert_eq!(value(NetworkField::Country, three, "1.0.0.7"), code("AU"));
    }

    #[test]
    fn the_line_of_an_error_is_told() {
        let first = "1.0.0.0\t1.0.0.255\t1\tDE\tX\n";
        for (line, expected) in [
            ("1.0.0.0\t1.0.0.2", "2: `1.0.0.0\\t1.0.0.2` is not a range"),
            ("nonsense", "2: `nonsense` is not a range"),
            ("1.0.0.0\t1.0.0.300\t1\tDE\tX", "2: `1.0.0.300` is not an address"),
            ("1.0.0.9\t1.0.0.1\t1\tDE\tX", "2: the range ends before it begins"),
            ("1.0.0.9\t::1\t1\tDE\tX", "2: one end of the range is an IPv4 address"),
            ("1.0.0.0\t1.0.0.1\tDE", "2: `DE` is not an AS number"),
            ("1.0.0.0\t1.0.0.1\t4294967296\tDE\tX", "2: `4294967296` is not an AS number"),
        ] {
            let text = format!("{first}{line}\n");
            let error = read(NetworkField::Asn, text.as_bytes()).expect_err(line).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let error =
            read(NetworkField::Country, b"1.0.0.0\t1.0.0.1\t1\tGermany\tX").expect_err("no");
        assert_eq!(error.to_string(), "1: `Germany` is not a country code such as DE");
    }

    #[test]
    fn fuzz_tables_of_ranges() {
        fuzz().for_each(|bytes: &[u8]| {
            let mut text = TABLE.as_bytes().to_vec();
            for pair in bytes.chunks_exact(2) {
                let at = usize::from(pair[0]) % text.len();
                text[at] = pair[1];
            }
            for text in [&text, bytes] {
                for field in [NetworkField::Asn, NetworkField::Country] {
                    let _ = read(field, text).map(AddressTableBuilder::build);
                }
            }
        });
    }
}
