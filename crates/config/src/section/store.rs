//! The `store` section: one count for all instances, kept in Redis or Valkey.
//!
//! Each key is read with its default and its range. The settings are described in
//! `settings::store`. Passwords in the configuration are shown as stars. Names are not resolved,
//! and no connection is made.

mod address;
pub mod snapshot;

pub use address::escaped;

use super::proxy::{count, duration, truth};
use crate::reader::{Read, SectionReader, one_of, within};
use crate::settings::store::{
    StoreAddress, StoreFail, StoreLayout, StoreLogin, StoreMode, StoreServer, StoreServers,
    StoreSettings, StoreTls,
};
use crate::tree::{YamlNode, YamlValue};
use evenkeel_core::units::Nanos;
use std::time::Duration;

/// Maximum length of the prefix of all keys, in bytes.
const PREFIX_BYTES_MAX: usize = 64;
/// Replaces a password in the output of `show`.
const PASSWORD_MASK: &str = "***";

/// Reads the section.
pub fn read(section: &mut SectionReader<'_, '_>) -> StoreSettings {
    let place = place(section);
    let per_second = section.has("per_second");
    let per_second = per_second.then(|| section.section("per_second", self::place));
    section.allow("per_second");
    let mode = section.value("mode", StoreMode::Exact, |text| one_of(text, &StoreMode::WORDS));
    let fail = section.value("fail", StoreFail::Local, |text| one_of(text, &StoreFail::WORDS));
    if mode == StoreMode::Batched && fail == StoreFail::Error {
        let what = "`fail: error` needs `mode: exact`: in batches nobody waits for the store";
        section.fault("fail", what);
    }
    let compatible_keys = section.value("compatible_keys", false, truth);
    let prefix = if compatible_keys { "" } else { "evenkeel:" };
    StoreSettings {
        place,
        per_second,
        deadline: time(section, "deadline", Nanos::from_millis(20), 1..=10_000),
        connect: time(section, "connect_timeout", Nanos::from_secs(1), 10..=60_000),
        mode,
        period: time(section, "period", Nanos::from_millis(100), 10..=10_000),
        fail,
        prefix: section.value("prefix", prefix.to_owned(), self::prefix),
        compatible_keys,
        jitter: time(section, "expiration_jitter", Nanos::from_secs(300), 0..=86_400_000),
        owed_max: section.value("owed_max", 100_000, |text| within(count(text)?, 0..=10_000_000))
            as usize,
    }
}

fn place(section: &mut SectionReader<'_, '_>) -> StoreServers {
    if !section.has("redis") {
        section.fault("redis", "a store needs `redis`: redis://127.0.0.1:6379, or a list");
    }
    let servers = servers(section);
    let several = if servers.len() > 1 { "cluster" } else { "single" };
    let layout = section.value("layout", several, |text| {
        let words = ["single", "sentinel", "cluster", "ring"].map(|word| (word, word));
        one_of(text, &words)
    });
    let master = section.optional("master", name);
    let layout = match layout {
        "sentinel" => StoreLayout::Sentinel(master.clone().unwrap_or_default()),
        "cluster" => StoreLayout::Cluster,
        "ring" => StoreLayout::Ring,
        _ => StoreLayout::Single,
    };
    check_layout(section, &servers, &layout, master.is_some());
    section.takes("credentials", None);
    let login = section.node("credentials").and_then(|node| match &node.value {
        YamlValue::Text(text) => Some(StoreLogin::parse(text)),
        _ => None,
    });
    if section.has("credentials") {
        match login {
            Some(_) => section.show("credentials", YamlNode::text(PASSWORD_MASK)),
            None => section.fault("credentials", "`credentials` is `user:password`, or a password"),
        }
    }
    let credentials_file = section.optional("credentials_file", super::path);
    let tls = match section.has("tls") {
        true => section.section("tls", tls),
        false => StoreTls::default(),
    };
    section.allow("tls");
    StoreServers { servers, layout, login, credentials_file, tls }
}

/// Reads the addresses. Their passwords are hidden in the output of `show`.
fn servers(section: &mut SectionReader<'_, '_>) -> Vec<StoreServer> {
    let servers = section.values("redis", address::server);
    let shown: Vec<YamlNode> = servers
        .iter()
        .map(|server| YamlNode::text(address::shown(server, PASSWORD_MASK)))
        .collect();
    if !shown.is_empty() {
        section.show("redis", YamlNode::made(YamlValue::List(shown)));
    }
    servers
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
            section.fault("redis", "a cluster has no databases but 0");
        }
        StoreLayout::Cluster | StoreLayout::Sentinel(_)
            if servers.iter().any(|server| matches!(server.end, StoreAddress::Unix(_))) =>
        {
            section.fault("redis", "sentinels and nodes of a cluster have a host and a port");
        }
        _ => {}
    }
    if master && !matches!(layout, StoreLayout::Sentinel(_)) {
        section.fault("master", "`master` belongs to `layout: sentinel`; remove it, or use that");
    }
}

fn tls(tls: &mut SectionReader<'_, '_>) -> StoreTls {
    let ca = tls.optional("ca", super::path);
    let cert = tls.optional("cert", super::path);
    let key = tls.optional("key", super::path);
    if cert.is_some() != key.is_some() {
        tls.fault("cert", "`cert` and `key` go together");
    }
    let any_name = tls.value("any_name", false, truth);
    StoreTls { ca, identity: cert.zip(key), any_name }
}

fn time(
    section: &mut SectionReader<'_, '_>,
    key: &'static str,
    default: Nanos,
    millis: std::ops::RangeInclusive<u64>,
) -> Duration {
    let range = Nanos::from_millis(*millis.start())..=Nanos::from_millis(*millis.end());
    let nanos = section.value(key, default, |text| within(duration(text)?, range.clone()));
    Duration::from_nanos(nanos.0)
}

fn name(text: &str) -> Read<String> {
    let good = !text.is_empty() && text.len() <= 256 && !text.contains(char::is_whitespace);
    good.then(|| text.to_owned()).ok_or_else(|| "the name that sentinels know it by".to_owned())
}

fn prefix(text: &str) -> Read<String> {
    let good = text.len() <= PREFIX_BYTES_MAX && !text.contains(['{', '}']);
    let wrong = || format!("at most {PREFIX_BYTES_MAX} bytes, without braces");
    good.then(|| text.to_owned()).ok_or_else(wrong)
}
