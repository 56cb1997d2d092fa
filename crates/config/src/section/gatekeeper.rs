//! The `gatekeeper` section, or a list of such sections: the masters to follow, and the identifiers
//! of requests.
//!
//! It opens no listener: requests arrive through `proxy` and `check`, so one of them must exist.
//! Addresses have the syntax of Smockron's configuration. The settings are described in
//! `settings::gatekeeper`.

use super::limits::{self, keys_max};
use super::proxy::{count, duration};
use crate::reader::{Read, SectionReader, within};
use crate::settings::gatekeeper::{
    DEFAULT_PORT, GatekeeperSettings, MasterAddress, MasterAddressError, is_domain,
};
use crate::tree::{YamlNode, YamlValue};
use evenkeel_core::limit::{KeyPart, LimitCondition};
use evenkeel_core::units::Nanos;

/// Name of the section.
const SECTION_NAME: &str = "gatekeeper";
/// Default of `keys_max`: the number of identifiers that are remembered.
const KEYS_DEFAULT: usize = 65_536;

/// Maximum number of gates of one process. Each gate has a thread and two connections.
const GATES_MAX: usize = 64;

/// Reads one section, or a list of them. `keys_default` is `state.keys_max`.
pub fn read(
    root: &mut SectionReader<'_, '_>,
    keys_default: Option<usize>,
) -> Vec<GatekeeperSettings> {
    if !root.written(SECTION_NAME) {
        return Vec::new();
    }
    if !root.written("proxy") && !root.written("check") {
        root.fault(SECTION_NAME, "a `gatekeeper` keeps the gate of `proxy` or `check`; add one");
    }
    let Some(YamlValue::List(nodes)) = root.node(SECTION_NAME).map(|node| &node.value) else {
        return vec![root.section(SECTION_NAME, |section| gate(section, keys_default))];
    };
    if nodes.is_empty() || nodes.len() > GATES_MAX {
        root.fault(SECTION_NAME, format!("{} gates; write 1 to {GATES_MAX}", nodes.len()));
    }
    let mut domains: Vec<String> = Vec::new();
    let mut all_kept = false;
    root.sections(SECTION_NAME, nodes, |section| {
        let gate = gate(section, keys_default);
        if domains.contains(&gate.domain) {
            let what = format!("two gates are of the domain `{}`; remove one", gate.domain);
            section.fault("domain", what);
        }
        domains.push(gate.domain.clone());
        if all_kept {
            let what = "nothing is left for this gate: one before it has no `when`; give it one";
            section.fault("when", what);
        }
        all_kept |= gate.when == LimitCondition::default();
        gate
    })
}

fn gate(section: &mut SectionReader<'_, '_>, keys_default: Option<usize>) -> GatekeeperSettings {
    let local = MasterAddress { host: "127.0.0.1".to_owned(), port: DEFAULT_PORT };
    let master = section.value("master", local, remote);
    let control = section.value("control", master.next(), remote);
    if control == master {
        section.fault("control", "the master tells at another port than it is told at");
    }
    let day = Nanos::from_secs(86_400);
    GatekeeperSettings {
        when: section.section("when", limits::when),
        domain: section.value("domain", "default".to_owned(), domain),
        identifier: identifier(section),
        max_delay: section.value("max_delay", Nanos::from_secs(5), |text| {
            within(duration(text)?, Nanos::ZERO..=day)
        }),
        held_max: section.value("held_max", 1024, |text| within(count(text)?, 0..=1_000_000))
            as usize,
        keys_max: section.value("keys_max", keys_default.unwrap_or(KEYS_DEFAULT), keys_max),
        log_info: log_info(section),
        rejected_one_in: section.value("rejected_one_in", 1, count),
        master,
        control,
    }
}

fn identifier(section: &mut SectionReader<'_, '_>) -> Vec<KeyPart> {
    if section.has("identifier") {
        return limits::parts(section, "identifier").unwrap_or_default();
    }
    section.allow("identifier");
    section.show("identifier", YamlNode::made(YamlValue::List(vec![YamlNode::text("ip/32")])));
    vec![KeyPart::Ip { v4: 32, v6: 64 }]
}

fn log_info(section: &mut SectionReader<'_, '_>) -> Vec<KeyPart> {
    section.allow("log_info");
    if section.has("log_info") {
        return limits::parts(section, "log_info").unwrap_or_default();
    }
    Vec::new()
}

fn domain(text: &str) -> Read<String> {
    let wrong = || "the name of a domain has 1 to 255 bytes, none is NUL".to_owned();
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
