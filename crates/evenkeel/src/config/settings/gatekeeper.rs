//! What the `gatekeeper` section says: whose orders are kept, and how.
//!
//! How it is written and what can be wrong with it: `config/section/gatekeeper.rs`. What a master
//! and a gatekeeper tell each other: docs/guide/gatekeeper.md.

use evenkeel_core::limit::{Part, When};
use evenkeel_core::units::Nanos;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The port of a master that says none.
pub const PORT: u16 = 10_004;
/// The longest name of a domain.
const NAME_BYTES_MAX: usize = 255;
/// The longest name of a host.
const HOST_BYTES_MAX: usize = 253;

/// The gate of one domain, which a master decides on.
#[derive(Clone, Debug, PartialEq)]
pub struct Gatekeeper {
    /// Where the master is told of requests. Default: tcp://127.0.0.1:10004.
    pub master: Remote,
    /// Where it says whom to hold. Default: the next port.
    pub control: Remote,
    /// Which requests it keeps the gate of, of those that none before it keeps. Default: all.
    pub when: When,
    /// The domain, as the master has it. Default: default.
    pub domain: String,
    /// What a request is called at the master. Default: the client's address.
    pub identifier: Vec<Part>,
    /// Who would wait longer is refused. Too low: bursts of real users are refused. Too high:
    /// their clients give up first. Default: 5 s.
    pub max_delay: Nanos,
    /// Requests that are held at once; beyond it who would have to wait is refused. Default: 1024.
    pub held_max: usize,
    /// Identifiers that have to wait, as many as are remembered; of more, those whose wait is over
    /// first pass. Default: 65 536.
    pub keys_max: usize,
    /// What the master is sent of a request for its log. Default: nothing.
    pub log_info: Vec<Part>,
    /// The master is told of one in so many refused requests; 0: of none. Default: 1.
    pub rejected_one_in: u64,
}

/// The address of a ZeroMQ socket; a name is looked up at each connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// A name or an address, IPv6 in brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Remote {
    /// The same host, a port further.
    #[must_use]
    pub fn next(&self) -> Remote {
        Remote { host: self.host.clone(), port: self.port.saturating_add(1) }
    }

    /// As it is connected to.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}:{}", self.host, self.port)
    }
}

/// The text is no address of a ZeroMQ socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write tcp://master.example:10004 or tcp://[2001:db8::1]:10004; only TCP is spoken")]
pub struct RemoteFault;

/// `tcp://master.example:10004`, `master.example`, `[2001:db8::1]:10004`.
impl FromStr for Remote {
    type Err = RemoteFault;

    fn from_str(text: &str) -> Result<Remote, RemoteFault> {
        let rest = match text.split_once("://") {
            None => text,
            Some(("tcp", rest)) => rest,
            Some(_) => return Err(RemoteFault),
        };
        let in_brackets = rest.starts_with('[');
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !in_brackets || host.ends_with(']') => (host, read_port(port)?),
            _ => (rest, PORT),
        };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let fits = match inner {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
                !host.is_empty() && host.len() <= HOST_BYTES_MAX && host.bytes().all(plain)
            }
        };
        fits.then(|| Remote { host: host.to_owned(), port }).ok_or(RemoteFault)
    }
}

fn read_port(text: &str) -> Result<u16, RemoteFault> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| *port > 0 && digits).ok_or(RemoteFault)
}

/// Whether a domain may be called so.
#[must_use]
pub fn is_domain(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains('\0')
}
