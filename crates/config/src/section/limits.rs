//! The limits of a door: a list of sections, each with a key template, a condition and an
//! algorithm.
//!
//! `share`, `rate` and `window` are three algorithms, so a limit has exactly one of them. A key
//! that belongs to another algorithm is a fault. How each one counts: `evenkeel_core::bucket`.

use super::proxy::{count, duration, read_action, truth};
use crate::reader::{Read, SectionReader, within};
use crate::tree::{self, YamlNode, YamlValue};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::sliding::SlidingWindow;
use evenkeel_core::classify::{host_name, normal_path};
use evenkeel_core::limit::{
    KEYS_MAX, KeyPart, LIMITS_MAX, Limit, LimitAction, LimitCondition, LimitUnit,
};
use evenkeel_core::units::{Cost, CpuShare, Nanos, QuantityParseError, Rate, Weight};
use std::ops::RangeInclusive;

/// The default limits of a file without `limits`.
pub const DEFAULT: &str = "
- {name: ip,    by: ip/32, share: 10%, burst: 30s}
- {name: net24, by: ip/24, share: 25%, burst: 30s}
- {name: net16, by: ip/16, share: 50%, burst: 30s}
";

/// Range of `weight`. Beyond it a class almost shuts out the others, or is shut out by them.
const WEIGHT_RANGE: RangeInclusive<Weight> = Weight::new(10)..=Weight::new(100_000);
/// Default of `keys_max`; 24 bytes per key.
const KEYS_DEFAULT: usize = 262_144;
/// Default of `keys_max` for a window limit; 228 bytes per key for 15 s, 768 for a minute.
const WINDOW_KEYS_DEFAULT: usize = 65_536;
/// The largest burst, in requests.
const BURST_MAX: u64 = 1_000_000_000;
/// The largest burst and window maximum, as CPU time.
const CPU_MAX: Nanos = Nanos::from_secs(86_400);
/// The coarsest `round` of a window limit.
const ROUND_MAX: Nanos = Nanos::from_secs(1);
/// Maximum length of the name of a limit, header or cookie, in bytes.
const NAME_MAX: usize = 64;

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
    let door = LimitDefaults { ground, action, debt_max };
    let Some(node) = proxy.node("limits") else { return default_limits(proxy, door) };
    let nodes = match &node.value {
        YamlValue::List(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let mut names: Vec<Box<str>> = Vec::new();
    let limits = proxy.sections("limits", nodes, |section| {
        let limit = limit(section, door)?;
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

fn default_limits(proxy: &mut SectionReader<'_, '_>, door: LimitDefaults) -> Vec<Limit> {
    let default = tree::parse(DEFAULT.as_bytes()).unwrap_or(YamlNode::made(YamlValue::Null));
    let YamlValue::List(nodes) = &default.value else { return Vec::new() };
    let mut faults = Vec::new();
    let root = YamlNode::map([]);
    let mut section = SectionReader::open("proxy", Some(&root), root.place, &mut faults);
    let limits = section.sections("limits", nodes, |section| limit(section, door));
    if let YamlValue::Map(shown) = section.close().value {
        shown.into_iter().for_each(|(_, node)| proxy.show("limits", node));
    }
    limits.into_iter().flatten().collect()
}

/// Reads one limit. `None` if a fault makes it impossible to build.
fn limit(section: &mut SectionReader<'_, '_>, door: LimitDefaults) -> Option<Limit> {
    let name = required(section, "name", name);
    let by = by(section);
    let when = section.section("when", when);
    let counted = counted(section, door.ground.cpus);
    let (keys, refuses) = match &counted {
        Some((_, Algorithm::Sliding(_))) => (WINDOW_KEYS_DEFAULT, true),
        Some((unit, _)) => (KEYS_DEFAULT, *unit == LimitUnit::Hits),
        None => (KEYS_DEFAULT, false),
    };
    let action = if refuses { LimitAction::Reject } else { door.action };
    let action = section.value("action", action, read_action);
    let weight = section.value("weight", Weight::ONE, weight);
    let keys_max = section.value("keys_max", door.ground.keys.unwrap_or(keys), keys_max);
    let debt_max = section.optional("debt_max", burst).or(door.debt_max);
    let shadow = section.optional("shadow", truth).unwrap_or(false);
    let (unit, algorithm) = counted?;
    let algorithm = capped(unit, algorithm, action, debt_max);
    let (name, action) = (name?, Some(action));
    let by = by?;
    let limit = Limit { name, by, when, unit, algorithm, action, weight, keys_max, shadow };
    let checked = limit.checked();
    checked.map_err(|faults| faults.iter().for_each(|f| section.fault("by", f.to_string()))).ok()
}

/// Reads the number of keys that a limit remembers.
///
/// # Errors
/// If it is not a number in range.
pub fn keys_max(text: &str) -> Read<usize> {
    within(count(text)?, 1..=KEYS_MAX as u64).map(|n| n as usize)
}

fn weight(text: &str) -> Read<Weight> {
    within(text.parse().map_err(|e: QuantityParseError| e.to_string())?, WEIGHT_RANGE)
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

/// Reads an amount of CPU time that a bucket can hold or owe.
///
/// # Errors
/// If it is less than 1 ms or more than a day.
pub fn burst(text: &str) -> Read<Nanos> {
    within(duration(text)?, Nanos::from_millis(1)..=CPU_MAX)
}

fn required<T>(
    section: &mut SectionReader<'_, '_>,
    key: &'static str,
    read: impl Fn(&str) -> Read<T>,
) -> Option<T> {
    if !section.has(key) {
        section.fault(key, format!("a limit needs `{key}`"));
    }
    section.optional(key, read)
}

/// Reads the algorithm and its numbers. Exactly one of `share`, `rate` and `window` must be
/// present.
fn counted(section: &mut SectionReader<'_, '_>, cpus: f64) -> Option<(LimitUnit, Algorithm)> {
    let share = section.optional("share", |t| t.parse::<CpuShare>().map_err(|e| e.to_string()));
    let rate = section.optional("rate", |t| t.parse::<Rate>().map_err(|e| e.to_string()));
    let window = section.optional("window", |t| {
        within(duration(t)?, Nanos::from_secs(1)..=evenkeel_core::bucket::sliding::WINDOW_MAX)
    });
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
            let what = format!(
                "`{key}` belongs to `window`, which is not here; add it, or remove `{key}`"
            );
            section.fault(key, what);
        }
    }
    match (share, rate, window) {
        (Some(share), ..) => Some((LimitUnit::Cpu, by_share(section, share, cpus)?)),
        (_, Some(rate), _) => Some((LimitUnit::Hits, by_rate(section, rate))),
        (.., Some(window)) => Some((LimitUnit::Cpu, by_window(section, window, cpus)?)),
        _ => {
            ["burst", "max", "round"].into_iter().for_each(|key| section.allow(key));
            None
        }
    }
}

fn by_share(section: &mut SectionReader<'_, '_>, share: CpuShare, cpus: f64) -> Option<Algorithm> {
    ["max", "round"].into_iter().for_each(|key| section.allow(key));
    let burst = section.value("burst", Nanos::from_secs(30), burst);
    Some(Algorithm::Debt(DebtBucket::new(share.of(cpus)?, Cost::cpu(burst))))
}

/// Reads the burst of a rate. Default: the requests of one second, at least one.
fn by_rate(section: &mut SectionReader<'_, '_>, rate: Rate) -> Algorithm {
    ["max", "round"].into_iter().for_each(|key| section.allow(key));
    let second = (rate.per_second().floor() as u64).clamp(1, BURST_MAX);
    let burst = section.value("burst", second, requests_saved);
    Algorithm::Debt(DebtBucket::new(rate, Cost::hits(burst)))
}

/// Reads a burst in requests, at least 1.
pub fn requests_saved(text: &str) -> Read<u64> {
    match count(text)? {
        0 => Err("0 would let nothing pass: 1 is the least, and saves nothing up, as nginx's \
                  `burst=0` does"
            .to_owned()),
        burst => within(burst, 1..=BURST_MAX),
    }
}

fn by_window(section: &mut SectionReader<'_, '_>, window: Nanos, cpus: f64) -> Option<Algorithm> {
    if section.node("burst").is_some() {
        section.fault("burst", "`burst` does not go with `window`, which has `max`; remove it");
    }
    let round = section.optional("round", |text| within(duration(text)?, Nanos(1_000)..=ROUND_MAX));
    let max = required(section, "max", |text| cpu_in(text, window, cpus))?;
    let round = Cost::cpu(round.unwrap_or(Nanos::ZERO));
    match SlidingWindow::new(window, Cost::cpu(max)) {
        Ok(sliding) => Some(Algorithm::Sliding(sliding.rounded(round))),
        Err(fault) => {
            section.fault("window", fault.to_string());
            None
        }
    }
}

/// Reads CPU time, either as a duration or as a share of what `cpus` provide within the window.
fn cpu_in(text: &str, window: Nanos, cpus: f64) -> Read<Nanos> {
    if let Ok(share) = text.parse::<CpuShare>() {
        return Ok(Nanos::from_secs_f64(share.fraction() * cpus * window.as_secs_f64()));
    }
    let long = |_| "not CPU time or a share; write 1050ms or 7%".to_owned();
    within(text.parse().map_err(|_| ()).map_err(long)?, Nanos::from_millis(1)..=CPU_MAX)
}

/// Reads the key template of a limit.
fn by(section: &mut SectionReader<'_, '_>) -> Option<Vec<KeyPart>> {
    if !section.has("by") {
        section.fault("by", "a limit needs `by`; `all` counts everybody together");
    }
    parts(section, "by")
}

/// Reads the parts of a key: one or several, with at most one IPv4 and one IPv6 network.
pub fn parts(section: &mut SectionReader<'_, '_>, key: &'static str) -> Option<Vec<KeyPart>> {
    let mut networks = (None, None);
    let words = section.values(key, part);
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
            section.fault(key, format!("`{key}` names two networks of one kind; remove one"));
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

/// One element of `by`.
enum KeyTemplateWord {
    V4(u8),
    V6(u8),
    Part(KeyPart),
}

fn part(text: &str) -> Read<KeyTemplateWord> {
    let bits = |text: &str, max: u64| within(count(text)?, 0..=max).map(|n| n as u8);
    if let Some(prefix) = text.strip_prefix("ip/") {
        return bits(prefix, 32).map(KeyTemplateWord::V4);
    }
    if let Some(prefix) = text.strip_prefix("ip6/") {
        return bits(prefix, 128).map(KeyTemplateWord::V6);
    }
    let part = match text.split_once(':') {
        Some(("header", name)) => KeyPart::Header(header_name(name)?),
        Some(("cookie", name)) => KeyPart::Cookie(token(name)?),
        Some(("path", n)) => KeyPart::Path(Some(within(count(n)?, 1..=255)? as u8)),
        _ => plain_part(text)?,
    };
    Ok(KeyTemplateWord::Part(part))
}

fn plain_part(text: &str) -> Read<KeyPart> {
    Ok(match text {
        "user-agent" => KeyPart::UserAgent,
        "method" => KeyPart::Method,
        "path" => KeyPart::Path(None),
        "vhost" => KeyPart::Vhost,
        "host" => KeyPart::Host,
        "all" => KeyPart::All,
        _ => {
            return Err(
                "must be ip/N, ip6/N, user-agent, header:NAME, cookie:NAME, method, path, \
                        path:N, vhost, host or all"
                    .to_owned(),
            );
        }
    })
}

/// Reads the condition of a limit.
pub fn when(section: &mut SectionReader<'_, '_>) -> LimitCondition {
    let not = section.section("not", sent);
    if section.has("not") && not == LimitCondition::default() {
        section.fault("not", "`not` names nothing; write what a request must not have");
    }
    LimitCondition {
        path: section.values("path", path),
        vhost: section.values("vhost", vhost),
        not: section.has("not").then(|| Box::new(not)),
        ..sent(section)
    }
}

/// Reads the part of a condition about the method and about headers and cookies.
fn sent(section: &mut SectionReader<'_, '_>) -> LimitCondition {
    LimitCondition {
        method: section.values("method", |text| Ok(token(text)?.to_ascii_uppercase().into())),
        header: names(section, "header", header_name),
        cookie: names(section, "cookie", token),
        ..LimitCondition::default()
    }
}

/// Reads names of headers or cookies that a request must have.
fn names(
    section: &mut SectionReader<'_, '_>,
    key: &'static str,
    name: fn(&str) -> Read<Box<str>>,
) -> Vec<Box<str>> {
    if let Some(YamlValue::Map(_)) = section.node(key).map(|node| &node.value) {
        let what = format!(
            "`{key}` takes names, of what must be there; values cannot be compared. What must be \
             absent stands in `not: {{{key}: NAME}}`"
        );
        section.fault(key, what);
        return Vec::new();
    }
    section.values(key, |text| {
        name(text).map_err(|why| format!("{why} Only names are possible here, and no values"))
    })
}

fn path(text: &str) -> Read<Box<str>> {
    if !text.starts_with('/') || text.contains(['?', '#']) {
        return Err("a path begins with / and has no query".to_owned());
    }
    if text.contains(';') {
        return Err("a path is compared without `;parameters`".to_owned());
    }
    let mut kept: Vec<&str> = Vec::new();
    for segment in text.split('/').filter(|segment| !segment.is_empty()) {
        match segment {
            ".." => _ = kept.pop(),
            segment => kept.push(segment),
        }
    }
    let path = normal_path(&kept.join("/")).into_owned();
    if path == "/.." {
        return Err("a path has no encoded `..`".to_owned());
    }
    Ok(path.into())
}

fn vhost(text: &str) -> Read<Box<str>> {
    let v6 = text.starts_with('[') && text.ends_with(']');
    if text.is_empty() || (text.contains([':', '/']) && !v6) {
        return Err("a host name without a port, such as www.example.com".to_owned());
    }
    Ok(host_name(text).to_ascii_lowercase().into())
}

/// Reads the name of a header, converted to lower case.
///
/// # Errors
/// If no header can have this name.
pub fn header_name(text: &str) -> Read<Box<str>> {
    Ok(token(text)?.to_ascii_lowercase().into())
}

/// Reads a name with the characters that headers, cookies and methods allow (RFC 9110, 5.6.2).
pub fn token(text: &str) -> Read<Box<str>> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(fits) {
        return Err(format!("a name has 1 to {NAME_MAX} letters, digits or - _ ."));
    }
    Ok(text.into())
}

/// Reads the name of a limit. It becomes a label of metrics, so few characters are allowed.
pub fn name(text: &str) -> Read<Box<str>> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(fits) {
        return Err(format!("a name has 1 to {NAME_MAX} letters, digits or - _ ."));
    }
    Ok(text.into())
}
