//! The settings: every section of a file, its keys, and how they are read from the tree.
//!
//! A file for each section, with the settings that its door receives, a row for each key (`keys`)
//! and a function that reads the rows. Here are the whole file and its small sections, `admin`,
//! `log` and `state`. Combinations of keys that do not work together are reported where they are
//! read. Every default is filled in and every value has its final type; the reference for users,
//! docs/guide/configuration.md, is made from the rows.

mod backend;
mod check;
mod conditions;
mod ext_proc;
pub mod gatekeeper;
pub mod hosts;
pub(crate) mod limits;
pub(crate) mod line;
pub mod master;
mod metrics;
pub mod otlp;
pub mod pattern;
pub mod peers;
mod proxy;
mod ratelimit;
pub mod sockets;
pub mod store;
pub mod tags;
pub mod tls;

use crate::address;
use crate::fault::ConfigFault;
use crate::fault::ConfigFaults;
use crate::include;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey, section};
use crate::machine::Machine;
use crate::reader::{SectionReader, settings};
use crate::source::included::IncludedFile;
use crate::tree::{YamlNode, YamlValue};
use crate::values::{DAY, std_time, word_enum};
pub use backend::{BACKENDS_MAX, BackendAddress, BackendProtocol, BackendScheme, BackendTls};
pub use check::{CheckSettings, SyslogAddress};
pub use conditions::GroupSettings;
use evenkeel_core::units::Nanos;
pub use ext_proc::ExtProcSettings;
pub use ext_proc::authz::ExtAuthzSettings;
pub use gatekeeper::GatekeeperSettings;
use limits::LimitContext;
pub use line::turns::{TURNS_LIMIT_NAME, TurnSettings, TurnWeights};
pub use line::{LineSettings, StreamAddress};
pub use master::MasterSettings;
pub use metrics::{GraphiteSelection, MetricsSettings, StatsdLabels, StatsdSink};
pub use pattern::rename;
pub use peers::PeersSettings;
pub use proxy::robots::{self, RobotSettings};
pub use proxy::{
    ClientAddress, ConcurrencySetting, CostSource, DatabaseSettings, DenyRule,
    EngineMetricsSetting, HttpsRedirect, KnownSetting, NetworkFileSettings, ProxyBounds,
    ProxyPreset, ProxyQueueSettings, ProxySettings, ProxyTimeouts, RefusalPages, TokenSettings,
    TrustedProxies, WaitingRoomSettings,
};
pub use ratelimit::exports::{PrometheusSettings, RatelimitStatsd};
pub use ratelimit::rlqs::RlqsSettings;
pub use ratelimit::xds::XdsSettings;
pub use ratelimit::{RatelimitAnswers, RatelimitSettings, RuleFiles};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
pub use store::StoreSettings;

settings! {
    /// The whole configuration of one process. A reload builds a new one. A section that is `None`
    /// is not in the file, or `off`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Settings from sections(root, machine: Machine);

    /// Metrics, health and the interface of `evenkeel doctor` and `clients`. `off` opens no admin
    /// door.
    pub admin: Option<AdminSettings>, ADMIN: SubsectionKey =
        SubsectionKey::one("admin", &ADMIN_TABLE).or_words(&["off"]).restart() => admin(root);
    /// Which log lines are written, and how.
    pub log: LogSettings, LOG: SubsectionKey = SubsectionKey::one("log", &LOG_TABLE)
        => root.section(&LOG, log);
    /// Receivers to which metrics are pushed.
    pub metrics: MetricsSettings, METRICS: SubsectionKey =
        SubsectionKey::one("metrics", &metrics::TABLE) => root.section(&METRICS, metrics::read);
    /// The OpenTelemetry collector that gets spans. Without the section nothing is traced.
    pub traces: Option<otlp::TracesSettings>, TRACES: SubsectionKey =
        SubsectionKey::one("traces", &otlp::TRACES).restart()
        => root.section_if_written(&TRACES, otlp::traces);
    /// The snapshot of debts and counters that survives a restart.
    pub state: StateSettings, STATE: SubsectionKey =
        SubsectionKey::one("state", &STATE_TABLE).restart() => root.section(&STATE, self::state);
    /// Names for conditions.
    pub groups: GroupSettings = conditions::groups(root);
    /// Instances that count together.
    pub peers: Option<PeersSettings>, PEERS: SubsectionKey =
        SubsectionKey::one("peers", &peers::TABLE).restart()
        => root.section_if_written(&PEERS, peers::read);
    // With one of the doors that use its limits alone, `listen` is empty.
    /// The reverse proxy, and the limits and the queue that `check`, `ext_proc` and `ext_authz`
    /// share with it.
    pub proxy: Option<ProxySettings>, PROXY: SubsectionKey =
        SubsectionKey::one("proxy", &proxy::TABLE)
        => proxy_section(root, LimitContext {
            peers: peers.as_ref(), ..LimitContext::new(machine, state.keys_max, &groups)
        });
    /// The door for servers with their own front end, which ask before each request.
    pub check: Option<CheckSettings>, CHECK: SubsectionKey =
        SubsectionKey::one("check", &check::TABLE).restart()
        => root.section_if_written(&CHECK, check::read);
    /// The door for Envoys, which ask before each request and say when it has ended.
    pub ext_proc: Option<ExtProcSettings>, EXT_PROC: SubsectionKey =
        SubsectionKey::one("ext_proc", &ext_proc::TABLE).restart()
        => root.section_if_written(&EXT_PROC, ext_proc::read);
    /// The door for Envoys that only ask whether a request may run.
    pub ext_authz: Option<ExtAuthzSettings>, EXT_AUTHZ: SubsectionKey =
        SubsectionKey::one("ext_authz", &ext_proc::authz::TABLE).restart()
        => root.section_if_written(&EXT_AUTHZ, ext_proc::authz::read);
    /// The door that answers questions about tags.
    pub line: Option<LineSettings>, LINE: SubsectionKey = SubsectionKey::one("line", &line::TABLE)
        => root.section_if_written(&LINE, |line| {
            line::read(line, state.keys_max.unwrap_or(machine.keys_max()), peers.as_ref())
        });
    /// The Envoy rate limit service.
    pub ratelimit: Option<RatelimitSettings>, RATELIMIT: SubsectionKey =
        SubsectionKey::one("ratelimit", &ratelimit::TABLE)
        => root.section_if_written(&RATELIMIT, ratelimit::read);
    /// The master of gatekeepers over ZeroMQ.
    pub master: Option<MasterSettings>, MASTER: SubsectionKey =
        SubsectionKey::one("master", &master::TABLE)
        => root.section_if_written(&MASTER, |master| master::read(master, state.keys_max));
    /// The gate of a domain, for which a master decides, or a list of up to 64.
    pub gatekeepers: Vec<GatekeeperSettings>, GATEKEEPER: SubsectionKey =
        SubsectionKey::list("gatekeeper", &gatekeeper::TABLE).restart()
        => gatekeeper::read(root, &GATEKEEPER, state.keys_max, &groups, proxy.as_ref());
    /// One count for all instances, in Redis or Valkey.
    pub store: Option<StoreSettings>, STORE: SubsectionKey =
        SubsectionKey::one("store", &store::TABLE).restart()
        => root.section_if_written(&STORE, store::read);
}

/// The keys of a file.
pub const ROOT: &SectionTable = &TABLE;

/// Checks a file of groups by itself (`conditions::check_file`).
pub(crate) fn check_group_file(path: &Path) -> Option<Result<usize, ConfigFaults>> {
    conditions::check_file(path, |name| ROOT.row(name).is_some())
}

impl Settings {
    /// Names of the sections that open a door for clients. The admin door is not among them.
    #[must_use]
    pub fn doors(&self) -> Vec<&'static str> {
        let proxy = self.proxy.iter().filter(|proxy| !proxy.listen.is_empty()).map(|_| "proxy");
        let check = self.check.iter().map(|_| "check");
        let ext_proc = self.ext_proc.iter().map(|_| "ext_proc");
        let ext_authz = self.ext_authz.iter().map(|_| "ext_authz");
        let envoy = ext_proc.chain(ext_authz);
        let line = self.line.iter().map(|_| "line");
        let ratelimit = self.ratelimit.iter().map(|_| "ratelimit");
        let master = self.master.iter().map(|_| "master");
        proxy.chain(check).chain(envoy).chain(line).chain(ratelimit).chain(master).collect()
    }

    /// The files that were read with the configuration.
    pub fn included(&self) -> impl Iterator<Item = &IncludedFile> {
        let pages = self.proxy.iter().flat_map(|proxy| &proxy.pages.files);
        self.groups.files.iter().chain(pages)
    }

    /// The longest drain time of all doors, which bounds a shutdown. Zero if no door is open.
    #[must_use]
    pub fn drain(&self) -> Duration {
        let proxy = self.proxy.iter().map(|proxy| proxy.timeouts.drain);
        let line = self.line.iter().map(|line| line.drain);
        let ratelimit = self.ratelimit.iter().map(|door| door.drain);
        let master = self.master.iter().map(|door| door.drain);
        proxy.chain(line).chain(ratelimit).chain(master).max().unwrap_or_default()
    }

    /// Total number of limits over all doors, including the rules of a master's domains.
    #[must_use]
    pub fn limits(&self) -> usize {
        let proxy = self.proxy.as_ref().map_or(0, |proxy| proxy.limits.len() + proxy.denials.len());
        let line = self.line.as_ref().map_or(0, |line| line.limits.len());
        let domains = self.master.iter().flat_map(|master| &master.domains);
        proxy + line + domains.map(|domain| domain.rules.len()).sum::<usize>()
    }
}

settings! {
    /// The admin door: metrics, health, JSON.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AdminSettings from admin_keys(admin), ADMIN_TABLE = "admin";

    /// Addresses to listen on. Beyond loopback they need a `token_file`.
    pub listen: Vec<SocketAddr>, ADMIN_LISTEN: ListKey<SocketAddr> =
        ConfigKey::text("listen", address::listen)
            .list_with(|| vec![SocketAddr::from(([127, 0, 0, 1], 9970))]);
    /// Whether `listen` is not the default. Only then a port in use stops the start.
    pub asked_for: bool = ADMIN_LISTEN.preset().is_none_or(|default| listen != default);
    /// File with the token that callers must send. `/healthz`, `/readyz` and `/metrics` need none.
    pub token_file: Option<PathBuf>, TOKEN_FILE: ConfigKey<PathBuf> =
        ConfigKey::path("token_file").example("/etc/evenkeel/token");
}

settings! {
    /// How log lines are written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LogSettings from log(log), LOG_TABLE = "log";

    /// The least severe level that is written.
    pub level: LogLevel, LEVEL: DefaultedKey<LogLevel> =
        ConfigKey::words("level", LogLevel::WORDS).default(LogLevel::Info);
    /// `text` for people, or `json` for machines: one object per line ([its
    /// fields](seeing.md#the-log)). Both are written to standard error.
    pub format: LogFormat, FORMAT: DefaultedKey<LogFormat> =
        ConfigKey::words("format", LogFormat::WORDS).default(LogFormat::Text).restart();
}

settings! {
    /// The state that survives a restart: debts and the counters of `ratelimit`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct StateSettings from state(state), STATE_TABLE = "state";

    /// Path of the snapshot. A temporary file (`.tmp`) is written next to it first, so its folder
    /// must be writable.
    pub file: Option<PathBuf>, STATE_FILE: ConfigKey<PathBuf> =
        ConfigKey::path("file").example("/var/lib/evenkeel/state");
    /// Time between two snapshots: the most that a crash (`kill -9`, loss of power) loses. Needs a
    /// `file`.
    pub every: Duration, EVERY: DefaultedKey<Nanos> =
        ConfigKey::duration("every").within(Nanos::from_millis(100), DAY)
            .default(Nanos::from_secs(5)).low("the disk is always busy")
            .high("a crash forgives the debts of the last minutes") => every(state, file.is_some());
    /// Number of keys, in memory and in the snapshot, of each limit without a `keys_max` of its
    /// own.
    pub keys_max: Option<usize>, STATE_KEYS: ConfigKey<usize> =
        limits::keys_max().default_note("as in [limits](#proxylimits)");
}

word_enum! {
    /// Severity of a log line.
    pub enum LogLevel {
        /// An operation failed.
        Error = "error",
        /// Something needs the operator's attention, but Evenkeel continues to work.
        Warn = "warn",
        /// Decisions, starts and reloads.
        Info = "info",
        /// Events of single requests.
        Debug = "debug",
        /// All log lines.
        Trace = "trace",
    }
}

word_enum! {
    /// Format of a log line.
    pub enum LogFormat {
        /// Text for people.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

section! {
    TABLE = "":
        include::INCLUDE, ADMIN, LOG, METRICS, TRACES, STATE, conditions::GROUP_FILES,
        conditions::GROUPS, PROXY, CHECK, EXT_PROC, EXT_AUTHZ, LINE, RATELIMIT, MASTER, GATEKEEPER,
        PEERS, STORE;
}

/// Reads a whole file. Returns the settings and their native form with all defaults. If `faults` is
/// not empty afterwards, both are meaningless.
pub(crate) fn from_tree(
    root: &YamlNode,
    machine: Machine,
    faults: &mut Vec<ConfigFault>,
) -> (Settings, YamlNode) {
    let mut section = SectionReader::open("", &TABLE, Some(root), root.place, faults);
    let settings = read(&mut section, machine);
    let shown = section.close();
    (settings, shown)
}

fn read(root: &mut SectionReader<'_, '_>, machine: Machine) -> Settings {
    let mut settings = sections(root, machine);
    if let Some(proxy) = &mut settings.proxy {
        let gates = settings.gatekeepers.iter();
        proxy.facts = gates.clone().fold(proxy.facts, |facts, gate| facts.and(gate.facts()));
        proxy.ip_files.extend(gates.flat_map(|gate| conditions::ip_files(&gate.when)));
    }
    reject_collisions(root, &settings);
    let shares_queue = settings.proxy.as_ref().is_some_and(|proxy| proxy.queue.shared);
    if settings.store.is_some() && settings.peers.is_some() && !shares_queue {
        let what = "and `peers` are two ways to count together; remove one, or let `peers` share \
                    the queue alone: `proxy.queue.shared: true`";
        root.fault_of("store", what);
    }
    warn_of_queues(root, &settings);
    check_endpoints(root, &settings);
    check_envoy_doors(root, &settings);
    settings
}

/// Reports doors for Envoy without an address: no Envoy could ask there.
fn check_envoy_doors(root: &mut SectionReader<'_, '_>, settings: &Settings) {
    let process = settings.ext_proc.as_ref().map(|door| ("ext_proc", &door.listen));
    let check = settings.ext_authz.as_ref().map(|door| ("ext_authz", &door.listen));
    for (name, listen) in process.into_iter().chain(check) {
        let node = root.node(name).and_then(|door| door.find(&["listen"]));
        if let Some(node) = node.filter(|_| listen.is_empty()) {
            let what = format!("`{name}.listen` has no address; write one, or remove `{name}`");
            root.fault_at(node.place, what);
        }
    }
}

/// Reports backends that cannot be named to Envoy, if it is to be told where requests go.
fn check_endpoints(root: &mut SectionReader<'_, '_>, settings: &Settings) {
    if !settings.ext_proc.as_ref().is_some_and(|door| door.endpoint) {
        return;
    }
    let Some(proxy) = &settings.proxy else { return };
    let Some(node) = root.node("proxy").and_then(|proxy| proxy.find(&["backend"])) else {
        let door = root.node("ext_proc").and_then(|door| door.find(&["endpoint"]));
        let place = door.map_or(root.place, |door| door.place);
        let what = "`ext_proc.endpoint` needs the backends to choose from: set `proxy.backend`";
        return root.fault_at(place, what);
    };
    for (backend, item) in proxy.backends.iter().zip(node.items()) {
        if backend.socket().is_none() {
            let what = format!(
                "{backend} cannot be named to Envoy, which `ext_proc.endpoint` asks for: write a \
                 numeric address and a port, such as http://10.0.0.1:8000"
            );
            root.fault_at(item.place, what);
        }
    }
}

/// Warns of several instances before one backend that cannot share its queue, unless they are told
/// not to.
fn warn_of_queues(root: &mut SectionReader<'_, '_>, settings: &Settings) {
    let Some(peers) = settings.peers.as_ref().filter(|peers| peers.cpus_shared) else { return };
    let is_mesh = matches!(peers.via, peers::PeerTransport::Mesh { .. });
    let shared = root.node("proxy").and_then(|proxy| proxy.find(&["queue", "shared"]));
    if is_mesh || settings.proxy.is_none() || shared.is_some() {
        return;
    }
    let via = root.node("peers").and_then(|peers| peers.find(&["via"]));
    let place = via.map_or(root.place, |via| via.place);
    let what = "all instances are before one backend, but over this transport each has a queue of \
                its own, so a client gets a turn at each of them; use `via: mesh`, or write \
                `proxy.queue.shared: false`";
    root.warn(place, what);
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
    let settings = admin_keys(admin);
    let beyond = |address: &SocketAddr| !address.ip().is_loopback();
    if settings.token_file.is_none() && settings.listen.iter().any(beyond) {
        let what = "beyond loopback needs a `token_file`; name one in a configuration file, or \
                    listen on 127.0.0.1";
        admin.fault_of("listen", what);
    }
    settings
}

fn proxy_section(
    root: &mut SectionReader<'_, '_>,
    ground: LimitContext<'_>,
) -> Option<super::settings::ProxySettings> {
    // A door opens if its section exists, even an empty one.
    if root.written("proxy") {
        return Some(root.section(&PROXY, |section| proxy::read(section, ground)));
    }
    // These doors use the limits of `proxy`; without that section, its defaults.
    ["check", "ext_proc", "ext_authz"].iter().any(|door| root.written(door)).then(|| {
        root.section(&PROXY, |section| {
            section.show("listen", YamlNode::text(proxy::LISTEN_OFF));
            proxy::limits_alone(section, ground)
        })
    })
}

/// Reports two listeners on one port or one file.
fn reject_collisions(root: &mut SectionReader<'_, '_>, settings: &Settings) {
    let mut taken = Vec::new();
    for opening in settings.openings() {
        let socket = &opening.socket;
        let what = match socket {
            sockets::SocketSpec::File(path) => {
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

fn every(state: &mut SectionReader<'_, '_>, file: bool) -> Duration {
    if !file && !state.has("every") {
        return std_time(EVERY.preset());
    }
    if !file {
        state.refuse(&["every"], "needs a `file` to write to; name one, or remove it");
    }
    std_time(state.key(&EVERY))
}
