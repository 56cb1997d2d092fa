//! The settings of the store: where one count for all instances is kept, and how it is asked.
//!
//! What each means for a request: `store::redis`. What can be wrong with them:
//! `config/section/store`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// One count for all instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Where it is.
    pub place: StorePlace,
    /// Where counters of one second are, if they are elsewhere. Default: at the same place.
    pub per_second: Option<StorePlace>,
    /// The longest that a request waits for an answer; then what is known here decides. 1 ms to
    /// 10 s. Too short: an answer that is merely slow is not waited for. Default: 20 ms.
    pub deadline: Duration,
    /// For a connection to be made and to show that it can be used. Default: 1 s.
    pub connect: Duration,
    /// Whether the store decides, or is told. Default: exact.
    pub mode: StoreMode,
    /// How often it is told what was counted here alone: with [`StoreMode::Batched`] always, else
    /// after an outage. 10 ms to 10 s. Default: 100 ms.
    pub period: Duration,
    /// What a request gets while there is no answer. Default: what is known here decides.
    pub fail: StoreFail,
    /// What all keys begin with. Default: `evenkeel:`, with compatible keys nothing.
    pub prefix: String,
    /// Windows are kept under the names that envoyproxy/ratelimit gives them, so it may run beside
    /// this program on the same store. Default: false.
    pub compatible_keys: bool,
    /// Compatible keys are kept for up to so much longer than their window, so that not all end at
    /// once. Default: 300 s.
    pub jitter: Duration,
    /// Counters whose hits the store can be told later, for each thread; what further ones were
    /// hit is lost to it. 100 bytes each. Default: 100 000.
    pub owed_max: usize,
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlace {
    /// Its servers, one at least.
    pub servers: Vec<Server>,
    /// What they are to each other. Default: one alone, several are nodes of a cluster.
    pub layout: Layout,
    /// Who we are, where a server's address does not say.
    pub login: Option<Login>,
    /// The same, read from this file at each connect.
    pub credentials_file: Option<PathBuf>,
    /// How those servers are believed that are spoken to over TLS.
    pub tls: StoreTls,
}

/// What the servers of a store are to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One alone.
    Single,
    /// Sentinels, who know which server is the master of this name.
    Sentinel(String),
    /// Nodes of one cluster; the others are learned from them.
    Cluster,
    /// Servers that know nothing of each other; each has the counters whose names fall to it.
    Ring,
}

impl Layout {
    /// As it is written.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Layout::Single => "single",
            Layout::Sentinel(_) => "sentinel",
            Layout::Cluster => "cluster",
            Layout::Ring => "ring",
        }
    }
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// How it is reached.
    pub end: End,
    /// Who we are to it.
    pub login: Option<Login>,
    /// Which of its databases.
    pub database: u16,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// A host, resolved at each connect, and its port.
    Tcp {
        /// The name or the address, without brackets.
        host: String,
        /// The port.
        port: u16,
        /// Whether it speaks TLS.
        tls: bool,
    },
    /// A socket file.
    Unix(PathBuf),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            End::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            End::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A user and a password. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Default: the server's default user.
    pub user: Option<String>,
    /// The password.
    pub password: String,
}

impl Login {
    /// From `user:password`, or a password alone.
    #[must_use]
    pub fn parse(text: &str) -> Login {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (Some(user).filter(|user| !user.is_empty()), password),
            None => (None, text),
        };
        Login { user: user.map(str::to_owned), password: password.to_owned() }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How a store is believed over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTls {
    /// The authorities that are believed. Default: those of the system.
    pub ca: Option<PathBuf>,
    /// Our certificate and its key, where the store wants to see one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Any certificate of these authorities will do, whatever name it is for.
    pub any_name: bool,
}

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// The store, for each request.
    Exact,
    /// Each instance by what it knows; the store is told what was counted, and tells the sum.
    Batched,
}

impl StoreMode {
    /// As they are written.
    pub const WORDS: [(&str, StoreMode); 2] =
        [("exact", StoreMode::Exact), ("batched", StoreMode::Batched)];
}

impl fmt::Display for StoreMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(StoreMode::WORDS[*self as usize].0)
    }
}

/// What a request gets that the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFail {
    /// What is known here decides.
    Local,
    /// An error, as from the reference.
    Error,
}

impl StoreFail {
    /// As they are written.
    pub const WORDS: [(&str, StoreFail); 2] =
        [("local", StoreFail::Local), ("error", StoreFail::Error)];
}

impl fmt::Display for StoreFail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(StoreFail::WORDS[*self as usize].0)
    }
}
