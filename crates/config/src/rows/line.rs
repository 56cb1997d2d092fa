//! The keys of `line` and of its `limits`: where the line door listens, and how tags are counted.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey};
use crate::rows::limits::{self, BURST_MAX, requests_saved};
use crate::settings::StreamAddress;
use crate::settings::tags::Refill;
use crate::values::{self, DAY, Read};
use evenkeel_core::classify::prefix::PREFIX_BYTES_MAX;
use evenkeel_core::units::{ExactRate, Nanos};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "line",
    keys: &[
        &LISTEN,
        &SOCKET_MODE,
        &RESP,
        &RATE,
        &BURST,
        &REFILL,
        &KEYS,
        &SHADOW,
        &TAG_BYTES,
        &CONNECTIONS,
        &DRAIN,
        &LIMITS,
        &LIMITS_FILE,
        &EXEMPT,
    ],
};

/// The rows of a limit.
pub static LIMIT: SectionTable = SectionTable {
    path: "line.limits",
    keys: &[
        &LIMIT_PREFIX,
        &LIMIT_RATE,
        &LIMIT_BURST,
        &LIMIT_REFILL,
        &LIMIT_NAME,
        &LIMIT_KEYS,
        &LIMIT_SHADOW,
    ],
};

/// Maximum length of a socket's path, in bytes. The system allows 107, and a temporary name next to
/// the socket must fit too.
const PATH_BYTES_MAX: usize = 96;

pub(crate) static LISTEN: ListKey<StreamAddress> = ConfigKey::text(
    "listen",
    stream,
    "Addresses to listen on: `tcp://127.0.0.1:7070`, `unix:///run/evenkeel/line.sock`.",
)
.restart()
.list_with(|| vec![StreamAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 7070)))]);

pub(crate) static SOCKET_MODE: DefaultedKey<FileMode> =
    ConfigKey::text("socket_mode", mode, "Permissions of Unix sockets, in octal.")
        .restart()
        .range_note("0 to 777")
        .low("programs may not connect")
        .high("each user may connect")
        .default(FileMode(0o666));

pub(crate) static RESP: ListKey<SocketAddr> =
    ConfigKey::text("resp", address::listen, "Addresses to listen on for Redis clients.")
        .restart()
        .example("127.0.0.1:6380")
        .list_with(Vec::new);

pub(crate) static RATE: DefaultedKey<WrittenRate> =
    ConfigKey::text("rate", rate, "Tokens per time for each tag that matches no prefix.")
        .range_note("above 0")
        .low("ordinary use is refused")
        .high("the limit has no effect")
        .default_with(|| WrittenRate("1/s".to_owned(), ExactRate::ONE_PER_SECOND));

pub(crate) static BURST: DefaultedKey<u64> =
    ConfigKey::text("burst", requests_saved, "Tokens that a tag without a prefix can save up.")
        .range_note("1 to 1 000 000 000")
        .low("short peaks are refused")
        .high("a new tag can use much before it is refused")
        .default(10);

pub(crate) static REFILL: DefaultedKey<Refill> = ConfigKey::words(
    "refill",
    &REFILLS,
    "`grid`: whole tokens at whole multiples of 1/rate. `continuous`: fractions of tokens as time \
     passes.",
)
.default(Refill::Grid);

/// The words for each way to refill.
const REFILLS: [(&str, Refill); 2] = [("grid", Refill::Grid), ("continuous", Refill::Continuous)];

pub(crate) static KEYS: ConfigKey<usize> =
    limits::keys_max("Number of tags that each limit remembers, 24 bytes each.")
        .default_note("`state.keys_max`, else 262 144");

pub(crate) static SHADOW: DefaultedKey<bool> =
    ConfigKey::truth("shadow", "Whether refusals are counted and logged, but answered with `OK`.")
        .default(false);

pub(crate) static TAG_BYTES: DefaultedKey<usize> = ConfigKey::whole(
    "tag_bytes",
    "Maximum length of a tag, in bytes. Longer tags get `OK` and are not counted.",
)
.within(1, 8192)
.low("clients evade limits by longer tags")
.high("memory for each connection")
.default(1024);

pub(crate) static CONNECTIONS: DefaultedKey<usize> = ConfigKey::whole(
    "connections",
    "Connections at once. Beyond it the one that was silent for longest is closed. `0`: the limit \
     of open files.",
)
.within(0, 10_000_000)
.low("clients reconnect often")
.high("open files run out")
.default(10_000);

pub(crate) static DRAIN: DefaultedKey<Nanos> =
    ConfigKey::duration("drain", "Time for replies to be sent when the process stops.")
        .within(Nanos::ZERO, DAY)
        .default(Nanos::from_secs(5));

pub(crate) static LIMITS: SubsectionKey = SubsectionKey::list(
    "limits",
    &LIMIT,
    "[Limits](#linelimits) for tags with a prefix; the longest prefix wins. Up to 29 have tables \
     of their own. If there are more, those without a `name` share the limit `prefixes`.",
);

pub(crate) static LIMITS_FILE: ConfigKey<PathBuf> = ConfigKey::path(
    "limits_file",
    "[File](#line) with more prefixes, which share the limit `prefixes`. It is read again when it \
     changes.",
)
.example("/etc/evenkeel/prefixes");

pub(crate) static EXEMPT: ListKey<String> = ConfigKey::text(
    "exempt",
    prefix,
    "Prefixes of tags that are neither counted nor logged; they get `OK`.",
)
.example("internal:")
.list();

pub(crate) static LIMIT_PREFIX: ConfigKey<String> =
    ConfigKey::text("prefix", prefix, "The beginning of the tags that the limit counts.")
        .range_note("1 to 256 bytes, no newline")
        .example("api:")
        .required();

pub(crate) static LIMIT_RATE: ConfigKey<WrittenRate> =
    ConfigKey::text("rate", rate, "Tokens per time for each tag.")
        .range_note("above 0")
        .low("ordinary use is refused")
        .high("the limit has no effect")
        .example("10/s")
        .required();

pub(crate) static LIMIT_BURST: ConfigKey<u64> =
    ConfigKey::text("burst", requests_saved, "Tokens that a tag can save up.")
        .range_note("1 to 1 000 000 000")
        .low("short peaks are refused")
        .high("a new tag can use much before it is refused")
        .default_note("the tokens of one second, at least 1")
        .example("20");

pub(crate) static LIMIT_REFILL: ConfigKey<Refill> =
    ConfigKey::words("refill", &REFILLS, "As in `line`.").default_note("that of `line`");

pub(crate) static LIMIT_NAME: ConfigKey<Box<str>> =
    ConfigKey::text("name", values::name, "The unique name of the limit.")
        .range_note("1 to 64 letters, digits, `-`, `_`, `.`")
        .default_note("the prefix, with other characters replaced by `-`")
        .example("api");

pub(crate) static LIMIT_KEYS: ConfigKey<usize> = limits::keys_max(
    "Number of tags that are remembered, 24 bytes each. Not for limits that share `prefixes`.",
)
.default_note("that of `line`");

pub(crate) static LIMIT_SHADOW: ConfigKey<bool> = ConfigKey::truth(
    "shadow",
    "As in `line`, for this limit alone. Not for limits that share `prefixes`.",
)
.default_note("`false`");

/// A rate together with its original text, so that `show` prints it unchanged.
#[derive(Clone, PartialEq)]
pub(crate) struct WrittenRate(pub String, pub ExactRate);

impl fmt::Display for WrittenRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Permissions of a file, displayed in octal.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct FileMode(pub u32);

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:o}", self.0)
    }
}

/// Reads a rate.
pub(crate) fn rate(text: &str) -> Read<WrittenRate> {
    let rate = text.parse::<ExactRate>().map_err(|error| error.to_string())?;
    Ok(WrittenRate(text.to_owned(), rate))
}

/// Default burst: the tokens that are refilled within a second, at least one.
pub(crate) fn burst_of(pace: ExactRate) -> u64 {
    (pace.rate().per_second() as u64).clamp(1, BURST_MAX)
}

/// Reads a prefix of tags.
pub(crate) fn prefix(text: &str) -> Read<String> {
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
