//! The `proxy` section.
//!
//! Each key is read with its default and its range. The settings are described in `settings`. The
//! limits are read in `limits`.

use super::hosts;
use super::limits::{self, LimitContext};
use crate::address;
use crate::reader::{Read, SectionReader, one_of, within};
use crate::rows;
use crate::settings::hosts::HostSettings;
use crate::settings::tls::FrontTls;
use crate::settings::{
    BACKENDS_MAX, BackendAddress, BackendProtocol, BackendTls, ClientAddress, CostSource,
    ProxyBounds, ProxyQueueSettings, ProxySettings, ProxyTimeouts,
};
use crate::tree::{YamlNode, YamlValue};
use evenkeel_core::limit::LimitAction;
use evenkeel_core::top;
use evenkeel_core::units::Nanos;
use std::net::SocketAddr;
use std::time::Duration;

/// What `listen` says where the section only has limits for the `check` door.
pub const LISTEN_OFF: &str = "off";
/// The longest duration in this section.
const DURATION_MAX: Nanos = Nanos::from_secs(86_400);
/// The shortest timeout.
const TIMEOUT_MIN: Nanos = Nanos::from_millis(1);
/// Maximum number of addresses of one door.
const LISTENERS_MAX: usize = 64;

/// Reads the section. `ground.cpus` is the number of CPUs of the machine.
pub fn read(proxy: &mut SectionReader<'_, '_>, ground: LimitContext) -> ProxySettings {
    proxy.takes("listen", Some(LISTEN_OFF));
    let off = matches!(proxy.node("listen").map(|node| &node.value),
        Some(YamlValue::Text(text)) if text == LISTEN_OFF);
    if off {
        proxy.show("listen", YamlNode::text(LISTEN_OFF));
        return limits_alone(proxy, ground);
    }
    let default = vec![SocketAddr::from(([0, 0, 0, 0], 8888))];
    let listen = proxy.list("listen", default, address::listen);
    settings(proxy, ground, listen)
}

/// Reads the section without opening a door; it only defines how the `check` door decides.
pub fn limits_alone(proxy: &mut SectionReader<'_, '_>, ground: LimitContext) -> ProxySettings {
    settings(proxy, ground, Vec::new())
}

/// Reads all keys but `listen`.
fn settings(
    proxy: &mut SectionReader<'_, '_>,
    ground: LimitContext,
    mut listen: Vec<SocketAddr>,
) -> ProxySettings {
    let tls = tls(proxy, &mut listen);
    let backends = backends(proxy);
    let backend_tls = backend_tls(proxy, &backends);
    let upgrades = proxy.list("upgrades", vec!["websocket".to_owned()], upgrade);
    let cpus = proxy.value("cpus", ground.cpus, read_cpus);
    let cost = proxy.value("cost", CostSource::Shared, read_cost);
    let action = proxy.value("action", LimitAction::Queue, read_action);
    let queue = proxy.section("queue", |section| queue(section, cpus));
    let max_delay = proxy.value("max_delay", Nanos::from_secs(30), |t| {
        within(duration(t)?, Nanos::ZERO..=DURATION_MAX)
    });
    let mut hosts = HostSettings::default();
    let mut exempt_when = Vec::new();
    let settings = ProxySettings {
        listen,
        tls,
        http2: proxy.value("http2", true, truth),
        backends,
        backend_tls,
        upgrades,
        cpus,
        cost,
        action,
        queue,
        max_delay,
        trusted_proxies: proxy.list("trusted_proxies", Vec::new(), address::network),
        client_address: proxy.value("client_address", ClientAddress::XForwardedFor, read_client),
        timeouts: proxy.section("timeouts", timeouts),
        bounds: proxy.section("bounds", bounds),
        exempt: hosts::exempt(proxy, &mut hosts, &mut exempt_when),
        exempt_when,
        hosts: hosts::read(proxy, hosts),
        shadow: proxy.value("shadow", false, truth),
        headers: proxy.value("headers", false, truth),
        keep_cost_header: proxy.value("cost_header", CostHeaderMode(false), keep).0,
        names_max: proxy.value("names_max", 1_000, |text| {
            within(count(text)?, 1..=top::CAPACITY_MAX as u64).map(|n| n as usize)
        }),
        limits: limits::read(proxy, LimitContext { cpus, ..ground }, action, queue.debt_max),
    };
    consistent(proxy, &settings);
    settings
}

/// Reports combinations that each key allows by itself but that do not work together.
fn consistent(proxy: &mut SectionReader<'_, '_>, settings: &ProxySettings) {
    for backend in &settings.backends {
        if let Some(listen) = settings.listen.iter().find(|l| address::loops(backend, **l)) {
            let what = format!(
                "`backend` {backend} is the proxy itself, which listens on {listen}; \
                 name the server behind it"
            );
            proxy.fault("backend", what);
        }
    }
    if settings.listen.len() > LISTENERS_MAX {
        proxy.fault("listen", format!("more than {LISTENERS_MAX} listeners; remove some"));
    }
    let believed = !settings.trusted_proxies.is_empty();
    if !believed && settings.client_address != ClientAddress::XForwardedFor {
        let what =
            "`client_address` is believed only from `trusted_proxies`; name them, or remove it";
        proxy.fault("client_address", what);
    }
    if settings.keep_cost_header && !matches!(settings.cost, CostSource::Header(_)) {
        proxy.fault("cost_header", "`cost_header: keep` needs `cost: header:NAME`; remove it");
    }
}

fn tls(proxy: &mut SectionReader<'_, '_>, listen: &mut Vec<SocketAddr>) -> Option<FrontTls> {
    if !proxy.written("tls") {
        proxy.allow("tls");
        return None;
    }
    if listen.is_empty() {
        proxy.fault("tls", "`tls` is for a proxy that listens; name where, or remove it");
    }
    proxy.section("tls", |section| super::tls::front(section, listen))
}

fn backends(proxy: &mut SectionReader<'_, '_>) -> Vec<BackendAddress> {
    let mut backends =
        proxy.list("backend", vec![BackendAddress::http("127.0.0.1:80")], address::backend);
    let is_empty =
        |node: &YamlNode| matches!(&node.value, YamlValue::List(list) if list.is_empty());
    if proxy.node("backend").is_some_and(is_empty) {
        proxy.fault("backend", "`backend` is an empty list; name a server: http://127.0.0.1:80");
    }
    if backends.len() > BACKENDS_MAX {
        proxy.fault("backend", format!("more than {BACKENDS_MAX} backends; remove some"));
        backends.truncate(BACKENDS_MAX);
    }
    let twice = backends.iter().enumerate().find(|(at, one)| backends[..*at].contains(one));
    if let Some((_, twice)) = twice {
        let what = format!("`backend` {twice} is there twice; remove one");
        proxy.fault("backend", what);
    }
    backends
}

fn backend_tls(proxy: &mut SectionReader<'_, '_>, backends: &[BackendAddress]) -> BackendTls {
    if !proxy.written("backend_tls") {
        proxy.allow("backend_tls");
        return BackendTls::default();
    }
    if !backends.iter().any(BackendAddress::is_secured) {
        let what = "`backend_tls` is for a backend of https://; name one, or remove it";
        proxy.fault("backend_tls", what);
    }
    proxy.section("backend_tls", |tls| {
        let client = super::tls::client(tls);
        let verify = tls.value("verify", true, truth);
        if !verify && client.ca.is_some() {
            tls.fault("verify", "`verify: false` believes anybody, and needs no `ca`; remove one");
        }
        let protocols = [BackendProtocol::Auto, BackendProtocol::Http1, BackendProtocol::Http2];
        let named = protocols.map(|protocol| (protocol.to_string(), protocol));
        let protocol = tls.value("protocol", BackendProtocol::Auto, |text| {
            one_of(text, &named.each_ref().map(|(name, protocol)| (&**name, *protocol)))
        });
        BackendTls { client, verify, protocol }
    })
}

/// Reads the name of a protocol as it is written in `Upgrade`.
fn upgrade(text: &str) -> Read<String> {
    let name = limits::header_name(text)?;
    match &*name {
        // These protocols would bypass the accounting of requests.
        "h2c" | "h2" | "tls" | "http" => Err("it would carry requests that nobody counts".into()),
        _ => Ok(name.into()),
    }
}

fn queue(section: &mut SectionReader<'_, '_>, cpus: f64) -> ProxyQueueSettings {
    ProxyQueueSettings {
        concurrency: section.key(&rows::queue::CONCURRENCY),
        reserve: section.key_or(&rows::queue::RESERVE, (2.0 * cpus).ceil().max(2.0) as usize),
        debt_max: section.key(&rows::queue::DEBT_MAX),
        len_max: section.key(&rows::queue::LEN_MAX),
        wait_max: section.key(&rows::queue::WAIT_MAX),
        known_max: section.key(&rows::queue::KNOWN_MAX),
    }
}

impl ProxyQueueSettings {
    /// The defaults for a backend with `cpus` CPUs.
    #[must_use]
    pub fn for_cpus(cpus: f64) -> ProxyQueueSettings {
        SectionReader::defaults(|section| queue(section, cpus))
    }
}

fn timeouts(section: &mut SectionReader<'_, '_>) -> ProxyTimeouts {
    let default = ProxyTimeouts::default();
    let mut time = |key, default: Duration| {
        let default = Nanos(u64::try_from(default.as_nanos()).unwrap_or(u64::MAX));
        let read = |text: &str| within(duration(text)?, TIMEOUT_MIN..=DURATION_MAX);
        Duration::from_nanos(section.value(key, default, read).0)
    };
    ProxyTimeouts {
        header: time("header", default.header),
        connect: time("connect", default.connect),
        idle: time("idle", default.idle),
        backend: time("backend", default.backend),
        drain: time("drain", default.drain),
        abort_linger: time("abort_linger", default.abort_linger),
        tunnel: time("tunnel", default.tunnel),
    }
}

fn bounds(section: &mut SectionReader<'_, '_>) -> ProxyBounds {
    let default = ProxyBounds::default();
    let connections = |text: &str| within(count(text)?, 0..=10_000_000).map(|n| n as usize);
    let header = |text: &str| match size(text)? {
        0 => Ok(0),
        bytes => within(bytes, 1024..=1 << 24),
    };
    let streams = |text: &str| within(count(text)?, 1..=10_000).map(|n| n as u32);
    ProxyBounds {
        connections: section.value("connections", default.connections, connections),
        connections_per_address: section.value(
            "connections_per_address",
            default.connections_per_address,
            connections,
        ),
        header_bytes: section.value("header_bytes", default.header_bytes as u64, header) as usize,
        body_bytes: section.value("body_bytes", default.body_bytes, size),
        body_buffer: section.value("body_buffer", default.body_buffer as u64, |text| {
            within(size(text)?, 0..=1 << 24)
        }) as usize,
        requests_per_connection: section.value(
            "requests_per_connection",
            default.requests_per_connection,
            count,
        ),
        streams: section.value("streams", default.streams, streams),
        backend_streams: section.value("backend_streams", default.backend_streams, streams),
    }
}

/// Whether the cost header is passed on, in the words of the file: `keep` or `strip`.
struct CostHeaderMode(bool);

impl std::fmt::Display for CostHeaderMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0 { "keep" } else { "strip" })
    }
}

fn keep(text: &str) -> Read<CostHeaderMode> {
    one_of(text, &[("keep", true), ("strip", false)]).map(CostHeaderMode)
}

fn read_cpus(text: &str) -> Read<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = text.parse().ok().filter(|_| plain);
    within(number.ok_or("not a number of CPUs; write 4 or 0.5")?, 0.01..=65_536.0)
}

fn read_cost(text: &str) -> Read<CostSource> {
    match text.split_once(':') {
        None if text == "wall" => Ok(CostSource::Wall),
        None if text == "shared" => Ok(CostSource::Shared),
        Some(("header", name)) => Ok(CostSource::Header(limits::header_name(name)?.into())),
        Some(("cgroup", path)) if path.starts_with('/') => Ok(CostSource::Cgroup(path.into())),
        Some(("cgroup", _)) => Err("write cgroup:/system.slice/app.service".to_owned()),
        _ => Err("must be wall, shared, header:NAME or cgroup:PATH".to_owned()),
    }
}

/// Reads the action for a client in debt.
///
/// # Errors
/// If it is none of the known actions.
pub fn read_action(text: &str) -> Read<LimitAction> {
    let actions = [LimitAction::Queue, LimitAction::Hold, LimitAction::Delay, LimitAction::Reject];
    one_of(text, &actions.map(|action| (action.name(), action)))
}

fn read_client(text: &str) -> Read<ClientAddress> {
    match text {
        "xff" => Ok(ClientAddress::XForwardedFor),
        "forwarded" => Ok(ClientAddress::Forwarded),
        "proxy-protocol" => Ok(ClientAddress::ProxyProtocol),
        _ => match text.strip_prefix("header:") {
            Some(name) => Ok(ClientAddress::Header(limits::header_name(name)?.into())),
            None => Err("must be xff, forwarded, proxy-protocol or header:NAME".to_owned()),
        },
    }
}

/// Reads a duration such as `250ms`.
///
/// # Errors
/// If the text does not have this form.
pub fn duration(text: &str) -> Read<Nanos> {
    text.parse().map_err(|error: evenkeel_core::units::QuantityParseError| error.to_string())
}

/// Reads `true` or `false`.
///
/// # Errors
/// If it is neither.
pub fn truth(text: &str) -> Read<bool> {
    one_of(text, &[("true", true), ("false", false)])
}

/// Reads a whole number, without a sign.
///
/// # Errors
/// If it is anything else.
pub fn count(text: &str) -> Read<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| plain).ok_or_else(|| "not a whole number".to_owned())
}

/// Reads a number of bytes: `65536`, `64k`, `10m`, `1g`.
fn size(text: &str) -> Read<u64> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = count(number).ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| "not a size; write 65536, 64k, 10m or 1g".to_owned())
}
