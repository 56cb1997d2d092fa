//! The sockets that a configuration opens at start, each with the key that names it.
//!
//! This is the single list for all users: the configuration reader, which rejects two listeners on
//! one port or file; `serve::handover`, which permits the doors to open only these sockets; and
//! `run::trial`, by which `check` tests whether a start could open them.

use super::peers::PeerTransport;
use super::{LineSettings, Settings, StreamAddress};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Path to a key of the file, section by section.
pub type KeyPath = &'static [&'static str];

/// A socket that is opened at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketSpec {
    /// Listens on a TCP port.
    Tcp(SocketAddr),
    /// Receives datagrams on a UDP port.
    Datagrams(SocketAddr),
    /// Listens on a Unix socket.
    File(PathBuf),
    /// Receives datagrams of a multicast group.
    Group {
        /// Address and port of the group.
        group: SocketAddr,
        /// This machine's address on the network to use. `None`: the system chooses.
        interface: Option<IpAddr>,
        /// Hop limit of datagrams: the number of networks that they may cross, including the first.
        hops: u32,
    },
}

impl SocketSpec {
    /// Whether both cannot be open at once: the same TCP or UDP port, or the same file in any
    /// spelling. Groups never collide.
    #[must_use]
    pub fn collides(&self, other: &SocketSpec) -> bool {
        match (self, other) {
            (SocketSpec::Tcp(one), SocketSpec::Tcp(other))
            | (SocketSpec::Datagrams(one), SocketSpec::Datagrams(other)) => collide(*one, *other),
            (SocketSpec::File(one), SocketSpec::File(other)) => {
                one.components().eq(other.components())
            }
            _ => false,
        }
    }
}

impl fmt::Display for SocketSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketSpec::Tcp(address) => write!(f, "{address}"),
            SocketSpec::Datagrams(address) => write!(f, "udp://{address}"),
            SocketSpec::File(path) => write!(f, "unix://{}", path.display()),
            SocketSpec::Group { group, .. } => write!(f, "the group {group}"),
        }
    }
}

/// A socket and the key that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOpening {
    /// Path of the key.
    pub way: KeyPath,
    /// The socket that the key names.
    pub socket: SocketSpec,
}

impl Settings {
    /// All sockets that a start opens.
    #[must_use]
    pub fn openings(&self) -> Vec<SocketOpening> {
        // All fields are named, so that a new section does not compile until it is considered here.
        #[rustfmt::skip]
        let Settings {
            admin, proxy, check, ext_proc, ext_authz, line, ratelimit, master, peers,
            log: _, metrics: _, traces: _, state: _, groups: _, gatekeepers: _, store: _,
        } = self;
        let mut all = Vec::new();
        let mut add = |way, socket| all.push(SocketOpening { way, socket });
        let mut tcp = |way, addresses: &[SocketAddr]| {
            addresses.iter().for_each(|address| add(way, SocketSpec::Tcp(*address)));
        };
        admin.iter().for_each(|admin| tcp(&["admin", "listen"], &admin.listen));
        proxy.iter().for_each(|proxy| tcp(&["proxy", "listen"], &proxy.listen));
        check.iter().for_each(|check| tcp(&["check", "listen"], &check.listen));
        ext_proc.iter().for_each(|door| tcp(&["ext_proc", "listen"], &door.listen));
        ext_authz.iter().for_each(|door| tcp(&["ext_authz", "listen"], &door.listen));
        if let Some(door) = ratelimit {
            tcp(&["ratelimit", "grpc"], &door.grpc);
            door.http.iter().for_each(|at| tcp(&["ratelimit", "http"], &[*at]));
            door.debug.iter().for_each(|at| tcp(&["ratelimit", "debug"], &[*at]));
            let figures = door.prometheus.iter();
            figures.for_each(|figures| tcp(&["ratelimit", "prometheus"], &[figures.listen]));
        }
        if let Some(master) = master {
            tcp(&["master", "accounting"], &[master.accounting]);
            tcp(&["master", "control"], &[master.control]);
        }
        for datagrams in check.iter().flat_map(|check| &check.syslog) {
            add(&["check", "syslog"], SocketSpec::Datagrams(datagrams.0));
        }
        for path in ratelimit.iter().filter_map(|door| door.grpc_unix.as_ref()) {
            add(&["ratelimit", "grpc_unix"], SocketSpec::File(path.clone()));
        }
        line.iter().flat_map(LineSettings::openings).for_each(|(way, socket)| add(way, socket));
        match peers.as_ref().map(|peers| &peers.via) {
            Some(PeerTransport::Mesh { listen, .. }) => {
                add(&["peers", "listen"], SocketSpec::Tcp(*listen))
            }
            Some(PeerTransport::Multicast { group, interface, hops }) => {
                let (group, interface, hops) = (*group, *interface, *hops);
                add(&["peers", "group"], SocketSpec::Group { group, interface, hops });
            }
            Some(PeerTransport::Nats { .. }) | None => {}
        }
        all
    }
}

impl LineSettings {
    fn openings(&self) -> impl Iterator<Item = (KeyPath, SocketSpec)> {
        let lines = self.listen.iter().map(|listen| match listen {
            StreamAddress::Tcp(address) => SocketSpec::Tcp(*address),
            StreamAddress::Unix(path) => SocketSpec::File(path.clone()),
        });
        let lines = lines.map(|socket| (&["line", "listen"][..], socket));
        let resp = self.resp.iter().map(|address| SocketSpec::Tcp(*address));
        lines.chain(resp.map(|socket| (&["line", "resp"][..], socket)))
    }
}

/// Whether two listeners need the same port of the same address. A listener on `[::]` also accepts
/// IPv4 connections.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let takes = |one: SocketAddr, other: SocketAddr| {
        one.ip().is_unspecified() && (one.is_ipv6() || other.is_ipv4())
    };
    let same = a.ip() == b.ip() || takes(a, b) || takes(b, a);
    a.port() == b.port() && a.port() != 0 && same
}
