//! The network of a request's client: its AS number, its country, and the address lists it is in.
//!
//! For each there is at most one lookup in a request, when a limit or a condition first asks, and
//! its text is made without an allocation.

use evenkeel_core::fact::ClientFact;
use evenkeel_identity::networks::live::NetworkTables;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::path::Path;

/// The bytes of the longest text: `AS` and a number of 32 bits.
const TEXT_BYTES_MAX: usize = 12;

/// What is known of the network of a client.
pub(crate) struct ClientNetwork<'a> {
    address: IpAddr,
    networks: &'a NetworkTables,
    asn: OnceCell<Option<FactText>>,
    country: OnceCell<Option<FactText>>,
}

impl<'a> ClientNetwork<'a> {
    pub(crate) fn new(address: IpAddr, networks: &'a NetworkTables) -> ClientNetwork<'a> {
        ClientNetwork { address, networks, asn: OnceCell::new(), country: OnceCell::new() }
    }

    /// Whether the address is in the address list of this file.
    pub(crate) fn is_listed(&self, file: &str) -> bool {
        self.networks.is_listed(Path::new(file), self.address)
    }

    /// A fact about the network. The outer `None`: the fact is about something else.
    pub(crate) fn fact(&self, fact: ClientFact) -> Option<Option<Cow<'_, str>>> {
        let text = match fact {
            ClientFact::Asn => self.asn.get_or_init(|| {
                self.networks
                    .asn(self.address)
                    .map(|number| FactText::of(format_args!("AS{number}")))
            }),
            ClientFact::Country => self.country.get_or_init(|| {
                self.networks.country(self.address).map(|code| FactText::of(format_args!("{code}")))
            }),
            _ => return None,
        };
        Some(text.as_ref().map(|text| Cow::Borrowed(text.as_str())))
    }
}

/// A short text.
#[derive(Default)]
struct FactText {
    bytes: [u8; TEXT_BYTES_MAX],
    length: usize,
}

impl FactText {
    fn of(text: fmt::Arguments<'_>) -> FactText {
        let mut short = FactText::default();
        // Text that does not fit is left out; all that is written here fits.
        let _ = short.write_fmt(text);
        short
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl Write for FactText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_text_fits() {
        assert_eq!(FactText::of(format_args!("AS{}", u32::MAX)).as_str(), "AS4294967295");
        assert_eq!(FactText::of(format_args!("AS{}", 7)).as_str(), "AS7");
    }

    #[test]
    fn without_tables_nothing_is_known() {
        let tables = NetworkTables::default();
        let network = ClientNetwork::new(IpAddr::from([192, 0, 2, 7]), &tables);
        assert_eq!(network.fact(ClientFact::Asn), Some(None));
        assert_eq!(network.fact(ClientFact::Country), Some(None));
        assert_eq!(network.fact(ClientFact::Ja4), None);
    }
}
