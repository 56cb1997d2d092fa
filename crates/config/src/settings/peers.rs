//! Settings of the `peers` section: the instances that count together, and how they are connected.
//!
//! Names are not resolved and files are not read here. The transports resolve names again at each
//! connect, and secrets are read when the process starts.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Instances that count together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeersSettings {
    /// How the instances exchange messages.
    pub via: PeerTransport,
    /// Name of the cluster. Instances of another cluster are ignored.
    pub cluster: String,
    /// File with the secret that all instances share, a token.
    pub secret_file: Option<PathBuf>,
    /// Certificates of the instances, instead of a secret or in addition to it. With NATS it is the
    /// certificate that this instance shows to the server.
    pub tls: Option<PeersTls>,
    /// Interval at which each instance sends what it has counted.
    pub period: Duration,
    /// Whether all instances share one backend, so that its CPUs count once. If not, each instance
    /// has its own, and shares refer to the sum of all live instances.
    pub cpus_shared: bool,
    /// Maximum number of instances, including this one; messages of further ones are ignored.
    pub nodes_max: usize,
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

impl fmt::Display for PeerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerTarget::One(authority) => f.write_str(authority),
            PeerTarget::Dns(authority) => write!(f, "dns:{authority}"),
        }
    }
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
