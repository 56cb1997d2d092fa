//! The `peers` section: instances that count together.
//!
//! Each key is read with its default and its range. A key that belongs to one transport is a fault
//! with another. The settings are described in `settings::peers`. Names are not resolved and files
//! are not read here.

use super::proxy::{count, duration, truth};
use crate::address;
use crate::reader::{Read, Section, one_of, within};
use crate::settings::peers::{Join, NatsServer, Peers, PeersTls, Via};
use evenkeel_core::units::Nanos;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Range of `period`, the interval between two messages to the other instances.
const PERIOD: RangeInclusive<Nanos> = Nanos::from_millis(100)..=Nanos::from_secs(60);
/// Default port of instances.
const PORT: u16 = 7946;
/// Maximum length of a cluster's name, in bytes: it is a part of NATS subjects and of mDNS service
/// names.
const CLUSTER_BYTES_MAX: usize = 63;
/// Keys that belong to one transport, with that transport.
const BELONGS: [(&str, Word); 8] = [
    ("listen", Word::Mesh),
    ("join", Word::Mesh),
    ("mdns", Word::Mesh),
    ("group", Word::Multicast),
    ("interface", Word::Multicast),
    ("hops", Word::Multicast),
    ("nats", Word::Nats),
    ("credentials_file", Word::Nats),
];

/// The transport, in the words of `via`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Mesh,
    Multicast,
    Nats,
}

impl Word {
    const ALL: [(&str, Word); 3] =
        [("mesh", Word::Mesh), ("multicast", Word::Multicast), ("nats", Word::Nats)];
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Word::ALL[*self as usize].0)
    }
}

/// Reads the section.
pub fn read(peers: &mut Section<'_, '_>) -> Peers {
    let word = peers.value("via", Word::Mesh, |text| one_of(text, &Word::ALL));
    let via = match word {
        Word::Mesh => mesh(peers),
        Word::Multicast => multicast(peers),
        Word::Nats => nats(peers),
    };
    strangers(peers, word);
    let cluster = peers.value("cluster", "default".to_owned(), cluster);
    let secret_file = peers.optional("secret_file", super::path);
    let tls = peers.has("tls").then(|| peers.section("tls", tls)).flatten();
    peers.allow("tls");
    let period =
        peers.value("period", Nanos::from_secs(5), |text| within(duration(text)?, PERIOD.clone()));
    let cpus_shared = peers.value("cpus_shared", false, truth);
    let nodes_max = peers.value("nodes_max", 256, |text| within(count(text)?, 2..=1024)) as usize;
    let period = Duration::from_nanos(period.0);
    let settings = Peers { via, cluster, secret_file, tls, period, cpus_shared, nodes_max };
    protected(peers, &settings);
    settings
}

fn mesh(peers: &mut Section<'_, '_>) -> Via {
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    Via::Mesh {
        listen: peers.value("listen", local, address::listen),
        join: peers.list("join", Vec::new(), join),
        mdns: peers.value("mdns", false, truth),
    }
}

fn multicast(peers: &mut Section<'_, '_>) -> Via {
    let usual = SocketAddr::from((Ipv4Addr::new(239, 255, 70, 46), PORT));
    let group = peers.value("group", usual, group);
    let interface = peers.optional("interface", interface);
    if interface.is_some_and(|address| address.is_ipv4() != group.is_ipv4()) {
        peers.fault("interface", "`interface` and `group` must both be IPv4, or both IPv6");
    }
    let hops = peers.value("hops", 1, |text| within(count(text)?, 1..=255)) as u32;
    Via::Multicast { group, interface, hops }
}

fn nats(peers: &mut Section<'_, '_>) -> Via {
    let usual = NatsServer { tls: false, authority: "127.0.0.1:4222".to_owned() };
    Via::Nats {
        servers: peers.list("nats", vec![usual], server),
        credentials_file: peers.optional("credentials_file", super::path),
    }
}

/// Reports keys that belong to another transport, because they would have no effect.
fn strangers(peers: &mut Section<'_, '_>, via: Word) {
    for (key, of) in BELONGS.into_iter().filter(|(_, of)| *of != via) {
        if peers.has(key) {
            peers.fault(key, format!("`{key}` belongs to `via: {of}`; remove it, or use that"));
        }
        peers.allow(key);
    }
}

fn tls(tls: &mut Section<'_, '_>) -> Option<PeersTls> {
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
fn protected(peers: &mut Section<'_, '_>, settings: &Peers) {
    let secret = settings.secret_file.is_some();
    let tls = settings.tls.is_some() || peers.has("tls");
    match &settings.via {
        Via::Mesh { listen, .. } if !(secret || tls || listen.ip().is_loopback()) => {
            let what = "`peers` beyond loopback need a `secret_file` or `tls`; name one, or \
                        listen on 127.0.0.1";
            peers.fault("listen", what);
        }
        Via::Mesh { mdns: true, .. } if !(secret || tls) => {
            let what = "`mdns` finds instances of other machines: it needs a `secret_file` or \
                        `tls`";
            peers.fault("mdns", what);
        }
        Via::Multicast { interface, .. } => {
            let local = interface.is_some_and(|address| address.is_loopback());
            if !(secret || local) {
                let what = "a group needs a `secret_file`: anybody on the network can send to it";
                peers.fault("group", what);
            }
            if tls {
                peers.fault("tls", "datagrams have no `tls`; use a `secret_file`");
            }
        }
        Via::Nats { servers, .. } if !(secret || servers.iter().all(local)) => {
            let what = "NATS beyond loopback needs a `secret_file`: whoever may publish there \
                        could be believed";
            peers.fault("nats", what);
        }
        Via::Mesh { .. } | Via::Nats { .. } => {}
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

fn join(text: &str) -> Read<Join> {
    let wrong = || "write 192.0.2.7:7946, a host and port, or dns:name:7946".to_owned();
    match text.strip_prefix("dns:") {
        Some(rest) => authority(rest, PORT).map(Join::Dns).ok_or_else(wrong),
        None => authority(text, PORT).map(Join::One).ok_or_else(wrong),
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
