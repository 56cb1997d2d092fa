//! Reads the sections of a file: from the tree to the settings.
//!
//! One function per section. Each key is read where its setting is built, with its default and its
//! range. The reference for users, docs/guide/configuration.md, has the same keys in the same
//! order. Sections with many keys have files of their own; the limits of a door are in `limits`.
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

use super::address;
use super::fault::ConfigFault;
use super::reader::{SectionOutline, SectionReader, one_of};
use super::settings::sockets::SocketSpec;
use super::settings::{AdminSettings, LogFormat, LogLevel, LogSettings, Settings};
use super::tree::{YamlNode, YamlValue};
use limits::LimitContext;
pub use limits::token;
pub use line::limits_file;
use std::net::SocketAddr;
use std::path::PathBuf;
pub use store::escaped;

/// Reads a whole file. Returns the settings and their native form with all defaults. If `faults` is
/// not empty afterwards, both are meaningless.
pub fn settings(root: &YamlNode, cpus: f64, faults: &mut Vec<ConfigFault>) -> (Settings, YamlNode) {
    let mut section = SectionReader::open("", Some(root), root.place, faults);
    let settings = read(&mut section, cpus);
    let shown = section.close();
    (settings, shown)
}

/// The keys that the reader asks for in a file like this one, on a machine with `cpus` CPUs. Faults
/// are ignored.
pub fn outline(root: &YamlNode, cpus: f64) -> SectionOutline {
    let mut faults = Vec::new();
    let mut section = SectionReader::open("", Some(root), root.place, &mut faults);
    section.note();
    read(&mut section, cpus);
    section.noted()
}

fn read(root: &mut SectionReader<'_, '_>, cpus: f64) -> Settings {
    let admin = admin(root);
    let log = root.section("log", log);
    let metrics = root.section("metrics", metrics::read);
    let traces = root.written("traces").then(|| root.section("traces", metrics::otlp::traces));
    let state = root.section("state", store::snapshot::read);
    let proxy = proxy_section(root, LimitContext { cpus, keys: state.keys_max });
    let check = root.written("check").then(|| root.section("check", check::read));
    let line =
        root.written("line").then(|| root.section("line", |line| line::read(line, state.keys_max)));
    let ratelimit = ratelimit_section(root);
    let peers = root.written("peers").then(|| root.section("peers", peers::read));
    let master = root
        .written("master")
        .then(|| root.section("master", |master| master::read(master, state.keys_max)));
    let gatekeepers = gatekeeper::read(root, state.keys_max);
    let store = root.written("store").then(|| root.section("store", store::read));
    for absent in ["traces", "check", "line", "ratelimit", "peers", "master", "gatekeeper", "store"]
    {
        root.allow(absent);
    }
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
        root.fault("store", "`store` and `peers` are two ways to count together; remove one");
    }
    settings
}

/// Reads `admin: off` or a section. If it is absent, the admin door opens at its default address.
fn admin(root: &mut SectionReader<'_, '_>) -> Option<AdminSettings> {
    root.takes("admin", Some("off"));
    match root.node("admin").map(|node| &node.value) {
        Some(YamlValue::Text(text)) if text == "off" => {
            root.show("admin", YamlNode::text("off"));
            None
        }
        Some(YamlValue::Text(_)) => {
            root.fault("admin", "`admin` must be `off` or a section with `listen`");
            None
        }
        _ => Some(root.section("admin", admin_section)),
    }
}

fn admin_section(admin: &mut SectionReader<'_, '_>) -> AdminSettings {
    let default = vec![SocketAddr::from(([127, 0, 0, 1], 9970))];
    let listen = admin.list("listen", default.clone(), address::listen);
    let asked_for = listen != default;
    let token_file = admin.optional("token_file", path);
    if token_file.is_none() && listen.iter().any(|address| !address.ip().is_loopback()) {
        let what = "`admin` beyond loopback needs a `token_file`; name one in a \
                    configuration file, or listen on 127.0.0.1";
        admin.fault("listen", what);
    }
    AdminSettings { listen, asked_for, token_file }
}

fn path(text: &str) -> super::reader::Read<PathBuf> {
    match text {
        "" => Err("name a file".to_owned()),
        _ => Ok(PathBuf::from(text)),
    }
}

fn log(log: &mut SectionReader<'_, '_>) -> LogSettings {
    let level = |text: &str| one_of(text, &LogLevel::WORDS);
    let format = |text: &str| one_of(text, &LogFormat::WORDS);
    LogSettings {
        level: log.value("level", LogLevel::Info, level),
        format: log.value("format", LogFormat::Text, format),
    }
}

fn proxy_section(
    root: &mut SectionReader<'_, '_>,
    ground: LimitContext,
) -> Option<super::settings::ProxySettings> {
    // A door opens if its section exists, even an empty one.
    if root.written("proxy") {
        return Some(root.section("proxy", |section| proxy::read(section, ground)));
    }
    root.node("proxy");
    // `check` counts by the limits of `proxy`; without that section, by its defaults.
    root.written("check").then(|| {
        root.section("proxy", |section| {
            section.show("listen", YamlNode::text(proxy::LISTEN_OFF));
            proxy::limits_alone(section, ground)
        })
    })
}

fn ratelimit_section(
    root: &mut SectionReader<'_, '_>,
) -> Option<super::settings::RatelimitSettings> {
    if !root.written("ratelimit") {
        root.node("ratelimit");
        return None;
    }
    Some(root.section("ratelimit", ratelimit::read))
}

/// Reports two listeners on one port or one file.
fn reject_collisions(root: &mut SectionReader<'_, '_>, settings: &Settings) {
    let mut taken: Vec<SocketSpec> = Vec::new();
    for opening in settings.openings() {
        let what = match &opening.socket {
            SocketSpec::Tcp(address) => {
                format!("two listeners want {address}; give one another port")
            }
            SocketSpec::File(path) => {
                format!("two listeners want {}; give one another file", path.display())
            }
            SocketSpec::Datagrams(_) | SocketSpec::Group { .. } => continue,
        };
        if taken.iter().any(|other| opening.socket.collides(other)) {
            root.fault(opening.way.first().copied().unwrap_or_default(), what);
        }
        taken.push(opening.socket);
    }
}
