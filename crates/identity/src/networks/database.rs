//! A file that says for each range of addresses which AS number or which country it has.
//!
//! The format follows from the content: a MaxMind DB (`mmdb`), or text with a range a line (`tsv`),
//! each as it is or packed with gzip. The contents are copied into an `AddressTable`, so a
//! lookup takes the same time for all formats, and the bytes of the file are not kept.

use super::address_table::{AddressTable, AddressTableBuilder};
use super::network_field::{CountryCode, NetworkField};
use super::network_file::{DATABASE_BYTES_MAX, NetworkFileError, unpacked};
use super::{mmdb, tsv};
use std::net::IpAddr;

/// The AS numbers or the countries of all addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkDatabase {
    table: AddressTable,
    /// The time that the file states, in seconds since the Unix epoch.
    created: Option<u64>,
}

impl NetworkDatabase {
    /// Reads the values of `field` from the bytes of a file.
    ///
    /// # Errors
    /// The file is in none of the formats, is damaged, is too large, or has no such value.
    pub fn parse(field: NetworkField, bytes: &[u8]) -> Result<NetworkDatabase, NetworkFileError> {
        let bytes = unpacked(bytes, DATABASE_BYTES_MAX)?;
        let (builder, created) = match mmdb::is_mmdb(&bytes) {
            true => mmdb::read(field, &bytes)?,
            false => (tsv::read(field, &bytes)?, None),
        };
        Ok(NetworkDatabase { table: checked(field, builder)?, created })
    }

    /// The AS number of an address, if this is a database of AS numbers.
    #[must_use]
    pub fn asn(&self, address: IpAddr) -> Option<u32> {
        self.table.get(address)
    }

    /// The country of an address, if this is a database of countries.
    #[must_use]
    pub fn country(&self, address: IpAddr) -> Option<CountryCode> {
        self.table.get(address).and_then(CountryCode::from_value)
    }

    /// The number of ranges, with those that have no value.
    #[must_use]
    pub const fn networks(&self) -> usize {
        self.table.ranges()
    }

    /// The memory of the table, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The time at which the file was made, in seconds since the Unix epoch, if it states one.
    #[must_use]
    pub const fn created(&self) -> Option<u64> {
        self.created
    }
}

fn checked(
    field: NetworkField,
    builder: AddressTableBuilder,
) -> Result<AddressTable, NetworkFileError> {
    let table = builder.build();
    if table.is_empty() {
        let what = format!("none of its {} networks has {}", table.ranges(), field.what());
        return Err(NetworkFileError::whole(what));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::super::network_file::tests::packed;
    use super::*;

    const TABLE: &str = "1.0.0.0\t1.0.0.255\t64500\tde\tX\n1.0.1.0\t1.0.1.255\t0\tNone\tX\n";

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_table_is_read_as_it_is_or_packed() {
        for bytes in [TABLE.as_bytes(), &packed(TABLE.as_bytes())] {
            let asns = NetworkDatabase::parse(NetworkField::Asn, bytes).expect("AS numbers");
            assert_eq!((asns.networks(), asns.created()), (2, None));
            assert_eq!(asns.asn(ip("1.0.0.7")), Some(64_500));
            assert_eq!(asns.asn(ip("::ffff:1.0.0.7")), Some(64_500));
            assert_eq!((asns.asn(ip("1.0.1.7")), asns.asn(ip("9.9.9.9"))), (None, None));
            let countries = NetworkDatabase::parse(NetworkField::Country, bytes).expect("codes");
            let german = countries.country(ip("1.0.0.7")).expect("a country");
            assert_eq!((german.as_str(), german.to_string()), ("DE", "DE".to_owned()));
            assert_eq!(countries.country(ip("1.0.1.7")), None);
        }
    }

    #[test]
    fn a_file_without_values_is_refused() {
        for (bytes, expected) in [
            (&b"1.0.0.0\t1.0.0.255\t0\tNone\tX\n"[..], " none of its 1 networks has an AS number"),
            (b"# only a comment", " none of its 0 networks has an AS number"),
            (b"", " the file is empty"),
            (b"\x00\x01\x02", "1: `\\0\\u{1}\\u{2}` is not a range"),
        ] {
            let error = NetworkDatabase::parse(NetworkField::Asn, bytes).expect_err("refused");
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }
}
