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
    /// HTTP/2 over TCP, without asking whether it is spoken.
    H2c,
    /// The same over a socket that is a file.
    UnixH2c,
}

impl Scheme {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Unix => "unix",
            Scheme::H2c => "h2c",
            Scheme::UnixH2c => "h2c+unix",
        }
    }

    /// Whether the place is a socket file.
    #[must_use]
    pub fn is_file(self) -> bool {
        matches!(self, Scheme::Unix | Scheme::UnixH2c)
    }
}

/// What is spoken with servers under TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2 where the server wants it (ALPN), else HTTP/1.1.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Auto => "auto",
            Protocol::Http1 => "http1",
            Protocol::Http2 => "http2",
        })
    }
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
        if self.scheme.is_file() { "localhost" } else { &self.place }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.place)
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
    /// What is spoken. Default: HTTP/2 where the server wants it.
    pub protocol: Protocol,
}

impl Default for BackendTls {
    fn default() -> BackendTls {
        BackendTls { client: ClientTls::default(), verify: true, protocol: Protocol::Auto }
    }
}
