//! Reads the sections of a file: from the tree to the settings.
//!
//! One function per section. Each key is read where its setting is built; its default, range and
//! description are in its row (`rows`). Sections with many keys have files of their own; the limits
//! of a door are in `limits`.
//! The settings are described in `settings`.

mod check;
mod gatekeeper;
mod hosts;
mod limits;
mod line;
mod master;
mod metrics;
mod peers;
mod proxy;
mod ratelimit;
mod store;
mod tls;

use super::fault::ConfigFault;
use super::reader::SectionReader;
use super::rows::{self as all_rows, root as rows};
use super::settings::sockets::SocketSpec;
use super::settings::{AdminSettings, LogSettings, Settings};
use super::tree::{YamlNode, YamlValue};
use evenkeel_core::units::Nanos;
use limits::LimitContext;
pub use line::limits_file;
use std::time::Duration;

/// Reads a whole file. Returns the settings and their native form with all defaults. If `faults` is
/// not empty afterwards, both are meaningless.
pub fn settings(root: &YamlNode, cpus: f64, faults: &mut Vec<ConfigFault>) -> (Settings, YamlNode) {
    let mut section = SectionReader::open("", all_rows::ROOT, Some(root), root.place, faults);
    let settings = read(&mut section, cpus);
    let shown = section.close();
    (settings, shown)
}

fn read(root: &mut SectionReader<'_, '_>, cpus: f64) -> Settings {
    let admin = admin(root);
    let log = root.section(&rows::LOG, log);
    let metrics = root.section(&rows::METRICS, metrics::read);
    let traces = root.section_if_written(&rows::TRACES, metrics::otlp::traces);
    let state = root.section(&rows::STATE, store::snapshot::read);
    let keys = state.keys_max;
    let proxy = proxy_section(root, LimitContext { cpus, keys });
    let check = root.section_if_written(&rows::CHECK, check::read);
    let line = root.section_if_written(&rows::LINE, |line| line::read(line, keys));
    let ratelimit = root.section_if_written(&rows::RATELIMIT, ratelimit::read);
    let peers = root.section_if_written(&rows::PEERS, peers::read);
    let master = root.section_if_written(&rows::MASTER, |master| master::read(master, keys));
    let gatekeepers = gatekeeper::read(root, keys);
    let store = root.section_if_written(&rows::STORE, store::read);
    let settings = Settings {
        admin,
        log,
        metrics,
        traces,
        state,
        proxy,
        check,
        line,
        ratelimit,
        master,
        gatekeepers,
        peers,
        store,
    };
    reject_collisions(root, &settings);
    if settings.store.is_some() && settings.peers.is_some() {
        root.fault_of("store", "and `peers` are two ways to count together; remove one");
    }
    settings
}

/// Reads `admin: off` or a section. If it is absent, the admin door opens at its default address.
fn admin(root: &mut SectionReader<'_, '_>) -> Option<AdminSettings> {
    match root.node("admin").map(|node| &node.value) {
        Some(YamlValue::Text(text)) if text == "off" => {
            root.show("admin", YamlNode::text("off"));
            None
        }
        Some(YamlValue::Text(_)) => {
            root.fault_of("admin", "must be `off` or a section with `listen`");
            None
        }
        _ => Some(root.section(&rows::ADMIN, admin_section)),
    }
}

fn admin_section(admin: &mut SectionReader<'_, '_>) -> AdminSettings {
    let listen = admin.key(&rows::ADMIN_LISTEN);
    let asked_for = rows::ADMIN_LISTEN.preset().is_none_or(|default| listen != default);
    let token_file = admin.key(&rows::TOKEN_FILE);
    if token_file.is_none() && listen.iter().any(|address| !address.ip().is_loopback()) {
        let what = "beyond loopback needs a `token_file`; name one in a configuration file, or \
                    listen on 127.0.0.1";
        admin.fault_of("listen", what);
    }
    AdminSettings { listen, asked_for, token_file }
}

fn log(log: &mut SectionReader<'_, '_>) -> LogSettings {
    LogSettings { level: log.key(&rows::LEVEL), format: log.key(&rows::FORMAT) }
}

fn proxy_section(
    root: &mut SectionReader<'_, '_>,
    ground: LimitContext,
) -> Option<super::settings::ProxySettings> {
    // A door opens if its section exists, even an empty one.
    if root.written("proxy") {
        return Some(root.section(&rows::PROXY, |section| proxy::read(section, ground)));
    }
    // `check` counts by the limits of `proxy`; without that section, by its defaults.
    root.written("check").then(|| {
        root.section(&rows::PROXY, |section| {
            section.show("listen", YamlNode::text(proxy::LISTEN_OFF));
            proxy::limits_alone(section, ground)
        })
    })
}

/// A duration as the standard library has it.
fn std_time(time: Nanos) -> Duration {
    Duration::from_nanos(time.0)
}

/// Reports two listeners on one port or one file.
fn reject_collisions(root: &mut SectionReader<'_, '_>, settings: &Settings) {
    let mut taken: Vec<SocketSpec> = Vec::new();
    for opening in settings.openings() {
        let socket = &opening.socket;
        let what = match socket {
            SocketSpec::File(path) => {
                format!("two listeners use {}; change the file of one", path.display())
            }
            _ => format!("two listeners use {socket}; change the port of one"),
        };
        if taken.iter().any(|other| opening.socket.collides(other)) {
            root.fault(opening.way.first().copied().unwrap_or_default(), what);
        }
        taken.push(opening.socket);
    }
}
