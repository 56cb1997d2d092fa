//! The `line` section: where tags are asked about, and how each is counted.
//!
//! The section's own numbers are the limit of all tags that no prefix takes. What the settings
//! mean: `settings`; how they count: `tollgate_core::bucket`.

use super::limits::{keys_max, name, requests_saved};
use super::proxy::{count, duration, truth};
use crate::config::address;
use crate::config::reader::{Read, Section, one_of, within};
use crate::config::settings::{Line, Listen, TagPolicy};
use crate::config::tree::Value;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tollgate_core::bucket::Algorithm;
use tollgate_core::bucket::debt::Debt;
use tollgate_core::bucket::grid::Grid;
use tollgate_core::limit::{LIMITS_MAX, Limit, Part, Unit, When};
use tollgate_core::units::{Cost, Nanos, Pace, Weight};

/// Keys remembered by default: 24 bytes each.
const KEYS: usize = 262_144;
/// The largest burst.
const BURST_MAX: u64 = 1_000_000_000;
/// The longest path of a socket: the system takes 107 bytes, and a name beside it is needed.
const PATH_BYTES_MAX: usize = 96;
/// The most addresses that the door listens on.
const LISTENERS_MAX: usize = 64;
/// One limit is that of keys with numbers of their own.
const PREFIXES_MAX: usize = LIMITS_MAX - 2;

/// How a limit is refilled, as it is written.
#[derive(Clone, Copy)]
enum Refill {
    Grid,
    Continuous,
}

impl fmt::Display for Refill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refill::Grid => "grid",
            Refill::Continuous => "continuous",
        })
    }
}

/// A rate as it is written, so that it is shown as it was.
struct Written(String, Pace);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The permissions of a file, as they are written: octal.
struct Mode(u32);

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:o}", self.0)
    }
}

/// Reads the section; `keys_default` is what `state` says for all limits.
pub fn read(line: &mut Section<'_, '_>, keys_default: Option<usize>) -> Line {
    let local = SocketAddr::from(([127, 0, 0, 1], 7070));
    let listen = line.list("listen", vec![Listen::Tcp(local)], stream);
    let socket_mode = line.value("socket_mode", Mode(0o666), mode).0;
    let resp = line.list("resp", Vec::new(), address::listen);
    if listen.len() + resp.len() > LISTENERS_MAX {
        line.fault("listen", format!("more than {LISTENERS_MAX} listeners; remove some"));
    }
    let tag_bytes = line.value("tag_bytes", 1024, |text| within(count(text)?, 1..=8192)) as usize;
    let connections =
        line.value("connections", 10_000, |text| within(count(text)?, 0..=10_000_000)) as usize;
    let drain = line.value("drain", Nanos::from_secs(5), |text| {
        within(duration(text)?, Nanos::ZERO..=Nanos::from_secs(86_400))
    });
    let rate = line.value("rate", default_rate(), pace);
    let burst = line.value("burst", 10, requests_saved);
    let refill = line.value("refill", Refill::Grid, refill);
    let keys_max = line.value("keys_max", keys_default.unwrap_or(KEYS), keys_max);
    let shadow = line.value("shadow", false, truth);
    let limit = Limit { shadow, ..limit("line".into(), &rate, burst, refill, keys_max) };
    let mut policies = vec![TagPolicy { prefix: String::new(), limit }];
    policies.extend(limits(line, refill, keys_max));
    policies.iter_mut().for_each(|policy| policy.limit.shadow |= shadow);
    let drain = Duration::from_nanos(drain.0);
    Line { listen, socket_mode, resp, tag_bytes, keys_max, connections, drain, policies }
}

/// Every address of TCP that it listens on.
pub fn addresses(line: &Line) -> impl Iterator<Item = SocketAddr> {
    let streams = line.listen.iter().filter_map(|listen| match listen {
        Listen::Tcp(address) => Some(*address),
        Listen::Unix(_) => None,
    });
    streams.chain(line.resp.iter().copied())
}

/// The limits of single prefixes.
fn limits(line: &mut Section<'_, '_>, refill: Refill, keys: usize) -> Vec<TagPolicy> {
    let Some(node) = line.node("limits") else { return Vec::new() };
    let nodes = match &node.value {
        Value::List(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let mut seen: Vec<(String, Box<str>)> = Vec::new();
    let policies = line.sections("limits", nodes, &[], |section| {
        let policy = policy(section, refill, keys)?;
        let (prefix, name) = (&policy.prefix, &policy.limit.name);
        if seen.iter().any(|(other, _)| other == prefix) {
            section.fault("prefix", format!("two limits have the prefix `{prefix}`; remove one"));
        } else if **name == *"line" || seen.iter().any(|(_, other)| other == name) {
            let what = format!("two limits are named `{name}`; give one of them another `name`");
            section.fault(if section.has("name") { "name" } else { "prefix" }, what);
        }
        seen.push((prefix.clone(), name.clone()));
        Some(policy)
    });
    if nodes.len() > PREFIXES_MAX {
        let what = format!("{} limits are too many; at most {PREFIXES_MAX}", nodes.len());
        line.fault("limits", what);
    }
    policies.into_iter().flatten().collect()
}

fn policy(section: &mut Section<'_, '_>, door: Refill, keys_default: usize) -> Option<TagPolicy> {
    for key in ["prefix", "rate"] {
        if !section.has(key) {
            section.fault(key, format!("a limit of the line door needs `{key}`"));
        }
    }
    let prefix = section.optional("prefix", prefix);
    let named = named(prefix.as_deref().unwrap_or("?"));
    let name = section.value("name", named.into_boxed_str(), name);
    let rate = section.optional("rate", pace);
    let second = rate.as_ref().map_or(1, |rate| rate.1.rate().per_second() as u64);
    let burst = section.value("burst", second.clamp(1, BURST_MAX), requests_saved);
    let refill = section.value("refill", door, refill);
    let keys_max = section.value("keys_max", keys_default, keys_max);
    let shadow = section.optional("shadow", truth).unwrap_or(false);
    let limit = Limit { shadow, ..limit(name, &rate?, burst, refill, keys_max) };
    Some(TagPolicy { prefix: prefix?, limit })
}

/// What a limit is called if it does not say: its prefix, as far as a name can have it.
fn named(prefix: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = prefix.chars().map(|c| if plain(c) { c } else { '-' }).take(64).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "prefix".to_owned() } else { name.to_owned() }
}

fn limit(name: Box<str>, rate: &Written, burst: u64, refill: Refill, keys_max: usize) -> Limit {
    let algorithm = match refill {
        Refill::Grid => Algorithm::Grid(Grid::new(rate.1, burst)),
        Refill::Continuous => Algorithm::Debt(Debt::new(rate.1.rate(), Cost::hits(burst))),
    };
    Limit {
        name,
        by: vec![Part::Tag],
        when: When::default(),
        unit: Unit::Hits,
        algorithm,
        action: None,
        weight: Weight::ONE,
        keys_max,
        shadow: false,
    }
}

/// One hit a second: that of the original's example.
fn default_rate() -> Written {
    Written("1/s".to_owned(), Pace::ONE_PER_SECOND)
}

fn pace(text: &str) -> Read<Written> {
    let pace = text.parse::<Pace>().map_err(|error| error.to_string())?;
    Ok(Written(text.to_owned(), pace))
}

fn refill(text: &str) -> Read<Refill> {
    one_of(text, &[("grid", Refill::Grid), ("continuous", Refill::Continuous)])
}

fn prefix(text: &str) -> Read<String> {
    let fits = |text: &str| !text.is_empty() && text.len() <= 256 && !text.contains('\n');
    let wrong = || "a prefix has 1 to 256 bytes and no newline".to_owned();
    fits(text).then(|| text.to_owned()).ok_or_else(wrong)
}

fn mode(text: &str) -> Read<Mode> {
    let wrong = || "not the permissions of a file; write them as 660 or 666".to_owned();
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).map(Mode);
    mode.filter(|_| text.bytes().all(|byte| byte.is_ascii_digit())).ok_or_else(wrong)
}

/// `tcp://127.0.0.1:7070`, `unix:///run/tollgate/line.sock`; without a scheme it is TCP.
fn stream(text: &str) -> Read<Listen> {
    let path = match text.split_once("://") {
        None => return address::listen(text).map(Listen::Tcp),
        Some(("tcp", rest)) => return address::listen(rest).map(Listen::Tcp),
        Some(("unix", path)) => path,
        Some(_) => return Err("write tcp://127.0.0.1:7070 or unix:///run/line.sock".to_owned()),
    };
    match path {
        _ if !path.starts_with('/') => {
            Err("a socket's path begins with /, so there are three: unix:///run/line.sock".into())
        }
        _ if path.len() > PATH_BYTES_MAX || path.contains('\0') || path.ends_with('/') => {
            Err(format!("not the path of a socket, of at most {PATH_BYTES_MAX} bytes"))
        }
        _ => Ok(Listen::Unix(PathBuf::from(path))),
    }
}
