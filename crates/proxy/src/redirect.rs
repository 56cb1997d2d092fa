//! Sends requests that come without TLS to the same address under `https://`.
//!
//! A request is not sent away if a trusted proxy in front has ended its TLS, or may have: such a
//! proxy must state `X-Forwarded-Proto: http`. Otherwise the client would be sent to where it came
//! from, without end, and health checks of balancers would fail. Authorities that check a name
//! (ACME) are served without TLS, by the backend if Evenkeel has no such token. The answer costs no
//! work, so no limit applies to it.

use super::context::settings::ThreadSettings;
use super::headers;
use super::link::ClientLink;
use evenkeel_core::classify::normal_path;
use evenkeel_core::condition::Truth;
use evenkeel_core::condition::patterns::PathPatterns;
use evenkeel_tls::challenges;
use http::HeaderValue;
use http::request::Parts;
use std::net::Ipv6Addr;

/// Maximum length of a name of DNS, in bytes.
const DNS_NAME_MAX: usize = 253;
/// The port that addresses with `https://` leave out.
const HTTPS_PORT: u16 = 443;

/// The address that the client is sent to. `None` if the request stays. `trusted`: the peer's
/// forwarding fields are believed.
pub(super) fn target(
    settings: &ThreadSettings,
    link: &ClientLink,
    trusted: bool,
    head: &Parts,
) -> Option<HeaderValue> {
    let redirect = settings.redirect.as_ref()?;
    if link.peer.is_secure() || (trusted && !headers::came_without_tls(&head.headers)) {
        return None;
    }
    let path = head.uri.path();
    let is_excepted = |patterns: &PathPatterns| patterns.matches(&normal_path(path)) == Truth::Yes;
    if challenges::token(path).is_some() || redirect.except.as_ref().is_some_and(is_excepted) {
        return None;
    }
    let asked = head.uri.path_and_query().filter(|_| path.starts_with('/'))?;
    location(headers::host(&head.headers), redirect.port, asked.as_str())
}

/// `None` if the host is unknown, as it may be in HTTP/1.0, or one that no server has.
fn location(host: &str, port: u16, asked: &str) -> Option<HeaderValue> {
    let name = name(host)?;
    let port = if port == HTTPS_PORT { String::new() } else { format!(":{port}") };
    HeaderValue::try_from(format!("https://{name}{port}{asked}")).ok()
}

/// The name or address in a host, without the port. The host has been checked: it is a name, or
/// something in brackets, and perhaps a port. `None` if it cannot be reached by TLS: it is no name
/// of DNS, and no address.
fn name(host: &str) -> Option<&str> {
    if let Some(rest) = host.strip_prefix('[') {
        let (address, _) = rest.split_once(']')?;
        return address.parse::<Ipv6Addr>().is_ok().then(|| &host[..address.len() + 2]);
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    let is_named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fits = (1..=DNS_NAME_MAX).contains(&name.trim_end_matches('.').len());
    (fits && name.bytes().all(is_named)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_path_and_query_stay_and_the_port_changes() {
        for (host, port, asked, expected) in [
            ("a.example", 443, "/", Some("https://a.example/")),
            ("a.example:80", 443, "/b?c=d&e", Some("https://a.example/b?c=d&e")),
            ("a.example:8080", 8443, "//b", Some("https://a.example:8443//b")),
            ("[::1]:80", 443, "/", Some("https://[::1]/")),
            ("[::1]", 8443, "/", Some("https://[::1]:8443/")),
            ("a.example.", 443, "/", Some("https://a.example./")),
            ("[::1", 443, "/", None),
            ("[a.example]", 443, "/", None),
            ("\u{e4}.example", 443, "/", None),
            (&"a".repeat(254), 443, "/", None),
            ("..", 443, "/", None),
            ("", 443, "/", None),
            (":80", 443, "/", None),
        ] {
            let made = location(host, port, asked);
            assert_eq!(made.as_ref().map(|to| to.to_str().expect("text")), expected, "{host}");
        }
    }

    /// Whatever the host is, the new address is that of its name, without a user or another port.
    #[test]
    fn fuzz_the_address_is_that_of_the_name() {
        let pieces = ["a", "b.c", ".", ":", "80", "[", "]", "::1", "@", "/", "%0d", "\u{e4}"];
        evenkeel_fuzz::fuzz().for_each(|input: &[u8]| {
            let host: String = input.iter().map(|b| pieces[usize::from(*b) % 12]).collect();
            let Some(to) = location(&host, 8443, "/p?q") else { return };
            let to: http::Uri = to.to_str().expect("ASCII").parse().expect("an address");
            let authority = to.authority().expect("one").as_str();
            let name = authority.strip_suffix(":8443").expect("the port");
            assert!(host.starts_with(name) && !name.contains(['@', '/', '%']), "{host} {to}");
            assert!(name.starts_with('[') || !name.contains(':'), "{host} {to}");
            assert_eq!((to.scheme_str(), to.path()), (Some("https"), "/p"), "{host}");
        });
    }
}
