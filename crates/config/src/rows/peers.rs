//! The keys of `peers`: instances that count together.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey};
use crate::rows::tls;
use crate::settings::peers::{NatsServer, PeerTarget};
use crate::values::{Read, one_of};
use evenkeel_core::units::Nanos;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "peers",
    keys: &[
        &VIA,
        &LISTEN,
        &JOIN,
        &MDNS,
        &GROUP,
        &INTERFACE,
        &HOPS,
        &NATS,
        &CREDENTIALS_FILE,
        &CLUSTER,
        &SECRET_FILE,
        &TLS,
        &PERIOD,
        &CPUS_SHARED,
        &NODES_MAX,
    ],
};

/// Default port of instances.
const DEFAULT_PORT: u16 = 7946;
/// Maximum length of a cluster's name, in bytes: it is a part of NATS subjects and of mDNS service
/// names.
const CLUSTER_BYTES_MAX: usize = 63;

/// The transport, in the words of `via`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransportName {
    Mesh,
    Multicast,
    Nats,
}

impl TransportName {
    /// The words for each transport. Invariant: in the order of the variants.
    const WORDS: [(&str, TransportName); 3] = [
        ("mesh", TransportName::Mesh),
        ("multicast", TransportName::Multicast),
        ("nats", TransportName::Nats),
    ];

    pub(crate) fn word(self) -> &'static str {
        TransportName::WORDS[self as usize].0
    }
}

pub(crate) static VIA: DefaultedKey<TransportName> = ConfigKey::words(
    "via",
    &TransportName::WORDS,
    "The transport. `mesh`: a connection between each two instances. `multicast`: datagrams on one \
     network. `nats`: messages through NATS, for more than about 50 instances.",
)
.default(TransportName::Mesh);

pub(crate) static LISTEN: DefaultedKey<SocketAddr> = ConfigKey::text(
    "listen",
    address::listen,
    "`mesh`: address to listen on. Beyond loopback it needs `secret_file` or `tls`.",
)
.default_with(|| SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)));

pub(crate) static JOIN: ListKey<PeerTarget> = ConfigKey::text(
    "join",
    join,
    "`mesh`: instances to connect to, `host:port`, or `dns:name:port` for all addresses of a name, \
     which is resolved again and again. Without a port it is 7946. An instance may name itself, \
     and need not name all: it learns of the others from those that it names.",
)
.example("192.0.2.7:7946")
.list_with(Vec::new);

pub(crate) static MDNS: DefaultedKey<bool> = ConfigKey::truth(
    "mdns",
    "`mesh`: whether instances on this network are found by multicast DNS. Needs `secret_file` or \
     `tls`.",
)
.default(false);

pub(crate) static GROUP: DefaultedKey<SocketAddr> = ConfigKey::text(
    "group",
    group,
    "`multicast`: address and port of the group. Needs `secret_file`, unless `interface` is \
     loopback.",
)
.default_with(|| SocketAddr::from((Ipv4Addr::new(239, 255, 70, 46), DEFAULT_PORT)));

pub(crate) static INTERFACE: ConfigKey<IpAddr> = ConfigKey::text(
    "interface",
    interface,
    "`multicast`: address of this machine on the network to use; with IPv6 only `::1`.",
)
.default_note("the system chooses")
.example("192.0.2.7");

pub(crate) static HOPS: DefaultedKey<u32> = ConfigKey::whole(
    "hops",
    "`multicast`: number of networks that a datagram may cross, including the first.",
)
.within(1, 255)
.low("instances in other networks get nothing")
.high("foreign networks get the datagrams")
.default(1);

pub(crate) static NATS: ListKey<NatsServer> = ConfigKey::text(
    "nats",
    server,
    "`nats`: servers, `nats://host:port` or `tls://host:port`. Beyond loopback they need \
     `secret_file`.",
)
.list_with(|| vec![NatsServer { tls: false, authority: "127.0.0.1:4222".to_owned() }]);

pub(crate) static CREDENTIALS_FILE: ConfigKey<PathBuf> = ConfigKey::path(
    "credentials_file",
    "`nats`: file with `user:password` or a token for NATS, on one line.",
)
.example("/etc/evenkeel/nats");

pub(crate) static CLUSTER: DefaultedKey<String> =
    ConfigKey::text("cluster", cluster, "Name of the cluster, the same on all its instances.")
        .range_note("1 to 63 letters, digits, `-`, `_`")
        .default_with(|| "default".to_owned());

pub(crate) static SECRET_FILE: ConfigKey<PathBuf> = ConfigKey::path(
    "secret_file",
    "File with the secret of the cluster, 16 to 1024 visible characters. Only instances that have \
     it are trusted, and only they can read the messages.",
)
.example("/etc/evenkeel/secret");

pub(crate) static TLS: SubsectionKey = SubsectionKey::one(
    "tls",
    &tls::PEERS,
    "[TLS](#peerstls) between instances. With `nats`: the certificate that the server gets.",
);

pub(crate) static PERIOD: DefaultedKey<Nanos> =
    ConfigKey::duration("period", "Time between two messages to the other instances.")
        .within(Nanos::from_millis(100), Nanos::from_secs(60))
        .low("more messages")
        .high("a client that uses all instances gets more before all of them know")
        .default(Nanos::from_secs(5));

pub(crate) static CPUS_SHARED: DefaultedKey<bool> = ConfigKey::truth(
    "cpus_shared",
    "`true`: all instances use one backend, and its `cpus` are counted once. `false`: each has its \
     own, and a `share` is a share of the sum over all live instances.",
)
.default(false);

pub(crate) static NODES_MAX: DefaultedKey<usize> = ConfigKey::whole(
    "nodes_max",
    "Number of instances, including this one. Messages of further ones are ignored and counted.",
)
.within(2, 1024)
.low("instances are ignored")
.high("memory")
.default(256);

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
