//! The configuration of Smockron's master, interpreted as Smockron did.
//!
//! Domains, listening addresses and StatsD options are converted; the algorithm, Smockron's since
//! 2014, is `gcra`. The Redis options have no effect and cause a warning. Differences key by key:
//! docs/guide/from-smockron.md.

use super::super::fault::{ConfigFault, TextPlace, quoted};
use super::super::tree::{YamlKey, YamlNode, YamlValue};
use super::{entries, placed};

/// Sections of Smockron. `statsd` and `stats` are the same section in different versions.
const SECTIONS: [&str; 5] = ["server", "datastore", "domains", "statsd", "stats"];
/// Native sections that are allowed in addition.
const NATIVE_SECTIONS: [&str; 4] = ["admin", "log", "state", "store"];
/// Native sections that open doors. A file with one of them is a native file.
const DOORS: [&str; 7] = ["proxy", "line", "check", "ratelimit", "master", "gatekeeper", "peers"];
/// Keys of a rule. `algorithm` is an extension of Evenkeel.
const RULE_KEYS: [&str; 4] = ["rate", "interval", "burst", "algorithm"];
/// Default address of Smockron.
const DEFAULT_LISTEN: &str = "0.0.0.0";
const PORT: u16 = 10_004;
/// Default host and port of StatsD.
const STATSD: (&str, &str) = ("localhost", "8125");

/// Whether a file is such a configuration: it has a section that only Smockron has, and no section
/// that opens a door.
pub fn is_smockron(root: &YamlNode) -> bool {
    let YamlValue::Map(entries) = &root.value else { return false };
    let has = |of: &[&str]| entries.iter().any(|(key, _)| of.contains(&key.name.as_str()));
    let all = |of: &[&str]| entries.iter().all(|(key, _)| of.contains(&key.name.as_str()));
    let known: Vec<_> = SECTIONS.into_iter().chain(NATIVE_SECTIONS).collect();
    let sure = has(&["domains"]) || root.find(&["server", "listen"]).is_some();
    !has(&DOORS) && (sure || (has(&["datastore"]) && all(&known)))
}

/// Converts the file into a native tree with the same meaning.
pub fn native(
    root: &YamlNode,
    faults: &mut Vec<ConfigFault>,
    notes: &mut Vec<ConfigFault>,
) -> YamlNode {
    let mut file = SmockronFile { faults, notes };
    let entries = entries(root);
    file.warn_unused_keys(entries);
    let passed: Vec<_> = NATIVE_SECTIONS
        .iter()
        .filter_map(|name| Some((*name, last(entries, name)?.clone())))
        .collect();
    let stats = last(entries, "statsd").or_else(|| last(entries, "stats"));
    let metrics = stats.and_then(|node| file.statsd(node));
    let metrics = metrics.map(|[statsd, prefix]| {
        ("metrics", YamlNode::map([("statsd", statsd), ("statsd_smockron", prefix)]))
    });
    let [accounting, control] = file.listen(last(entries, "server"), root.place);
    let mut master = vec![
        ("accounting", accounting),
        ("control", control),
        ("algorithm", YamlNode::text("gcra")),
        ("domains", file.domains(last(entries, "domains"), root.place)),
    ];
    let allow = last(entries, "server").and_then(|server| server.find(&["allow"]));
    master.extend(allow.map(|allow| ("allow", allow.clone())));
    YamlNode::map(passed.into_iter().chain(metrics).chain([("master", YamlNode::map(master))]))
}

/// The value of a key; if it occurs several times, the last one. `null` counts as absent.
fn last<'a>(entries: &'a [(YamlKey, YamlNode)], name: &str) -> Option<&'a YamlNode> {
    let found = entries.iter().rev().find(|(key, _)| key.name == name);
    found.map(|(_, node)| node).filter(|node| node.value != YamlValue::Null)
}

/// A file while it is converted.
struct SmockronFile<'a> {
    faults: &'a mut Vec<ConfigFault>,
    notes: &'a mut Vec<ConfigFault>,
}

impl SmockronFile<'_> {
    fn fault(&mut self, place: TextPlace, what: impl Into<String>) {
        self.faults.push(ConfigFault::new(place, what));
    }

    fn note(&mut self, place: TextPlace, what: impl Into<String>) {
        self.notes.push(ConfigFault::new(place, what));
    }

    /// Warns about keys that have no effect.
    fn warn_unused_keys(&mut self, entries: &[(YamlKey, YamlNode)]) {
        for (key, _) in entries {
            let name = key.name.as_str();
            if name == "datastore" {
                let what = "`datastore` has no effect: counts are in memory; `state` keeps them \
                            across a restart, and `store` keeps them in Redis";
                self.note(key.place, what);
            } else if !SECTIONS.contains(&name) && !NATIVE_SECTIONS.contains(&name) {
                self.passed_over(key);
            }
        }
    }

    fn passed_over(&mut self, key: &YamlKey) {
        let name = quoted(&key.name);
        self.note(key.place, format!("{name} is not a key of Smockron's master and has no effect"));
    }

    /// Addresses of the accounting and the control socket: `[scheme://]host[:port]`, and the next
    /// port.
    fn listen(&mut self, server: Option<&YamlNode>, start: TextPlace) -> [YamlNode; 2] {
        for (key, _) in server.map_or(&[][..], entries) {
            if !["listen", "allow"].contains(&key.name.as_str()) {
                self.passed_over(key);
            }
        }
        let node = server.and_then(|server| server.find(&["listen"]));
        let node = node.filter(|node| node.value != YamlValue::Null);
        let (text, place) = match node.map(|node| (&node.value, node.place)) {
            Some((YamlValue::Text(text), place)) => (text.as_str(), place),
            Some((_, place)) => {
                self.fault(place, "`listen` must be a single value, such as 0.0.0.0:10004");
                (DEFAULT_LISTEN, place)
            }
            None => (DEFAULT_LISTEN, start),
        };
        let (scheme, rest) = text.split_once("://").unwrap_or(("tcp", text));
        let (host, port) = match port(rest) {
            Some((host, port)) if port < u16::MAX && !rest.is_empty() => (host, port),
            _ => {
                let what = format!("`listen` is {}: write host:port", quoted(text));
                self.fault(place, what);
                (DEFAULT_LISTEN, PORT)
            }
        };
        let on = |port: u16| placed(format!("{scheme}://{host}:{port}"), place);
        [on(port), on(port.saturating_add(u16::from(port > 0)))]
    }

    /// Options of node-statsd: the address, and the prefix of metric names that its dashboards use.
    fn statsd(&mut self, node: &YamlNode) -> Option<[YamlNode; 2]> {
        if let YamlValue::Text(text) = &node.value {
            let port = if text.contains(':') { "" } else { ":8125" };
            let to = placed(format!("udp://{text}{port}"), node.place);
            return (text != "false").then(|| [to, placed("", node.place)]);
        }
        for (key, _) in entries(node) {
            if !["host", "port", "prefix"].contains(&key.name.as_str()) {
                let name = quoted(&key.name);
                self.note(key.place, format!("{name} of StatsD has no effect here"));
            }
        }
        let mut option = |key: &str, default: &'static str| match node.find(&[key]) {
            Some(YamlNode { value: YamlValue::Text(text), .. }) => text.clone(),
            None | Some(YamlNode { value: YamlValue::Null, .. }) => default.to_owned(),
            Some(other) => {
                self.fault(other.place, format!("`{key}` must be a single value"));
                default.to_owned()
            }
        };
        let (host, port) = (option("host", STATSD.0), option("port", STATSD.1));
        let to = placed(format!("udp://{host}:{port}"), node.place);
        let place = node.find(&["prefix"]).map_or(node.place, |prefix| prefix.place);
        Some([to, placed(option("prefix", ""), place)])
    }

    fn domains(&mut self, domains: Option<&YamlNode>, start: TextPlace) -> YamlNode {
        let Some(node) = domains else {
            return YamlNode { place: start, ..YamlNode::map([]) };
        };
        let YamlValue::Map(entries) = &node.value else { return node.clone() };
        let entries = entries.iter().map(|(name, node)| {
            let value = match &node.value {
                YamlValue::List(rules) => {
                    YamlValue::List(rules.iter().map(|r| self.rule(r)).collect())
                }
                YamlValue::Null => {
                    YamlValue::List(vec![YamlNode { place: node.place, ..YamlNode::map([]) }])
                }
                _ => return (name.clone(), self.rule(node)),
            };
            (name.clone(), YamlNode { place: node.place, ..YamlNode::made(value) })
        });
        let entries = YamlValue::Map(entries.collect());
        YamlNode { place: node.place, ..YamlNode::made(entries) }
    }

    /// Converts a rule; its interval becomes a rate. Missing keys are reported when the native tree
    /// is read.
    fn rule(&mut self, rule: &YamlNode) -> YamlNode {
        let YamlValue::Map(entries) = &rule.value else { return rule.clone() };
        for (key, _) in entries {
            if !RULE_KEYS.contains(&key.name.as_str()) {
                self.passed_over(key);
            }
        }
        let rate = match (last(entries, "rate"), last(entries, "interval")) {
            (Some(rate), interval) => {
                if let Some(interval) = interval {
                    self.note(interval.place, "`interval` has no effect together with `rate`");
                }
                Some(rate.clone())
            }
            (None, Some(YamlNode { value: YamlValue::Text(text), place, .. })) => {
                Some(placed(format!("1/{text}"), *place))
            }
            (None, Some(other)) => {
                self.fault(other.place, "`interval` must be a single value, such as 500 or 5s");
                return YamlNode { place: rule.place, ..YamlNode::map([]) };
            }
            (None, None) => None,
        };
        let rest = ["burst", "algorithm"];
        let rest = rest.iter().filter_map(|key| Some((*key, last(entries, key)?.clone())));
        let native = YamlNode::map(rate.map(|rate| ("rate", rate)).into_iter().chain(rest));
        YamlNode { place: rule.place, ..native }
    }
}

/// Splits `host[:port]`. An IPv6 address is in brackets.
fn port(text: &str) -> Option<(&str, u16)> {
    let end = text.rfind(']').map_or(0, |at| at + 1);
    match text[end..].find(':') {
        None => Some((text, PORT)),
        Some(at) => Some((&text[..end + at], text[end + at + 1..].parse().ok()?)),
    }
}
