//! The `proxy` section.
//!
//! The keys are described in `rows::proxy` and its neighbours, the settings in `settings`. The
//! limits are read in `limits`.

use super::limits::{self, LimitContext};
use super::{hosts, std_time};
use crate::address;
use crate::reader::SectionReader;
use crate::rows::proxy as rows;
use crate::rows::{bounds, queue, timeouts, tls};
use crate::settings::hosts::HostSettings;
use crate::settings::tls::FrontTls;
use crate::settings::{
    BACKENDS_MAX, BackendAddress, BackendTls, ClientAddress, CostSource, ProxyBounds,
    ProxyQueueSettings, ProxySettings, ProxyTimeouts,
};
use crate::tree::{YamlNode, YamlValue};
use std::net::SocketAddr;

/// What `listen` says where the section only has limits for the `check` door.
pub const LISTEN_OFF: &str = "off";
/// Maximum number of addresses of one door.
const LISTENERS_MAX: usize = 64;

/// Reads the section. `ground.cpus` is the number of CPUs of the machine.
pub fn read(proxy: &mut SectionReader<'_, '_>, ground: LimitContext) -> ProxySettings {
    let off = matches!(proxy.node("listen").map(|node| &node.value),
        Some(YamlValue::Text(text)) if text == LISTEN_OFF);
    if off {
        proxy.show("listen", YamlNode::text(LISTEN_OFF));
        return limits_alone(proxy, ground);
    }
    let listen = proxy.key(&rows::LISTEN);
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
    let upgrades = proxy.key(&rows::UPGRADES);
    let cpus = proxy.key_or(&rows::CPUS, ground.cpus);
    let cost = proxy.key(&rows::COST);
    let action = proxy.key(&rows::ACTION);
    let queue = proxy.section(&rows::QUEUE, |section| queue(section, cpus));
    let max_delay = proxy.key(&rows::MAX_DELAY);
    let mut hosts = HostSettings::default();
    let mut exempt_when = Vec::new();
    let settings = ProxySettings {
        listen,
        tls,
        http2: proxy.key(&rows::HTTP2),
        backends,
        backend_tls,
        upgrades,
        cpus,
        cost,
        action,
        queue,
        max_delay,
        trusted_proxies: proxy.key(&rows::TRUSTED_PROXIES),
        client_address: proxy.key(&rows::CLIENT_ADDRESS),
        timeouts: proxy.section(&rows::TIMEOUTS, timeouts),
        bounds: proxy.section(&rows::BOUNDS, bounds),
        exempt: hosts::exempt(proxy, &mut hosts, &mut exempt_when),
        exempt_when,
        hosts: hosts::read(proxy, hosts),
        shadow: proxy.key(&rows::SHADOW),
        headers: proxy.key(&rows::HEADERS),
        keep_cost_header: proxy.key(&rows::COST_HEADER),
        names_max: proxy.key(&rows::NAMES_MAX),
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
}

fn tls(proxy: &mut SectionReader<'_, '_>, listen: &mut Vec<SocketAddr>) -> Option<FrontTls> {
    if proxy.written("tls") && listen.is_empty() {
        proxy.fault_of("tls", "needs a proxy that listens; set `listen`, or remove it");
    }
    proxy.section_if_written(&rows::TLS, |section| super::tls::front(section, listen)).flatten()
}

fn backends(proxy: &mut SectionReader<'_, '_>) -> Vec<BackendAddress> {
    let mut backends = proxy.key(&rows::BACKEND);
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
    let read = proxy.section_if_written(&rows::BACKEND_TLS, |section| {
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

fn queue(section: &mut SectionReader<'_, '_>, cpus: f64) -> ProxyQueueSettings {
    ProxyQueueSettings {
        concurrency: section.key(&queue::CONCURRENCY),
        reserve: section.key_or(&queue::RESERVE, (2.0 * cpus).ceil().max(2.0) as usize),
        debt_max: section.key(&queue::DEBT_MAX),
        len_max: section.key(&queue::LEN_MAX),
        wait_max: section.key(&queue::WAIT_MAX),
        known_max: section.key(&queue::KNOWN_MAX),
    }
}

impl ProxyQueueSettings {
    /// The defaults for a backend with `cpus` CPUs.
    #[must_use]
    pub fn for_cpus(cpus: f64) -> ProxyQueueSettings {
        SectionReader::defaults(&queue::TABLE, |section| queue(section, cpus))
    }
}

fn timeouts(section: &mut SectionReader<'_, '_>) -> ProxyTimeouts {
    ProxyTimeouts {
        header: std_time(section.key(&timeouts::HEADER)),
        connect: std_time(section.key(&timeouts::CONNECT)),
        idle: std_time(section.key(&timeouts::IDLE)),
        backend: std_time(section.key(&timeouts::BACKEND)),
        drain: std_time(section.key(&timeouts::DRAIN)),
        abort_linger: std_time(section.key(&timeouts::ABORT_LINGER)),
        tunnel: std_time(section.key(&timeouts::TUNNEL)),
    }
}

impl Default for ProxyTimeouts {
    fn default() -> ProxyTimeouts {
        SectionReader::defaults(&timeouts::TABLE, timeouts)
    }
}

fn bounds(section: &mut SectionReader<'_, '_>) -> ProxyBounds {
    ProxyBounds {
        connections: section.key(&bounds::CONNECTIONS),
        connections_per_address: section.key(&bounds::CONNECTIONS_PER_ADDRESS),
        header_bytes: section.key(&bounds::HEADER_BYTES),
        body_bytes: section.key(&bounds::BODY_BYTES),
        body_buffer: section.key(&bounds::BODY_BUFFER),
        requests_per_connection: section.key(&bounds::REQUESTS_PER_CONNECTION),
        streams: section.key(&bounds::STREAMS),
        backend_streams: section.key(&bounds::BACKEND_STREAMS),
    }
}

impl Default for ProxyBounds {
    fn default() -> ProxyBounds {
        SectionReader::defaults(&bounds::TABLE, bounds)
    }
}
