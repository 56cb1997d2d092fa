//! The keys of `proxy` about clients by host name: `exempt`, `merge`, `resolver`.
//!
//! They are described in `settings::hosts`. `exempt` may also contain networks and cookies.

use crate::address::ExemptEntry;
use crate::reader::SectionReader;
use crate::rows::{merge, proxy as rows};
use crate::settings::hosts::{HostMerge, HostSettings};
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
    for exempt in proxy.key(&rows::EXEMPT) {
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
    hosts.resolver = proxy.key(&rows::RESOLVER);
    if !hosts.resolver.is_empty() && !hosts.needs_names() {
        let what = "is used only if `exempt` or `merge` has `host:` patterns; remove it, or add \
                    such a pattern";
        proxy.fault_of("resolver", what);
    }
    hosts
}

fn merge(proxy: &mut SectionReader<'_, '_>) -> Vec<HostMerge> {
    let Some(nodes) = proxy.nodes_of(&rows::MERGE) else { return Vec::new() };
    if nodes.len() > MERGE_MAX {
        proxy.fault("merge", format!("more than {MERGE_MAX} entries; remove some"));
    }
    let merged = proxy.sections(&rows::MERGE, nodes, |section| {
        for key in ["match", "as"] {
            if !section.has(key) {
                section.fault(key, format!("an entry of `merge` needs `{key}`"));
            }
        }
        let pattern = section.key(&merge::MATCH);
        let name = section.key(&merge::AS);
        Some(HostMerge { pattern: pattern?, name: name? })
    });
    merged.into_iter().flatten().collect()
}
