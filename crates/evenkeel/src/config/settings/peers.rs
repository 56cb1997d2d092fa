//! What the `peers` section says: with whom this instance counts together, and how they are told.
//!
//! Nothing is resolved or read here: names are looked up by the transports, again and again, and
//! secrets when the program starts.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Instances that count together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// How they reach each other. Default: mesh.
    pub via: Via,
    /// Who they are: instances of another cluster are strangers. Default: default.
    pub cluster: String,
    /// Holds the secret that all of them have, a token of 16 to 1024 visible characters.
    pub secret_file: Option<PathBuf>,
    /// Certificates, in place of a secret or beside it.
    pub tls: Option<PeersTls>,
    /// How often each tells the others what it has counted. Too short: more messages, each of
    /// which repeats the keys of the one before. Too long: a client that goes to all instances
    /// gets more before all of them know. Default: 5 s.
    pub period: Duration,
    /// Whether all instances stand before one backend, whose CPUs are counted once. Else each has
    /// its own, and shares are of the sum of those that live. Default: false.
    pub cpus_shared: bool,
    /// How many instances are listened to, this one included; further ones are ignored and
    /// counted. Default: 256.
    pub nodes_max: usize,
}

/// How instances reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// A connection between each two of them.
    Mesh {
        /// Where others connect to. Default: 127.0.0.1:7946.
        listen: SocketAddr,
        /// Whom to connect to. Default: nobody.
        join: Vec<Join>,
        /// Whether to look for others on this network by multicast DNS. Default: false.
        mdns: bool,
    },
    /// Datagrams to a group on one network.
    Multicast {
        /// The group's address and port. Default: 239.255.70.46:7946.
        group: SocketAddr,
        /// The address of this machine on the network to use. Default: the system's choice.
        interface: Option<IpAddr>,
        /// How many routers a datagram may pass. Default: 1, none.
        hops: u32,
    },
    /// Messages through NATS.
    Nats {
        /// One server, or some of a cluster. Default: nats://127.0.0.1:4222.
        servers: Vec<NatsServer>,
        /// A file with `user:password` or a token for NATS. Default: none.
        credentials_file: Option<PathBuf>,
    },
}

impl Via {
    /// How it is written.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Via::Mesh { .. } => "mesh",
            Via::Multicast { .. } => "multicast",
            Via::Nats { .. } => "nats",
        }
    }
}

/// Whom to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Join {
    /// One instance: host and port. A name is resolved at each connect.
    One(String),
    /// All addresses of a name, looked up again and again: name and port.
    Dns(String),
}

impl fmt::Display for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Join::One(authority) => f.write_str(authority),
            Join::Dns(authority) => write!(f, "dns:{authority}"),
        }
    }
}

/// A NATS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsServer {
    /// Whether the connection is encrypted: `tls://`.
    pub tls: bool,
    /// Host and port.
    pub authority: String,
}

impl fmt::Display for NatsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "tls" } else { "nats" }, self.authority)
    }
}

/// Certificates of peers, as files in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeersTls {
    /// This instance's certificate, with those between it and the authority's.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that has signed the certificates of all instances.
    pub ca: PathBuf,
}
