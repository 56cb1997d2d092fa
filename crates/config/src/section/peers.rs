//! The `peers` section: instances that count together.
//!
//! Each key is read with its default and its range. A key that belongs to one transport is a fault
//! with another. The settings are described in `settings::peers`. Names are not resolved and files
//! are not read here.

use super::proxy::{count, duration, truth};
use crate::address;
use crate::reader::{Read, SectionReader, one_of, within};
use crate::settings::peers::{NatsServer, PeerTarget, PeerTransport, PeersSettings, PeersTls};
use evenkeel_core::units::Nanos;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Range of `period`, the interval between two messages to the other instances.
const PERIOD_RANGE: RangeInclusive<Nanos> = Nanos::from_millis(100)..=Nanos::from_secs(60);
/// Default port of instances.
const DEFAULT_PORT: u16 = 7946;
/// Maximum length of a cluster's name, in bytes: it is a part of NATS subjects and of mDNS service
/// names.
const CLUSTER_BYTES_MAX: usize = 63;
/// Keys that belong to one transport, with that transport.
const TRANSPORT_KEYS: [(&str, TransportName); 8] = [
    ("listen", TransportName::Mesh),
    ("join", TransportName::Mesh),
    ("mdns", TransportName::Mesh),
    ("group", TransportName::Multicast),
    ("interface", TransportName::Multicast),
    ("hops", TransportName::Multicast),
    ("nats", TransportName::Nats),
    ("credentials_file", TransportName::Nats),
];

/// The transport, in the words of `via`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransportName {
    Mesh,
    Multicast,
    Nats,
}

impl TransportName {
    const ALL: [(&str, TransportName); 3] = [
        ("mesh", TransportName::Mesh),
        ("multicast", TransportName::Multicast),
        ("nats", TransportName::Nats),
    ];
}

impl fmt::Display for TransportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TransportName::ALL[*self as usize].0)
    }
}

/// Reads the section.
pub fn read(peers: &mut SectionReader<'_, '_>) -> PeersSettings {
    let word = peers.value("via", TransportName::Mesh, |text| one_of(text, &TransportName::ALL));
    let via = match word {
        TransportName::Mesh => mesh(peers),
        TransportName::Multicast => multicast(peers),
        TransportName::Nats => nats(peers),
    };
    reject_foreign_keys(peers, word);
    let cluster = peers.value("cluster", "default".to_owned(), cluster);
    let secret_file = peers.optional("secret_file", super::path);
    let tls = peers.has("tls").then(|| peers.section("tls", tls)).flatten();
    peers.allow("tls");
    let period = peers
        .value("period", Nanos::from_secs(5), |text| within(duration(text)?, PERIOD_RANGE.clone()));
    let cpus_shared = peers.value("cpus_shared", false, truth);
    let nodes_max = peers.value("nodes_max", 256, |text| within(count(text)?, 2..=1024)) as usize;
    let period = Duration::from_nanos(period.0);
    let settings = PeersSettings { via, cluster, secret_file, tls, period, cpus_shared, nodes_max };
    require_authentication(peers, &settings);
    settings
}

fn mesh(peers: &mut SectionReader<'_, '_>) -> PeerTransport {
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT));
    PeerTransport::Mesh {
        listen: peers.value("listen", local, address::listen),
        join: peers.list("join", Vec::new(), join),
        mdns: peers.value("mdns", false, truth),
    }
}

fn multicast(peers: &mut SectionReader<'_, '_>) -> PeerTransport {
    let usual = SocketAddr::from((Ipv4Addr::new(239, 255, 70, 46), DEFAULT_PORT));
    let group = peers.value("group", usual, group);
    let interface = peers.optional("interface", interface);
    if interface.is_some_and(|address| address.is_ipv4() != group.is_ipv4()) {
        peers.fault("interface", "`interface` and `group` must both be IPv4, or both IPv6");
    }
    let hops = peers.value("hops", 1, |text| within(count(text)?, 1..=255)) as u32;
    PeerTransport::Multicast { group, interface, hops }
}

fn nats(peers: &mut SectionReader<'_, '_>) -> PeerTransport {
    let usual = NatsServer { tls: false, authority: "127.0.0.1:4222".to_owned() };
    PeerTransport::Nats {
        servers: peers.list("nats", vec![usual], server),
        credentials_file: peers.optional("credentials_file", super::path),
    }
}

/// Reports keys that belong to another transport, because they would have no effect.
fn reject_foreign_keys(peers: &mut SectionReader<'_, '_>, via: TransportName) {
    for (key, of) in TRANSPORT_KEYS.into_iter().filter(|(_, of)| *of != via) {
        if peers.has(key) {
            peers.fault(key, format!("`{key}` belongs to `via: {of}`; remove it, or use that"));
        }
        peers.allow(key);
    }
}

fn tls(tls: &mut SectionReader<'_, '_>) -> Option<PeersTls> {
    for key in ["cert", "key", "ca"] {
        if !tls.has(key) {
            tls.fault(key, format!("`tls` of peers needs `{key}`: they know each other by it"));
        }
    }
    let cert = tls.optional("cert", super::path);
    let key = tls.optional("key", super::path);
    let ca = tls.optional("ca", super::path);
    Some(PeersTls { cert: cert?, key: key?, ca: ca? })
}

/// Reports a transport without authentication. A peer must prove that it belongs to the cluster,
/// unless only this machine can reach the transport.
fn require_authentication(peers: &mut SectionReader<'_, '_>, settings: &PeersSettings) {
    let secret = settings.secret_file.is_some();
    let tls = settings.tls.is_some() || peers.has("tls");
    match &settings.via {
        PeerTransport::Mesh { listen, .. } if !(secret || tls || listen.ip().is_loopback()) => {
            let what = "`peers` beyond loopback need a `secret_file` or `tls`; name one, or \
                        listen on 127.0.0.1";
            peers.fault("listen", what);
        }
        PeerTransport::Mesh { mdns: true, .. } if !(secret || tls) => {
            let what = "`mdns` finds instances of other machines: it needs a `secret_file` or \
                        `tls`";
            peers.fault("mdns", what);
        }
        PeerTransport::Multicast { interface, .. } => {
            let local = interface.is_some_and(|address| address.is_loopback());
            if !(secret || local) {
                let what = "a group needs a `secret_file`: anybody on the network can send to it";
                peers.fault("group", what);
            }
            if tls {
                peers.fault("tls", "datagrams have no `tls`; use a `secret_file`");
            }
        }
        PeerTransport::Nats { servers, .. } if !(secret || servers.iter().all(local)) => {
            let what = "NATS beyond loopback needs a `secret_file`: whoever may publish there \
                        could be believed";
            peers.fault("nats", what);
        }
        PeerTransport::Mesh { .. } | PeerTransport::Nats { .. } => {}
    }
}

fn local(server: &NatsServer) -> bool {
    let host = server.authority.rsplit_once(':').map_or("", |(host, _)| host);
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// Host and port; `port` is added if the text has none.
fn authority(text: &str, port: u16) -> Option<String> {
    let authority: http::uri::Authority = text.parse().ok()?;
    let host = authority.host();
    if host.is_empty() || text.contains('@') {
        return None;
    }
    match authority.port_u16() {
        Some(1..) => Some(text.to_owned()),
        None if host.len() == text.len() => Some(format!("{text}:{port}")),
        _ => None,
    }
}

fn join(text: &str) -> Read<PeerTarget> {
    let wrong = || "write 192.0.2.7:7946, a host and port, or dns:name:7946".to_owned();
    match text.strip_prefix("dns:") {
        Some(rest) => authority(rest, DEFAULT_PORT).map(PeerTarget::Dns).ok_or_else(wrong),
        None => authority(text, DEFAULT_PORT).map(PeerTarget::One).ok_or_else(wrong),
    }
}

fn server(text: &str) -> Read<NatsServer> {
    let wrong = || {
        "write nats://127.0.0.1:4222 or tls://host:4222; a user stands in `credentials_file`"
            .to_owned()
    };
    let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
    let tls = one_of(scheme, &[("nats", false), ("tls", true)]).map_err(|_| wrong())?;
    let authority = authority(rest.trim_end_matches('/'), 4222).ok_or_else(wrong)?;
    Ok(NatsServer { tls, authority })
}

fn group(text: &str) -> Read<SocketAddr> {
    let group = text.parse::<SocketAddr>().ok();
    let group = group.filter(|group| group.ip().is_multicast() && group.port() > 0);
    group.ok_or_else(|| "not a group; write 239.255.70.46:7946 or [ff15::7946]:7946".to_owned())
}

fn interface(text: &str) -> Read<IpAddr> {
    text.parse().map_err(|_| "an address of this machine, such as 192.0.2.7".to_owned())
}

fn cluster(text: &str) -> Read<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let good = (1..=CLUSTER_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits);
    let wrong = || format!("a name of 1 to {CLUSTER_BYTES_MAX} letters, digits, - and _");
    good.then(|| text.to_owned()).ok_or_else(wrong)
}
