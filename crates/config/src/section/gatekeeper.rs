//! The `gatekeeper` section, or a list of such sections: the masters to follow, and the identifiers
//! of requests.
//!
//! It opens no listener: requests arrive through `proxy` and `check`, so one of them must exist.
//! Addresses have the syntax of Smockron's configuration. The settings are described in
//! `settings::gatekeeper`.

use super::limits;
use crate::reader::SectionReader;
use crate::rows::gatekeeper as rows;
use crate::rows::root::GATEKEEPER;
use crate::settings::gatekeeper::GatekeeperSettings;
use crate::tree::{YamlNode, YamlValue};
use evenkeel_core::limit::{KeyPart, LimitCondition};

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
        root.fault(SECTION_NAME, "a `gatekeeper` needs a section `proxy` or `check`; add one");
    }
    let Some(YamlValue::List(nodes)) = root.node(SECTION_NAME).map(|node| &node.value) else {
        return vec![root.section(&GATEKEEPER, |section| gate(section, keys_default))];
    };
    if nodes.is_empty() || nodes.len() > GATES_MAX {
        root.fault(SECTION_NAME, format!("{} gates; write 1 to {GATES_MAX}", nodes.len()));
    }
    let mut domains: Vec<String> = Vec::new();
    let mut all_kept = false;
    root.sections(&GATEKEEPER, nodes, |section| {
        let gate = gate(section, keys_default);
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
        all_kept |= gate.when == LimitCondition::default();
        gate
    })
}

fn gate(section: &mut SectionReader<'_, '_>, keys_default: Option<usize>) -> GatekeeperSettings {
    let master = section.key(&rows::MASTER);
    let control = section.key_or(&rows::CONTROL, master.next());
    if control == master {
        section.fault("control", "control and accounting of the master need different ports");
    }
    GatekeeperSettings {
        when: section.section(&rows::WHEN, limits::when),
        domain: section.key(&rows::DOMAIN),
        identifier: identifier(section),
        max_delay: section.key(&rows::MAX_DELAY),
        held_max: section.key(&rows::HELD_MAX),
        keys_max: section.key_or(&rows::KEYS, keys_default.unwrap_or(KEYS_DEFAULT)),
        log_info: limits::parts(section, &rows::LOG_INFO).unwrap_or_default(),
        rejected_one_in: section.key(&rows::REJECTED_ONE_IN),
        master,
        control,
    }
}

fn identifier(section: &mut SectionReader<'_, '_>) -> Vec<KeyPart> {
    if section.has("identifier") {
        return limits::parts(section, &rows::IDENTIFIER).unwrap_or_default();
    }
    section.show("identifier", YamlNode::made(YamlValue::List(vec![YamlNode::text("ip/32")])));
    vec![KeyPart::Ip { v4: 32, v6: 64 }]
}
