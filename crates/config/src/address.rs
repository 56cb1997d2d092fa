//! Addresses in the configuration: listeners, backends, networks, name servers.
//!
//! Names are not resolved here: reading a configuration needs no name server. The proxy resolves
//! the name of a backend at each connect.

pub mod store;

use super::settings::hosts::HostPattern;
use super::settings::{BackendAddress, BackendScheme};
use super::values::{Read, token};
use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Exclusive upper bound for the path of a Unix socket, in bytes: the system allows 107.
const SOCKET_PATH_MAX: usize = 108;

/// Reads an address to listen on: `127.0.0.1:9970`, `[::1]:9970`, `localhost:9970`. `:9970` and
/// `*:9970` mean all IPv4 addresses of the machine.
pub fn listen(text: &str) -> Read<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let wrong = || "not an address to listen on; write 127.0.0.1:8888 or [::1]:8888".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let host = match host {
        "" | "*" => Ipv4Addr::UNSPECIFIED,
        "localhost" => Ipv4Addr::LOCALHOST,
        _ => return Err(wrong()),
    };
    Ok(SocketAddr::from((host, port)))
}

/// Reads a network or a single address: `10.0.0.0/8`, `::1`.
pub fn network(text: &str) -> Read<IpNet> {
    let net = text.parse::<IpNet>().map(|net| net.trunc());
    net.or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "not a network; write 10.0.0.0/8, 192.0.2.7 or ::1".to_owned())
}

/// Clients or requests that are exempt.
#[derive(Clone, Debug, PartialEq)]
pub enum ExemptEntry {
    /// All clients in this network.
    Net(IpNet),
    /// All clients with a confirmed host name that matches.
    Host(HostPattern),
    /// All requests with a cookie of this name.
    Cookie(Box<str>),
}

impl fmt::Display for ExemptEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExemptEntry::Net(net) => write!(f, "ip:{net}"),
            ExemptEntry::Host(pattern) => write!(f, "host:{pattern}"),
            ExemptEntry::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}

/// Reads an entry of `exempt`: `ip:` and a network, `host:` and a name, or `cookie:` and a name.
pub fn exempt(text: &str) -> Read<ExemptEntry> {
    match text.split_once(':') {
        Some(("ip", rest)) => network(rest).map(ExemptEntry::Net),
        Some(("host", _)) => host(text).map(ExemptEntry::Host),
        Some(("cookie", name)) => token(name).map(ExemptEntry::Cookie),
        _ => Err("write ip:192.0.2.0/24, host:*.example.com or cookie:NAME".to_owned()),
    }
}

/// Reads a pattern of host names: `host:www.example.com`, `host:*.example.com`.
pub fn host(text: &str) -> Read<HostPattern> {
    let pattern = text.strip_prefix("host:").and_then(HostPattern::parse);
    pattern.ok_or_else(|| "write host:*.example.com or host:www.example.com".to_owned())
}

/// Reads the address of a name server; without a port it is 53.
pub fn name_server(text: &str) -> Read<SocketAddr> {
    let with_port = || text.parse::<SocketAddr>().ok();
    let address = text.parse::<IpAddr>().map(|ip| SocketAddr::from((ip, 53))).ok();
    address.or_else(with_port).ok_or_else(|| "write 192.0.2.53 or 127.0.0.1:5353".to_owned())
}

/// Reads a backend: `http://host`, `http://host:port`, `https://host`, `h2c://host`,
/// `unix:///path`, `h2c+unix:///path`.
pub fn backend(text: &str) -> Read<BackendAddress> {
    let (scheme, rest) = text.split_once("://").ok_or("write it as http://127.0.0.1:80")?;
    let (scheme, port) = match scheme {
        "http" => (BackendScheme::Http, 80),
        "https" => (BackendScheme::Https, 443),
        "h2c" => (BackendScheme::H2c, 80),
        "unix" => return socket_file(BackendScheme::Unix, rest),
        "h2c+unix" => return socket_file(BackendScheme::UnixH2c, rest),
        _ => return Err("write it as http://127.0.0.1:80".to_owned()),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#', '@']) {
        return Err(
            "only a host and a port are allowed here; paths are passed unchanged".to_owned()
        );
    }
    let authority: http::uri::Authority =
        rest.parse().map_err(|_| "not a host and port; write http://127.0.0.1:80")?;
    let host = authority.host();
    match (host.is_empty(), authority.port_u16(), rest.len() == host.len()) {
        (false, Some(1..), _) => Ok(BackendAddress { scheme, place: rest.to_owned() }),
        (false, None, true) => Ok(BackendAddress { scheme, place: format!("{rest}:{port}") }),
        _ => Err("not a host and port; write http://127.0.0.1:80".to_owned()),
    }
}

fn socket_file(scheme: BackendScheme, path: &str) -> Read<BackendAddress> {
    if !path.starts_with('/') || !(2..SOCKET_PATH_MAX).contains(&path.len()) {
        return Err(format!("not a path; write {}:///run/app.sock", scheme.name()));
    }
    Ok(BackendAddress { scheme, place: path.to_owned() })
}

/// Whether requests to `backend` would come back to `listen`, judged by the addresses alone. A name
/// that resolves to this machine is not detected.
#[must_use]
pub fn loops(backend: &BackendAddress, listen: SocketAddr) -> bool {
    let local = backend.place.replacen("localhost:", "127.0.0.1:", 1);
    let Ok(to) = local.parse::<SocketAddr>() else { return false };
    let same = to.ip() == listen.ip();
    let any = listen.ip().is_unspecified() && (to.ip().is_loopback() || to.ip().is_unspecified());
    to.port() == listen.port() && (same || any || (to.ip().is_unspecified() && local_only(listen)))
}

fn local_only(listen: SocketAddr) -> bool {
    listen.ip().is_loopback()
}
