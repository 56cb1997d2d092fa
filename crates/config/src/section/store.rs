//! The `store` section: one count for all instances, kept in Redis or Valkey.
//!
//! Each key is read with its default and its range. The settings are described in
//! `settings::store`. Passwords in the configuration are shown as stars. Names are not resolved,
//! and no connection is made.

pub mod snapshot;

use super::std_time;
use crate::reader::SectionReader;
use crate::rows::store::{self as rows, StoreLayoutName};
use crate::rows::tls;
use crate::settings::store::{
    StoreAddress, StoreFail, StoreLayout, StoreMode, StoreServer, StoreServers, StoreSettings,
    StoreTls,
};
use crate::tree::YamlValue;

/// Reads the section.
pub fn read(section: &mut SectionReader<'_, '_>) -> StoreSettings {
    let place = place(section);
    let per_second =
        section.has("per_second").then(|| section.section(&rows::PER_SECOND, self::place));
    let mode = section.key(&rows::MODE);
    let fail = section.key(&rows::FAIL);
    if mode == StoreMode::Batched && fail == StoreFail::Error {
        let what = "`fail: error` needs `mode: exact`: in batches, requests do not wait for the \
                    store";
        section.fault("fail", what);
    }
    let compatible_keys = section.key(&rows::COMPATIBLE_KEYS);
    let prefix = if compatible_keys { "" } else { "evenkeel:" };
    StoreSettings {
        place,
        per_second,
        deadline: std_time(section.key(&rows::DEADLINE)),
        connect: std_time(section.key(&rows::CONNECT_TIMEOUT)),
        mode,
        period: std_time(section.key(&rows::PERIOD)),
        fail,
        prefix: section.key_or(&rows::PREFIX, prefix.to_owned()),
        compatible_keys,
        jitter: std_time(section.key(&rows::EXPIRATION_JITTER)),
        owed_max: section.key(&rows::OWED_MAX),
    }
}

fn place(section: &mut SectionReader<'_, '_>) -> StoreServers {
    if !section.has("redis") {
        section.fault("redis", "a store needs `redis`: redis://127.0.0.1:6379, or a list");
    }
    let servers = section.key(&rows::REDIS);
    let several = servers.len() > 1;
    let usual = if several { StoreLayoutName::Cluster } else { StoreLayoutName::Single };
    let layout = section.key_or(&rows::LAYOUT, usual);
    let master = section.key(&rows::MASTER);
    let layout = match layout {
        StoreLayoutName::Sentinel => StoreLayout::Sentinel(master.clone().unwrap_or_default()),
        StoreLayoutName::Cluster => StoreLayout::Cluster,
        StoreLayoutName::Ring => StoreLayout::Ring,
        StoreLayoutName::Single => StoreLayout::Single,
    };
    check_layout(section, &servers, &layout, master.is_some());
    let login = match section.node("credentials").map(|node| &node.value) {
        None | Some(YamlValue::Text(_)) => section.key(&rows::CREDENTIALS),
        Some(_) => {
            section.fault_of("credentials", "is `user:password`, or a password");
            None
        }
    };
    let credentials_file = section.key(&rows::CREDENTIALS_FILE);
    let tls =
        if section.has("tls") { section.section(&rows::TLS, tls) } else { StoreTls::default() };
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
