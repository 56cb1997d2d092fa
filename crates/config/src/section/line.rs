//! The `line` section: where the line door listens, and how tags are counted.
//!
//! The section's own numbers are the limit of all tags that match no prefix. The settings are
//! described in `settings`. How limits count: `evenkeel_core::bucket`.

pub mod limits_file;

use super::limits::{keys_max, name, requests_saved};
use super::path;
use super::proxy::{count, duration, truth};
use crate::address;
use crate::reader::{Read, SectionReader, one_of, within};
use crate::settings::tags::{
    LimitsFile, OWN_NUMBERS_LIMIT_NAME, RateNumbers, Refill, SHARED_LIMIT_NAME, TagRule,
    TagRulesBuilder, owed_time,
};
use crate::settings::{LineSettings, StreamAddress};
use crate::tree::YamlValue;
use evenkeel_core::classify::prefix::PREFIX_BYTES_MAX;
use evenkeel_core::limit::{LIMITS_MAX, Limit};
use evenkeel_core::units::{ExactRate, Nanos};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Default of `keys_max`; 24 bytes per key.
const KEYS_DEFAULT: usize = 262_144;
/// The largest burst, in requests.
const BURST_MAX: u64 = 1_000_000_000;
/// Maximum length of a socket's path, in bytes. The system allows 107, and a temporary name next to
/// the socket must fit too.
const PATH_BYTES_MAX: usize = 96;
/// Maximum number of addresses of the door.
const LISTENERS_MAX: usize = 64;
/// Maximum number of prefixes with tables of their own. The other three tables are for tags without
/// a prefix, for keys with their own numbers, and the one that all further prefixes share.
const OWN_MAX: usize = LIMITS_MAX - 3;

impl fmt::Display for Refill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refill::Grid => "grid",
            Refill::Continuous => "continuous",
        })
    }
}

/// A rate together with its original text, so that `show` prints it unchanged.
struct WrittenRate(String, ExactRate);

impl fmt::Display for WrittenRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Permissions of a file, displayed in octal.
struct FileMode(u32);

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:o}", self.0)
    }
}

/// Reads the section. `keys_default` is `state.keys_max`.
pub fn read(line: &mut SectionReader<'_, '_>, keys_default: Option<usize>) -> LineSettings {
    let local = SocketAddr::from(([127, 0, 0, 1], 7070));
    let listen = line.list("listen", vec![StreamAddress::Tcp(local)], stream);
    let socket_mode = line.value("socket_mode", FileMode(0o666), mode).0;
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
    let keys_max = line.value("keys_max", keys_default.unwrap_or(KEYS_DEFAULT), keys_max);
    let shadow = line.value("shadow", false, truth);
    let rest = RateNumbers { pace: rate.1, burst, refill };
    let mut tags = TagLimitsReader { refill, keys_max, ..TagLimitsReader::default() };
    tags.limits.push(rest.limit("line".into(), keys_max));
    tags.rules.add("", TagRule::Own(0));
    let limits_file = line.optional("limits_file", path);
    let limits_file = limits_file.map(|path| LimitsFile { path, refill });
    tags.read(line, limits_file.is_some());
    for prefix in line.values("exempt", prefix) {
        if tags.rules.has(&prefix) {
            line.fault("exempt", format!("the prefix `{prefix}` has a rule already; remove one"));
        }
        tags.rules.add(&prefix, TagRule::Exempt);
    }
    let TagLimitsReader { mut limits, rules: written, .. } = tags;
    limits.iter_mut().for_each(|limit| limit.shadow |= shadow);
    let drain = Duration::from_nanos(drain.0);
    let rules = written.clone().finish();
    LineSettings {
        listen,
        socket_mode,
        resp,
        tag_bytes,
        keys_max,
        connections,
        drain,
        limits,
        written,
        limits_file,
        rules,
    }
}

/// The limits and prefix rules read so far.
struct TagLimitsReader {
    limits: Vec<Limit>,
    rules: TagRulesBuilder,
    /// Default for limits without these keys.
    refill: Refill,
    keys_max: usize,
}

impl Default for TagLimitsReader {
    fn default() -> TagLimitsReader {
        TagLimitsReader {
            limits: Vec::new(),
            rules: TagRulesBuilder::default(),
            refill: Refill::Grid,
            keys_max: KEYS_DEFAULT,
        }
    }
}

impl TagLimitsReader {
    /// Reads `limits`. If there are more limits than own tables, those without a name share one; so
    /// do the limits of a file.
    fn read(&mut self, line: &mut SectionReader<'_, '_>, file: bool) {
        let nodes = match line.node("limits").map(|node| (node, &node.value)) {
            Some((_, YamlValue::List(nodes))) => nodes.as_slice(),
            Some((node, _)) => std::slice::from_ref(node),
            None => &[],
        };
        let shared = nodes.len() > OWN_MAX;
        if !nodes.is_empty() {
            line.sections("limits", nodes, |section| self.limit(section, shared));
        }
        if self.limits.len() > 1 + OWN_MAX {
            let what = format!(
                "{} limits have a `name`; at most {OWN_MAX} can have one, the others share the \
                 limit `{SHARED_LIMIT_NAME}`",
                self.limits.len() - 1
            );
            line.fault("limits", what);
        }
        if shared || file {
            self.limits.push(owed_time(SHARED_LIMIT_NAME, self.keys_max));
        }
    }

    fn limit(&mut self, section: &mut SectionReader<'_, '_>, shared: bool) {
        for key in ["prefix", "rate"] {
            if !section.has(key) {
                section.fault(key, format!("a limit of the line door needs `{key}`"));
            }
        }
        let prefix = section.optional("prefix", prefix);
        let shared = shared && !section.has("name");
        let own = match shared {
            true => self.reject_own_keys(section),
            false => Some(self.read_own_table(section, prefix.as_deref())),
        };
        let rate = section.optional("rate", pace);
        let saved = rate.as_ref().map_or(1, |rate| burst_of(rate.1));
        let burst = section.value("burst", saved, requests_saved);
        let refill = section.value("refill", self.refill, refill);
        let (Some(prefix), Some(rate)) = (prefix, rate) else { return };
        if self.rules.has(&prefix) {
            section.fault("prefix", format!("two limits have the prefix `{prefix}`; remove one"));
            return;
        }
        let numbers = RateNumbers { pace: rate.1, burst, refill };
        match own {
            Some((name, keys_max, shadow)) => {
                self.rules.add(&prefix, TagRule::Own(self.limits.len() as u8));
                self.limits.push(Limit { shadow, ..numbers.limit(name, keys_max) });
            }
            None => self.rules.add_shared(&prefix, numbers),
        }
    }

    /// Reads the keys of a limit with its own table: name, number of keys, and whether it is in
    /// shadow mode.
    fn read_own_table(
        &self,
        section: &mut SectionReader<'_, '_>,
        prefix: Option<&str>,
    ) -> (Box<str>, usize, bool) {
        let named = named(prefix.unwrap_or("?"));
        let name = section.value("name", named.into_boxed_str(), name);
        let keys_max = section.value("keys_max", self.keys_max, keys_max);
        let shadow = section.optional("shadow", truth).unwrap_or(false);
        if [SHARED_LIMIT_NAME, OWN_NUMBERS_LIMIT_NAME].contains(&&*name)
            || self.limits.iter().any(|other| other.name == name)
        {
            let what = format!("two limits are named `{name}`; give one of them another `name`");
            section.fault(if section.has("name") { "name" } else { "prefix" }, what);
        }
        (name, keys_max, shadow)
    }

    fn reject_own_keys<T>(&self, section: &mut SectionReader<'_, '_>) -> Option<T> {
        for key in ["keys_max", "shadow"] {
            section.allow(key);
            if section.has(key) {
                let what = format!(
                    "`{key}` needs a `name` here: of more than {OWN_MAX} limits those without one \
                     share the limit `{SHARED_LIMIT_NAME}`"
                );
                section.fault(key, what);
            }
        }
        None
    }
}

/// Default burst: the tokens that are refilled within a second, at least one.
fn burst_of(pace: ExactRate) -> u64 {
    (pace.rate().per_second() as u64).clamp(1, BURST_MAX)
}

/// Default name of a limit: its prefix, with invalid characters replaced by `-`.
fn named(prefix: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = prefix.chars().map(|c| if plain(c) { c } else { '-' }).take(64).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "prefix".to_owned() } else { name.to_owned() }
}

/// One hit per second, as in the example of the original.
fn default_rate() -> WrittenRate {
    WrittenRate("1/s".to_owned(), ExactRate::ONE_PER_SECOND)
}

fn pace(text: &str) -> Read<WrittenRate> {
    let pace = text.parse::<ExactRate>().map_err(|error| error.to_string())?;
    Ok(WrittenRate(text.to_owned(), pace))
}

fn refill(text: &str) -> Read<Refill> {
    one_of(text, &[("grid", Refill::Grid), ("continuous", Refill::Continuous)])
}

fn prefix(text: &str) -> Read<String> {
    let fits = |text: &str| (1..=PREFIX_BYTES_MAX).contains(&text.len()) && !text.contains('\n');
    let wrong = || format!("a prefix has 1 to {PREFIX_BYTES_MAX} bytes and no newline");
    fits(text).then(|| text.to_owned()).ok_or_else(wrong)
}

fn mode(text: &str) -> Read<FileMode> {
    let wrong = || "not the permissions of a file; write them as 660 or 666".to_owned();
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).map(FileMode);
    mode.filter(|_| text.bytes().all(|byte| byte.is_ascii_digit())).ok_or_else(wrong)
}

/// Reads `tcp://127.0.0.1:7070` or `unix:///run/evenkeel/line.sock`; without a scheme it is TCP.
fn stream(text: &str) -> Read<StreamAddress> {
    let path = match text.split_once("://") {
        None => return address::listen(text).map(StreamAddress::Tcp),
        Some(("tcp", rest)) => return address::listen(rest).map(StreamAddress::Tcp),
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
        _ => Ok(StreamAddress::Unix(PathBuf::from(path))),
    }
}
