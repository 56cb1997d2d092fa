//! A `tempomat.json`, interpreted as Tempomat did and converted into a native configuration.
//!
//! Every file that Tempomat accepted is accepted: keys in any case, unknown keys, the last of
//! several equal keys. Keys without effect cause a warning, never a fault. The result is a tree
//! like that of a native file, so `settings` checks it again and `show` prints it. Meaning of the
//! numbers in the original: docs/guide/from-tempomat.md.

use super::super::fault::{ConfigFault, TextPlace, quoted};
use super::super::tree::{YamlKey, YamlNode, YamlValue};
use super::{entries, placed};
use evenkeel_core::table::EXACT_KEYS_MAX;
use evenkeel_core::units::Nanos;
use std::path::Path;

/// All keys of Tempomat.
#[rustfmt::skip]
const KEYS: [&str; 13] = [
    "debug", "delayThresholdSec", "backend", "listenPort", "graphite", "graphitePrefix",
    "trustedProxies", "cpuCount", "slash32Share", "slash24Share", "slash16Share", "userAgentShare",
    "hashMaxLen",
];

/// Those of these keys that could also be a mistake in a native file.
const AMBIGUOUS_KEYS: [&str; 3] = ["backend", "debug", "graphite"];

/// Keys of early versions of Tempomat, which only monitored.
#[rustfmt::skip]
const EARLY_KEYS: [&str; 8] = [
    "lowCreditThreshold", "statsFile", "syslogStats", "logFile", "slash32CPUs", "slash24CPUs",
    "slash16CPUs", "userAgentCPUs",
];

/// Native sections that are allowed in addition, because Tempomat had nothing similar.
const NATIVE_SECTIONS: [&str; 3] = ["admin", "log", "state"];

/// The limits: name, key template, key of the share, and burst.
const LIMITS: [(&str, &str, &str, &str); 4] = [
    ("Slash32", "ip/32", "slash32Share", "30s"),
    ("Slash24", "ip/24", "slash24Share", "30s"),
    ("Slash16", "ip/16", "slash16Share", "30s"),
    ("UserAgent", "user-agent", "userAgentShare", "120s"),
];

/// Default of `delayThresholdSec`: the wait from which clients are reported as held, in seconds.
const DELAY_THRESHOLD: f64 = 3.0;
/// Default of `hashMaxLen`: entries per table.
const HASH_MAX_LEN: f64 = 1_000.0;
/// Default of `listenPort`.
const PORT: f64 = 8_888.0;
/// The longest time here, one day, in seconds.
const DAY_SECONDS: f64 = 86_400.0;

/// Whether `file` is a `tempomat.json`: it has a key that only Tempomat has, it has this name and
/// no section `proxy`, or all its keys are possible in Tempomat and it is JSON or has a key such as
/// `debug`.
#[must_use]
pub fn is_tempomat(file: &str, root: &YamlNode) -> bool {
    let YamlValue::Map(entries) = &root.value else { return false };
    let known =
        |key: &YamlKey, of: &[&str]| of.iter().any(|name| name.eq_ignore_ascii_case(&key.name));
    let all = |of: &[&str]| entries.iter().all(|(key, _)| known(key, of));
    let certain = |key: &YamlKey| {
        known(key, &EARLY_KEYS) || (known(key, &KEYS) && !known(key, &AMBIGUOUS_KEYS))
    };
    let named = Path::new(file).file_name().is_some_and(|name| name == "tempomat.json");
    let json = Path::new(file).extension().is_some_and(|ending| ending == "json");
    let telling = entries.iter().any(|(key, _)| known(key, &["debug", "graphite"]));
    entries.iter().any(|(key, _)| certain(key))
        || (named && !entries.iter().any(|(key, _)| key.name == "proxy"))
        || (!entries.is_empty() && (json || telling) && all(&AMBIGUOUS_KEYS))
}

/// Converts the file into a native tree with the same meaning. `cpus` is the number of CPUs of the
/// machine.
pub fn native(
    root: &YamlNode,
    cpus: f64,
    faults: &mut Vec<ConfigFault>,
    notes: &mut Vec<ConfigFault>,
) -> YamlNode {
    let entries = entries(root);
    let mut file = TempomatFile { entries, faults, notes };
    file.warn_unused_keys();
    let passed = NATIVE_SECTIONS.iter().filter_map(|name| {
        let found = entries.iter().rev().find(|(key, _)| key.name == *name);
        found.map(|(_, node)| (*name, node.clone()))
    });
    let passed: Vec<_> = passed.collect();
    let metrics = ("metrics", file.metrics());
    let proxy = ("proxy", file.proxy(cpus));
    YamlNode::map(passed.into_iter().chain([metrics, proxy]))
}

/// Keys and values of a section.
type Entries = Vec<(&'static str, YamlNode)>;

/// A file while it is converted.
struct TempomatFile<'a> {
    entries: &'a [(YamlKey, YamlNode)],
    faults: &'a mut Vec<ConfigFault>,
    notes: &'a mut Vec<ConfigFault>,
}

impl<'a> TempomatFile<'a> {
    /// The value of a key; if it occurs several times, the last one. `null` counts as absent.
    fn node(&self, name: &str) -> Option<&'a YamlNode> {
        let found = self.entries.iter().rev().find(|(key, _)| key.name.eq_ignore_ascii_case(name));
        found.map(|(_, node)| node).filter(|node| node.value != YamlValue::Null)
    }

    fn fault(&mut self, place: TextPlace, what: impl Into<String>) {
        self.faults.push(ConfigFault::new(place, what));
    }

    fn note(&mut self, place: TextPlace, what: impl Into<String>) {
        self.notes.push(ConfigFault::new(place, what));
    }

    /// Warns about keys that have no effect.
    fn warn_unused_keys(&mut self) {
        for (key, _) in self.entries {
            let is = |of: &[&str]| of.iter().any(|name| name.eq_ignore_ascii_case(&key.name));
            let name = quoted(&key.name);
            if is(&KEYS) || NATIVE_SECTIONS.contains(&key.name.as_str()) || key.name == "dummy" {
                continue;
            }
            if is(&EARLY_KEYS) {
                self.note(
                    key.place,
                    format!("{name} is a key of Tempomat before 0.3 and has no effect"),
                );
            } else if ["proxy", "metrics"].contains(&key.name.as_str()) {
                let what = format!(
                    "{name} is a key of a native configuration, and the rest of this file is a \
                     tempomat.json; remove {name}, and `evenkeel show` prints the file as a \
                     native one"
                );
                self.fault(key.place, what);
            } else {
                self.note(key.place, format!("{name} is not a key of Tempomat and has no effect"));
            }
        }
    }

    fn text(&mut self, name: &str) -> Option<(&'a str, TextPlace)> {
        let node = self.node(name)?;
        match &node.value {
            YamlValue::Text(text) => Some((text.as_str(), node.place)),
            _ => {
                self.fault(node.place, format!("`{name}` must be a single value"));
                None
            }
        }
    }

    /// Reads a number that is not negative; otherwise returns the default.
    fn number(&mut self, name: &str, default: f64) -> f64 {
        let Some((text, place)) = self.text(name) else { return default };
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => number,
            _ => {
                let what = format!("`{name}` is {}: not a number of at least 0", quoted(text));
                self.fault(place, what);
                default
            }
        }
    }

    fn metrics(&mut self) -> YamlNode {
        let held_above = self.number("delayThresholdSec", DELAY_THRESHOLD).min(DAY_SECONDS);
        // Truncated to whole milliseconds, as Tempomat did.
        let held_above = Nanos::from_millis((held_above * 1_000.0) as u64);
        let mut metrics = vec![("held_above", YamlNode::text(held_above.to_string()))];
        let graphite = self.text("graphite").filter(|(text, _)| !text.is_empty());
        let prefix = self.text("graphitePrefix").filter(|(text, _)| !text.is_empty());
        if let Some((address, place)) = graphite {
            metrics.push(("graphite", placed(address, place)));
            metrics.push(("graphite_lines", YamlNode::text("limits")));
            match prefix {
                Some((prefix, place)) => metrics.push(("graphite_prefix", placed(prefix, place))),
                None => self.fault(place, "`graphite` needs a `graphitePrefix`; name one"),
            }
        }
        YamlNode::map(metrics)
    }

    fn proxy(&mut self, machine: f64) -> YamlNode {
        if let Some((_, place)) = self.text("debug").filter(|(text, _)| *text != "false") {
            self.note(place, "`debug` has no effect; `evenkeel show` prints the configuration");
        }
        let (backend, place) = self.text("backend").unwrap_or(("http://localhost:80", START));
        let port = self.port();
        let (cpus, limits) = self.limits(machine);
        let keys = self.keys_max();
        let limits = limits.into_iter().map(|limit| {
            let keys = ("keys_max", YamlNode::text(keys.1.to_string()));
            YamlNode::map(limit.into_iter().chain([keys]))
        });
        let limits = YamlNode::made(YamlValue::List(limits.collect()));
        let mut proxy = vec![
            ("listen", YamlNode::text(format!("{}:{port}", everywhere()))),
            ("backend", placed(backend, place)),
            ("cost", YamlNode::text("wall")),
            ("action", YamlNode::text("hold")),
            ("max_delay", YamlNode::text("120s")),
            ("trusted_proxies", self.trusted_proxies()),
            ("timeouts", YamlNode::map([("backend", YamlNode::text("1h"))])),
            ("names_max", YamlNode::text(keys.0.to_string())),
            ("limits", limits),
        ];
        proxy.extend(cpus.map(|cpus| ("cpus", YamlNode::text(cpus.to_string()))));
        YamlNode::map(proxy)
    }

    fn port(&mut self) -> f64 {
        let port = self.number("listenPort", PORT);
        if port.fract() == 0.0 && port <= f64::from(u16::MAX) {
            return port;
        }
        let place = self.node("listenPort").map_or(START, |node| node.place);
        self.fault(place, "`listenPort` must be a whole number from 0 to 65535");
        PORT
    }

    /// The number of CPUs, unless it is that of the machine, and the limits. If a share is above 1,
    /// the CPUs are multiplied and all shares divided by it, so that the products stay the same.
    fn limits(&mut self, machine: f64) -> (Option<f64>, Vec<Entries>) {
        let count = self.number("cpuCount", 0.0);
        let shares = LIMITS.map(|(_, _, key, _)| match self.number(key, 0.0) {
            0.0 => 1.0,
            share => share,
        });
        let most = shares.into_iter().fold(1.0, f64::max);
        let named = (count > 0.0).then_some(count);
        let mut cpus = named;
        if most > 1.0 {
            cpus = Some(named.unwrap_or(machine) * most);
            let place = self.node("cpuCount").map_or(START, |node| node.place);
            let what = format!(
                "a share is {most}, and the maximum is 1: `cpus` is multiplied by this factor and \
                 all shares are divided by it; the budgets of clients are the same"
            );
            self.note(place, what);
        }
        let limits = LIMITS.iter().zip(shares).map(|((name, by, _, burst), share)| {
            vec![
                ("name", YamlNode::text(*name)),
                ("by", YamlNode::text(*by)),
                ("share", YamlNode::text((share / most).to_string())),
                ("burst", YamlNode::text(*burst)),
            ]
        });
        (cpus, limits.collect())
    }

    /// Number of names and number of keys that are kept, never more than `hashMaxLen`. A large
    /// table allocates one and a half times the slots of the keys that it is made for, so it is
    /// made for fewer keys.
    fn keys_max(&mut self) -> (usize, usize) {
        let most = HASH_LEN_MAX as f64;
        let mut length = self.number("hashMaxLen", HASH_MAX_LEN).trunc();
        let place = self.node("hashMaxLen").map_or(START, |node| node.place);
        if length < 1.0 || length > most {
            let used = if length < 1.0 { HASH_MAX_LEN } else { most };
            self.note(place, format!("`hashMaxLen` must be from 1 to {most}; {used} is used"));
            length = used;
        }
        let length = length as usize;
        if length <= EXACT_KEYS_MAX {
            return (length, length);
        }
        let keys = (length / 8 * 16 / 3).max(EXACT_KEYS_MAX);
        let what = format!(
            "`hashMaxLen: {length}` becomes a table for {keys} keys: a table of this kind needs \
             spare room, because some keys find no place before it is full"
        );
        self.note(place, what);
        (length, keys)
    }

    /// Addresses separated by commas. Entries that are no addresses are dropped with a warning,
    /// because they never matched a client.
    fn trusted_proxies(&mut self) -> YamlNode {
        let Some((text, place)) = self.text("trustedProxies") else {
            return YamlNode::made(YamlValue::List(Vec::new()));
        };
        let mut list = Vec::new();
        for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            match super::super::address::network(one) {
                Ok(_) if one.contains('/') => {
                    let one = quoted(one);
                    self.note(
                        place,
                        format!("all of {one} is trusted; Tempomat trusted no network"),
                    );
                }
                Ok(_) => {}
                Err(_) => {
                    let one = quoted(one);
                    self.note(place, format!("{one} is not an address and has no effect"));
                    continue;
                }
            }
            list.push(placed(one, place));
        }
        YamlNode::made(YamlValue::List(list))
    }
}

/// Maximum number of names and keys.
const HASH_LEN_MAX: usize = 1 << 20;
/// Place of values that are not in the file.
const START: TextPlace = TextPlace::at(1, 1);

/// The address for all interfaces: IPv6 and IPv4 if the machine has IPv6, otherwise IPv4.
fn everywhere() -> &'static str {
    let six = std::fs::read_to_string("/proc/net/if_inet6");
    if six.is_ok_and(|text| !text.trim().is_empty()) { "[::]" } else { "0.0.0.0" }
}
