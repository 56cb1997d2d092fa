//! The `proxy` section: where the proxy listens, the backend, what a request costs, and which
//! clients are exempt or count together.
//!
//! Its limits are read in `limits`.

mod bounds;
mod databases;
mod engine_metrics;
mod pages;
mod preset;
mod queue;
mod redirect;
pub mod robots;
mod timeouts;
mod tokens;
mod trusted;
mod waiting_room;

use super::backend::{self, BACKENDS_MAX, BackendAddress, BackendTls};
use super::conditions::{self, CONDITION, GroupSettings};
use super::limits::{self, LimitContext};
use super::tls;
use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, ValueSyntax, section};
use crate::reader::{SectionReader, settings};
use crate::settings::hosts::{HostMerge, HostPattern, HostSettings, host_name};
use crate::settings::tls::FrontTls;
use crate::tree::{YamlNode, YamlValue};
use crate::values::{self, DAY, Read, header_name, token};
pub use bounds::ProxyBounds;
pub use databases::{DatabaseSettings, NetworkFileSettings};
pub use engine_metrics::EngineMetricsSetting;
use evenkeel_core::condition::{Clause, Condition, Values};
use evenkeel_core::fact::FactSet;
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::queue::WorkUnit;
use evenkeel_core::top;
use evenkeel_core::units::Nanos;
use ipnet::IpNet;
pub use limits::DenyRule;
pub use pages::RefusalPages;
use preset::PRESET;
pub use preset::ProxyPreset;
pub use queue::{ConcurrencySetting, KnownSetting, ProxyQueueSettings};
pub(crate) use queue::{SLOTS_MAX, concurrency};
pub use redirect::HttpsRedirect;
use redirect::{REDIRECT_EXCEPT, REDIRECT_TO_HTTPS};
use robots::{ROBOTS, RobotSettings, SIGNED_FOR};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
pub use timeouts::ProxyTimeouts;
use tokens::ModelPrice;
pub use tokens::TokenSettings;
pub use trusted::TrustedProxies;
pub use waiting_room::WaitingRoomSettings;

settings! {
    /// The reverse proxy, and the limits that the check door shares with it.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ProxySettings from keys(
        proxy, ground: LimitContext<'_>, addresses: Vec<SocketAddr>, front: Option<FrontTls>
    );

    /// Addresses to listen on, at most 64. `off`: no listener, for example if only
    /// [`check`](#check) uses the limits.
    pub listen: Vec<SocketAddr>, LISTEN: ListKey<SocketAddr> =
        ConfigKey::text("listen", address::listen)
            .list_with(|| vec![SocketAddr::from(([0, 0, 0, 0], 8888))]).restart()
            .example("127.0.0.1:8888") => addresses;
    /// [Certificates](#proxytls), and the addresses that use them. Files that change are read again
    /// without a restart.
    pub tls: Option<FrontTls>, TLS: SubsectionKey =
        SubsectionKey::one("tls", &tls::FRONT).default_note("no TLS").restart() => front;
    /// Which requests on listeners without TLS are sent to `https://`.
    pub redirect: Option<HttpsRedirect> = redirect::read(proxy, &listen, tls.as_ref());
    /// The servers behind the proxy, at least one and at most [`BACKENDS_MAX`].
    pub backends: Vec<BackendAddress> = backends(proxy);
    /// [TLS](#proxybackend_tls) for backends with `https://`.
    pub backend_tls: BackendTls, BACKEND_TLS: SubsectionKey =
        SubsectionKey::one("backend_tls", &tls::BACKEND) => backend_tls(proxy, &backends);
    /// Protocols that a client may switch to by `Upgrade` or [over
    /// HTTP/2](tls.md#websockets-on-a-stream); `[]` permits none. Bytes after the switch are not
    /// inspected and not charged. `h2c` is never permitted.
    pub upgrades: Vec<String>, UPGRADES: ListKey<String> =
        ConfigKey::text("upgrades", upgrade).list_with(|| vec!["websocket".to_owned()]);
    let preset = preset::read(proxy);
    let usual_cost = if preset.is_some() { CostSource::Tokens } else { CostSource::Shared };
    /// How the cost of a request is measured. `wall`: elapsed time while the backend works.
    /// `shared`: the same, divided among the running requests if there are more of them than
    /// `cpus`. `header:NAME`: the value that the backend sends in this header, such as
    /// `Server-Timing: cpu;dur=12` or `X-Cost: 12ms`; without the header as `shared`.
    /// `cgroup:PATH`: as `shared`, corrected ten times a second by the CPU time of this cgroup
    /// (version 2, as in `/proc/PID/cgroup`). `concurrency: auto` also uses the cgroup's CPU time,
    /// quota and pressure. `evenkeel check` lists the cgroups of a backend on this machine.
    /// `tokens`: the [tokens](models.md) that requests to language models use; a thousand count as
    /// a CPU-second. Other requests are charged as with `shared`.
    pub cost: CostSource, COST: ConfigKey<CostSource> = ConfigKey::text("cost", cost)
        .range_note("`wall`, `shared`, `header:NAME`, `cgroup:PATH`, `tokens`")
        .default_note("`shared`; `tokens` with `preset`").example("shared")
        => proxy.key_or(&COST, usual_cost);
    /// The weights and prices of [tokens](#proxytokens) of language models, with `cost: tokens`.
    pub tokens: TokenSettings, TOKENS: SubsectionKey = SubsectionKey::one("tokens", &tokens::TABLE)
        => if cost == CostSource::Tokens {
            proxy.section(&TOKENS, tokens::read)
        } else {
            proxy.section_if_written(&TOKENS, tokens::read).unwrap_or_default()
        };
    let all_cpus = if cost == CostSource::Tokens { tokens.cpus() } else { ground.cpus };
    /// CPU-seconds per second that the clients share.
    pub cpus: f64, CPUS: ConfigKey<f64> =
        ConfigKey::new("cpus", ValueSyntax::Number, cpus).within(0.01, 65_536.0).example("4")
            .default_note("the smaller of the cores of this process and the quota of its cgroup \
                           (v1 or v2); from `tokens.per_second` with `cost: tokens`")
            .low("clients wait while the server is idle")
            .high("the server is overloaded before any client is in debt")
        // With `cost: tokens` this is not a key, so a reload must not find it among the shown
        // values.
        => if cost == CostSource::Tokens { all_cpus } else { proxy.key_or(&CPUS, all_cpus) };
    /// How long a request is charged if its answer is a stream of events (`text/event-stream`) or a
    /// gRPC call. `leave`: until the headers of the answer arrive; then the request frees its slot.
    /// Use this if the backend does little work during a stream. `charge`: until the stream ends,
    /// with its slot, like any other request. Use this if the backend works all the time, like a
    /// language model. If the client disconnects, the proxy closes the connection to the backend at
    /// once and charges the cost so far.
    pub charge_streams: bool, STREAMS: ConfigKey<bool> =
        ConfigKey::words("streams", &[("leave", false), ("charge", true)])
            .default_note("`leave`; `charge` with `cost: tokens`")
        => proxy.key_or(&STREAMS, cost == CostSource::Tokens);
    /// What happens to a client in debt, if its limit has no `action`. `queue`: while the backend
    /// has capacity to spare, no request waits; otherwise clients in credit go first, and the
    /// others share the rest. `hold`: the request runs, and its answer is held. `delay`: the
    /// request waits before it reaches the backend. `reject`: 503 with `Retry-After`.
    pub action: LimitAction, ACTION: DefaultedKey<LimitAction> =
        ConfigKey::words("action", &limits::ACTIONS).default(LimitAction::Queue);
    /// The [queue](#proxyqueue) of requests that wait, if the action is `queue`.
    pub queue: ProxyQueueSettings, QUEUE: SubsectionKey =
        SubsectionKey::one("queue", &queue::TABLE)
        => proxy.section(&QUEUE, |section| {
            let slots = if cost == CostSource::Tokens { 1.0 } else { cpus };
            queue::read(section, slots, ground.peers)
        });
    /// The longest wait. A request that would have to wait longer before it runs gets 503 with
    /// `Retry-After`, or 429 if its limit has a `rate`. A held answer is released after this time.
    pub max_delay: Nanos, MAX_DELAY: DefaultedKey<Nanos> = ConfigKey::duration("max_delay")
        .within(Nanos::ZERO, DAY).default(Nanos::from_secs(30)).low("refusals instead of waits")
        .high("connections stay open for long");
    /// Whether clients may use HTTP/2: over TLS if the client offers it, without TLS if the client
    /// begins with it.
    pub http2: bool, HTTP2: DefaultedKey<bool> = ConfigKey::truth("http2").default(true);
    /// Networks from which forwarded headers are trusted, or `cloudflare`: those that Cloudflare
    /// publishes, as of the program's release. Too narrow: all users behind a proxy share one
    /// bucket. Too wide: any host in these networks can forge client addresses.
    pub trusted_proxies: Vec<TrustedProxies>, TRUSTED_PROXIES: ListKey<TrustedProxies> =
        ConfigKey::text("trusted_proxies", TrustedProxies::from_str).list_with(Vec::new)
            .example("10.0.0.0/8");
    /// Where a trusted proxy writes the address of the client. `xff`: `X-Forwarded-For`, read from
    /// the right past trusted proxies; without it, `X-Real-IP`. `forwarded`: `Forwarded` (RFC
    /// 7239). `header:NAME`: a header with one address, such as `CF-Connecting-IP`.
    /// `proxy-protocol`: version 1 or 2, with which each connection of a trusted proxy then has to
    /// begin; its headers are not trusted. The last three need `trusted_proxies`.
    pub client_address: ClientAddress, CLIENT_ADDRESS: DefaultedKey<ClientAddress> =
        ConfigKey::text("client_address", client_address)
            .range_note("`xff`, `forwarded`, `header:NAME`, `proxy-protocol`")
            .default(ClientAddress::XForwardedFor);
    /// [Time limits](#proxytimeouts) of connections and requests.
    pub timeouts: ProxyTimeouts, TIMEOUTS: SubsectionKey =
        SubsectionKey::one("timeouts", &timeouts::TABLE)
        => proxy.section(&TIMEOUTS, timeouts::read);
    /// [Upper bounds](#proxybounds) of connections, sizes and streams.
    pub bounds: ProxyBounds, BOUNDS: SubsectionKey = SubsectionKey::one("bounds", &bounds::TABLE)
        => proxy.section(&BOUNDS, |section| bounds::read(section, cost == CostSource::Tokens));
    let exempt_read =
        proxy.list_and_sections(&EXEMPT, |inner| exempt_section(inner, ground.groups));
    let entries = exempt_read.0;
    /// Requests that are neither counted nor held: [conditions](#when), `ip:` and a network,
    /// `host:` and a [name](#clients-by-name), or `cookie:` and the name of a cookie. Any client
    /// can make up a header or a cookie and is then exempt, so the backend must check it; `evenkeel
    /// check` warns about such conditions.
    pub exempt: Vec<IpNet>, EXEMPT: ListKey<ExemptEntry> =
        ConfigKey::opaque("exempt", exempt_entry).list_with(Vec::new).or_sections(&CONDITION)
            .example("ip:192.0.2.0/24")
        => of_kind(&entries, ExemptEntry::net);
    /// Requests that meet one of these conditions are neither counted nor held.
    pub exempt_when: Vec<Condition> =
        of_kind(&entries, ExemptEntry::condition).into_iter().chain(exempt_read.1).collect();
    /// The robots that prove who they are, and the hosts that their signatures count for.
    pub robots: RobotSettings = robots::read(proxy);
    /// Clients by host name: those that are exempt, those that count together, and robots.
    pub hosts: HostSettings = hosts(proxy, &entries, &robots);
    /// Files that say which [AS number or country](#proxydatabases) an address has.
    pub databases: DatabaseSettings, DATABASES: SubsectionKey =
        SubsectionKey::one("databases", &databases::TABLE)
        => proxy.section(&DATABASES, databases::keys);
    /// Whether Evenkeel decides, counts and logs, but lets each request pass at once.
    pub shadow: bool, SHADOW: DefaultedKey<bool> = ConfigKey::truth("shadow").default(false);
    /// Whether answers state the client's standing under limits with `rate`, in the headers
    /// `RateLimit-Policy` and `RateLimit` (IETF draft 10). `"logins";q=5;w=60` means 5 requests in
    /// 60 seconds; `"logins";r=4;t=12` means that 4 are left, and that all are available again in
    /// 12 seconds. A refused request gets only the limit that refused it, and `t` is its
    /// `Retry-After`.
    pub headers: bool, HEADERS: DefaultedKey<bool> = ConfigKey::truth("headers").default(false);
    /// Whether the header of `cost: header:NAME` is passed on to the client.
    pub keep_cost_header: bool, COST_HEADER: DefaultedKey<bool> =
        ConfigKey::words("cost_header", &[("keep", true), ("strip", false)]).default(false);
    /// Number of clients per limit that each thread can show by name, for `evenkeel clients` and
    /// the metric of held clients; some 300 bytes each.
    pub names_max: usize, NAMES_MAX: DefaultedKey<usize> = ConfigKey::whole("names_max")
        .within(1, top::CAPACITY_MAX).default(1_000).low("busy clients appear as `?`")
        .high("memory");
    let amount_cpus = if cost == CostSource::Tokens { cpus } else { ground.amount_cpus };
    let of_limits = LimitContext { cpus, amount_cpus, work: cost.unit(), ..ground };
    let limits_read =
        limits::read(proxy, of_limits, action, queue.debt_max, preset);
    /// The [limits](#proxylimits), at most 32. They replace the default limits. To keep these, add
    /// the word `default` as an entry.
    pub limits: Vec<Limit>, LIMITS: SubsectionKey =
        SubsectionKey::list("limits", &limits::TABLE).or_words(&[limits::DEFAULT_WORD])
            .default_note("`ip`, `net24`, `net16`; with `preset` `tenant`, `ip`")
        => limits_read.counted;
    /// The rules that refuse requests, whatever they cost: the limits with `action: deny`.
    pub denials: Vec<DenyRule> = limits_read.denials;
    /// [Pages](#proxypages) for refused requests.
    pub pages: RefusalPages, PAGES: SubsectionKey = SubsectionKey::one("pages", &pages::TABLE)
        => proxy.section(&PAGES, pages::read);
    /// The facts about clients that limits, conditions or gates name, and those by which the queue
    /// finds what the requests of a swarm have in common. Doors find no others.
    pub facts: FactSet =
        limits::facts(&limits, denials.iter().map(|rule| &rule.when).chain(&exempt_when))
            .and(queue.swarm_facts());
    /// Files with addresses that conditions name, also those of gates.
    pub ip_files: Vec<PathBuf> = limits
        .iter()
        .map(|limit| &limit.when)
        .chain(denials.iter().map(|rule| &rule.when))
        .chain(&exempt_when)
        .flat_map(conditions::ip_files)
        .collect();
}

impl ProxySettings {
    /// The networks of all `trusted_proxies`.
    #[must_use]
    pub fn trusted_networks(&self) -> Vec<IpNet> {
        self.trusted_proxies.iter().flat_map(TrustedProxies::networks).copied().collect()
    }

    /// Whether a limit counts by something in bodies, so that these must be read first.
    #[must_use]
    pub fn counts_by_body(&self) -> bool {
        let is_json = |part: &KeyPart| matches!(part, KeyPart::Json(_));
        self.limits.iter().any(|limit| limit.by.iter().any(is_json))
    }

    /// The files about networks that the section and gates name.
    #[must_use]
    pub fn network_files(&self) -> NetworkFileSettings {
        let DatabaseSettings { asn, country } = self.databases.clone();
        NetworkFileSettings { asn, country, lists: self.ip_files.clone() }
    }
}

/// How the cost of a request is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// Elapsed time while the backend works.
    Wall,
    /// Elapsed time, divided among the running requests when there are more of them than CPUs.
    Shared,
    /// The value that the backend sends in this header (lower case); if it sends none, as `Shared`.
    Header(String),
    /// As `Shared`, corrected by the CPU time of this cgroup (version 2). The path is as written.
    Cgroup(PathBuf),
    /// The tokens that a language model uses for the request; as `Shared` if it asks no model.
    Tokens,
}

impl CostSource {
    /// The unit of the backend's work if costs are measured in this way.
    #[must_use]
    pub fn unit(&self) -> WorkUnit {
        match self {
            CostSource::Tokens => WorkUnit::Tokens,
            CostSource::Wall
            | CostSource::Shared
            | CostSource::Header(_)
            | CostSource::Cgroup(_) => WorkUnit::CpuTime,
        }
    }
}

impl fmt::Display for CostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CostSource::Wall => f.write_str("wall"),
            CostSource::Shared => f.write_str("shared"),
            CostSource::Tokens => f.write_str("tokens"),
            CostSource::Header(name) => write!(f, "header:{name}"),
            CostSource::Cgroup(path) => write!(f, "cgroup:{}", path.display()),
        }
    }
}

/// Where a trusted proxy writes the client's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAddress {
    /// `X-Forwarded-For`, read from the right past trusted proxies; without it `X-Real-IP`.
    XForwardedFor,
    /// `Forwarded` (RFC 7239), read in the same way.
    Forwarded,
    /// A header (lower case) that holds one address.
    Header(String),
    /// The PROXY protocol, version 1 or 2, before the first byte of each connection.
    ProxyProtocol,
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientAddress::XForwardedFor => f.write_str("xff"),
            ClientAddress::Forwarded => f.write_str("forwarded"),
            ClientAddress::ProxyProtocol => f.write_str("proxy-protocol"),
            ClientAddress::Header(name) => write!(f, "header:{name}"),
        }
    }
}

section! {
    TABLE = "proxy":
        LISTEN, TLS, REDIRECT_TO_HTTPS, REDIRECT_EXCEPT, HTTP2, BACKEND, BACKEND_TLS, PRESET,
        UPGRADES, CPUS, COST, TOKENS, COST_HEADER, STREAMS, ACTION, QUEUE, MAX_DELAY,
        TRUSTED_PROXIES, CLIENT_ADDRESS, TIMEOUTS, BOUNDS, EXEMPT, PAGES, MERGE, ROBOTS,
        SIGNED_FOR, RESOLVER, DATABASES, SHADOW, HEADERS, NAMES_MAX, LIMITS;
}

section! {
    /// The server behind the proxy, or a [list](#proxybackend) of at most 64 that serve the same.
    BACKEND: ListKey<BackendAddress> = ConfigKey::text("backend", backend::backend)
        .list_with(|| vec![BackendAddress::http("127.0.0.1:80")]);
    /// Sections with `match` and `as`, such as `{match: "host:*.googlebot.com", as:
    /// googlebot.com}`, at most 1024: clients with a [name](#clients-by-name) that matches count as
    /// one under limits by `host`. The first match applies.
    MERGE: SubsectionKey = SubsectionKey::list("merge", &MERGED);
    /// Name servers for the [names of clients](#clients-by-name). The default port is 53.
    RESOLVER: ListKey<SocketAddr> = ConfigKey::text("resolver", address::name_server).list()
        .default_note("those of the system").example("192.0.2.53");
}

section! {
    MERGED = "proxy.merge";

    /// The host names that count together: `host:*.example.com` or `host:www.example.com`.
    MATCH: ConfigKey<HostPattern> =
        ConfigKey::opaque("match", host).required().example("host:*.example.com");
    /// The name under which they count.
    AS: ConfigKey<Box<str>> = ConfigKey::text("as", merged_name).required().example("example.com");
}

/// What `listen` says where the section only has limits for the `check` door.
pub const LISTEN_OFF: &str = "off";
/// Maximum number of entries of `merge`.
const MERGE_MAX: usize = 1024;
/// Maximum number of addresses of one door.
const LISTENERS_MAX: usize = 64;

/// Reads the section. `ground.cpus` is the number of CPUs of the machine.
pub(crate) fn read(proxy: &mut SectionReader<'_, '_>, ground: LimitContext<'_>) -> ProxySettings {
    let off = matches!(proxy.node("listen").map(|node| &node.value),
        Some(YamlValue::Text(text)) if text == LISTEN_OFF);
    if off {
        proxy.show("listen", YamlNode::text(LISTEN_OFF));
        return limits_alone(proxy, ground);
    }
    let listen = proxy.key(&LISTEN);
    settings(proxy, ground, listen)
}

/// Reads the section without opening a door; it only defines how `check` and `ext_proc` decide.
pub(crate) fn limits_alone(
    proxy: &mut SectionReader<'_, '_>,
    ground: LimitContext<'_>,
) -> ProxySettings {
    settings(proxy, ground, Vec::new())
}

/// Reads all keys but `listen`.
fn settings(
    proxy: &mut SectionReader<'_, '_>,
    ground: LimitContext<'_>,
    mut listen: Vec<SocketAddr>,
) -> ProxySettings {
    let front = tls(proxy, &mut listen);
    let settings = keys(proxy, ground, listen, front);
    consistent(proxy, &settings);
    settings
}

/// Reports combinations that each key allows by itself but that do not work together.
fn consistent(proxy: &mut SectionReader<'_, '_>, settings: &ProxySettings) {
    for backend in &settings.backends {
        if let Some(listen) = settings.listen.iter().find(|l| backend::loops(backend, **l)) {
            let what = format!(
                "{backend} is the proxy itself, which listens on {listen}; \
                 name the server behind it"
            );
            proxy.fault_of("backend", what);
        }
    }
    if settings.listen.len() > LISTENERS_MAX {
        proxy.fault("listen", format!("more than {LISTENERS_MAX} listeners; remove some"));
    }
    let believed = !settings.trusted_proxies.is_empty();
    if !believed && settings.client_address != ClientAddress::XForwardedFor {
        let what = "is used only for `trusted_proxies`; name them, or remove it";
        proxy.fault_of("client_address", what);
    }
    if settings.keep_cost_header && !matches!(settings.cost, CostSource::Header(_)) {
        proxy.fault("cost_header", "`cost_header: keep` needs `cost: header:NAME`; remove it");
    }
    if settings.cost == CostSource::Tokens {
        proxy
            .refuse(&["cpus"], "has no meaning with `cost: tokens`; set `tokens: {per_second: N}`");
    } else {
        proxy.refuse(&["tokens"], "needs `cost: tokens`; set that, or remove it");
    }
    quotas(proxy, settings);
    let user = |fact| {
        let uses = |limit: &&Limit| {
            limits::facts(std::slice::from_ref(*limit), std::iter::empty()).contains(fact)
        };
        let limit = settings.limits.iter().find(uses);
        limit.map_or("a condition".to_owned(), |limit| format!("the limit `{}`", limit.name))
    };
    for what in settings.databases.missing(settings.facts, user) {
        proxy.fault("limits", what);
    }
}

/// Reports limits in tokens or money that no request can count towards.
fn quotas(proxy: &mut SectionReader<'_, '_>, settings: &ProxySettings) {
    let named = |unit| settings.limits.iter().find(|limit| limit.unit == unit);
    let quota = named(LimitUnit::Tokens).or_else(|| named(LimitUnit::Money));
    if let Some(limit) = quota.filter(|_| settings.cost != CostSource::Tokens) {
        let what =
            format!("`{}` counts tokens; set `cost: tokens` or `preset: openai`", limit.name);
        proxy.fault("limits", what);
    }
    let Some(limit) = named(LimitUnit::Money) else { return };
    if settings.tokens.prices.is_empty() {
        let what =
            format!("`{}` counts money; say in `tokens.prices` what models cost", limit.name);
        proxy.fault("limits", what);
    } else if !settings.tokens.prices.iter().any(ModelPrice::is_for_all) {
        let place = proxy.node("tokens").and_then(|tokens| tokens.find(&["prices"]));
        let place = place.map_or(proxy.place, |prices| prices.place);
        let what = format!(
            "models that match no price cost nothing under `{}`; end the list with \
             `{{model: \"*\", prompt: ..., output: ...}}`",
            limit.name
        );
        proxy.warn(place, what);
    }
}

fn tls(proxy: &mut SectionReader<'_, '_>, listen: &mut Vec<SocketAddr>) -> Option<FrontTls> {
    if proxy.written("tls") && listen.is_empty() {
        proxy.fault_of("tls", "needs a proxy that listens; set `listen`, or remove it");
    }
    proxy.section_if_written(&TLS, |section| super::tls::front(section, listen)).flatten()
}

fn backends(proxy: &mut SectionReader<'_, '_>) -> Vec<BackendAddress> {
    let mut backends = proxy.key(&BACKEND);
    let is_empty =
        |node: &YamlNode| matches!(&node.value, YamlValue::List(list) if list.is_empty());
    if proxy.node("backend").is_some_and(is_empty) {
        proxy.fault_of("backend", "is an empty list; name a server: http://127.0.0.1:80");
    }
    if backends.len() > BACKENDS_MAX {
        proxy.fault("backend", format!("more than {BACKENDS_MAX} backends; remove some"));
        backends.truncate(BACKENDS_MAX);
    }
    let twice = backends.iter().enumerate().find(|(at, one)| backends[..*at].contains(one));
    if let Some((_, twice)) = twice {
        let what = format!("{twice} occurs twice; remove one");
        proxy.fault_of("backend", what);
    }
    backends
}

fn backend_tls(proxy: &mut SectionReader<'_, '_>, backends: &[BackendAddress]) -> BackendTls {
    if proxy.written("backend_tls") && !backends.iter().any(BackendAddress::is_secured) {
        let what = "needs a backend with https://; name one, or remove it";
        proxy.fault_of("backend_tls", what);
    }
    let read = proxy.section_if_written(&BACKEND_TLS, |section| {
        let client = super::tls::client(section);
        let verify = section.key(&tls::VERIFY);
        if !verify && client.ca.is_some() {
            let what = "`verify: false` accepts any certificate and does not use `ca`; remove one";
            section.fault("verify", what);
        }
        BackendTls { client, verify, protocol: section.key(&tls::PROTOCOL) }
    });
    read.unwrap_or_default()
}

fn of_kind<T>(entries: &[ExemptEntry], kind: impl Fn(&ExemptEntry) -> Option<T>) -> Vec<T> {
    entries.iter().filter_map(kind).collect()
}

fn hosts(
    proxy: &mut SectionReader<'_, '_>,
    entries: &[ExemptEntry],
    robots: &RobotSettings,
) -> HostSettings {
    let exempt = of_kind(entries, ExemptEntry::host);
    let (merge, resolver) = (merge(proxy), proxy.key(&RESOLVER));
    let robots = robots.list.iter().map(|robot| robot.host.clone()).collect();
    let hosts = HostSettings { exempt, merge, robots, resolver };
    if !hosts.resolver.is_empty() && !hosts.needs_names() {
        let what = "is used only if `exempt` or `merge` has `host:` patterns, or a robot has \
                    `host`; remove it, or add such a pattern";
        proxy.fault_of("resolver", what);
    }
    hosts
}

fn merge(proxy: &mut SectionReader<'_, '_>) -> Vec<HostMerge> {
    let Some(nodes) = proxy.nodes_of(&MERGE) else { return Vec::new() };
    if nodes.len() > MERGE_MAX {
        proxy.fault("merge", format!("more than {MERGE_MAX} entries; remove some"));
    }
    let merged = proxy.sections(&MERGE, nodes, |section| {
        section.require(&["match", "as"], |key| format!("an entry of `merge` needs `{key}`"));
        let pattern = section.key(&MATCH);
        let name = section.key(&AS);
        Some(HostMerge { pattern: pattern?, name: name? })
    });
    merged.into_iter().flatten().collect()
}

/// Reads the name of a protocol as it is written in `Upgrade`.
fn upgrade(text: &str) -> Read<String> {
    let name = header_name(text)?;
    match &*name {
        // These protocols would bypass the accounting of requests.
        "h2c" | "h2" | "tls" | "http" => Err("it would carry requests that are not counted".into()),
        _ => Ok(name.into()),
    }
}

fn cpus(text: &str) -> Read<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = text.parse().ok().filter(|_| plain);
    number.ok_or_else(|| "not a number of CPUs; write 4 or 0.5".to_owned())
}

fn cost(text: &str) -> Read<CostSource> {
    match text.split_once(':') {
        None if text == "wall" => Ok(CostSource::Wall),
        None if text == "shared" => Ok(CostSource::Shared),
        None if text == "tokens" => Ok(CostSource::Tokens),
        Some(("header", name)) => Ok(CostSource::Header(header_name(name)?.into())),
        Some(("cgroup", path)) if path.starts_with('/') => Ok(CostSource::Cgroup(path.into())),
        Some(("cgroup", _)) => Err("write cgroup:/system.slice/app.service".to_owned()),
        _ => Err("must be wall, shared, header:NAME, cgroup:PATH or tokens".to_owned()),
    }
}

fn client_address(text: &str) -> Read<ClientAddress> {
    match text {
        "xff" => Ok(ClientAddress::XForwardedFor),
        "forwarded" => Ok(ClientAddress::Forwarded),
        "proxy-protocol" => Ok(ClientAddress::ProxyProtocol),
        _ => match text.strip_prefix("header:") {
            Some(name) => Ok(ClientAddress::Header(values::header_name(name)?.into())),
            None => Err("must be xff, forwarded, proxy-protocol or header:NAME".to_owned()),
        },
    }
}

fn merged_name(text: &str) -> Read<Box<str>> {
    host_name(text).ok_or_else(|| "a name such as googlebot.com".to_owned())
}

/// Clients or requests that are exempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExemptEntry {
    /// All clients in this network.
    Net(IpNet),
    /// All clients with a confirmed host name that matches.
    Host(HostPattern),
    /// All requests with a cookie of this name.
    Cookie(Box<str>),
}

impl ExemptEntry {
    fn net(&self) -> Option<IpNet> {
        if let ExemptEntry::Net(net) = self { Some(*net) } else { None }
    }

    fn host(&self) -> Option<HostPattern> {
        if let ExemptEntry::Host(pattern) = self { Some(pattern.clone()) } else { None }
    }

    fn condition(&self) -> Option<Condition> {
        let ExemptEntry::Cookie(name) = self else { return None };
        Some(Condition { clauses: vec![Clause::Cookie(name.clone(), Values::present())] })
    }
}

/// Reads a condition among the entries of `exempt`.
fn exempt_section(section: &mut SectionReader<'_, '_>, groups: &GroupSettings) -> Condition {
    if section.is_blank() {
        section.fault("", "`exempt` has an empty condition, which would exempt all requests");
    }
    conditions::when(section, groups)
}

/// Reads an entry of `exempt`: `ip:` and a network, `host:` and a name, or `cookie:` and a name.
fn exempt_entry(text: &str) -> Read<ExemptEntry> {
    match text.split_once(':') {
        Some(("ip", rest)) => address::network(rest).map(ExemptEntry::Net),
        Some(("host", _)) => host(text).map(ExemptEntry::Host),
        Some(("cookie", name)) => token(name).map(ExemptEntry::Cookie),
        _ => Err("write ip:192.0.2.0/24, host:*.example.com or cookie:NAME".to_owned()),
    }
}

/// Reads a pattern of host names: `host:www.example.com`, `host:*.example.com`.
fn host(text: &str) -> Read<HostPattern> {
    let pattern = text.strip_prefix("host:").and_then(HostPattern::parse);
    pattern.ok_or_else(|| "write host:*.example.com or host:www.example.com".to_owned())
}
