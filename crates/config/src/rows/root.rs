//! The keys of the file itself: its sections; and the small sections `admin`, `log` and `state`.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey};
use crate::rows::{
    check, gatekeeper, limits, line, master, metrics, peers, proxy, ratelimit, store,
};
use crate::settings::{LogFormat, LogLevel};
use crate::values::DAY;
use evenkeel_core::units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The sections of a file.
pub static TABLE: SectionTable = SectionTable {
    path: "",
    keys: &[
        &ADMIN,
        &LOG,
        &METRICS,
        &TRACES,
        &STATE,
        &PROXY,
        &CHECK,
        &LINE,
        &RATELIMIT,
        &MASTER,
        &GATEKEEPER,
        &PEERS,
        &STORE,
    ],
};

/// The rows of `admin`.
pub static ADMIN_TABLE: SectionTable =
    SectionTable { path: "admin", keys: &[&ADMIN_LISTEN, &TOKEN_FILE] };

/// The rows of `log`.
pub static LOG_TABLE: SectionTable = SectionTable { path: "log", keys: &[&LEVEL, &FORMAT] };

/// The rows of `state`.
pub static STATE_TABLE: SectionTable =
    SectionTable { path: "state", keys: &[&STATE_FILE, &EVERY, &STATE_KEYS] };

pub(crate) static ADMIN: SubsectionKey = SubsectionKey::one(
    "admin",
    &ADMIN_TABLE,
    "Metrics, health and the interface of `evenkeel doctor`. `off` opens no admin door.",
)
.or_words(&["off"])
.restart();

pub(crate) static LOG: SubsectionKey =
    SubsectionKey::one("log", &LOG_TABLE, "Which log lines are written, and how.");

pub(crate) static METRICS: SubsectionKey =
    SubsectionKey::one("metrics", &metrics::TABLE, "Receivers to which metrics are pushed.");

pub(crate) static TRACES: SubsectionKey = SubsectionKey::one(
    "traces",
    &metrics::TRACES,
    "The OpenTelemetry collector that gets spans. Without the section nothing is traced.",
)
.restart();

pub(crate) static STATE: SubsectionKey = SubsectionKey::one(
    "state",
    &STATE_TABLE,
    "The snapshot of debts and counters that survives a restart.",
)
.restart();

pub(crate) static PROXY: SubsectionKey = SubsectionKey::one(
    "proxy",
    &proxy::TABLE,
    "The reverse proxy, and the limits that `check` shares with it.",
);

pub(crate) static CHECK: SubsectionKey = SubsectionKey::one(
    "check",
    &check::TABLE,
    "The door for servers with their own front end, which ask before each request.",
)
.restart();

pub(crate) static LINE: SubsectionKey =
    SubsectionKey::one("line", &line::TABLE, "The door that answers questions about tags.");

pub(crate) static RATELIMIT: SubsectionKey =
    SubsectionKey::one("ratelimit", &ratelimit::TABLE, "The Envoy rate limit service.");

pub(crate) static MASTER: SubsectionKey =
    SubsectionKey::one("master", &master::TABLE, "The master of gatekeepers over ZeroMQ.");

pub(crate) static GATEKEEPER: SubsectionKey = SubsectionKey::list(
    "gatekeeper",
    &gatekeeper::TABLE,
    "The gate of a domain, for which a master decides, or a list of up to 64.",
)
.restart();

pub(crate) static PEERS: SubsectionKey =
    SubsectionKey::one("peers", &peers::TABLE, "Instances that count together.").restart();

pub(crate) static STORE: SubsectionKey =
    SubsectionKey::one("store", &store::TABLE, "One count for all instances, in Redis or Valkey.")
        .restart();

pub(crate) static ADMIN_LISTEN: ListKey<SocketAddr> = ConfigKey::text(
    "listen",
    address::listen,
    "Addresses to listen on. Beyond loopback they need a `token_file`.",
)
.list_with(|| vec![SocketAddr::from(([127, 0, 0, 1], 9970))]);

pub(crate) static TOKEN_FILE: ConfigKey<PathBuf> = ConfigKey::path(
    "token_file",
    "File with the token that callers must send. `/healthz`, `/readyz` and `/metrics` need none.",
)
.example("/etc/evenkeel/token");

pub(crate) static LEVEL: DefaultedKey<LogLevel> =
    ConfigKey::words("level", &LogLevel::WORDS, "The least severe level that is written.")
        .default(LogLevel::Info);

pub(crate) static FORMAT: DefaultedKey<LogFormat> = ConfigKey::words(
    "format",
    &LogFormat::WORDS,
    "`text` for people, or `json` for machines: one object per line ([its \
     fields](seeing.md#the-log)). Both are written to standard error.",
)
.restart()
.default(LogFormat::Text);

pub(crate) static STATE_FILE: ConfigKey<PathBuf> = ConfigKey::path(
    "file",
    "Path of the snapshot. A temporary file (`.tmp`) is written next to it first, so its folder \
     must be writable.",
)
.example("/var/lib/evenkeel/state");

pub(crate) static EVERY: DefaultedKey<Nanos> = ConfigKey::duration(
    "every",
    "Time between two snapshots: the most that a crash (`kill -9`, loss of power) loses. Needs a \
     `file`.",
)
.within(Nanos::from_millis(100), DAY)
.low("the disk is always busy")
.high("a crash forgives the debts of the last minutes")
.default(Nanos::from_secs(5));

pub(crate) static STATE_KEYS: ConfigKey<usize> = limits::keys_max(
    "Number of keys, in memory and in the snapshot, of each limit without a `keys_max` of its own.",
)
.default_note("as in [limits](#proxylimits)");
