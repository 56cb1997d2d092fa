//! The sections of a file: their keys, and how they are read from the tree into settings.
//!
//! A file for each section, with a row for each key (`keys`) and a function that reads the rows
//! into the settings (`settings`). Here are the file itself and its small sections, `admin`, `log`
//! and `state`. Combinations of keys that do not work together are reported where they are read.

mod check;
mod gatekeeper;
mod limits;
pub mod line;
mod master;
mod metrics;
mod peers;
mod proxy;
mod ratelimit;
mod store;
mod tls;

use super::address;
use super::fault::ConfigFault;
use super::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, section};
use super::reader::SectionReader;
use super::settings::sockets::SocketSpec;
use super::settings::{AdminSettings, LogFormat, LogLevel, LogSettings, Settings, StateSettings};
use super::tree::{YamlNode, YamlValue};
use super::values::{DAY, std_time};
use evenkeel_core::units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;

section! {
    TABLE = "";

    /// Metrics, health and the interface of `evenkeel doctor`. `off` opens no admin door.
    ADMIN: SubsectionKey = SubsectionKey::one("admin", &ADMIN_TABLE).or_words(&["off"]).restart();
    /// Which log lines are written, and how.
    LOG: SubsectionKey = SubsectionKey::one("log", &LOG_TABLE);
    /// Receivers to which metrics are pushed.
    METRICS: SubsectionKey = SubsectionKey::one("metrics", &metrics::TABLE);
    /// The OpenTelemetry collector that gets spans. Without the section nothing is traced.
    TRACES: SubsectionKey = SubsectionKey::one("traces", &metrics::otlp::TRACES).restart();
    /// The snapshot of debts and counters that survives a restart.
    STATE: SubsectionKey = SubsectionKey::one("state", &STATE_TABLE).restart();
    /// The reverse proxy, and the limits that `check` shares with it.
    PROXY: SubsectionKey = SubsectionKey::one("proxy", &proxy::TABLE);
    /// The door for servers with their own front end, which ask before each request.
    CHECK: SubsectionKey = SubsectionKey::one("check", &check::TABLE).restart();
    /// The door that answers questions about tags.
    LINE: SubsectionKey = SubsectionKey::one("line", &line::TABLE);
    /// The Envoy rate limit service.
    RATELIMIT: SubsectionKey = SubsectionKey::one("ratelimit", &ratelimit::TABLE);
    /// The master of gatekeepers over ZeroMQ.
    MASTER: SubsectionKey = SubsectionKey::one("master", &master::TABLE);
    /// The gate of a domain, for which a master decides, or a list of up to 64.
    GATEKEEPER: SubsectionKey = SubsectionKey::list("gatekeeper", &gatekeeper::TABLE).restart();
    /// Instances that count together.
    PEERS: SubsectionKey = SubsectionKey::one("peers", &peers::TABLE).restart();
    /// One count for all instances, in Redis or Valkey.
    STORE: SubsectionKey = SubsectionKey::one("store", &store::TABLE).restart();
}

section! {
    ADMIN_TABLE = "admin";

    /// Addresses to listen on. Beyond loopback they need a `token_file`.
    ADMIN_LISTEN: ListKey<SocketAddr> = ConfigKey::text("listen", address::listen)
        .list_with(|| vec![SocketAddr::from(([127, 0, 0, 1], 9970))]);
    /// File with the token that callers must send. `/healthz`, `/readyz` and `/metrics` need none.
    TOKEN_FILE: ConfigKey<PathBuf> = ConfigKey::path("token_file").example("/etc/evenkeel/token");
}

section! {
    LOG_TABLE = "log";

    /// The least severe level that is written.
    LEVEL: DefaultedKey<LogLevel> =
        ConfigKey::words("level", LogLevel::WORDS).default(LogLevel::Info);
    /// `text` for people, or `json` for machines: one object per line ([its
    /// fields](seeing.md#the-log)). Both are written to standard error.
    FORMAT: DefaultedKey<LogFormat> =
        ConfigKey::words("format", LogFormat::WORDS).default(LogFormat::Text).restart();
}

section! {
    STATE_TABLE = "state";

    /// Path of the snapshot. A temporary file (`.tmp`) is written next to it first, so its folder
    /// must be writable.
    STATE_FILE: ConfigKey<PathBuf> = ConfigKey::path("file").example("/var/lib/evenkeel/state");
    /// Time between two snapshots: the most that a crash (`kill -9`, loss of power) loses. Needs a
    /// `file`.
    EVERY: DefaultedKey<Nanos> = ConfigKey::duration("every").within(Nanos::from_millis(100), DAY)
        .default(Nanos::from_secs(5)).low("the disk is always busy")
        .high("a crash forgives the debts of the last minutes");
    /// Number of keys, in memory and in the snapshot, of each limit without a `keys_max` of its
    /// own.
    STATE_KEYS: ConfigKey<usize> = limits::keys_max().default_note("as in [limits](#proxylimits)");
}

/// Reads a whole file. Returns the settings and their native form with all defaults. If `faults` is
/// not empty afterwards, both are meaningless.
pub fn settings(root: &YamlNode, cpus: f64, faults: &mut Vec<ConfigFault>) -> (Settings, YamlNode) {
    let mut section = SectionReader::open("", &TABLE, Some(root), root.place, faults);
    let settings = read(&mut section, cpus);
    let shown = section.close();
    (settings, shown)
}

fn read(root: &mut SectionReader<'_, '_>, cpus: f64) -> Settings {
    let admin = admin(root);
    let log = root.section(&LOG, log);
    let metrics = root.section(&METRICS, metrics::read);
    let traces = root.section_if_written(&TRACES, metrics::otlp::traces);
    let state = root.section(&STATE, state);
    let keys = state.keys_max;
    let settings = Settings {
        admin,
        log,
        metrics,
        traces,
        state,
        proxy: proxy_section(root, limits::LimitContext { cpus, keys }),
        check: root.section_if_written(&CHECK, check::read),
        line: root.section_if_written(&LINE, |line| line::read(line, keys)),
        ratelimit: root.section_if_written(&RATELIMIT, ratelimit::read),
        peers: root.section_if_written(&PEERS, peers::read),
        master: root.section_if_written(&MASTER, |master| master::read(master, keys)),
        gatekeepers: gatekeeper::read(root, keys),
        store: root.section_if_written(&STORE, store::read),
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
        _ => Some(root.section(&ADMIN, admin_section)),
    }
}

fn admin_section(admin: &mut SectionReader<'_, '_>) -> AdminSettings {
    let listen = admin.key(&ADMIN_LISTEN);
    let asked_for = ADMIN_LISTEN.preset().is_none_or(|default| listen != default);
    let token_file = admin.key(&TOKEN_FILE);
    if token_file.is_none() && listen.iter().any(|address| !address.ip().is_loopback()) {
        let what = "beyond loopback needs a `token_file`; name one in a configuration file, or \
                    listen on 127.0.0.1";
        admin.fault_of("listen", what);
    }
    AdminSettings { listen, asked_for, token_file }
}

fn log(log: &mut SectionReader<'_, '_>) -> LogSettings {
    LogSettings { level: log.key(&LEVEL), format: log.key(&FORMAT) }
}

fn proxy_section(
    root: &mut SectionReader<'_, '_>,
    ground: limits::LimitContext,
) -> Option<super::settings::ProxySettings> {
    // A door opens if its section exists, even an empty one.
    if root.written("proxy") {
        return Some(root.section(&PROXY, |section| proxy::read(section, ground)));
    }
    // `check` counts by the limits of `proxy`; without that section, by its defaults.
    root.written("check").then(|| {
        root.section(&PROXY, |section| {
            section.show("listen", YamlNode::text(proxy::LISTEN_OFF));
            proxy::limits_alone(section, ground)
        })
    })
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

fn state(state: &mut SectionReader<'_, '_>) -> StateSettings {
    let file = state.key(&STATE_FILE);
    let every = match &file {
        None if !state.has("every") => EVERY.preset(),
        _ => state.key(&EVERY),
    };
    if file.is_none() && state.has("every") {
        state.fault_of("every", "needs a `file` to write to; name one, or remove it");
    }
    StateSettings { file, every: std_time(every), keys_max: state.key(&STATE_KEYS) }
}
