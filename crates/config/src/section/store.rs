//! The `store` section: one count for all instances, kept in Redis or Valkey.
//!
//! Passwords in the configuration are shown as stars. Names are not resolved, and no connection is
//! made. The settings are described in `settings::store`.

use super::tls;
use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, section};
use crate::reader::SectionReader;
use crate::settings::store::{
    StoreAddress, StoreFail, StoreLayout, StoreLogin, StoreMode, StoreServer, StoreServers,
    StoreSettings, StoreTls,
};
use crate::tree::YamlValue;
use crate::values::{DAY, Read, std_time, word_enum};
use evenkeel_core::units::Nanos;
use std::path::PathBuf;

section! {
    TABLE = "store":
    REDIS, LAYOUT, MASTER, CREDENTIALS, CREDENTIALS_FILE, TLS, DEADLINE, CONNECT_TIMEOUT, MODE,
    PERIOD, FAIL, PREFIX, COMPATIBLE_KEYS, EXPIRATION_JITTER, OWED_MAX, PER_SECOND,
}

section! { SERVERS = "store.per_second": REDIS, LAYOUT, MASTER, CREDENTIALS, CREDENTIALS_FILE, TLS }

section! {
    /// Addresses: `redis://user:password@host:6379/0`, `rediss://` for TLS, `unix:///path`, or
    /// `host:port`. `evenkeel show` prints passwords as stars.
    REDIS: ListKey<StoreServer> = ConfigKey::opaque("redis", address::store::server).list()
        .required().masked(masked).example("redis://127.0.0.1:6379");
    /// `single`: one server. `sentinel`: `redis` names sentinels. `cluster`: `redis` names some
    /// nodes of a cluster. `ring`: independent servers, each with a part of the counters, by name.
    LAYOUT: ConfigKey<StoreLayoutName> = ConfigKey::words("layout", StoreLayoutName::WORDS)
        .default_note("one address: `single`; several: `cluster`");
    /// `sentinel`: the name of the master at the sentinels.
    MASTER: ConfigKey<String> = ConfigKey::text("master", name)
        .default_note("required with `layout: sentinel`").example("main");
    /// `user:password`, or a password, for addresses without one and for the masters of sentinels.
    CREDENTIALS: ConfigKey<StoreLogin> =
        ConfigKey::opaque("credentials", |text| Ok(StoreLogin::parse(text)))
            .masked(|_| PASSWORD_MASK.to_owned()).example("user:password");
    /// A file with the same, read at each connect.
    CREDENTIALS_FILE: ConfigKey<PathBuf> =
        ConfigKey::path("credentials_file").example("/etc/evenkeel/redis");
    /// [TLS](#storetls) for addresses with `rediss://`.
    TLS: SubsectionKey = SubsectionKey::one("tls", &tls::STORE);
    /// The longest time that a request waits for an answer. After that the local state decides.
    DEADLINE: DefaultedKey<Nanos> = ConfigKey::duration("deadline")
        .within(Nanos::from_millis(1), Nanos::from_secs(10)).default(Nanos::from_millis(20))
        .low("slow answers are ignored, and limits are less exact")
        .high("requests wait for this time while the store stalls");
    /// Time to establish and verify a connection.
    CONNECT_TIMEOUT: DefaultedKey<Nanos> = ConfigKey::duration("connect_timeout")
        .within(Nanos::from_millis(10), Nanos::from_secs(60)).default(Nanos::from_secs(1))
        .low("a distant store is never reached");
    /// `exact`: the store decides each request. `batched`: this instance decides by its local state
    /// and exchanges counts each `period`.
    MODE: DefaultedKey<StoreMode> =
        ConfigKey::words("mode", StoreMode::WORDS).default(StoreMode::Exact);
    /// Time between two transfers of local counts and of the costs of requests to the store.
    PERIOD: DefaultedKey<Nanos> = ConfigKey::duration("period")
        .within(Nanos::from_millis(10), Nanos::from_secs(10)).default(Nanos::from_millis(100))
        .low("more work for the store")
        .high("`batched`: all instances together admit more; costs are known late to the others");
    /// Without an answer of the store. `local`: the local state decides. `error`: the caller of
    /// `ratelimit` gets an error.
    FAIL: DefaultedKey<StoreFail> =
        ConfigKey::words("fail", StoreFail::WORDS).default(StoreFail::Local);
    /// Prefix of all keys.
    PREFIX: ConfigKey<String> = ConfigKey::text("prefix", prefix)
        .range_note("up to 64 bytes, without braces")
        .default_note("`evenkeel:`; none with `compatible_keys`").example("evenkeel:");
    /// Whether windows have the names that envoyproxy/ratelimit gives them.
    COMPATIBLE_KEYS: DefaultedKey<bool> = ConfigKey::truth("compatible_keys").default(false);
    /// Compatible keys exist for up to this time longer than their window.
    EXPIRATION_JITTER: DefaultedKey<Nanos> = ConfigKey::duration("expiration_jitter")
        .within(Nanos::ZERO, DAY).default(Nanos::from_secs(300)).low("many keys expire at once")
        .high("memory of the store");
    /// Counters per thread, and buckets, with hits that are sent to the store later.
    OWED_MAX: DefaultedKey<usize> = ConfigKey::whole("owed_max").within(0, 10_000_000)
        .default(100_000).low("hits during an outage are lost to the other instances")
        .high("memory");
    /// Servers for counters of one second: `redis`, `layout`, `master`, `credentials`,
    /// `credentials_file` and `tls`.
    PER_SECOND: SubsectionKey =
        SubsectionKey::one("per_second", &SERVERS).default_note("the same servers");
}

/// Maximum length of the prefix of all keys, in bytes.
const PREFIX_BYTES_MAX: usize = 64;
/// Replaces a password in the output of `show`.
const PASSWORD_MASK: &str = "***";

/// Reads the section.
pub fn read(section: &mut SectionReader<'_, '_>) -> StoreSettings {
    let place = place(section);
    let per_second = section.has("per_second").then(|| section.section(&PER_SECOND, self::place));
    let mode = section.key(&MODE);
    let fail = section.key(&FAIL);
    if mode == StoreMode::Batched && fail == StoreFail::Error {
        let what = "`fail: error` needs `mode: exact`: in batches, requests do not wait for the \
                    store";
        section.fault("fail", what);
    }
    let compatible_keys = section.key(&COMPATIBLE_KEYS);
    let prefix = if compatible_keys { "" } else { "evenkeel:" };
    StoreSettings {
        place,
        per_second,
        deadline: std_time(section.key(&DEADLINE)),
        connect: std_time(section.key(&CONNECT_TIMEOUT)),
        mode,
        period: std_time(section.key(&PERIOD)),
        fail,
        prefix: section.key_or(&PREFIX, prefix.to_owned()),
        compatible_keys,
        jitter: std_time(section.key(&EXPIRATION_JITTER)),
        owed_max: section.key(&OWED_MAX),
    }
}

fn place(section: &mut SectionReader<'_, '_>) -> StoreServers {
    if !section.has("redis") {
        section.fault("redis", "a store needs `redis`: redis://127.0.0.1:6379, or a list");
    }
    let servers = section.key(&REDIS);
    let several = servers.len() > 1;
    let usual = if several { StoreLayoutName::Cluster } else { StoreLayoutName::Single };
    let layout = section.key_or(&LAYOUT, usual);
    let master = section.key(&MASTER);
    let layout = match layout {
        StoreLayoutName::Sentinel => StoreLayout::Sentinel(master.clone().unwrap_or_default()),
        StoreLayoutName::Cluster => StoreLayout::Cluster,
        StoreLayoutName::Ring => StoreLayout::Ring,
        StoreLayoutName::Single => StoreLayout::Single,
    };
    check_layout(section, &servers, &layout, master.is_some());
    let login = match section.node("credentials").map(|node| &node.value) {
        None | Some(YamlValue::Text(_)) => section.key(&CREDENTIALS),
        Some(_) => {
            section.fault_of("credentials", "is `user:password`, or a password");
            None
        }
    };
    let credentials_file = section.key(&CREDENTIALS_FILE);
    let tls = if section.has("tls") { section.section(&TLS, tls) } else { StoreTls::default() };
    StoreServers { servers, layout, login, credentials_file, tls }
}

/// Reports servers, layout and master that do not fit together.
fn check_layout(
    section: &mut SectionReader<'_, '_>,
    servers: &[StoreServer],
    layout: &StoreLayout,
    master: bool,
) {
    match layout {
        StoreLayout::Single if servers.len() > 1 => {
            let what = "several servers are a `cluster`, its `sentinel`s, or a `ring`";
            section.fault("layout", what);
        }
        StoreLayout::Sentinel(_) if !master => {
            section.fault("layout", "`layout: sentinel` needs `master`: its name");
        }
        StoreLayout::Cluster if servers.iter().any(|server| server.database > 0) => {
            section.fault("redis", "a cluster has only database 0");
        }
        StoreLayout::Cluster | StoreLayout::Sentinel(_)
            if servers.iter().any(|server| matches!(server.end, StoreAddress::Unix(_))) =>
        {
            section.fault("redis", "sentinels and nodes of a cluster have a host and a port");
        }
        _ => {}
    }
    if master && !matches!(layout, StoreLayout::Sentinel(_)) {
        section.fault_of("master", "belongs to `layout: sentinel`; remove it, or use that");
    }
}

fn tls(tls: &mut SectionReader<'_, '_>) -> StoreTls {
    let ca = tls.key(&tls::CA);
    let cert = tls.key(&tls::OWN_CERT);
    let key = tls.key(&tls::OWN_KEY);
    if cert.is_some() != key.is_some() {
        tls.fault_of("cert", "and `key` go together");
    }
    let any_name = tls.key(&tls::ANY_NAME);
    StoreTls { ca, identity: cert.zip(key), any_name }
}

word_enum! {
    /// The layout, in the words of the file.
    pub(crate) enum StoreLayoutName {
        Single = "single",
        Sentinel = "sentinel",
        Cluster = "cluster",
        Ring = "ring",
    }
}

fn masked(text: &str) -> String {
    match address::store::server(text) {
        Ok(server) => address::store::shown(&server, PASSWORD_MASK),
        Err(_) => PASSWORD_MASK.to_owned(),
    }
}

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
