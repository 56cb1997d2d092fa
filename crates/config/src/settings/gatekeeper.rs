//! Settings of the `gatekeeper` section: the master that this instance follows, and the requests
//! that it asks about.
//!
//! The keys and their errors are in `config/section/gatekeeper.rs`. The messages between a master
//! and a gatekeeper are described in docs/guide/gatekeeper.md.

use evenkeel_core::limit::{KeyPart, LimitCondition};
use evenkeel_core::units::Nanos;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Port of a master if its address has none.
pub const DEFAULT_PORT: u16 = 10_004;
/// Maximum length of a domain's name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Maximum length of a host name, in bytes.
const HOST_BYTES_MAX: usize = 253;

/// The gate of one domain, which a master decides on.
#[derive(Clone, Debug, PartialEq)]
pub struct GatekeeperSettings {
    /// Socket of the master that receives the accounting of requests.
    pub master: MasterAddress,
    /// Socket on which the master publishes the identifiers to hold.
    pub control: MasterAddress,
    /// Condition of the requests that pass this gate. The first gate that matches a request is
    /// used.
    pub when: LimitCondition,
    /// Name of the domain at the master.
    pub domain: String,
    /// Parts of a request that make its identifier at the master.
    pub identifier: Vec<KeyPart>,
    /// The longest wait; a request that would have to wait longer is refused.
    pub max_delay: Nanos,
    /// Maximum number of requests that are held at once; others that have to wait are refused.
    pub held_max: usize,
    /// Number of identifiers with a wait that are remembered, 24 bytes each.
    pub keys_max: usize,
    /// Parts of a request that the master gets for its log.
    pub log_info: Vec<KeyPart>,
    /// Sampling of refused requests: one in this number is reported to the master; 0: none.
    pub rejected_one_in: u64,
}

/// The address of a ZeroMQ socket. A host name is resolved at each connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAddress {
    /// Host name or IP address, an IPv6 address in brackets.
    pub host: String,
    /// TCP port, at least 1.
    pub port: u16,
}

impl MasterAddress {
    /// The same host at the next port.
    #[must_use]
    pub fn next(&self) -> MasterAddress {
        MasterAddress { host: self.host.clone(), port: self.port.saturating_add(1) }
    }

    /// `host:port`, as a connect needs it.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl fmt::Display for MasterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}:{}", self.host, self.port)
    }
}

/// The text is not the address of a ZeroMQ socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write tcp://master.example:10004 or tcp://[2001:db8::1]:10004; only TCP is supported")]
pub struct MasterAddressError;

/// Accepts `tcp://master.example:10004`, `master.example` and `[2001:db8::1]:10004`.
impl FromStr for MasterAddress {
    type Err = MasterAddressError;

    fn from_str(text: &str) -> Result<MasterAddress, MasterAddressError> {
        let rest = match text.split_once("://") {
            None => text,
            Some(("tcp", rest)) => rest,
            Some(_) => return Err(MasterAddressError),
        };
        let in_brackets = rest.starts_with('[');
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !in_brackets || host.ends_with(']') => (host, read_port(port)?),
            _ => (rest, DEFAULT_PORT),
        };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let fits = match inner {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
                !host.is_empty() && host.len() <= HOST_BYTES_MAX && host.bytes().all(plain)
            }
        };
        fits.then(|| MasterAddress { host: host.to_owned(), port }).ok_or(MasterAddressError)
    }
}

fn read_port(text: &str) -> Result<u16, MasterAddressError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| *port > 0 && digits).ok_or(MasterAddressError)
}

/// Whether `name` is valid for a domain: 1 to 255 bytes, none of them NUL.
#[must_use]
pub fn is_domain(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains('\0')
}
