//! The servers behind the proxy: their addresses, protocols and TLS settings.
//!
//! The choice of a backend for each request is no setting: `proxy/src/backends.rs`. The syntax of
//! an address in the file is in `config/address.rs`.

use super::tls::ClientTls;
use crate::values::word_enum;
use std::fmt;

/// Maximum number of backends of one proxy. Each request scans all of them.
pub const BACKENDS_MAX: usize = 64;

/// Protocol and transport of a backend, as given by the scheme of its URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendScheme {
    /// HTTP/1.1 over TCP.
    Http,
    /// HTTP over TLS on TCP. [`BackendProtocol`] chooses between HTTP/1.1 and HTTP/2.
    Https,
    /// HTTP/1.1 over a Unix socket.
    Unix,
    /// HTTP/2 over TCP with prior knowledge, that is without negotiation.
    H2c,
    /// HTTP/2 over a Unix socket, with prior knowledge.
    UnixH2c,
}

impl BackendScheme {
    /// The scheme as it is written in a URL.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BackendScheme::Http => "http",
            BackendScheme::Https => "https",
            BackendScheme::Unix => "unix",
            BackendScheme::H2c => "h2c",
            BackendScheme::UnixH2c => "h2c+unix",
        }
    }

    /// Whether the address is the path of a Unix socket.
    #[must_use]
    pub fn is_file(self) -> bool {
        matches!(self, BackendScheme::Unix | BackendScheme::UnixH2c)
    }
}

word_enum! {
    /// HTTP version that is used with TLS backends.
    #[derive(Default)]
    pub enum BackendProtocol {
        /// HTTP/2 if the server chooses it (ALPN), otherwise HTTP/1.1.
        #[default]
        Auto = "auto",
        /// Only HTTP/1.1.
        Http1 = "http1",
        /// Only HTTP/2.
        Http2 = "http2",
    }
}

/// One server behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendAddress {
    /// How the proxy connects to it.
    pub scheme: BackendScheme,
    /// Host and port as written, resolved at each connect; for a Unix socket, its path.
    pub place: String,
}

impl BackendAddress {
    /// A backend with plain HTTP/1.1 over TCP at `place` (host and port).
    #[must_use]
    pub fn http(place: impl Into<String>) -> BackendAddress {
        BackendAddress { scheme: BackendScheme::Http, place: place.into() }
    }

    /// Whether the connection uses TLS.
    #[must_use]
    pub fn is_secured(&self) -> bool {
        self.scheme == BackendScheme::Https
    }

    /// The host, without the port and without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = self.place.rsplit_once(':').map_or(&*self.place, |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Value of the `Host` header for requests that name no host: `localhost` for a Unix socket,
    /// otherwise host and port.
    #[must_use]
    pub fn host_header(&self) -> &str {
        if self.scheme.is_file() { "localhost" } else { &self.place }
    }
}

impl fmt::Display for BackendAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.place)
    }
}

/// How the proxy authenticates TLS backends, and how it authenticates itself to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendTls {
    /// Authorities, own certificate and expected name, as for every TLS client.
    pub client: ClientTls,
    /// Whether certificates are verified. `false`: any host on the network path can impersonate the
    /// server.
    pub verify: bool,
    /// HTTP version to use.
    pub protocol: BackendProtocol,
}

impl Default for BackendTls {
    fn default() -> BackendTls {
        BackendTls { client: ClientTls::default(), verify: true, protocol: BackendProtocol::Auto }
    }
}
