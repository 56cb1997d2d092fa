//! The `line` section: where the line door listens, and how tags are counted.
//!
//! The section's own numbers are the limit of all tags that match no prefix. The settings are
//! described in `settings`. How limits count: `evenkeel_core::bucket`.

pub mod limits_file;
pub mod turns;

use super::limits::{self, burst_of, requests_saved};
use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, section};
use crate::reader::{SectionReader, settings};
use crate::settings::peers::PeersSettings;
use crate::settings::tags::{
    LimitsFile, OWN_NUMBERS_LIMIT_NAME, RateNumbers, Refill, SHARED_LIMIT_NAME, TagRule, TagRules,
    TagRulesBuilder, owed_time,
};
use crate::values::{self, DAY, Read};
use evenkeel_core::classify::prefix::PREFIX_BYTES_MAX;
use evenkeel_core::limit::{LIMITS_MAX, Limit};
use evenkeel_core::units::{ExactRate, Nanos};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use turns::TurnSettings;

settings! {
    /// The line door, which answers questions about tags.
    #[derive(Clone, Debug, PartialEq)]
    pub struct LineSettings from keys(
        line, keys_default: usize, peers: Option<&PeersSettings>
    );

    /// Addresses to listen on: `tcp://127.0.0.1:7070`, `unix:///run/evenkeel/line.sock`.
    pub listen: Vec<StreamAddress>, LISTEN: ListKey<StreamAddress> =
        ConfigKey::text("listen", stream)
            .list_with(|| vec![StreamAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 7070)))])
            .restart();
    /// Permissions of Unix sockets, in octal.
    pub socket_mode: u32, SOCKET_MODE: DefaultedKey<u32> = ConfigKey::opaque("socket_mode", mode)
        .written(|_, mode| format!("{mode:o}")).range_note("0 to 777").default(0o666).restart()
        .low("programs may not connect").high("each user may connect");
    /// Addresses to listen on for Redis clients.
    pub resp: Vec<SocketAddr>, RESP: ListKey<SocketAddr> = ConfigKey::text("resp", address::listen)
        .list_with(Vec::new).restart().example("127.0.0.1:6380");
    /// Maximum length of a tag, in bytes. Longer tags get `OK` and are not counted.
    pub tag_bytes: usize, TAG_BYTES: DefaultedKey<usize> = ConfigKey::whole("tag_bytes")
        .within(1, 8192).default(1024).low("clients evade limits by longer tags")
        .high("memory for each connection");
    /// Connections at once. With more, the one that was silent for longest is closed. `0`: the
    /// limit on open files.
    pub connections: usize, CONNECTIONS: DefaultedKey<usize> = ConfigKey::whole("connections")
        .within(0, 10_000_000).default(10_000).low("clients reconnect often")
        .high("open files run out");
    /// Time for replies to be sent when the process stops.
    pub drain: Duration, DRAIN: DefaultedKey<Nanos> =
        ConfigKey::duration("drain").within(Nanos::ZERO, DAY).default(Nanos::from_secs(5));
    let rate = line.key(&RATE).1;
    let burst = line.key(&BURST);
    let refill = line.key(&REFILL);
    /// Number of tags that each limit remembers, 24 bytes each.
    pub keys_max: usize, KEYS: ConfigKey<usize> =
        limits::keys_max().default_note("`state.keys_max`, else [by memory](#memory-for-keys)")
        => line.key_or(&KEYS, keys_default);
    let shadow = line.key(&SHADOW);
    /// [File](#line) with more prefixes, which share the limit `prefixes`. It is read again when it
    /// changes.
    pub limits_file: Option<LimitsFile>, LIMITS_FILE: ConfigKey<PathBuf> =
        ConfigKey::path("limits_file").example("/etc/evenkeel/prefixes")
        => line.key(&LIMITS_FILE).map(|path| LimitsFile { path, refill });
    let rest = RateNumbers { pace: rate, burst, refill };
    let tags = tags(line, rest, keys_max, shadow, limits_file.is_some());
    /// [Limits](#linelimits) for tags with a prefix; the longest prefix wins. Up to 29 have tables
    /// of their own. If there are more, those without a `name` share the limit `prefixes`.
    pub limits: Vec<Limit>, LIMITS: SubsectionKey = SubsectionKey::list("limits", &LIMIT)
        => tags.limits;
    /// The prefix rules that are written in the configuration itself.
    pub written: TagRulesBuilder = tags.rules;
    /// All prefix rules: those of the configuration and those of the file.
    pub rules: Arc<TagRules> = written.clone().finish();
    /// Settings for [turns](turns.md) (`TAKE` and `DONE`). Without this section, lines that begin
    /// with these words are tags.
    pub turns: Option<TurnSettings>, TURNS: SubsectionKey =
        SubsectionKey::one("turns", &turns::TABLE)
        => line.section_if_written(&TURNS, |section| turns::read(section, keys_max, peers));
}

/// An address on which the line door accepts streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamAddress {
    /// A TCP address, written `tcp://127.0.0.1:7070`.
    Tcp(SocketAddr),
    /// A Unix socket, written `unix:///run/evenkeel/line.sock`.
    Unix(PathBuf),
}

impl fmt::Display for StreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamAddress::Tcp(address) => write!(f, "tcp://{address}"),
            StreamAddress::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

section! {
    TABLE = "line":
        LISTEN, SOCKET_MODE, RESP, RATE, BURST, REFILL, KEYS, SHADOW, TAG_BYTES, CONNECTIONS, DRAIN,
        LIMITS, LIMITS_FILE, EXEMPT, TURNS;
}

section! {
    /// Tokens per time for each tag that matches no prefix.
    RATE: DefaultedKey<WrittenRate> = ConfigKey::text("rate", rate).range_note("above 0")
        .default_with(|| WrittenRate("1/s".to_owned(), ExactRate::ONE_PER_SECOND))
        .low("ordinary use is refused").high("the limit has no effect");
    /// Tokens that a tag without a prefix can save up.
    BURST: DefaultedKey<u64> = ConfigKey::text("burst", requests_saved)
        .range_note("1 to 1 000 000 000").default(10).low("short peaks are refused")
        .high("a new tag can use much before it is refused");
    /// `grid`: whole tokens at whole multiples of 1/rate. `continuous`: fractions of tokens as time
    /// passes.
    REFILL: DefaultedKey<Refill> = ConfigKey::words("refill", Refill::WORDS).default(Refill::Grid);
    /// Whether refusals are counted and logged, but answered with `OK`.
    SHADOW: DefaultedKey<bool> = ConfigKey::truth("shadow").default(false);
    /// Prefixes of tags that are neither counted nor logged; they get `OK`.
    EXEMPT: ListKey<String> = ConfigKey::text("exempt", prefix).list().example("internal:");
}

section! {
    LIMIT = "line.limits";

    /// The beginning of the tags that the limit counts.
    LIMIT_PREFIX: ConfigKey<String> = ConfigKey::text("prefix", prefix)
        .range_note("1 to 256 bytes, no newline").required().example("api:");
    /// Tokens per time for each tag.
    LIMIT_RATE: ConfigKey<WrittenRate> = ConfigKey::text("rate", rate).range_note("above 0")
        .required().example("10/s").low("ordinary use is refused").high("the limit has no effect");
    /// Tokens that a tag can save up.
    LIMIT_BURST: ConfigKey<u64> = ConfigKey::text("burst", requests_saved)
        .range_note("1 to 1 000 000 000").default_note("the number in `rate`, at least 1")
        .example("20").low("short peaks are refused")
        .high("a new tag can use much before it is refused");
    /// As in `line`.
    LIMIT_REFILL: ConfigKey<Refill> =
        ConfigKey::words("refill", Refill::WORDS).default_note("that of `line`");
    /// The unique name of the limit.
    LIMIT_NAME: ConfigKey<Box<str>> = ConfigKey::text("name", values::name)
        .range_note("1 to 64 letters, digits, `-`, `_`, `.`")
        .default_note("the prefix, with other characters replaced by `-`").example("api");
    /// Number of tags that are remembered, 24 bytes each. Not for limits that share `prefixes`.
    LIMIT_KEYS: ConfigKey<usize> = limits::keys_max().default_note("that of `line`");
    /// As in `line`, for this limit alone. Not for limits that share `prefixes`.
    LIMIT_SHADOW: ConfigKey<bool> = ConfigKey::truth("shadow").default_note("`false`");
}

/// Maximum number of addresses of the door.
const LISTENERS_MAX: usize = 64;
/// Maximum number of prefixes with tables of their own. The other three tables are for tags without
/// a prefix, for keys with their own numbers, and the one that all further prefixes share.
const OWN_MAX: usize = LIMITS_MAX - 3;
/// Maximum length of a socket's path, in bytes. The system allows 107, and a temporary name next to
/// the socket must fit too.
const PATH_BYTES_MAX: usize = 96;

/// Reads the section. `keys_default` is `state.keys_max` or its own default.
pub(crate) fn read(
    line: &mut SectionReader<'_, '_>,
    keys_default: usize,
    peers: Option<&PeersSettings>,
) -> LineSettings {
    let settings = keys(line, keys_default, peers);
    if settings.listen.len() + settings.resp.len() > LISTENERS_MAX {
        line.fault("listen", format!("more than {LISTENERS_MAX} listeners; remove some"));
    }
    settings
}

/// Reads `limits` and `exempt`. `rest` are the numbers for tags that match no prefix.
fn tags(
    line: &mut SectionReader<'_, '_>,
    rest: RateNumbers,
    keys_max: usize,
    shadow: bool,
    file: bool,
) -> TagLimitsReader {
    let (limits, refill) = (vec![rest.limit("line".into(), keys_max)], rest.refill);
    let mut tags = TagLimitsReader { limits, rules: TagRulesBuilder::default(), refill, keys_max };
    tags.rules.add("", TagRule::Own(0));
    tags.read(line, file);
    for prefix in line.key(&EXEMPT) {
        if tags.rules.has(&prefix) {
            line.fault("exempt", format!("the prefix `{prefix}` has a rule already; remove one"));
        }
        tags.rules.add(&prefix, TagRule::Exempt);
    }
    tags.limits.iter_mut().for_each(|limit| limit.shadow |= shadow);
    tags
}

/// The limits and prefix rules read so far.
struct TagLimitsReader {
    limits: Vec<Limit>,
    rules: TagRulesBuilder,
    /// Default for limits without these keys.
    refill: Refill,
    keys_max: usize,
}

impl TagLimitsReader {
    /// Reads `limits`. If there are more limits than own tables, those without a name share one; so
    /// do the limits of a file.
    fn read(&mut self, line: &mut SectionReader<'_, '_>, file: bool) {
        let nodes = line.nodes_of(&LIMITS).unwrap_or_default();
        let shared = nodes.len() > OWN_MAX;
        if !nodes.is_empty() {
            line.sections(&LIMITS, nodes, |section| self.limit(section, shared));
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
        let missing = |key: &str| format!("a limit of the line door needs `{key}`");
        section.require(&["prefix", "rate"], missing);
        let prefix = section.key(&LIMIT_PREFIX);
        let shared = shared && !section.has("name");
        let own = match shared {
            true => self.reject_own_keys(section),
            false => Some(self.read_own_table(section, prefix.as_deref())),
        };
        let rate = section.key(&LIMIT_RATE);
        let saved = rate.as_ref().map_or(1, |rate| burst_of(rate.1));
        let burst = section.key_or(&LIMIT_BURST, saved);
        let refill = section.key_or(&LIMIT_REFILL, self.refill);
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
        let name = section.key_or(&LIMIT_NAME, named.into_boxed_str());
        let keys_max = section.key_or(&LIMIT_KEYS, self.keys_max);
        let shadow = section.key(&LIMIT_SHADOW).unwrap_or(false);
        if [SHARED_LIMIT_NAME, OWN_NUMBERS_LIMIT_NAME].contains(&&*name)
            || self.limits.iter().any(|other| other.name == name)
        {
            let what = format!("two limits are named `{name}`; give one of them another `name`");
            section.fault(if section.has("name") { "name" } else { "prefix" }, what);
        }
        (name, keys_max, shadow)
    }

    fn reject_own_keys<T>(&self, section: &mut SectionReader<'_, '_>) -> Option<T> {
        let what = format!(
            "needs a `name` here: with more than {OWN_MAX} limits, those without a name share the \
             limit `{SHARED_LIMIT_NAME}`"
        );
        section.refuse(&["keys_max", "shadow"], &what);
        None
    }
}

/// Default name of a limit: its prefix, with invalid characters replaced by `-`.
fn named(prefix: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = prefix.chars().map(|c| if plain(c) { c } else { '-' }).take(64).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "prefix".to_owned() } else { name.to_owned() }
}

/// A rate together with its original text, so that `show` prints it unchanged.
#[derive(Clone, PartialEq)]
pub(crate) struct WrittenRate(pub String, pub ExactRate);

impl fmt::Display for WrittenRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads a rate.
pub(crate) fn rate(text: &str) -> Read<WrittenRate> {
    let rate = text.parse::<ExactRate>().map_err(|error| error.to_string())?;
    Ok(WrittenRate(text.to_owned(), rate))
}

/// Reads a prefix of tags.
pub(crate) fn prefix(text: &str) -> Read<String> {
    let fits = |text: &str| (1..=PREFIX_BYTES_MAX).contains(&text.len()) && !text.contains('\n');
    let wrong = || format!("a prefix has 1 to {PREFIX_BYTES_MAX} bytes and no newline");
    fits(text).then(|| text.to_owned()).ok_or_else(wrong)
}

fn mode(text: &str) -> Read<u32> {
    let wrong = || "not the permissions of a file; write them as 660 or 666".to_owned();
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
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
