//! Settings of the store: the Redis servers that keep one count for all instances, and how they are
//! used.
//!
//! The effect of each setting on a request is described in `store::redis`. The keys and their
//! errors are in `config/section/store`.

use crate::values::word_enum;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// One count for all instances, kept in Redis or Valkey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// The servers, and how they are reached.
    pub place: StoreServers,
    /// Separate servers for counters with windows of one second.
    pub per_second: Option<StoreServers>,
    /// The longest time that a request waits for the store; after that the local state decides.
    pub deadline: Duration,
    /// Time to connect and to verify that the connection works.
    pub connect: Duration,
    /// Whether the store decides each request, or only sums up local counts.
    pub mode: StoreMode,
    /// Interval at which local counts are sent to the store: always with [`StoreMode::Batched`],
    /// otherwise after an outage.
    pub period: Duration,
    /// Fallback while the store does not answer.
    pub fail: StoreFail,
    /// Prefix of all keys in the store, at most 64 bytes.
    pub prefix: String,
    /// Whether windows use the key names of envoyproxy/ratelimit, so that it can share the store
    /// with Evenkeel.
    pub compatible_keys: bool,
    /// Compatible keys live up to this much longer than their window.
    pub jitter: Duration,
    /// Maximum number of counters per thread that remember hits for the store, 100 bytes each.
    pub owed_max: usize,
}

/// The servers of a store and how to connect to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreServers {
    /// The servers, at least one.
    pub servers: Vec<StoreServer>,
    /// The topology of the servers.
    pub layout: StoreLayout,
    /// User and password for servers that have none in their address.
    pub login: Option<StoreLogin>,
    /// File with the same credentials. It is read again at each connect.
    pub credentials_file: Option<PathBuf>,
    /// How TLS servers are authenticated.
    pub tls: StoreTls,
}

/// The topology of a store's servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLayout {
    /// A single server.
    Single,
    /// Sentinels, which know the current master of this name.
    Sentinel(String),
    /// Nodes of one cluster. Further nodes are learned from these.
    Cluster,
    /// Independent servers. The name of a counter selects the server.
    Ring,
}

impl StoreLayout {
    /// The word that the file uses for this topology.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            StoreLayout::Single => "single",
            StoreLayout::Sentinel(_) => "sentinel",
            StoreLayout::Cluster => "cluster",
            StoreLayout::Ring => "ring",
        }
    }
}

/// A server of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreServer {
    /// Its address.
    pub end: StoreAddress,
    /// User and password, if the address contains them.
    pub login: Option<StoreLogin>,
    /// Number of the database on this server. A cluster has only database 0.
    pub database: u16,
}

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreAddress {
    /// A TCP address. The host is resolved at each connect.
    Tcp {
        /// Host name or IP address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
        /// Whether the connection uses TLS.
        tls: bool,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreAddress::Tcp { host, port, .. } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            StoreAddress::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            StoreAddress::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A user and a password. The `Debug` output does not contain the password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreLogin {
    /// Name of the user. `None`: the server's default user.
    pub user: Option<String>,
    /// The password, in plain text.
    pub password: String,
}

impl StoreLogin {
    /// Parses `user:password`, or a password alone. An empty user counts as none.
    #[must_use]
    pub fn parse(text: &str) -> StoreLogin {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (Some(user).filter(|user| !user.is_empty()), password),
            None => (None, text),
        };
        StoreLogin { user: user.map(str::to_owned), password: password.to_owned() }
    }
}

impl fmt::Debug for StoreLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How TLS servers of a store are authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTls {
    /// Trusted authorities.
    pub ca: Option<PathBuf>,
    /// Certificate and key that this instance shows if the server asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether a certificate of a trusted authority is accepted regardless of its name.
    pub any_name: bool,
}

word_enum! {
    /// Whether the store or the instance decides each request.
    pub enum StoreMode {
        /// The store decides each request.
        Exact = "exact",
        /// Each instance decides by its local state. Local counts are sent to the store, which
        /// returns the sum.
        Batched = "batched",
    }
}

word_enum! {
    /// What happens to a request if the store does not answer.
    pub enum StoreFail {
        /// The local state decides.
        Local = "local",
        /// The caller gets an error, as the reference server does.
        Error = "error",
    }
}
