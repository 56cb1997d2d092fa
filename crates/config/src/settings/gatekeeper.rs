//! The `gatekeeper` section, or a list of such sections: the masters to follow, and the identifiers
//! of requests.
//!
//! It opens no listener: requests arrive through `proxy` and `check`, so one of them must exist.
//! Addresses have the syntax of Smockron's configuration. The settings are described in
//! `settings::gatekeeper`.

use super::conditions::{self, CONDITION, GroupSettings};
use super::limits::{self, KeyTemplateWord, part};
use super::proxy::{DatabaseSettings, ProxySettings};
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey};
use crate::reader::{SectionReader, settings};
use crate::tree::{YamlNode, YamlValue};
use crate::values::{DAY, Read};
use evenkeel_core::condition::Condition;
use evenkeel_core::fact::FactSet;
use evenkeel_core::limit::KeyPart;
use evenkeel_core::units::Nanos;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Port of a master if its address has none.
pub const DEFAULT_PORT: u16 = 10_004;
/// Maximum length of a domain's name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Maximum length of a host name, in bytes.
const HOST_BYTES_MAX: usize = 253;

settings! {
    /// The gate of one domain, which a master decides on.
    #[derive(Clone, Debug, PartialEq)]
    pub struct GatekeeperSettings from keys(
        section, keys_default: Option<usize>, groups: &GroupSettings
    ),
    TABLE = "gatekeeper";

    /// Address of the master for reports: `tcp://host:port`. The default port is 10004. A name is
    /// resolved for each connection.
    pub master: MasterAddress, MASTER: DefaultedKey<MasterAddress> =
        ConfigKey::text("master", remote)
            .default_with(|| MasterAddress { host: "127.0.0.1".to_owned(), port: DEFAULT_PORT });
    /// Where the master publishes the clients to hold.
    pub control: MasterAddress, CONTROL: ConfigKey<MasterAddress> =
        ConfigKey::text("control", remote)
            .default_note("the next port").example("tcp://127.0.0.1:10005")
        => section.key_or(&CONTROL, master.next());
    /// The requests of this gatekeeper, as in [limits](#when). In a list, the first matching
    /// gatekeeper applies. A request that matches none passes.
    pub when: Condition, WHEN: SubsectionKey =
        SubsectionKey::one("when", &CONDITION).default_note("all requests")
        => conditions::of_rule(section, &WHEN, groups);
    /// The domain of the master.
    pub domain: String, DOMAIN: DefaultedKey<String> = ConfigKey::text("domain", domain)
        .range_note("1 to 255 bytes").default_with(|| "default".to_owned());
    /// How a client is identified at the master: one or several parts, as in
    /// [`by`](#what-by-takes).
    pub identifier: Vec<KeyPart>, IDENTIFIER: ListKey<KeyTemplateWord> =
        ConfigKey::opaque("identifier", part).list().default_note("`ip/32`").example("ip/32")
        => identifier(section);
    /// The longest wait. A request that would have to wait longer is refused.
    pub max_delay: Nanos, MAX_DELAY: DefaultedKey<Nanos> = ConfigKey::duration("max_delay")
        .within(Nanos::ZERO, DAY).default(Nanos::from_secs(5))
        .low("bursts of real users are refused").high("clients give up first");
    /// Number of requests that are held at once. With more, a request that would have to wait is
    /// refused.
    pub held_max: usize, HELD_MAX: DefaultedKey<usize> = ConfigKey::whole("held_max")
        .within(0, 1_000_000).default(1024).low("requests are refused although they could wait")
        .high("memory and open files");
    /// Number of waiting identifiers to remember, 24 bytes each. With more, those with the shortest
    /// wait are evicted, and pass.
    pub keys_max: usize, KEYS: ConfigKey<usize> =
        limits::keys_max().default_note("`state.keys_max`, else 65 536")
        => section.key_or(&KEYS, keys_default.unwrap_or(KEYS_DEFAULT));
    /// Parts of each request for the master's log, as in [`by`](#what-by-takes). All readers of
    /// that log can see them.
    pub log_info: Vec<KeyPart>, LOG_INFO: ListKey<KeyTemplateWord> =
        ConfigKey::opaque("log_info", part).list().example("path")
        => limits::parts(section, &LOG_INFO).unwrap_or_default();
    /// One in this number of refused requests is reported to the master, for its statistics. `0`:
    /// none.
    pub rejected_one_in: u64, REJECTED_ONE_IN: DefaultedKey<u64> =
        ConfigKey::whole("rejected_one_in").default(1)
            .high("its statistics of refused requests are coarse");
}

/// The address of a ZeroMQ socket. A host name is resolved at each connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAddress {
    /// Host name or IP address, an IPv6 address in brackets.
    pub host: String,
    /// TCP port, at least 1.
    pub port: u16,
}

impl MasterAddress {
    /// The same host at the next port.
    #[must_use]
    pub fn next(&self) -> MasterAddress {
        MasterAddress { host: self.host.clone(), port: self.port.saturating_add(1) }
    }

    /// `host:port`, as a connect needs it.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl fmt::Display for MasterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}:{}", self.host, self.port)
    }
}

/// The text is not the address of a ZeroMQ socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write tcp://master.example:10004 or tcp://[2001:db8::1]:10004; only TCP is supported")]
pub struct MasterAddressError;

/// Accepts `tcp://master.example:10004`, `master.example` and `[2001:db8::1]:10004`.
impl FromStr for MasterAddress {
    type Err = MasterAddressError;

    fn from_str(text: &str) -> Result<MasterAddress, MasterAddressError> {
        let rest = match text.split_once("://") {
            None => text,
            Some(("tcp", rest)) => rest,
            Some(_) => return Err(MasterAddressError),
        };
        let in_brackets = rest.starts_with('[');
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !in_brackets || host.ends_with(']') => (host, read_port(port)?),
            _ => (rest, DEFAULT_PORT),
        };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let fits = match inner {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
                !host.is_empty() && host.len() <= HOST_BYTES_MAX && host.bytes().all(plain)
            }
        };
        fits.then(|| MasterAddress { host: host.to_owned(), port }).ok_or(MasterAddressError)
    }
}

fn read_port(text: &str) -> Result<u16, MasterAddressError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| *port > 0 && digits).ok_or(MasterAddressError)
}

/// Whether `name` is valid for a domain: 1 to 255 bytes, none of them NUL.
#[must_use]
pub fn is_domain(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains('\0')
}

/// Name of the section.
const SECTION_NAME: &str = "gatekeeper";
/// Default of `keys_max`: the number of identifiers that are remembered.
const KEYS_DEFAULT: usize = 65_536;
/// Maximum number of gates of one process. Each gate has a thread and two connections.
const GATES_MAX: usize = 64;

/// Reads one section, or a list of them. `keys_default` is `state.keys_max`.
pub(crate) fn read(
    root: &mut SectionReader<'_, '_>,
    key: &'static SubsectionKey,
    keys_default: Option<usize>,
    groups: &GroupSettings,
    proxy: Option<&ProxySettings>,
) -> Vec<GatekeeperSettings> {
    let databases = proxy.map(|proxy| proxy.databases.clone()).unwrap_or_default();
    let gate =
        |section: &mut SectionReader<'_, '_>| gate(section, keys_default, groups, &databases);
    if !root.written(SECTION_NAME) {
        return Vec::new();
    }
    if !root.written("proxy") && !root.written("check") {
        root.fault(SECTION_NAME, "a `gatekeeper` needs a section `proxy` or `check`; add one");
    }
    let Some(YamlValue::List(nodes)) = root.node(SECTION_NAME).map(|node| &node.value) else {
        return vec![root.section(key, gate)];
    };
    if nodes.is_empty() || nodes.len() > GATES_MAX {
        root.fault(SECTION_NAME, format!("{} gates; write 1 to {GATES_MAX}", nodes.len()));
    }
    let mut domains: Vec<String> = Vec::new();
    let mut all_kept = false;
    root.sections(key, nodes, |section| {
        let gate = gate(section);
        if domains.contains(&gate.domain) {
            let what = format!("two gates have the domain `{}`; remove one", gate.domain);
            section.fault("domain", what);
        }
        domains.push(gate.domain.clone());
        if all_kept {
            let what = "this gate never applies: an earlier gate has no `when`; add a `when` to \
                        that gate";
            section.fault("when", what);
        }
        all_kept |= gate.when == Condition::default();
        gate
    })
}

fn gate(
    section: &mut SectionReader<'_, '_>,
    keys_default: Option<usize>,
    groups: &GroupSettings,
    databases: &DatabaseSettings,
) -> GatekeeperSettings {
    let gate = keys(section, keys_default, groups);
    for what in databases.missing(gate.facts(), |_| "a gatekeeper".to_owned()) {
        section.fault("identifier", what);
    }
    if gate.control == gate.master {
        section.fault("control", "control and accounting of the master need different ports");
    }
    gate
}

impl GatekeeperSettings {
    /// The facts about clients that the gate names.
    pub(crate) fn facts(&self) -> FactSet {
        let parts = self.identifier.iter().chain(&self.log_info);
        limits::facts_of(parts).and(self.when.facts())
    }
}

fn identifier(section: &mut SectionReader<'_, '_>) -> Vec<KeyPart> {
    if section.has("identifier") {
        return limits::parts(section, &IDENTIFIER).unwrap_or_default();
    }
    section.show("identifier", YamlNode::made(YamlValue::List(vec![YamlNode::text("ip/32")])));
    vec![KeyPart::Ip { v4: 32, v6: 64 }]
}

/// Reads the name of a domain.
pub(crate) fn domain(text: &str) -> Read<String> {
    let wrong = || "the name of a domain must have 1 to 255 bytes without NUL".to_owned();
    is_domain(text).then(|| text.to_owned()).ok_or_else(wrong)
}

fn remote(text: &str) -> Read<MasterAddress> {
    text.parse().map_err(|fault: MasterAddressError| fault.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s24_the_control_socket_is_at_the_next_port() {
        for (text, accounting, control) in [
            ("localhost", "tcp://localhost:10004", "tcp://localhost:10005"),
            ("master.example:9", "tcp://master.example:9", "tcp://master.example:10"),
            ("tcp://h:1", "tcp://h:1", "tcp://h:2"),
            ("[::1]:5", "tcp://[::1]:5", "tcp://[::1]:6"),
            ("tcp://[::1]", "tcp://[::1]:10004", "tcp://[::1]:10005"),
        ] {
            let master = remote(text).expect(text);
            assert_eq!((&*master.to_string(), &*master.next().to_string()), (accounting, control));
        }
        for text in
            ["", "tcp://", "*:77", "h:0", "h:x", "h:99999", "::1", "[::1", "udp://h:1", "a b"]
        {
            assert!(remote(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fuzz_any_address_is_read_or_refused_and_what_is_written_is_read_back() {
        evenkeel_fuzz::fuzz().with_type::<String>().for_each(|text| {
            if let Ok(address) = remote(text) {
                assert_eq!(remote(&address.to_string()), Ok(address));
            }
        });
    }
}
