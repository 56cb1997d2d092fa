//! Decides which requests the admin door accepts.
//!
//! A page on a foreign site can make its visitor's browser send requests to loopback addresses, and
//! read the answers by resolving its own name to them (DNS rebinding). Both are visible to the
//! server: such a request has a foreign `Host` or a foreign `Origin`. So only addresses,
//! `localhost` and this machine's own name are accepted as hosts, also on loopback. Requests from
//! other machines also need the token, except for health, metrics and the files of the page.

use super::page;
use evenkeel_config::secret::{self, SecretError};
use evenkeel_config::settings::AdminSettings;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::{Method, StatusCode, Version};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The paths that need no token, in addition to the files of the page, which contain no secrets.
const OPEN_PATHS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// The path that orders are sent to.
pub const ORDERS: &str = "/api/overrides";

/// Why a request is refused, in the order of [`evenkeel_telemetry::counts::REFUSALS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The method is neither GET nor HEAD, and the request is not an order.
    Method,
    /// The request has an unexpected body.
    Body,
    /// The request has no `Host` or several (RFC 9112, 3.2).
    HostCount,
    /// The `Host` is foreign.
    Host,
    /// The request comes from a page on another site.
    Origin,
    /// The token is missing or wrong.
    Token,
}

impl AccessError {
    /// Returns the status for the caller, and a text that says what to do.
    pub const fn answer(self) -> (StatusCode, &'static str) {
        match self {
            AccessError::Method => (
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET and HEAD are allowed, and POST to /api/overrides\n",
            ),
            AccessError::Body => {
                (StatusCode::PAYLOAD_TOO_LARGE, "a request body is not allowed here\n")
            }
            AccessError::HostCount => {
                (StatusCode::BAD_REQUEST, "HTTP/1.1 requires exactly one Host header\n")
            }
            AccessError::Host => (
                StatusCode::FORBIDDEN,
                "Host refused: use the address, localhost or the name of this machine\n",
            ),
            AccessError::Origin => (StatusCode::FORBIDDEN, "Origin of another site refused\n"),
            AccessError::Token => (
                StatusCode::UNAUTHORIZED,
                "send `Authorization: Bearer TOKEN` with the token of admin.token_file\n",
            ),
        }
    }
}

/// Why there can be no guard.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The address is reachable from other machines, but no token is configured.
    #[error("`token_file` is required to listen on {0}, which is beyond loopback")]
    TokenMissing(SocketAddr),
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] SecretError),
}

/// Checks every request before it is answered.
pub struct AdminGuard {
    token: Option<String>,
    own_name: Option<String>,
}

impl AdminGuard {
    /// Reads the token, and checks that there is one if it is needed.
    pub fn new(settings: &AdminSettings) -> Result<AdminGuard, GuardError> {
        let token = settings.token_file.as_deref().map(secret::token).transpose()?;
        let beyond = |address: &&SocketAddr| !is_loopback(address.ip());
        match settings.listen.iter().find(beyond) {
            Some(address) if token.is_none() => Err(GuardError::TokenMissing(*address)),
            _ => Ok(AdminGuard { token, own_name: own_name() }),
        }
    }

    /// Whether `peer` may make this request.
    pub fn check(&self, head: &Parts, has_body: bool, peer: IpAddr) -> Result<(), AccessError> {
        let reads = head.method == Method::GET || head.method == Method::HEAD;
        let rules = [
            (reads || is_order(head), AccessError::Method),
            (!has_body || is_order(head), AccessError::Body),
            (names_one_host(head), AccessError::HostCount),
            (self.host_is_ours(head), AccessError::Host),
            (origin_is_ours(head), AccessError::Origin),
            (self.may_see(head, peer), AccessError::Token),
        ];
        rules.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, refused)| Err(*refused))
    }

    /// Returns the host name of this machine.
    pub fn own_name(&self) -> Option<&str> {
        self.own_name.as_deref()
    }

    /// Browsers always send a host, so an HTTP/1.0 probe without one is not a browser.
    fn host_is_ours(&self, head: &Parts) -> bool {
        let in_target = head.uri.authority().map(|authority| authority.as_str());
        let mut in_headers = head.headers.get_all(HOST).iter();
        in_headers.all(|host| host.to_str().is_ok_and(|host| self.is_ours(host)))
            && in_target.is_none_or(|host| self.is_ours(host))
    }

    fn is_ours(&self, host: &str) -> bool {
        let Some(name) = without_port(host) else { return false };
        let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        match bracketed {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => {
                name.parse::<std::net::Ipv4Addr>().is_ok()
                    || name.eq_ignore_ascii_case("localhost")
                    || self.own_name.as_ref().is_some_and(|own| name.eq_ignore_ascii_case(own))
            }
        }
    }

    fn may_see(&self, head: &Parts, peer: IpAddr) -> bool {
        let path = head.uri.path();
        let open = OPEN_PATHS.contains(&path) || page::file(path).is_some();
        // If there is a token, an order needs it even on loopback: a site can make a browser send
        // requests from there.
        let open = open || (is_loopback(peer) && !(is_order(head) && self.token.is_some()));
        let Some(token) = &self.token else { return open };
        let sent = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let sent = sent.and_then(|value| value.split_once(' '));
        let bearer = sent.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        open || bearer.is_some_and(|(_, sent)| same(sent.trim().as_bytes(), token.as_bytes()))
    }
}

fn names_one_host(head: &Parts) -> bool {
    let hosts = head.headers.get_all(HOST).iter().count();
    hosts == 1 || (hosts == 0 && head.version < Version::HTTP_11)
}

/// Whether the request is to change something.
pub fn is_order(head: &Parts) -> bool {
    head.method == Method::POST && head.uri.path() == ORDERS
}

/// Returns the name before `:port`, or `None` if the text after the colon is not a port.
fn without_port(host: &str) -> Option<&str> {
    let end = host.rfind(']').unwrap_or(0);
    match host[end..].split_once(':') {
        None => Some(host),
        Some((name, port)) => {
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| &host[..end + name.len()])
        }
    }
}

/// Whether a request that comes from a page comes from a page of this server.
fn origin_is_ours(head: &Parts) -> bool {
    let host = head.headers.get(HOST).and_then(|host| host.to_str().ok());
    head.headers.get_all(ORIGIN).iter().all(|origin| {
        let site = origin.to_str().ok().and_then(|origin| {
            origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
        });
        site.is_some_and(|site| host.is_some_and(|host| host.eq_ignore_ascii_case(site)))
    })
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn own_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    (!name.is_empty()).then_some(name)
}

/// Compares in a time that does not reveal which part of a guess was right.
fn same(sent: &[u8], token: &[u8]) -> bool {
    let differing = sent.iter().zip(token).fold(0, |differing, (a, b)| differing | (a ^ b));
    sent.len() == token.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> AdminGuard {
        AdminGuard { token: None, own_name: Some("box7".into()) }
    }

    #[test]
    fn only_addresses_localhost_and_the_own_name_are_hosts_here() {
        let ours = [
            "127.0.0.1",
            "127.0.0.1:9970",
            "[::1]",
            "[::1]:9970",
            "LocalHost:80",
            "10.0.0.1",
            "box7:1",
        ];
        for host in ours {
            assert!(guard().is_ours(host), "{host}");
        }
        let foreign = [
            "",
            "evil.example",
            "evil.example:9970",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "user@127.0.0.1",
            "localhost:evil",
            "::1",
            "[::1",
            "[evil]",
            "[::1]x",
            "[::1]evil:80",
            "localhost:80:80",
            "2130706433",
        ];
        for host in foreign {
            assert!(!guard().is_ours(host), "{host}");
        }
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same(b"secret", b"secret"));
        for wrong in [b"secre".as_slice(), b"secrets", b"Secret", b""] {
            assert!(!same(wrong, b"secret"));
        }
    }

    #[test]
    fn fuzz_no_host_is_ours_but_an_address_or_a_name_we_know() {
        evenkeel_fuzz::fuzz().with_type::<String>().for_each(|host| {
            if guard().is_ours(host) {
                let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
                let lower = host.to_ascii_lowercase();
                let known = lower.starts_with("localhost") || lower.starts_with("box7");
                assert!(known || name.parse::<IpAddr>().is_ok() || host.starts_with('['));
            }
        });
    }
}
