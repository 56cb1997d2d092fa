//! The keys of `store`: one count for all instances, kept in Redis or Valkey.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey};
use crate::rows::tls;
use crate::settings::store::{StoreFail, StoreLogin, StoreMode, StoreServer};
use crate::values::{DAY, Read};
use evenkeel_core::units::Nanos;
use std::path::PathBuf;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "store",
    keys: &[
        &REDIS,
        &LAYOUT,
        &MASTER,
        &CREDENTIALS,
        &CREDENTIALS_FILE,
        &TLS,
        &DEADLINE,
        &CONNECT_TIMEOUT,
        &MODE,
        &PERIOD,
        &FAIL,
        &PREFIX,
        &COMPATIBLE_KEYS,
        &EXPIRATION_JITTER,
        &OWED_MAX,
        &PER_SECOND,
    ],
};

/// The rows of `store.per_second`.
pub static SERVERS: SectionTable = SectionTable {
    path: "store.per_second",
    keys: &[&REDIS, &LAYOUT, &MASTER, &CREDENTIALS, &CREDENTIALS_FILE, &TLS],
};

/// Maximum length of the prefix of all keys, in bytes.
const PREFIX_BYTES_MAX: usize = 64;

pub(crate) static REDIS: ListKey<StoreServer> = ConfigKey::opaque(
    "redis",
    address::store::server,
    "Addresses: `redis://user:password@host:6379/0`, `rediss://` for TLS, `unix:///path`, or \
     `host:port`. `evenkeel show` prints passwords as stars.",
)
.example("redis://127.0.0.1:6379")
.required()
.masked(|text| match address::store::server(text) {
    Ok(server) => address::store::shown(&server, PASSWORD_MASK),
    Err(_) => PASSWORD_MASK.to_owned(),
})
.list();

/// Replaces a password in the output of `show`.
const PASSWORD_MASK: &str = "***";

pub(crate) static LAYOUT: ConfigKey<StoreLayoutName> = ConfigKey::words(
    "layout",
    &[
        ("single", StoreLayoutName::Single),
        ("sentinel", StoreLayoutName::Sentinel),
        ("cluster", StoreLayoutName::Cluster),
        ("ring", StoreLayoutName::Ring),
    ],
    "`single`: one server. `sentinel`: `redis` names sentinels. `cluster`: `redis` names some \
     nodes of a cluster. `ring`: independent servers, each with a part of the counters, by name.",
)
.default_note("one address: `single`; several: `cluster`");

/// The layout, in the words of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreLayoutName {
    Single,
    Sentinel,
    Cluster,
    Ring,
}

pub(crate) static MASTER: ConfigKey<String> =
    ConfigKey::text("master", name, "`sentinel`: the name of the master at the sentinels.")
        .default_note("required with `layout: sentinel`")
        .example("main");

pub(crate) static CREDENTIALS: ConfigKey<StoreLogin> = ConfigKey::opaque(
    "credentials",
    |text| Ok(StoreLogin::parse(text)),
    "`user:password`, or a password, for addresses without one and for the masters of sentinels.",
)
.example("user:password")
.masked(|_| PASSWORD_MASK.to_owned());

pub(crate) static CREDENTIALS_FILE: ConfigKey<PathBuf> =
    ConfigKey::path("credentials_file", "A file with the same, read at each connect.")
        .example("/etc/evenkeel/redis");

pub(crate) static TLS: SubsectionKey =
    SubsectionKey::one("tls", &tls::STORE, "[TLS](#storetls) for addresses with `rediss://`.");

pub(crate) static DEADLINE: DefaultedKey<Nanos> = ConfigKey::duration(
    "deadline",
    "The longest time that a request waits for an answer. After that the local state decides.",
)
.within(Nanos::from_millis(1), Nanos::from_secs(10))
.low("slow answers are ignored, and limits are less exact")
.high("requests wait for this time while the store stalls")
.default(Nanos::from_millis(20));

pub(crate) static CONNECT_TIMEOUT: DefaultedKey<Nanos> =
    ConfigKey::duration("connect_timeout", "Time to establish and verify a connection.")
        .within(Nanos::from_millis(10), Nanos::from_secs(60))
        .low("a distant store is never reached")
        .default(Nanos::from_secs(1));

pub(crate) static MODE: DefaultedKey<StoreMode> = ConfigKey::words(
    "mode",
    &StoreMode::WORDS,
    "`exact`: the store decides each request. `batched`: this instance decides by its local state \
     and exchanges counts each `period`.",
)
.default(StoreMode::Exact);

pub(crate) static PERIOD: DefaultedKey<Nanos> = ConfigKey::duration(
    "period",
    "Time between two transfers of local counts and of the costs of requests to the store.",
)
.within(Nanos::from_millis(10), Nanos::from_secs(10))
.low("more work for the store")
.high("`batched`: all instances together admit more; costs are known late to the others")
.default(Nanos::from_millis(100));

pub(crate) static FAIL: DefaultedKey<StoreFail> = ConfigKey::words(
    "fail",
    &StoreFail::WORDS,
    "Without an answer of the store. `local`: the local state decides. `error`: the caller of \
     `ratelimit` gets an error.",
)
.default(StoreFail::Local);

pub(crate) static PREFIX: ConfigKey<String> =
    ConfigKey::text("prefix", prefix, "Prefix of all keys.")
        .range_note("up to 64 bytes, without braces")
        .default_note("`evenkeel:`; none with `compatible_keys`")
        .example("evenkeel:");

pub(crate) static COMPATIBLE_KEYS: DefaultedKey<bool> = ConfigKey::truth(
    "compatible_keys",
    "Whether windows have the names that envoyproxy/ratelimit gives them.",
)
.default(false);

pub(crate) static EXPIRATION_JITTER: DefaultedKey<Nanos> = ConfigKey::duration(
    "expiration_jitter",
    "Compatible keys exist for up to this time longer than their window.",
)
.within(Nanos::ZERO, DAY)
.low("many keys expire at once")
.high("memory of the store")
.default(Nanos::from_secs(300));

pub(crate) static OWED_MAX: DefaultedKey<usize> = ConfigKey::whole(
    "owed_max",
    "Counters per thread, and buckets, with hits that are sent to the store later.",
)
.within(0, 10_000_000)
.low("hits during an outage are lost to the other instances")
.high("memory")
.default(100_000);

pub(crate) static PER_SECOND: SubsectionKey = SubsectionKey::one(
    "per_second",
    &SERVERS,
    "Servers for counters of one second: `redis`, `layout`, `master`, `credentials`, \
     `credentials_file` and `tls`.",
)
.default_note("the same servers");

fn name(text: &str) -> Read<String> {
    let good = !text.is_empty() && text.len() <= 256 && !text.contains(char::is_whitespace);
    good.then(|| text.to_owned())
        .ok_or_else(|| "the name of the master at its sentinels".to_owned())
}

fn prefix(text: &str) -> Read<String> {
    let good = text.len() <= PREFIX_BYTES_MAX && !text.contains(['{', '}']);
    let wrong = || format!("at most {PREFIX_BYTES_MAX} bytes, without braces");
    good.then(|| text.to_owned()).ok_or_else(wrong)
}
