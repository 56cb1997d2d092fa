//! Warnings about conditions, limits and networks that are valid but do not do what they seem to.
//!
//! They are shown by `check` with the place of the section; those about facts also in the log. What
//! a condition means: `settings::conditions`.

use crate::StartProblem;
use crate::fault::ConfigFault;
use crate::settings::sockets::KeyPath;
use crate::settings::{ClientAddress, GatekeeperSettings, ProxySettings, Settings, limits};
use crate::tree::{YamlNode, YamlValue};
use evenkeel_core::condition::{Clause, Condition};
use evenkeel_core::fact::{ClientFact, FactSet};
use evenkeel_core::limit::{Limit, LimitUnit};
use ipnet::IpNet;

/// Warns of conditions that do not do what they seem to.
pub(crate) fn of_conditions(settings: &Settings) -> Vec<StartProblem> {
    let mut doubts: Vec<StartProblem> = Vec::new();
    let Some(proxy) = &settings.proxy else { return doubts };
    if proxy.exempt_when.iter().any(|condition| !is_proof(condition)) {
        let what = "each client that sends what a condition asks for, such as a cookie, is \
                    exempt, so the backend must refuse invented ones; add `ip`, `ip_file`, `asn`, \
                    `country` or `bot` to the condition, which no client can choose";
        doubts.push((&["proxy", "exempt"], what.to_owned()));
    }
    doubts.extend(limits_doubt(proxy).or_else(|| share_doubt(settings, proxy)));
    doubts
}

/// Warns of limits that replace the default ones and count no work, only requests. The door for
/// external authorization knows no work, so there this is as it must be.
fn share_doubt(settings: &Settings, proxy: &ProxySettings) -> Option<StartProblem> {
    let knows_work =
        !proxy.listen.is_empty() || settings.check.is_some() || settings.ext_proc.is_some();
    let counts_work = proxy.limits.iter().any(|limit| limit.unit != LimitUnit::Hits);
    if proxy.limits.is_empty() || counts_work || !knows_work {
        return None;
    }
    let what = "no limit counts CPU time (`share`), so one client can use the whole server; \
                `limits` replaces the default limits by address (ip, net24, net16): write \
                `default` as its first entry to keep them";
    Some((&["proxy", "limits"], what.to_owned()))
}

/// Warns of networks whose address is not their first one: what is meant may be the address alone,
/// or another length.
pub(crate) fn of_networks(root: &YamlNode) -> Vec<ConfigFault> {
    let mut doubts = Vec::new();
    networks_doubt(root, &mut doubts);
    doubts
}

fn networks_doubt(node: &YamlNode, doubts: &mut Vec<ConfigFault>) {
    match &node.value {
        YamlValue::Null => {}
        YamlValue::List(items) => items.iter().for_each(|item| networks_doubt(item, doubts)),
        YamlValue::Map(keys) => keys.iter().for_each(|(_, node)| networks_doubt(node, doubts)),
        YamlValue::Text(text) => {
            let written = text.strip_prefix("ip:").unwrap_or(text).parse::<IpNet>();
            let Some(written) = written.ok().filter(|net| net.addr() != net.network()) else {
                return;
            };
            let what = format!(
                "`{written}` is the network {}; write that, or {} if you mean the address alone",
                written.trunc(),
                written.addr()
            );
            doubts.push(ConfigFault::new(node.place, what));
        }
    }
}

/// Warns of limits that replace the default ones and leave most requests without any.
fn limits_doubt(proxy: &ProxySettings) -> Option<StartProblem> {
    let is_general = |limit: &Limit| excludes_some(&limit.when);
    let has_rules = !proxy.limits.is_empty() || !proxy.denials.is_empty();
    if !has_rules || proxy.limits.iter().any(is_general) {
        return None;
    }
    let what = "all limits have a `when`, so no limit applies to any other request; `limits` \
                replaces the default limits by address (ip, net24, net16): write `default` as its \
                first entry to keep them";
    Some((&["proxy", "limits"], what.to_owned()))
}

/// Whether a condition holds for all requests but some, such as those of robots.
fn excludes_some(condition: &Condition) -> bool {
    condition.clauses.iter().all(|clause| match clause {
        Clause::Not(_) => true,
        Clause::Any(all) => all.iter().any(excludes_some),
        Clause::Fact(_, values) | Clause::Header(_, values) | Clause::Cookie(_, values) => {
            values.absent
        }
        _ => false,
    })
}

/// Warns of facts that limits, conditions or gates name and that no connection can have, because of
/// how the proxy listens. Whether a single client has a fact is known only when it connects.
#[must_use]
pub fn of_facts(settings: &Settings) -> Vec<StartProblem> {
    let Some(proxy) = &settings.proxy else { return Vec::new() };
    let knows_fetch = settings.ext_proc.is_some()
        || settings.ext_authz.is_some()
        || settings.check.as_ref().is_some_and(|check| check.has_all_headers);
    let doubt = |fact: ClientFact| -> Option<StartProblem> {
        let why = unknown(proxy, fact).filter(|_| fact != ClientFact::Fetch || !knows_fetch)?;
        let way = place_of(settings, proxy, fact)?;
        Some((way, format!("`{fact}` is never known: {why}; remove it from the rules")))
    };
    [ClientFact::Ja4, ClientFact::H2, ClientFact::Rtt, ClientFact::Fetch]
        .into_iter()
        .filter_map(doubt)
        .collect()
}

/// Why no connection has the fact. `None` if connections may have it.
fn unknown(proxy: &ProxySettings, fact: ClientFact) -> Option<&'static str> {
    let ends_tls = proxy.tls.as_ref().is_some_and(|tls| proxy.listen.len() > tls.plain);
    let introduced = proxy.client_address == ClientAddress::ProxyProtocol;
    match fact {
        ClientFact::Fetch => proxy.listen.is_empty().then_some(
            "the proxy does not listen, and `check` without `headers: all` does not know it",
        ),
        _ if proxy.listen.is_empty() => Some("the proxy does not listen"),
        ClientFact::H2 => (!proxy.http2).then_some("`http2` is `false`"),
        _ if !ends_tls => Some("the proxy ends no TLS (`proxy.tls`)"),
        ClientFact::Rtt if introduced => {
            Some("with `client_address: proxy-protocol` TCP does not end at the client")
        }
        _ => None,
    }
}

/// The first section that names the fact.
fn place_of(settings: &Settings, proxy: &ProxySettings, fact: ClientFact) -> Option<KeyPath> {
    let denials = proxy.denials.iter().map(|rule| &rule.when);
    let limits = limits::facts(&proxy.limits, denials);
    let exempt = limits::facts(&[], proxy.exempt_when.iter());
    let groups = settings.groups.groups.iter().map(|group| &group.condition);
    let groups = limits::facts(&[], groups);
    let gates = settings.gatekeepers.iter().map(GatekeeperSettings::facts);
    let gates = gates.fold(FactSet::default(), FactSet::and);
    let places: [(KeyPath, FactSet); 4] = [
        (&["proxy", "limits"], limits),
        (&["proxy", "exempt"], exempt),
        (&["gatekeeper"], gates),
        (&["groups"], groups),
    ];
    places.into_iter().find(|(_, facts)| facts.contains(fact)).map(|(way, _)| way)
}

/// Whether a client cannot choose to meet the condition.
fn is_proof(condition: &Condition) -> bool {
    condition.clauses.iter().any(|clause| match clause {
        Clause::Address(_) | Clause::Listed(_) => true,
        Clause::Fact(fact, values) => {
            !values.absent
                && matches!(fact, ClientFact::Asn | ClientFact::Country | ClientFact::Bot)
        }
        Clause::Group(group) => is_proof(&group.condition),
        Clause::Any(all) => all.iter().all(is_proof),
        _ => false,
    })
}
