//! The servers behind the proxy: where they are and how they are spoken with.
//!
//! Which of them a request goes to is no setting: `doors/proxy/backends.rs`. How they are written
//! in a file: `config/address.rs`.

use super::tls::ClientTls;
use std::fmt;

/// The most servers of one proxy: each is looked at for every request.
pub const BACKENDS_MAX: usize = 64;

/// How a server is spoken with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP/1.1 over TCP.
    Http,
    /// The same under TLS.
    Https,
    /// HTTP/1.1 over a socket that is a file.
    Unix,
}

/// A server that the proxy stands in front of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// How it is spoken with.
    pub scheme: Scheme,
    /// Host and port to connect to, as written; resolved at each connect. Of a socket file its
    /// path.
    pub place: String,
}

impl Backend {
    /// One that is spoken with over TCP and nothing else.
    #[must_use]
    pub fn http(place: impl Into<String>) -> Backend {
        Backend { scheme: Scheme::Http, place: place.into() }
    }

    /// Whether it is spoken with under TLS.
    #[must_use]
    pub fn is_secured(&self) -> bool {
        self.scheme == Scheme::Https
    }

    /// Its host, without the port and the brackets of IPv6.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = self.place.rsplit_once(':').map_or(&*self.place, |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// What stands for it where a request names no host.
    #[must_use]
    pub fn host_header(&self) -> &str {
        if self.scheme == Scheme::Unix { "localhost" } else { &self.place }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Unix => "unix",
        };
        write!(f, "{scheme}://{}", self.place)
    }
}

/// Whom the proxy believes of servers under TLS, and who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendTls {
    /// As of every client.
    pub client: ClientTls,
    /// Whether certificates are looked at. Without, anybody on the way can be the server. Default:
    /// true.
    pub verify: bool,
}

impl Default for BackendTls {
    fn default() -> BackendTls {
        BackendTls { client: ClientTls::default(), verify: true }
    }
}
