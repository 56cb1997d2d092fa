//! The `peers` section: instances that count together.
//!
//! Each key is read with its default and its range. A key that belongs to one transport is a fault
//! with another. The settings are described in `settings::peers`. Names are not resolved and files
//! are not read here.

use super::std_time;
use crate::reader::SectionReader;
use crate::rows::peers::{self as rows, TransportName};
use crate::rows::tls;
use crate::settings::peers::{NatsServer, PeerTransport, PeersSettings, PeersTls};
use std::net::IpAddr;

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

/// Reads the section.
pub fn read(peers: &mut SectionReader<'_, '_>) -> PeersSettings {
    let word = peers.key(&rows::VIA);
    let via = match word {
        TransportName::Mesh => mesh(peers),
        TransportName::Multicast => multicast(peers),
        TransportName::Nats => nats(peers),
    };
    reject_foreign_keys(peers, word);
    let cluster = peers.key(&rows::CLUSTER);
    let secret_file = peers.key(&rows::SECRET_FILE);
    let tls = peers.has("tls").then(|| peers.section(&rows::TLS, tls)).flatten();
    let period = std_time(peers.key(&rows::PERIOD));
    let cpus_shared = peers.key(&rows::CPUS_SHARED);
    let nodes_max = peers.key(&rows::NODES_MAX);
    let settings = PeersSettings { via, cluster, secret_file, tls, period, cpus_shared, nodes_max };
    require_authentication(peers, &settings);
    settings
}

fn mesh(peers: &mut SectionReader<'_, '_>) -> PeerTransport {
    PeerTransport::Mesh {
        listen: peers.key(&rows::LISTEN),
        join: peers.key(&rows::JOIN),
        mdns: peers.key(&rows::MDNS),
    }
}

fn multicast(peers: &mut SectionReader<'_, '_>) -> PeerTransport {
    let group = peers.key(&rows::GROUP);
    let interface = peers.key(&rows::INTERFACE);
    if interface.is_some_and(|address| address.is_ipv4() != group.is_ipv4()) {
        peers.fault_of("interface", "and `group` must both be IPv4, or both IPv6");
    }
    PeerTransport::Multicast { group, interface, hops: peers.key(&rows::HOPS) }
}

fn nats(peers: &mut SectionReader<'_, '_>) -> PeerTransport {
    PeerTransport::Nats {
        servers: peers.key(&rows::NATS),
        credentials_file: peers.key(&rows::CREDENTIALS_FILE),
    }
}

/// Reports keys that belong to another transport, because they would have no effect.
fn reject_foreign_keys(peers: &mut SectionReader<'_, '_>, via: TransportName) {
    for (key, of) in TRANSPORT_KEYS.into_iter().filter(|(_, of)| *of != via) {
        if peers.has(key) {
            let of = of.word();
            peers.fault_of(key, format!("belongs to `via: {of}`; remove it, or use that"));
        }
    }
}

fn tls(tls: &mut SectionReader<'_, '_>) -> Option<PeersTls> {
    for key in ["cert", "key", "ca"] {
        if !tls.has(key) {
            tls.fault(
                key,
                format!("`tls` of peers needs `{key}`: peers authenticate each other with it"),
            );
        }
    }
    let cert = tls.key(&tls::REQUIRED_CERT);
    let key = tls.key(&tls::REQUIRED_KEY);
    let ca = tls.key(&tls::PEER_CA);
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
            let what = "finds instances of other machines: it needs a `secret_file` or \
                        `tls`";
            peers.fault_of("mdns", what);
        }
        PeerTransport::Multicast { interface, .. } => {
            let local = interface.is_some_and(|address| address.is_loopback());
            if !(secret || local) {
                let what = "a group needs a `secret_file`: any host on the network can send to it";
                peers.fault("group", what);
            }
            if tls {
                peers.fault("tls", "datagrams have no `tls`; use a `secret_file`");
            }
        }
        PeerTransport::Nats { servers, .. } if !(secret || servers.iter().all(local)) => {
            let what = "NATS beyond loopback needs a `secret_file`: otherwise any publisher could \
                        forge messages";
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
