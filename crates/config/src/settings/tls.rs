//! Paths of TLS files: certificates, keys and authorities, in PEM.
//!
//! The files are not read here. The module `tls` reads the files, and reads them again when they
//! change.

use std::path::PathBuf;

/// Certificate of a server, and the clients that it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Path of the certificate, followed by the intermediate certificates.
    pub cert: PathBuf,
    /// Path of the certificate's private key.
    pub key: PathBuf,
    /// Which certificates clients must show.
    pub clients: Option<TlsClients>,
}

/// Clients that are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsClients {
    /// The authorities, one of which must have signed the client's certificate.
    pub ca: PathBuf,
    /// The DNS name that the certificate must be valid for.
    pub name: Option<String>,
}

/// How a TLS client authenticates servers, and itself to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Authorities that sign the certificates of servers.
    pub ca: Option<PathBuf>,
    /// Certificate and key for servers that ask for a client certificate.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must be valid for.
    pub name: Option<String>,
}

/// TLS settings of the proxy's listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontTls {
    /// Number of addresses at the start of `listen` that do not use TLS.
    pub plain: usize,
    /// Certificates and their keys. The first one is used for clients that send no name (SNI), or a
    /// name that no certificate covers.
    pub certificates: Vec<(PathBuf, PathBuf)>,
    /// Which certificates clients must show.
    pub clients: Option<TlsClients>,
    /// Whether TLS 1.2 is accepted in addition to 1.3.
    pub tls12: bool,
}
