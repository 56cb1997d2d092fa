//! The keys of `proxy` about clients by host name: `exempt`, `merge`, `resolver`.
//!
//! They are described in `settings::hosts`. `exempt` may also contain networks and cookies.

use crate::address::{self, ExemptEntry};
use crate::reader::{Read, SectionReader};
use crate::settings::hosts::{HostMerge, HostSettings, host_name};
use crate::tree::YamlValue;
use evenkeel_core::limit::LimitCondition;
use ipnet::IpNet;

/// Maximum number of entries of `merge`.
const MERGE_MAX: usize = 1024;

/// Reads `exempt`. Returns the networks; host names go into `hosts`, conditions on requests into
/// `requests`.
pub fn exempt(
    proxy: &mut SectionReader<'_, '_>,
    hosts: &mut HostSettings,
    requests: &mut Vec<LimitCondition>,
) -> Vec<IpNet> {
    let mut nets = Vec::new();
    for exempt in proxy.list("exempt", Vec::new(), address::exempt) {
        match exempt {
            ExemptEntry::Net(net) => nets.push(net),
            ExemptEntry::Host(pattern) => hosts.exempt.push(pattern),
            ExemptEntry::Cookie(name) => {
                requests.push(LimitCondition { cookie: vec![name], ..LimitCondition::default() });
            }
        }
    }
    nets
}

/// Reads the other keys and completes `hosts`.
pub fn read(proxy: &mut SectionReader<'_, '_>, mut hosts: HostSettings) -> HostSettings {
    hosts.merge = merge(proxy);
    hosts.resolver = proxy.values("resolver", address::name_server);
    if !hosts.resolver.is_empty() && !hosts.needs_names() {
        let what = "`resolver` is asked for names only where `exempt` or `merge` has `host:`; \
                    remove it, or name hosts";
        proxy.fault("resolver", what);
    }
    hosts
}

fn merge(proxy: &mut SectionReader<'_, '_>) -> Vec<HostMerge> {
    let Some(node) = proxy.node("merge") else { return Vec::new() };
    let nodes = match &node.value {
        YamlValue::List(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if nodes.len() > MERGE_MAX {
        proxy.fault("merge", format!("more than {MERGE_MAX} entries; remove some"));
    }
    let merged = proxy.sections("merge", nodes, |section| {
        for key in ["match", "as"] {
            if !section.has(key) {
                section.fault(key, format!("an entry of `merge` needs `{key}`"));
            }
        }
        let pattern = section.optional("match", address::host);
        let name = section.optional("as", name);
        Some(HostMerge { pattern: pattern?, name: name? })
    });
    merged.into_iter().flatten().collect()
}

fn name(text: &str) -> Read<Box<str>> {
    host_name(text).ok_or_else(|| "a name such as googlebot.com".to_owned())
}
