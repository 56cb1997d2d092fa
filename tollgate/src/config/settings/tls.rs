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
