//! The limits of a door: a list of sections, each with a key template, a condition and an
//! algorithm.
//!
//! `share`, `rate` and `window` are three algorithms, so a limit has exactly one of them. A key
//! that belongs to another algorithm is a fault. How each one counts: `evenkeel_core::bucket`.

use crate::keys::{ConfigKey, ListKey};
use crate::reader::SectionReader;
use crate::rows::limits::{self as rows, BURST_MAX, KeyTemplateWord, cpu_time};
use crate::rows::proxy as door;
use crate::tree::{self, YamlNode, YamlValue};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::sliding::SlidingWindow;
use evenkeel_core::limit::{KeyPart, LIMITS_MAX, Limit, LimitAction, LimitCondition, LimitUnit};
use evenkeel_core::units::{Cost, CpuShare, Nanos, Rate};

/// The default limits of a file without `limits`.
pub const DEFAULT: &str = "
- {name: ip,    by: ip/32, share: 10%, burst: 30s}
- {name: net24, by: ip/24, share: 25%, burst: 30s}
- {name: net16, by: ip/16, share: 50%, burst: 30s}
";

/// Default of `keys_max`; 24 bytes per key.
const KEYS_DEFAULT: usize = 262_144;
/// Default of `keys_max` for a window limit; 228 bytes per key for 15 s, 768 for a minute.
const WINDOW_KEYS_DEFAULT: usize = 65_536;
/// The environment in which limits are read.
#[derive(Clone, Copy)]
pub struct LimitContext {
    /// The number of CPUs that shares refer to.
    pub cpus: f64,
    /// Default number of keys per limit: `state.keys_max`.
    pub keys: Option<usize>,
}

/// Defaults that limits inherit from their door.
#[derive(Clone, Copy)]
struct LimitDefaults {
    ground: LimitContext,
    action: LimitAction,
    debt_max: Option<Nanos>,
}

/// Reads `limits`, or the default limits. `action` and `debt_max` are those of the door.
pub fn read(
    proxy: &mut SectionReader<'_, '_>,
    ground: LimitContext,
    action: LimitAction,
    debt_max: Option<Nanos>,
) -> Vec<Limit> {
    let inherited = LimitDefaults { ground, action, debt_max };
    let Some(nodes) = proxy.nodes_of(&door::LIMITS) else {
        return default_limits(proxy, inherited);
    };
    let mut names: Vec<Box<str>> = Vec::new();
    let limits = proxy.sections(&door::LIMITS, nodes, |section| {
        let limit = limit(section, inherited)?;
        if names.contains(&limit.name) {
            let what = format!("two limits are named `{}`; rename one", limit.name);
            section.fault("name", what);
        }
        names.push(limit.name.clone());
        Some(limit)
    });
    if nodes.len() > LIMITS_MAX {
        let what =
            format!("{} limits are too many; at most {LIMITS_MAX} are possible", nodes.len());
        proxy.fault("limits", what);
    }
    limits.into_iter().flatten().collect()
}

fn default_limits(proxy: &mut SectionReader<'_, '_>, inherited: LimitDefaults) -> Vec<Limit> {
    let default = tree::parse(DEFAULT.as_bytes()).unwrap_or(YamlNode::made(YamlValue::Null));
    let YamlValue::List(nodes) = &default.value else { return Vec::new() };
    let mut faults = Vec::new();
    let root = YamlNode::map([]);
    let mut section =
        SectionReader::open("proxy", &door::TABLE, Some(&root), root.place, &mut faults);
    let limits = section.sections(&door::LIMITS, nodes, |section| limit(section, inherited));
    if let YamlValue::Map(shown) = section.close().value {
        shown.into_iter().for_each(|(_, node)| proxy.show("limits", node));
    }
    limits.into_iter().flatten().collect()
}

/// Reads one limit. `None` if a fault makes it impossible to build.
fn limit(section: &mut SectionReader<'_, '_>, door: LimitDefaults) -> Option<Limit> {
    let name = required(section, &rows::NAME);
    let by = by(section);
    let when = section.section(&rows::WHEN, when);
    let counted = counted(section, door.ground.cpus);
    let (keys, refuses) = match &counted {
        Some((_, Algorithm::Sliding(_))) => (WINDOW_KEYS_DEFAULT, true),
        Some((unit, _)) => (KEYS_DEFAULT, *unit == LimitUnit::Hits),
        None => (KEYS_DEFAULT, false),
    };
    let action = if refuses { LimitAction::Reject } else { door.action };
    let action = section.key_or(&rows::ACTION, action);
    let weight = section.key(&rows::WEIGHT);
    let keys_max = section.key_or(&rows::KEYS, door.ground.keys.unwrap_or(keys));
    let debt_max = section.key(&rows::DEBT_MAX).or(door.debt_max);
    let shadow = section.key(&rows::SHADOW).unwrap_or(false);
    let (unit, algorithm) = counted?;
    let algorithm = capped(unit, algorithm, action, debt_max);
    let (name, action) = (name?, Some(action));
    let by = by?;
    let limit = Limit { name, by, when, unit, algorithm, action, weight, keys_max, shadow };
    let checked = limit.checked();
    checked.map_err(|faults| faults.iter().for_each(|f| section.fault("by", f.to_string()))).ok()
}

/// Applies the bound of debts. With the action `queue` a debt stops at the bucket's burst by
/// default, so that a client is back in credit soon after it stops. With other actions a debt has
/// no bound by default.
fn capped(
    unit: LimitUnit,
    algorithm: Algorithm,
    action: LimitAction,
    debt_max: Option<Nanos>,
) -> Algorithm {
    let Algorithm::Debt(debt) = algorithm else { return algorithm };
    let burst = (action == LimitAction::Queue).then(|| debt.burst());
    match debt_max.map(Cost::cpu).filter(|_| unit == LimitUnit::Cpu).or(burst) {
        Some(debt_max) => Algorithm::Debt(debt.capped(debt_max)),
        None => algorithm,
    }
}

fn required<T: Clone>(
    section: &mut SectionReader<'_, '_>,
    key: &'static ConfigKey<T>,
) -> Option<T> {
    require(section, key.name());
    section.key(key)
}

fn require(section: &mut SectionReader<'_, '_>, key: &str) {
    if !section.has(key) {
        section.fault(key, format!("a limit needs `{key}`"));
    }
}

/// Reads the algorithm and its numbers. Exactly one of `share`, `rate` and `window` must be
/// present.
fn counted(section: &mut SectionReader<'_, '_>, cpus: f64) -> Option<(LimitUnit, Algorithm)> {
    let share = section.key(&rows::SHARE);
    let rate = section.key(&rows::RATE);
    let window = section.key(&rows::WINDOW);
    let named = ["share", "rate", "window"].into_iter().filter(|key| section.has(key));
    let named: Vec<_> = named.collect();
    match named.as_slice() {
        [] => section.fault("name", "a limit needs one of `share`, `rate` or `window`"),
        [_] => {}
        [first, rest @ ..] => rest.iter().for_each(|key| {
            section.fault(key, format!("a limit has `{first}` or `{key}`, not both; remove one"));
        }),
    }
    for key in ["max", "round"] {
        if section.has(key) && !section.has("window") {
            let what = format!("belongs to `window`, which is missing; add it, or remove `{key}`");
            section.fault_of(key, what);
        }
    }
    match (share, rate, window) {
        (Some(share), ..) => Some((LimitUnit::Cpu, by_share(section, share, cpus)?)),
        (_, Some(rate), _) => Some((LimitUnit::Hits, by_rate(section, rate))),
        (.., Some(window)) => Some((LimitUnit::Cpu, by_window(section, window, cpus)?)),
        _ => None,
    }
}

fn by_share(section: &mut SectionReader<'_, '_>, share: CpuShare, cpus: f64) -> Option<Algorithm> {
    let burst = section.key_or(&rows::BURST, Nanos::from_secs(30));
    Some(Algorithm::Debt(DebtBucket::new(share.of(cpus)?, Cost::cpu(burst))))
}

/// Reads the burst of a rate. Default: the requests of one second, at least one.
fn by_rate(section: &mut SectionReader<'_, '_>, rate: Rate) -> Algorithm {
    let second = (rate.per_second().floor() as u64).clamp(1, BURST_MAX);
    let burst = section.key_or(&rows::BURST_REQUESTS, second);
    Algorithm::Debt(DebtBucket::new(rate, Cost::hits(burst)))
}

fn by_window(section: &mut SectionReader<'_, '_>, window: Nanos, cpus: f64) -> Option<Algorithm> {
    if section.node("burst").is_some() {
        section.fault_of("burst", "cannot be combined with `window`, which has `max`; remove it");
    }
    let round = section.key(&rows::ROUND);
    require(section, "max");
    let max = section.key_with("max", |text| cpu_time(text, window, cpus))?;
    let round = Cost::cpu(round.unwrap_or(Nanos::ZERO));
    match SlidingWindow::new(window, Cost::cpu(max)) {
        Ok(sliding) => Some(Algorithm::Sliding(sliding.rounded(round))),
        Err(fault) => {
            section.fault("window", fault.to_string());
            None
        }
    }
}

/// Reads the key template of a limit.
fn by(section: &mut SectionReader<'_, '_>) -> Option<Vec<KeyPart>> {
    if !section.has("by") {
        section.fault("by", "a limit needs `by`; `all` counts all clients together");
    }
    parts(section, &rows::BY)
}

/// Reads the parts of a key: one or several, with at most one IPv4 and one IPv6 network.
pub fn parts(
    section: &mut SectionReader<'_, '_>,
    row: &'static ListKey<KeyTemplateWord>,
) -> Option<Vec<KeyPart>> {
    let mut networks = (None, None);
    let (key, words) = (row.key().name(), section.key(row));
    let mut parts = Vec::new();
    for word in words {
        let again = match word {
            KeyTemplateWord::V4(bits) => networks.0.replace(bits).is_some(),
            KeyTemplateWord::V6(bits) => networks.1.replace(bits).is_some(),
            KeyTemplateWord::Part(part) => {
                parts.push(part);
                continue;
            }
        };
        if again {
            section.fault_of(key, "names two networks of one kind; remove one");
        } else if networks.0.is_none() || networks.1.is_none() {
            // Reserves the position in the key; the lengths are filled in when both are known.
            parts.push(KeyPart::Ip { v4: 32, v6: 128 });
        }
    }
    for part in &mut parts {
        if let KeyPart::Ip { v4, v6 } = part {
            *v4 = networks.0.unwrap_or(32);
            *v6 = networks.1.unwrap_or(2 * *v4);
        }
    }
    (!parts.is_empty()).then_some(parts)
}

/// Reads the condition of a limit.
pub fn when(section: &mut SectionReader<'_, '_>) -> LimitCondition {
    let not = section.section(&rows::NOT, sent);
    if section.has("not") && not == LimitCondition::default() {
        section.fault_of("not", "is empty; write the properties that a request must not have");
    }
    LimitCondition {
        path: section.key(&rows::PATH),
        vhost: section.key(&rows::VHOST),
        not: section.has("not").then(|| Box::new(not)),
        ..sent(section)
    }
}

/// Reads the part of a condition about the method and about headers and cookies.
fn sent(section: &mut SectionReader<'_, '_>) -> LimitCondition {
    LimitCondition {
        method: section.key(&rows::METHOD),
        header: names(section, &rows::HEADER),
        cookie: names(section, &rows::COOKIE),
        ..LimitCondition::default()
    }
}

/// Reads names of headers or cookies that a request must have.
fn names(section: &mut SectionReader<'_, '_>, row: &'static ListKey<Box<str>>) -> Vec<Box<str>> {
    let key = row.key().name();
    if let Some(YamlValue::Map(_)) = section.node(key).map(|node| &node.value) {
        let what = format!(
            "takes names that must be present; values cannot be compared. Names that must be \
             absent are written as `not: {{{key}: NAME}}`"
        );
        section.fault_of(key, what);
        return Vec::new();
    }
    section.key(row)
}
