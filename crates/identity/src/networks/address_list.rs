//! Lists of the addresses that robots come from, as their operators publish them.
//!
//! Two forms are read. JSON with `prefixes`, as Google, Bing, OpenAI, Anthropic, Perplexity and
//! Apple publish it: a list of sections with `ipv4Prefix` or `ipv6Prefix`, beside a `creationTime`.
//! Some publishers use other names, which are read too. Text: a network a line, with comments from
//! `#` on. Very large networks are refused, since a list with a mistake or a forged one would turn
//! everyone into a robot.

use super::address_table::{AddressTable, AddressTableBuilder};
use super::network_file::{LIST_BYTES_MAX, NetworkFileError, lines, shown, unpacked};
use ipnet::IpNet;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use std::fmt;
use std::net::IpAddr;

/// The fewest bits of a network in a list, for IPv4 and IPv6.
const PREFIX_BITS_MIN: (u8, u8) = (8, 16);
/// The names of lists of networks in a document.
const LIST_NAMES: [&str; 5] = ["prefixes", "ipv6_prefixes", "ips", "ipv4", "ipv6"];
/// The names of a network in an entry of a list.
const NETWORK_NAMES: [&str; 8] =
    ["ipv4Prefix", "ipv6Prefix", "ip_prefix", "ipv6_prefix", "prefix", "cidr", "ip_address", "ip"];

/// An immutable list of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressList {
    table: AddressTable,
    created: Option<u64>,
}

impl AddressList {
    /// Reads a list from the bytes of a file, which may be packed with gzip.
    ///
    /// # Errors
    /// The file is not such a list, is too large, or has no network.
    pub fn parse(bytes: &[u8]) -> Result<AddressList, NetworkFileError> {
        let bytes = unpacked(bytes, LIST_BYTES_MAX)?;
        let document = match bytes.trim_ascii_start().first() {
            Some(b'{') => json(&bytes)?,
            Some(b'[') => {
                ListDocument { networks: json::<NetworkEntries>(&bytes)?.0, created: None }
            }
            _ => ListDocument { networks: text(&bytes)?, created: None },
        };
        if document.networks.is_empty() {
            return Err(NetworkFileError::whole("it has no network"));
        }
        let mut builder = AddressTableBuilder::default();
        for network in document.networks {
            let added = builder.add(network.network(), network.broadcast(), 1);
            added.map_err(|error| NetworkFileError::whole(error.to_string()))?;
        }
        Ok(AddressList { table: builder.build(), created: document.created })
    }

    /// Reads a list that people write themselves: a text without networks is an empty list. One
    /// that operators publish is never empty, so JSON and packed files need a network.
    ///
    /// # Errors
    /// As [`AddressList::parse`], except for an empty text.
    pub fn parse_or_empty(bytes: &[u8]) -> Result<AddressList, NetworkFileError> {
        let is_empty = lines(bytes).all(|(_, line)| written(line).is_empty());
        if is_empty { Ok(AddressList::default()) } else { AddressList::parse(bytes) }
    }

    /// Whether an address is in one of the networks. An IPv4 address that is mapped into IPv6
    /// counts as IPv4. Takes some 50 ns.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.table.get(address).is_some()
    }

    /// The number of networks in the file.
    #[must_use]
    pub const fn networks(&self) -> usize {
        self.table.ranges()
    }

    /// The `creationTime` of the file, in seconds since the Unix epoch, if it states one.
    #[must_use]
    pub const fn created(&self) -> Option<u64> {
        self.created
    }
}

fn text(bytes: &[u8]) -> Result<Vec<IpNet>, NetworkFileError> {
    let read = |(number, written): (usize, &[u8])| {
        let text = std::str::from_utf8(written).unwrap_or_default();
        network(text).map_err(|why| NetworkFileError::line(number, not(written, why)))
    };
    let lines = lines(bytes).map(|(number, line)| (number, written(line)));
    lines.filter(|(_, written)| !written.is_empty()).map(read).collect()
}

/// A line without its comment.
fn written(line: &[u8]) -> &[u8] {
    line.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii()
}

/// Reads a network or an address; bits beyond the prefix are ignored.
fn network(text: &str) -> Result<IpNet, &'static str> {
    let net = text.parse::<IpNet>().map(|net| net.trunc());
    let net = net.or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let net = net.map_err(|_| "a network such as 192.0.2.0/24")?;
    let bits_min = if net.addr().is_ipv4() { PREFIX_BITS_MIN.0 } else { PREFIX_BITS_MIN.1 };
    match net.prefix_len() >= bits_min {
        true => Ok(net),
        false => Err("a network of a list: it has fewer than 8 bits (IPv6: 16)"),
    }
}

fn not(written: &[u8], what: &str) -> String {
    format!("`{}` is not {what}", shown(written))
}

fn json<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, NetworkFileError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let what = text.strip_suffix(&place).unwrap_or(&text);
        let what = match error.classify() {
            Category::Data => what.to_owned(),
            Category::Eof => "the file is cut off".to_owned(),
            Category::Syntax | Category::Io => format!("this is not JSON: {what}"),
        };
        NetworkFileError { line: Some(error.line()).filter(|line| *line > 0), what }
    })
}

/// A list with what is said about it.
struct ListDocument {
    networks: Vec<IpNet>,
    created: Option<u64>,
}

impl<'de> Deserialize<'de> for ListDocument {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ListDocument, D::Error> {
        struct DocumentVisitor;

        impl<'de> Visitor<'de> for DocumentVisitor {
            type Value = ListDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a section with `prefixes`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ListDocument, A::Error> {
                let (mut networks, mut created, mut is_list) = (Vec::new(), None, false);
                while let Some(name) = map.next_key::<String>()? {
                    if LIST_NAMES.contains(&&*name) {
                        is_list = true;
                        networks.append(&mut map.next_value::<NetworkEntries>()?.0);
                    } else if name == "creationTime" {
                        created = seconds(&map.next_value::<serde_json::Value>()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                match is_list {
                    true => Ok(ListDocument { networks, created }),
                    false => Err(A::Error::custom("it has no `prefixes`")),
                }
            }
        }

        from.deserialize_map(DocumentVisitor)
    }
}

/// A time as publishers write it; without a zone it is UTC. What is no time counts as none, since
/// the networks of the list are good without it.
fn seconds(value: &serde_json::Value) -> Option<u64> {
    let text = value.as_str()?;
    let stamp = text.parse::<jiff::Timestamp>().ok().or_else(|| {
        let civil = text.parse::<jiff::civil::DateTime>().ok()?;
        civil.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    });
    u64::try_from(stamp?.as_second()).ok()
}

/// A list of networks: texts, or sections with a network each.
struct NetworkEntries(Vec<IpNet>);

impl<'de> Deserialize<'de> for NetworkEntries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<NetworkEntries, D::Error> {
        let entries = Vec::<NetworkEntry>::deserialize(from)?;
        Ok(NetworkEntries(entries.into_iter().flat_map(|entry| entry.0).flatten().collect()))
    }
}

/// An entry of a list: a network, or one of each family.
struct NetworkEntry([Option<IpNet>; 2]);

impl<'de> Deserialize<'de> for NetworkEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<NetworkEntry, D::Error> {
        struct EntryVisitor;

        impl<'de> Visitor<'de> for EntryVisitor {
            type Value = NetworkEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a network, or a section with `ipv4Prefix` or `ipv6Prefix`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<NetworkEntry, E> {
                let read = network(text.trim()).map_err(|why| not(text.as_bytes(), why));
                Ok(NetworkEntry([Some(read.map_err(E::custom)?), None]))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NetworkEntry, A::Error> {
                let mut networks = [None, None];
                while let Some(name) = map.next_key::<String>()? {
                    if !NETWORK_NAMES.contains(&&*name) {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let read = map.next_value::<NetworkEntry>()?.0[0];
                    match networks.iter_mut().find(|place| place.is_none()) {
                        Some(place) => *place = read,
                        None => {
                            return Err(A::Error::custom("an entry has more than two networks"));
                        }
                    }
                }
                match networks {
                    [None, _] => Err(A::Error::custom("an entry has no `ipv4Prefix`")),
                    networks => Ok(NetworkEntry(networks)),
                }
            }
        }

        from.deserialize_any(EntryVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::super::network_file::tests::packed;
    use super::*;
    use evenkeel_fuzz::fuzz;

    const GOOGLE: &str = r#"{
        "creationTime": "2026-02-13T15:46:14.000000",
        "prefixes": [
            {"ipv6Prefix": "2001:4860:4801:10::/64"},
            {"ipv4Prefix": "66.249.64.0/27"}
        ]
    }"#;

    fn list(text: &str) -> AddressList {
        AddressList::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn error(bytes: &[u8]) -> String {
        AddressList::parse(bytes).expect_err("refused").to_string()
    }

    fn holds(list: &AddressList, address: &str) -> bool {
        list.contains(address.parse().expect("an address"))
    }

    #[test]
    fn the_form_of_google_and_most_others_is_read() {
        let google = list(GOOGLE);
        assert!(holds(&google, "66.249.64.31") && holds(&google, "::ffff:66.249.64.1"));
        assert!(holds(&google, "2001:4860:4801:10::7"));
        assert!(!holds(&google, "66.249.64.32") && !holds(&google, "2001:4860:4801:11::"));
        assert_eq!((google.networks(), google.created()), (2, Some(1_770_997_574)));
        assert_eq!(AddressList::parse(&packed(GOOGLE.as_bytes())), Ok(google));
    }

    #[test]
    fn other_names_of_publishers_are_read() {
        for text in [
            r#"{"prefixes": [{"ip_prefix": "192.0.2.0/24", "region": "x"}],
                "ipv6_prefixes": [{"ipv6_prefix": "2001:db8::/32"}], "syncToken": "1"}"#,
            r#"{"prefixes": [{"ipv4Prefix": "192.0.2.0/24", "ipv6Prefix": "2001:db8::/32"}]}"#,
            r#"{"ips": [{"ip_address": "192.0.2.1"}, {"ip": "192.0.2.7"}, "2001:db8::1"]}"#,
            r#"{"ipv4": ["192.0.2.0/24"], "ipv6": ["2001:db8::/32"], "more": {"ips": 1}}"#,
            r#"["192.0.2.0/24", {"cidr": " 2001:db8::/32"}]"#,
        ] {
            let list = list(text);
            assert!(holds(&list, "192.0.2.1") && holds(&list, "2001:db8::1"), "{text}");
            assert!(!holds(&list, "192.0.3.1"), "{text}");
            assert_eq!(list.created(), None);
        }
    }

    #[test]
    fn a_text_has_a_network_a_line() {
        let list = list("# robots\r\n192.0.2.7 # one\r\n\r\n198.51.100.9/24\n2001:db8::/32");
        assert!(holds(&list, "192.0.2.7") && holds(&list, "198.51.100.1"));
        assert!(holds(&list, "2001:db8::") && !holds(&list, "192.0.2.8"));
        assert_eq!((list.networks(), list.created()), (3, None));
    }

    #[test]
    fn times_are_read_in_the_forms_of_publishers() {
        for (written, expected) in [
            ("2026-08-18T23:56:36Z", Some(1_787_097_396)),
            ("2022-01-03T10:00:00.121331", Some(1_641_204_000)),
            ("2019-08-30T20:24:19.6984254+02:00", Some(1_567_189_459)),
            ("2026-08-18", Some(1_787_011_200)),
            ("1950-01-01T00:00:00Z", None),
            ("yesterday", None),
        ] {
            let text = format!(r#"{{"creationTime": "{written}", "prefixes": ["192.0.2.7"]}}"#);
            assert_eq!(list(&text).created(), expected, "{written}");
        }
        assert_eq!(list(r#"{"creationTime": 7, "prefixes": ["192.0.2.7"]}"#).created(), None);
    }

    #[test]
    fn the_place_of_an_error_is_told() {
        for (text, expected) in [
            ("192.0.2.0/24\n\n192.0.2.300\n", "3: `192.0.2.300` is not a network such as"),
            ("192.0.2.0/24 10.0.0.0/8", "1: `192.0.2.0/24 10.0.0.0/8` is not a network"),
            ("0.0.0.0/0", "1: `0.0.0.0/0` is not a network of a list: it has fewer than 8 bits"),
            ("2000::/3", "1: `2000::/3` is not a network of a list"),
            ("{\n\"prefixes\": [\n\"x\"]}", "3: `x` is not a network such as 192.0.2.0/24"),
            ("{\"prefixes\": [\n{\"a\": 1}]}", "2: an entry has no `ipv4Prefix`"),
            ("{\"prefixes\": [\n7]}", "2: invalid type: integer `7`, expected a network, or a"),
            ("{\n\"networks\": []}", "2: it has no `prefixes`"),
            ("{\"prefixes\": [\n", "2: the file is cut off"),
            ("{\"prefixes\": }", "1: this is not JSON: expected value"),
            ("{\"prefixes\": []}", " it has no network"),
            ("[]", " it has no network"),
            ("# nothing", " it has no network"),
            ("", " the file is empty"),
            ("<html>", " it is a web page"),
        ] {
            let told = error(text.as_bytes());
            assert!(told.starts_with(expected), "{text}: {told}");
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let deep = format!("{{\"prefixes\": [{}", r#"{"ip": "#.repeat(100_000));
        assert!(error(deep.as_bytes()).contains("recursion limit"));
    }

    #[test]
    fn fuzz_address_lists() {
        let pieces: Vec<&str> = GOOGLE.split_inclusive(['{', '}', '[', ']', ',', ':']).collect();
        fuzz().for_each(|bytes: &[u8]| {
            let _ = AddressList::parse(bytes);
            let mixed = bytes.iter().map(|byte| pieces[usize::from(*byte) % pieces.len()]);
            let _ = AddressList::parse(mixed.collect::<String>().as_bytes());
        });
    }
}
