//! The `peers` section: instances that count together.
//!
//! A key that belongs to one transport is a fault with another. The settings are described in
//! `settings::peers`. Names are not resolved and files are not read here.

use super::tls;
use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey};
use crate::reader::{SectionReader, settings};
use crate::values::{Read, one_of, word_enum};
use evenkeel_core::units::Nanos;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

settings! {
    /// Instances that count together.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PeersSettings from keys(peers), TABLE = "peers";

    /// The transport. `mesh`: a connection between each two instances. `multicast`: datagrams on
    /// one network. `nats`: messages through NATS, for more than about 50 instances.
    pub via: PeerTransport, VIA: DefaultedKey<TransportName> =
        ConfigKey::words("via", TransportName::WORDS).default(TransportName::Mesh) => via(peers);
    /// `mesh`: address to listen on. Beyond loopback it needs `secret_file` or `tls`.
    LISTEN: DefaultedKey<SocketAddr> = ConfigKey::text("listen", address::listen)
        .default_with(|| SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)));
    /// `mesh`: instances to connect to, as `host:port`, or `dns:name:port` for all addresses of a
    /// name, which is resolved repeatedly. The default port is 7946. The list may include this
    /// instance, and need not be complete: an instance learns of the others from those that it
    /// reaches.
    JOIN: ListKey<PeerTarget> =
        ConfigKey::opaque("join", join).list_with(Vec::new).example("192.0.2.7:7946");
    /// `mesh`: whether instances on this network are found by multicast DNS. Needs `secret_file` or
    /// `tls`.
    MDNS: DefaultedKey<bool> = ConfigKey::truth("mdns").default(false);
    /// `multicast`: address and port of the group. Needs `secret_file`, unless `interface` is
    /// loopback.
    GROUP: DefaultedKey<SocketAddr> = ConfigKey::text("group", group)
        .default_with(|| SocketAddr::from((Ipv4Addr::new(239, 255, 70, 46), DEFAULT_PORT)));
    /// `multicast`: address of this machine on the network to use; with IPv6 only `::1`.
    INTERFACE: ConfigKey<IpAddr> = ConfigKey::text("interface", interface)
        .default_note("the system chooses").example("192.0.2.7");
    /// `multicast`: number of networks that a datagram may cross, including the first.
    HOPS: DefaultedKey<u32> = ConfigKey::whole("hops").within(1, 255).default(1)
        .low("instances in other networks get nothing").high("foreign networks get the datagrams");
    /// `nats`: servers, `nats://host:port` or `tls://host:port`. Beyond loopback they need
    /// `secret_file`.
    NATS: ListKey<NatsServer> = ConfigKey::text("nats", server)
        .list_with(|| vec![NatsServer { tls: false, authority: "127.0.0.1:4222".to_owned() }]);
    /// `nats`: file with `user:password` or a token for NATS, on one line.
    CREDENTIALS_FILE: ConfigKey<PathBuf> =
        ConfigKey::path("credentials_file").example("/etc/evenkeel/nats");
    /// Name of the cluster, the same on all its instances.
    pub cluster: String, CLUSTER: DefaultedKey<String> = ConfigKey::text("cluster", cluster)
        .range_note("1 to 63 letters, digits, `-`, `_`").default_with(|| "default".to_owned());
    /// File with the secret of the cluster, 16 to 1024 visible characters. Evenkeel trusts only
    /// instances with this secret, and only they can read the messages.
    pub secret_file: Option<PathBuf>, SECRET_FILE: ConfigKey<PathBuf> =
        ConfigKey::path("secret_file").example("/etc/evenkeel/secret");
    /// [TLS](#peerstls) between instances. With `nats`: the certificate that the server gets.
    pub tls: Option<PeersTls>, TLS: SubsectionKey = SubsectionKey::one("tls", &tls::PEERS)
        => peers.has("tls").then(|| peers.section(&TLS, tls)).flatten();
    /// Time between two messages to the other instances.
    pub period: Duration, PERIOD: DefaultedKey<Nanos> = ConfigKey::duration("period")
        .within(Nanos::from_millis(100), Nanos::from_secs(60)).default(Nanos::from_secs(5))
        .low("more messages")
        .high("a client that uses all instances gets more before all of them know");
    /// `true`: all instances use one backend, and its `cpus` are counted once. `false`: each has
    /// its own, and a `share` is a share of the sum over all live instances.
    pub cpus_shared: bool, CPUS_SHARED: DefaultedKey<bool> =
        ConfigKey::truth("cpus_shared").default(false);
    /// Number of instances, including this one. Messages from further instances are ignored and
    /// counted.
    pub nodes_max: usize, NODES_MAX: DefaultedKey<usize> = ConfigKey::whole("nodes_max")
        .within(2, 1024).default(256).low("instances are ignored").high("memory");
}

/// How instances exchange messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerTransport {
    /// One connection between each pair of instances.
    Mesh {
        /// Address on which other instances connect.
        listen: SocketAddr,
        /// Instances to connect to.
        join: Vec<PeerTarget>,
        /// Whether to discover instances on this network by multicast DNS.
        mdns: bool,
    },
    /// Datagrams to a multicast group on one network.
    Multicast {
        /// Address and port of the group.
        group: SocketAddr,
        /// This machine's address on the network to use.
        interface: Option<IpAddr>,
        /// Hop limit of datagrams, 1 to 255; 1 means that no router forwards them.
        hops: u32,
    },
    /// Messages through NATS servers.
    Nats {
        /// One server, or several of a cluster.
        servers: Vec<NatsServer>,
        /// File with `user:password` or a token for NATS.
        credentials_file: Option<PathBuf>,
    },
}

impl PeerTransport {
    /// The word that the file uses for this transport.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            PeerTransport::Mesh { .. } => "mesh",
            PeerTransport::Multicast { .. } => "multicast",
            PeerTransport::Nats { .. } => "nats",
        }
    }
}

/// An instance, or several instances behind a name, to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerTarget {
    /// One instance: host and port. A host name is resolved at each connect.
    One(String),
    /// All addresses of a host name, which is resolved repeatedly: name and port.
    Dns(String),
}

/// Address of a NATS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsServer {
    /// Whether the connection uses TLS (`tls://`).
    pub tls: bool,
    /// Host and port.
    pub authority: String,
}

impl fmt::Display for NatsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "tls" } else { "nats" }, self.authority)
    }
}

/// Certificates of peers: paths of PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeersTls {
    /// Certificate of this instance, followed by the intermediate certificates.
    pub cert: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// The authority that has signed the certificates of all instances.
    pub ca: PathBuf,
}

/// Default port of instances.
const DEFAULT_PORT: u16 = 7946;
/// Maximum length of a cluster's name, in bytes: it is a part of NATS subjects and of mDNS service
/// names.
const CLUSTER_BYTES_MAX: usize = 63;

/// Keys that belong to one transport, with that transport.
const TRANSPORT_KEYS: [(&[&str], TransportName); 3] = [
    (&["listen", "join", "mdns"], TransportName::Mesh),
    (&["group", "interface", "hops"], TransportName::Multicast),
    (&["nats", "credentials_file"], TransportName::Nats),
];

/// Reads the section.
pub(crate) fn read(peers: &mut SectionReader<'_, '_>) -> PeersSettings {
    let settings = keys(peers);
    require_authentication(peers, &settings);
    settings
}

fn via(peers: &mut SectionReader<'_, '_>) -> PeerTransport {
    let word = peers.key(&VIA);
    let via = match word {
        TransportName::Mesh => PeerTransport::Mesh {
            listen: peers.key(&LISTEN),
            join: peers.key(&JOIN),
            mdns: peers.key(&MDNS),
        },
        TransportName::Multicast => multicast(peers),
        TransportName::Nats => PeerTransport::Nats {
            servers: peers.key(&NATS),
            credentials_file: peers.key(&CREDENTIALS_FILE),
        },
    };
    reject_foreign_keys(peers, word);
    via
}

fn multicast(peers: &mut SectionReader<'_, '_>) -> PeerTransport {
    let group = peers.key(&GROUP);
    let interface = peers.key(&INTERFACE);
    if interface.is_some_and(|address| address.is_ipv4() != group.is_ipv4()) {
        peers.fault_of("interface", "and `group` must both be IPv4, or both IPv6");
    }
    PeerTransport::Multicast { group, interface, hops: peers.key(&HOPS) }
}

/// Reports keys that belong to another transport, because they would have no effect.
fn reject_foreign_keys(peers: &mut SectionReader<'_, '_>, via: TransportName) {
    for (keys, of) in TRANSPORT_KEYS.into_iter().filter(|(_, of)| *of != via) {
        let what = format!("belongs to `via: {of}`; remove it, or use that");
        peers.refuse(keys, &what);
    }
}

fn tls(tls: &mut SectionReader<'_, '_>) -> Option<PeersTls> {
    tls.require(&["cert", "key", "ca"], |key| {
        format!("`tls` of peers needs `{key}`: peers authenticate each other with it")
    });
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

word_enum! {
    /// The transport, in the words of `via`.
    pub(crate) enum TransportName {
        Mesh = "mesh",
        Multicast = "multicast",
        Nats = "nats",
    }
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
        "write nats://127.0.0.1:4222 or tls://host:4222; put a user into `credentials_file`"
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
fn is_mesh(peers: Option<&PeersSettings>) -> bool {
    peers.is_some_and(|peers| matches!(peers.via, PeerTransport::Mesh { .. }))
}

/// Whether a queue is shared with the peers unless its section says otherwise.
pub(crate) fn share_a_queue(peers: Option<&PeersSettings>) -> bool {
    is_mesh(peers) && peers.is_some_and(|peers| peers.cpus_shared)
}

/// Reports `shared: true` in the section of a queue if no mesh carries the messages about it.
pub(crate) fn refuse_without_mesh(
    section: &mut SectionReader<'_, '_>,
    shared: bool,
    peers: Option<&PeersSettings>,
) {
    if shared && !is_mesh(peers) {
        let what = "needs `peers` with `via: mesh`: messages about the queue must arrive in order, \
                    and all of them";
        section.fault_of("shared", what);
    }
}
