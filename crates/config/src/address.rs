//! Addresses in the configuration: listeners, networks, name servers.
//!
//! Names are not resolved here: reading a configuration needs no name server.

use super::values::Read;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Reads an address to listen on: `127.0.0.1:9970`, `[::1]:9970`, `localhost:9970`. `:9970` and
/// `*:9970` mean all IPv4 addresses of the machine.
pub fn listen(text: &str) -> Read<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let port = text.trim_start_matches(':').parse::<u16>().unwrap_or(8888);
    let wrong = || format!("not an address to listen on; write 127.0.0.1:{port} or [::1]:{port}");
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
    net.or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| not_a_network(text))
}

fn not_a_network(text: &str) -> String {
    let bits = text.split_once('/').and_then(|(address, _)| match address.parse() {
        Ok(IpAddr::V4(_)) => Some(32),
        Ok(IpAddr::V6(_)) => Some(128),
        Err(_) => None,
    });
    match bits {
        Some(bits) => format!("not a network; the number after `/` must be from 0 to {bits}"),
        None => "not a network; write 10.0.0.0/8, 192.0.2.7 or ::1".to_owned(),
    }
}

/// Reads the address of a name server; without a port it is 53.
pub fn name_server(text: &str) -> Read<SocketAddr> {
    let with_port = || text.parse::<SocketAddr>().ok();
    let address = text.parse::<IpAddr>().map(|ip| SocketAddr::from((ip, 53))).ok();
    address.or_else(with_port).ok_or_else(|| "write 192.0.2.53 or 127.0.0.1:5353".to_owned())
}
