//! The servers behind the proxy: their addresses, protocols and TLS settings.
//!
//! The choice of a backend for each request is no setting: `models/src/choice.rs`.

use super::tls::ClientTls;
use crate::values::Read;
use crate::values::word_enum;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Exclusive upper bound for the path of a Unix socket, in bytes: the system allows 107.
const SOCKET_PATH_MAX: usize = 108;
/// Maximum number of backends of one proxy. Each request scans all of them.
pub const BACKENDS_MAX: usize = 64;

word_enum! {
    /// Protocol and transport of a backend, as given by the scheme of its URL.
    pub enum BackendScheme {
        /// HTTP/1.1 over TCP.
        Http = "http",
        /// HTTP over TLS on TCP. [`BackendProtocol`] chooses between HTTP/1.1 and HTTP/2.
        Https = "https",
        /// HTTP/1.1 over a Unix socket.
        Unix = "unix",
        /// HTTP/2 over TCP with prior knowledge, that is without negotiation.
        H2c = "h2c",
        /// HTTP/2 over a Unix socket, with prior knowledge.
        UnixH2c = "h2c+unix",
    }
}

impl BackendScheme {
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

    /// The numeric address, if it has one, so that nothing has to be resolved.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        self.place.parse().ok().filter(|_| !self.scheme.is_file())
    }

    /// Whether the backend runs on this machine, as far as the address tells: a Unix socket,
    /// `localhost` or a loopback address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let is_loopback = |host: &str| host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        self.scheme.is_file() || self.host() == "localhost" || is_loopback(self.host())
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
        write!(f, "{}://{}", self.scheme, self.place)
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

/// Reads a backend: `http://host`, `http://host:port`, `https://host`, `h2c://host`,
/// `unix:///path`, `h2c+unix:///path`.
pub(crate) fn backend(text: &str) -> Read<BackendAddress> {
    let (scheme, rest) = text.split_once("://").ok_or_else(|| advice(text))?;
    let (scheme, port) = match scheme {
        "http" => (BackendScheme::Http, 80),
        "https" => (BackendScheme::Https, 443),
        "h2c" => (BackendScheme::H2c, 80),
        "unix" => return socket_file(BackendScheme::Unix, rest),
        "h2c+unix" => return socket_file(BackendScheme::UnixH2c, rest),
        _ => return Err(advice(rest)),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#', '@']) {
        return Err(more_than_a_host(scheme, rest));
    }
    let wrong = || "not a host and port; write http://127.0.0.1:80".to_owned();
    let authority: http::uri::Authority = rest.parse().map_err(|_| wrong())?;
    let host = authority.host();
    match (host.is_empty(), authority.port_u16(), rest.len() == host.len()) {
        (false, Some(1..), _) => Ok(BackendAddress { scheme, place: rest.to_owned() }),
        (false, None, true) => Ok(BackendAddress { scheme, place: format!("{rest}:{port}") }),
        (false, None, false) => Err(format!(
            "a port is a number from 1 to 65535; write {scheme}://{host}:{port} or another one"
        )),
        _ => Err(wrong()),
    }
}

/// How to write an address without a scheme, or with one that does not exist.
fn advice(place: &str) -> String {
    if place.starts_with('/') {
        return format!("write it as unix://{place}");
    }
    let place = place.strip_suffix('/').unwrap_or(place);
    let is_address = !place.contains('@') && backend(&format!("http://{place}")).is_ok();
    let place = if is_address { place } else { "127.0.0.1:80" };
    format!("write it as http://{place}")
}

/// The message about an address with a path, a query or a user.
fn more_than_a_host(scheme: BackendScheme, rest: &str) -> String {
    let what = "only a host and a port are allowed here";
    match rest.split_once('/') {
        Some((host, path)) if !rest.contains(['?', '#', '@']) => format!(
            "{what}, {scheme}://{host}; the path comes from the client, which uses \
             http://PROXY/{path} as its base URL"
        ),
        _ => format!("{what}; paths are passed unchanged"),
    }
}

fn socket_file(scheme: BackendScheme, path: &str) -> Read<BackendAddress> {
    if !path.starts_with('/') || !(2..SOCKET_PATH_MAX).contains(&path.len()) {
        return Err(format!("not a path; write {scheme}:///run/app.sock"));
    }
    Ok(BackendAddress { scheme, place: path.to_owned() })
}

/// Whether requests to `backend` would come back to `listen`, judged by the addresses alone. A name
/// that resolves to this machine is not detected.
pub(crate) fn loops(backend: &BackendAddress, listen: SocketAddr) -> bool {
    let local = backend.place.replacen("localhost:", "127.0.0.1:", 1);
    let Ok(to) = local.parse::<SocketAddr>() else { return false };
    let same = to.ip() == listen.ip();
    let any = listen.ip().is_unspecified() && (to.ip().is_loopback() || to.ip().is_unspecified());
    to.port() == listen.port() && (same || any || (to.ip().is_unspecified() && local_only(listen)))
}

fn local_only(listen: SocketAddr) -> bool {
    listen.ip().is_loopback()
}
