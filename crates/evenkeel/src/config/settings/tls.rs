//! Which files TLS takes: certificates, keys and authorities, in PEM.
//!
//! Nothing is read here; `tls` reads them, and again when they change.

use std::path::PathBuf;

/// Who a server is, and whom it lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Its certificate, with those between it and the authority's.
    pub cert: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// Whose certificates clients must show. Default: they need none.
    pub clients: Option<TlsClients>,
}

/// Clients that are let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsClients {
    /// The authorities that have signed their certificates.
    pub ca: PathBuf,
    /// The DNS name that a certificate must be for. Default: any.
    pub name: Option<String>,
}

/// Whom a client believes, and who it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// The authorities that have signed servers' certificates. Default: those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate that is shown to servers which ask for one, and its key. Default: none.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// What the server's certificate must be for. Default: the host that is connected to.
    pub name: Option<String>,
}

/// What the proxy shows to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontTls {
    /// How many of the proxy's addresses, from the first, are without TLS.
    pub plain: usize,
    /// Certificates, each with its key. The first is for those who ask for no name, or for one that
    /// none of them is for.
    pub certificates: Vec<(PathBuf, PathBuf)>,
    /// Whose certificates clients must show. Default: they need none.
    pub clients: Option<TlsClients>,
    /// Whether TLS 1.2 is spoken beside 1.3. Default: yes.
    pub tls12: bool,
}
