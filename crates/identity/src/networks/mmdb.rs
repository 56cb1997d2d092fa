//! Databases in the format of MaxMind (`.mmdb`), which several publishers use with names of their
//! own for the fields.
//!
//! All networks of the file are visited in ascending order. The tree of a file may lead to one node
//! in many ways, so that a small file has more networks than can be visited; so their number is
//! bounded.

use super::address_table::AddressTableBuilder;
use super::network_field::NetworkField;
use super::network_file::NetworkFileError;
use maxminddb::{LookupResult, MaxMindDbError, Reader, WithinOptions};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::net::IpAddr;

/// The mark before the metadata at the end of a file.
const MARK: &[u8] = b"\xab\xcd\xefMaxMind.com";
/// Size of the part at the end of a file in which [`MARK`] is searched, in bytes.
const MARK_BYTES: usize = 128 << 10;

/// Maximum number of networks in a file, with those that have no record.
const NETWORKS_VISITED_MAX: usize = 1 << 24;

/// The fields of a record, as publishers call them: GeoLite2 and DB-IP first.
#[derive(Deserialize)]
struct MmdbRecord {
    autonomous_system_number: Option<Value>,
    /// IPinfo: `"AS13335"`.
    asn: Option<Value>,
    /// A section with `iso_code`; IPinfo: a code or, beside `country_code`, a name.
    country: Option<Value>,
    country_code: Option<Value>,
    /// Where an address has no country, its owner may have one.
    registered_country: Option<Value>,
}

/// Whether the bytes are a file of this format.
pub(super) fn is_mmdb(bytes: &[u8]) -> bool {
    let end = &bytes[bytes.len().saturating_sub(MARK_BYTES)..];
    memchr::memmem::find(end, MARK).is_some()
}

/// Reads the networks of a file with their values, and the time at which it was made.
pub(super) fn read(
    field: NetworkField,
    bytes: &[u8],
) -> Result<(AddressTableBuilder, Option<u64>), NetworkFileError> {
    read_up_to(NETWORKS_VISITED_MAX, field, bytes)
}

fn read_up_to(
    visited_max: usize,
    field: NetworkField,
    bytes: &[u8],
) -> Result<(AddressTableBuilder, Option<u64>), NetworkFileError> {
    let reader = Reader::from_source(bytes).map_err(damaged)?;
    let mut networks = MmdbNetworks::new(field);
    let options = WithinOptions::default().include_networks_without_data();
    for (visited, network) in reader.networks(options).map_err(damaged)?.enumerate() {
        if visited >= visited_max {
            let what = format!("this MaxMind DB has more than {visited_max} networks");
            return Err(NetworkFileError::whole(what));
        }
        networks.add(&network.map_err(damaged)?)?;
    }
    networks.end()?;
    if networks.builder.ranges() == 0 {
        let database = &reader.metadata().database_type;
        let what = format!(
            "this MaxMind DB ({}) states {} for no network",
            database.escape_debug(),
            field.what()
        );
        return Err(NetworkFileError::whole(what));
    }
    let created = Some(reader.metadata().build_epoch).filter(|epoch| *epoch > 0);
    Ok((networks.builder, created))
}

/// The networks of a file so far.
struct MmdbNetworks {
    field: NetworkField,
    builder: AddressTableBuilder,
    /// The values of the records that have been read, by the place of the record in the file.
    values: HashMap<usize, u32>,
    /// Networks that follow each other and have one value, as one range.
    last: Option<(IpAddr, IpAddr, u32)>,
}

impl MmdbNetworks {
    fn new(field: NetworkField) -> MmdbNetworks {
        let (builder, values) = (AddressTableBuilder::default(), HashMap::new());
        MmdbNetworks { field, builder, values, last: None }
    }

    fn add(&mut self, found: &LookupResult<'_, &[u8]>) -> Result<(), NetworkFileError> {
        let value = self.value(found)?;
        if value == 0 {
            return Ok(());
        }
        let network = found.network().map_err(damaged)?;
        let (first, last) = (network.network(), network.broadcast());
        match &mut self.last {
            Some((_, end, same)) if *same == value && after(*end) == Some(first) => *end = last,
            _ => {
                self.end()?;
                self.last = Some((first, last, value));
            }
        }
        Ok(())
    }

    /// Adds the last range to the table.
    fn end(&mut self) -> Result<(), NetworkFileError> {
        let Some((first, last, value)) = self.last.take() else { return Ok(()) };
        let added = self.builder.add(first, last, value);
        added.map_err(|error| NetworkFileError::whole(error.to_string()))
    }

    fn value(&mut self, found: &LookupResult<'_, &[u8]>) -> Result<u32, NetworkFileError> {
        let Some(place) = found.offset() else { return Ok(0) };
        if let Some(value) = self.values.get(&place) {
            return Ok(*value);
        }
        let record: Option<MmdbRecord> = found.decode().map_err(damaged)?;
        let text = record.and_then(|record| record.text(self.field));
        let value = text.and_then(|text| self.field.parse(&text)).unwrap_or(0);
        self.values.insert(place, value);
        Ok(value)
    }
}

impl MmdbRecord {
    fn text(self, field: NetworkField) -> Option<String> {
        let MmdbRecord { autonomous_system_number, asn, country, country_code, .. } = self;
        let code = |section: &Option<Value>| section.as_ref()?.get("iso_code").cloned();
        let value = match field {
            NetworkField::Asn => autonomous_system_number.or(asn),
            NetworkField::Country => code(&country)
                .or(country_code)
                .or_else(|| code(&self.registered_country))
                .or(country),
        };
        match value? {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

fn damaged(error: MaxMindDbError) -> NetworkFileError {
    NetworkFileError::whole(format!("this MaxMind DB is damaged: {error}"))
}

fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => v4.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(v6) => v6.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

#[cfg(test)]
mod tests;
