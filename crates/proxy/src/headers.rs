//! Which header fields may pass in both directions, and which the proxy adds.
//!
//! Hop-by-hop fields end here (RFC 9110, 7.6.1), also those that `Connection` names. The backend
//! gets `Host` unchanged, `X-Forwarded-For` with the peer appended, and `X-Forwarded-Proto` and
//! `X-Forwarded-Host` unless a trusted peer set them. All forwarding fields of an untrusted peer
//! are removed. Variants of them with underscores or other symbols, which CGI backends read as
//! hyphens, are removed from every request: no client can forge an address that the backend would
//! believe. `Proxy` ends here, because CGI programs read it as the variable `HTTP_PROXY`.
//! `PeerTransport` is not added. The same rules hold for trailers, and those of RFC 9110, 6.5.1.
//!
//! How the client's address is found: `identity/address.rs`.

use evenkeel_engine::Quota;
use evenkeel_identity::address::{ProxyTrust, closed_forwarded};
use evenkeel_telemetry::untrusted_proxy::{ForwardingHeaders, PeerRequest};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, StatusCode, Uri, Version};
use std::net::IpAddr;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const PROXY: HeaderName = HeaderName::from_static("proxy");

/// Fields that must not occur in trailers (RFC 9110, 6.5.1): framing, routing, request modifiers
/// and conditions, authentication, response control and content format.
const NOT_IN_TRAILERS: [&str; 40] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authentication-info",
    "authorization",
    "cache-control",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "expect",
    "expires",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "location",
    "max-forwards",
    "pragma",
    "proxy",
    "proxy-authentication-info",
    "range",
    "retry-after",
    "set-cookie",
    "te",
    "trailer",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
];

/// The maximum number of names in `Connection`. A request with more is refused. Real ones have two.
const CONNECTION_NAMES_MAX: usize = 32;

/// Checks what hyper's parser does not check, and brings the head into the one form that is
/// forwarded: an origin-form target and one `Host`. Returns the kinds of fields in it. `secure`:
/// the request came over TLS.
///
/// # Errors
/// The status to answer a malformed request with.
pub(super) fn normalise(head: &mut Parts, secure: bool) -> Result<FieldKinds, StatusCode> {
    if head.method == Method::CONNECT || head.method == Method::TRACE {
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    join_cookies(&mut head.headers);
    let found = FieldKinds::look(&head.headers);
    if found.has(FieldKinds::TRANSFER_ENCODING) {
        check_coding(&head.headers)?;
    }
    if head.uri.authority().is_some() || head.uri.scheme().is_some() {
        take_absolute_form(head, secure)?;
    } else if head.uri.path().is_empty() {
        return Err(StatusCode::BAD_REQUEST);
    }
    check_host(head)?;
    Ok(found)
}

/// Only `chunked` alone is accepted: a body in any other coding would reach the backend without its
/// label.
fn check_coding(headers: &HeaderMap) -> Result<(), StatusCode> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(only), None) if only.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(StatusCode::NOT_IMPLEMENTED),
    }
}

/// HTTP/2 may split a field that is one line in HTTP/1.1 (RFC 9113, 8.2.3). If several lines arrive
/// over HTTP/1.1, some backends read the first, others the last or all.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_some() {
        let lines: Vec<&[u8]> =
            headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
            headers.insert(header::COOKIE, joined);
        }
    }
}

/// The form in which the target of a request over HTTP/1.1 was sent, in the extensions of a head.
#[derive(Clone, Copy)]
pub(super) struct AbsoluteForm {
    /// `http` or `https`.
    pub(super) scheme: &'static str,
}

/// Rewrites `GET http://host/path`: the host of the target wins, whatever `Host` says (RFC 9112,
/// 3.2.2). In HTTP/2 every target has this form and both must be the same (RFC 9113, 8.3.1). There
/// the scheme may be `https` without TLS, for a front that ended TLS.
fn take_absolute_form(head: &mut Parts, secure: bool) -> Result<(), StatusCode> {
    let bad = StatusCode::BAD_REQUEST;
    let streams = head.version == Version::HTTP_2;
    let scheme = match head.uri.scheme_str() {
        Some("http") => "http",
        Some("https") if secure || streams => "https",
        _ => return Err(bad),
    };
    let authority = head.uri.authority().ok_or(bad)?;
    if authority.as_str().contains('@') {
        return Err(bad);
    }
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let (host, another) = (hosts.next(), hosts.next());
    let same =
        |host: &HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
    if another.is_some() || (streams && !host.is_none_or(same)) {
        return Err(bad);
    }
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| bad)?;
    head.headers.insert(header::HOST, host);
    if !streams {
        head.extensions.insert(AbsoluteForm { scheme });
    }
    let slash = || PathAndQuery::from_static("/");
    head.uri = Uri::from(head.uri.path_and_query().cloned().unwrap_or_else(slash));
    Ok(())
}

fn check_host(head: &Parts) -> Result<(), StatusCode> {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if head.version == Version::HTTP_10 => Ok(()),
        (Some(host), None) if is_host(host.as_bytes()) => Ok(()),
        _ => Err(StatusCode::BAD_REQUEST),
    }
}

/// Whether this is a host name or an address, and digits as a port if there is a colon. Some
/// backends ignore other text in the port, others read it as part of the name.
fn is_host(host: &[u8]) -> bool {
    let literal = host.starts_with(b"[");
    let end = match literal {
        true => host.iter().position(|byte| *byte == b']').map(|at| at + 1),
        false => Some(host.iter().position(|byte| *byte == b':').unwrap_or(host.len())),
    };
    let Some((name, port)) = end.and_then(|end| host.split_at_checked(end)) else { return false };
    let is_port = port
        .split_first()
        .is_none_or(|(colon, digits)| *colon == b':' && digits.iter().all(u8::is_ascii_digit));
    let brackets = name.iter().filter(|byte| matches!(byte, b'[' | b']')).count();
    is_port && brackets == usize::from(literal) * 2 && name.iter().all(|b| is_host_byte(*b))
}

fn is_host_byte(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | 0x80..)
        || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':' | b'[' | b']' | b'%' | b'!' | b'$')
        || matches!(byte, b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=')
}

/// Returns the host that a request names, unchanged; empty if it is missing or not UTF-8.
pub(super) fn host(headers: &HeaderMap) -> &str {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes).unwrap_or_default();
    str::from_utf8(host).unwrap_or_default()
}

/// Whether a trusted proxy says that the client uses TLS. The first of several proxies knows.
pub(super) fn came_by_tls(headers: &HeaderMap) -> bool {
    came_by(headers, b"https")
}

/// Whether a trusted proxy says that the client uses no TLS.
pub(super) fn came_without_tls(headers: &HeaderMap) -> bool {
    came_by(headers, b"http")
}

fn came_by(headers: &HeaderMap, scheme: &[u8]) -> bool {
    let first = headers
        .get(X_FORWARDED_PROTO)
        .and_then(|line| line.as_bytes().split(|b| *b == b',').next());
    first.is_some_and(|first| first.trim_ascii().eq_ignore_ascii_case(scheme))
}

/// The host that the client has asked a trusted proxy for, if the proxy states one.
pub(super) fn forwarded_host(headers: &HeaderMap) -> Option<&str> {
    let first = headers.get(X_FORWARDED_HOST)?.to_str().ok()?.split(',').next()?.trim_ascii();
    (!first.is_empty()).then_some(first)
}

/// Facts about the peer for preparing a head for the backend.
pub(super) struct PeerFacts<'a> {
    /// The peer's address as a header value.
    pub(super) address: &'a HeaderValue,
    /// Whether the request came over TLS.
    pub(super) secure: bool,
    /// Whether the peer's forwarding fields are believed.
    pub(super) trusted: bool,
    /// The additional header that only trusted peers may send, if one is configured.
    pub(super) own_header: Option<&'a str>,
    /// The `Host` for HTTP/1.0 requests that name none.
    pub(super) backend: &'a HeaderValue,
}

/// Prepares a request's head for the backend; `found` are the kinds of fields in it. The fields
/// about the client are added later by [`write_client_fields`].
///
/// # Errors
/// The status to answer with.
pub(super) fn forward(
    head: &mut Parts,
    found: FieldKinds,
    peer: &PeerFacts<'_>,
) -> Result<(), StatusCode> {
    let headers = &mut head.headers;
    if found.has(FieldKinds::HOP_BY_HOP) {
        let trailers = found.has(FieldKinds::TE) && wants_trailers(headers);
        if tokens_of_connection(headers).nth(CONNECTION_NAMES_MAX).is_some() {
            return Err(StatusCode::BAD_REQUEST);
        }
        drop_hop_by_hop(headers, found, peer.own_header);
        if trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
            headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
        }
    }
    if found.has(FieldKinds::FORWARDING) {
        drop_where(headers, |name| is_forwarding(name) && (!peer.trusted || is_disguised(name)));
        if peer.trusted {
            add_to_chain(headers, peer.address);
        }
    }
    if let Some(own) = peer.own_header.map(str::as_bytes) {
        drop_where(headers, |name| is_alike(name, own) && (!peer.trusted || name != own));
    }
    if found.has(FieldKinds::PROXY) {
        headers.remove(PROXY);
    }
    if found.has(FieldKinds::EXPECT) {
        // The proxy itself sends `100 Continue`.
        headers.remove(header::EXPECT);
    }
    Ok(())
}

/// Returns the one protocol that a request asks to switch to, if it is in `allowed`. `found`: the
/// kinds of fields in the head.
pub(super) fn upgrade(head: &Parts, found: FieldKinds, allowed: &[String]) -> Option<HeaderValue> {
    if !found.has(FieldKinds::UPGRADE) || head.version == Version::HTTP_10 {
        return None;
    }
    let mut lines = head.headers.get_all(header::UPGRADE).iter();
    let (Some(protocol), None) = (lines.next(), lines.next()) else { return None };
    let asked = head.headers.get_all(header::CONNECTION).iter();
    let mut asked = asked.flat_map(|line| line.as_bytes().split(|b| *b == b','));
    let asked = asked.any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
    let known = |name: &String| protocol.as_bytes().eq_ignore_ascii_case(name.as_bytes());
    (asked && allowed.iter().any(known)).then(|| protocol.clone())
}

/// Adds the request to switch to `protocol` to a prepared head.
pub(super) fn ask_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.remove(header::TE);
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

/// Prepares the head of an answer that switches protocols for the client. `found`: the kinds of
/// fields in it.
pub(super) fn answer_upgrade(headers: &mut HeaderMap, found: FieldKinds) {
    let protocol = headers.get(header::UPGRADE).cloned();
    answer(StatusCode::SWITCHING_PROTOCOLS, headers, found);
    headers.remove(header::CONTENT_LENGTH);
    if let Some(protocol) = protocol {
        ask_upgrade(headers, protocol);
    }
}

/// Prepares the head of an answer for the client. `found`: the kinds of fields in it.
pub(super) fn answer(status: StatusCode, headers: &mut HeaderMap, found: FieldKinds) {
    if status == StatusCode::NO_CONTENT {
        // A 204 has no length (RFC 9110, 8.6). In HTTP/2 a length would make it a truncated answer.
        headers.remove(header::CONTENT_LENGTH);
    }
    if !found.has(FieldKinds::HOP_BY_HOP) {
        return;
    }
    drop_hop_by_hop(headers, found, None);
    if found.has(FieldKinds::PROXY_AUTHENTICATE) {
        headers.remove(header::PROXY_AUTHENTICATE);
    }
}

/// Adds the client's quotas (draft-ietf-httpapi-ratelimit-headers-10).
pub(super) fn quotas(headers: &mut HeaderMap, quotas: &[Quota]) {
    let joined = |one: fn(&Quota) -> String| quotas.iter().map(one).collect::<Vec<_>>().join(", ");
    let policy = joined(|q| format!("\"{}\";q={};w={}", q.name, q.limit, q.window_secs));
    let standing = joined(|q| format!("\"{}\";r={};t={}", q.name, q.left, q.reset_secs));
    for (name, text) in [(RATELIMIT_POLICY, policy), (RATELIMIT, standing)] {
        if let (false, Ok(value)) = (text.is_empty(), HeaderValue::try_from(text)) {
            headers.append(name, value);
        }
    }
}

/// Removes the fields that must not occur in trailers. `own`: the header that names the client.
pub(super) fn trailers(trailers: &mut HeaderMap, own: Option<&str>) {
    let found = FieldKinds::look(trailers);
    if found.has(FieldKinds::HOP_BY_HOP) {
        drop_hop_by_hop(trailers, found, None);
        trailers.remove(header::PROXY_AUTHENTICATE);
    }
    let forbidden = NOT_IN_TRAILERS.iter().copied().chain(own);
    drop_where(trailers, |name| {
        is_forwarding(name) || forbidden.clone().any(|not| is_alike(name, not.as_bytes()))
    });
}

/// The statements of a request about its client's address. `found`: the kinds of fields in it.
pub(super) fn peer_request(
    headers: &HeaderMap,
    found: FieldKinds,
    (trust, peer): (&ProxyTrust, IpAddr),
) -> PeerRequest {
    if trust.trusts_headers(peer) {
        let has = |name: &str| headers.contains_key(name);
        // A front that sets no list may still set the single address.
        let has_address = trust.written_in().is_some_and(has)
            || (trust.header().is_none() && headers.contains_key(X_REAL_IP));
        return PeerRequest::Trusted { has_address };
    }
    let forwards = found.has(FieldKinds::FORWARDING) || found.has(FieldKinds::CDN_CLIENT);
    PeerRequest::Other(ForwardingHeaders::of(|name| forwards && headers.contains_key(name)))
}

/// The kinds of fields found in one pass over a head, one bit each. Most heads have few fields to
/// remove, and each removal costs a search.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FieldKinds(u16);

const _: () = {
    let (last, all) = (FieldKinds::PROXY_AUTHENTICATE.0, FieldKinds::HOP_BY_HOP.0);
    assert!(all == 2 * last - 1 && FieldKinds::FORWARDING.0 == 2 * last, "the bits below");
};

impl FieldKinds {
    const CONNECTION: FieldKinds = FieldKinds(1);
    const TRANSFER_ENCODING: FieldKinds = FieldKinds(1 << 1);
    const TE: FieldKinds = FieldKinds(1 << 2);
    const UPGRADE: FieldKinds = FieldKinds(1 << 3);
    const KEEP_ALIVE: FieldKinds = FieldKinds(1 << 4);
    const PROXY_CONNECTION: FieldKinds = FieldKinds(1 << 5);
    const PROXY_AUTHORIZATION: FieldKinds = FieldKinds(1 << 6);
    const PROXY_AUTHENTICATE: FieldKinds = FieldKinds(1 << 7);
    /// All hop-by-hop fields: the union of the bits above.
    const HOP_BY_HOP: FieldKinds = FieldKinds((1 << 8) - 1);
    const FORWARDING: FieldKinds = FieldKinds(1 << 8);
    const EXPECT: FieldKinds = FieldKinds(1 << 9);
    const PROXY: FieldKinds = FieldKinds(1 << 10);
    /// The address of the client as CDNs write it, in fields of their own.
    const CDN_CLIENT: FieldKinds = FieldKinds(1 << 11);

    /// Fields in addition to `Connection` that end here, in both directions.
    const DROPPED: [(FieldKinds, HeaderName); 6] = [
        (FieldKinds::KEEP_ALIVE, KEEP_ALIVE),
        (FieldKinds::PROXY_CONNECTION, PROXY_CONNECTION),
        (FieldKinds::PROXY_AUTHORIZATION, header::PROXY_AUTHORIZATION),
        (FieldKinds::TE, header::TE),
        (FieldKinds::TRANSFER_ENCODING, header::TRANSFER_ENCODING),
        (FieldKinds::UPGRADE, header::UPGRADE),
    ];

    pub(super) fn look(headers: &HeaderMap) -> FieldKinds {
        headers
            .keys()
            .fold(FieldKinds::default(), |found, name| FieldKinds(found.0 | FieldKinds::of(name).0))
    }

    pub(super) fn add(&mut self, name: &HeaderName) {
        self.0 |= FieldKinds::of(name).0;
    }

    fn of(name: &HeaderName) -> FieldKinds {
        let name = name.as_str().as_bytes();
        match name.first() {
            Some(b'c') if name == b"connection" => FieldKinds::CONNECTION,
            Some(b'c') if name == b"cf-connecting-ip" => FieldKinds::CDN_CLIENT,
            Some(b'f') if name == b"fastly-client-ip" => FieldKinds::CDN_CLIENT,
            Some(b'e') if name == b"expect" => FieldKinds::EXPECT,
            Some(b'k') if name == b"keep-alive" => FieldKinds::KEEP_ALIVE,
            Some(b'p') => match name {
                b"proxy" => FieldKinds::PROXY,
                b"proxy-connection" => FieldKinds::PROXY_CONNECTION,
                b"proxy-authorization" => FieldKinds::PROXY_AUTHORIZATION,
                b"proxy-authenticate" => FieldKinds::PROXY_AUTHENTICATE,
                _ => FieldKinds::default(),
            },
            Some(b't') => match name {
                b"te" => FieldKinds::TE,
                b"transfer-encoding" => FieldKinds::TRANSFER_ENCODING,
                b"true-client-ip" => FieldKinds::CDN_CLIENT,
                _ => FieldKinds::default(),
            },
            Some(b'u') if name == b"upgrade" => FieldKinds::UPGRADE,
            Some(b'f' | b'x') if is_forwarding(name) => FieldKinds::FORWARDING,
            _ => FieldKinds::default(),
        }
    }

    fn has(self, any: FieldKinds) -> bool {
        self.0 & any.0 != 0
    }
}

/// Whether a backend might read this field as a statement about the client. Any symbol counts as a
/// hyphen: CGI treats underscores so, and some servers every symbol.
fn is_forwarding(name: &[u8]) -> bool {
    let alike = |start: &[u8]| {
        let same = |(b, s): (&u8, &u8)| b == s || (*s == b'-' && !b.is_ascii_alphanumeric());
        name.len() >= start.len() && name.iter().zip(start).all(same)
    };
    match name.first() {
        Some(b'x') => alike(b"x-forwarded") || alike(b"x-real-ip"),
        Some(b'f') => name == b"forwarded",
        _ => false,
    }
}

/// Whether a name has symbols other than hyphens. No honest proxy writes an address under such a
/// name.
fn is_disguised(name: &[u8]) -> bool {
    name.iter().any(|b| !b.is_ascii_alphanumeric() && *b != b'-')
}

/// Whether two names are equal to a reader that takes every symbol for a hyphen.
fn is_alike(name: &[u8], other: &[u8]) -> bool {
    let sign = |byte: &u8| !byte.is_ascii_alphanumeric();
    let same = |(a, b): (&u8, &u8)| a == b || (sign(a) && sign(b));
    name.len() == other.len() && name.iter().zip(other).all(same)
}

fn drop_where(headers: &mut HeaderMap, which: impl Fn(&[u8]) -> bool) {
    let named = headers.keys().filter(|name| which(name.as_str().as_bytes()));
    let named: Vec<HeaderName> = named.cloned().collect();
    for name in named {
        headers.remove(name);
    }
}

/// Removes hop-by-hop fields. `own`: the header that names the client, which `Connection` cannot
/// remove.
fn drop_hop_by_hop(headers: &mut HeaderMap, found: FieldKinds, own: Option<&str>) {
    if found.has(FieldKinds::CONNECTION) {
        for name in named_in_connection(headers, own) {
            headers.remove(name);
        }
        headers.remove(header::CONNECTION);
    }
    for (field, name) in &FieldKinds::DROPPED {
        if found.has(*field) {
            headers.remove(name);
        }
    }
}

/// Returns the fields of `headers` that `Connection` names, except those that frame a message or
/// route it: removing them would let a client change what the backend reads. There may be many
/// names, so those without a field are left out.
fn named_in_connection(headers: &HeaderMap, own: Option<&str>) -> Vec<HeaderName> {
    let mut names = Vec::new();
    for token in tokens_of_connection(headers) {
        let plain = [&b"close"[..], b"keep-alive"];
        if plain.iter().any(|plain| token.eq_ignore_ascii_case(plain)) {
            continue;
        }
        match HeaderName::from_bytes(token) {
            Ok(header::HOST | header::CONTENT_LENGTH | header::CONTENT_TYPE) => {}
            Ok(name) if is_forwarding(name.as_str().as_bytes()) => {}
            Ok(name) if own == Some(name.as_str()) => {}
            Ok(name) if headers.contains_key(&name) => names.push(name),
            Ok(_) | Err(_) => {}
        }
    }
    names
}

/// Returns the options that `Connection` states: names of fields, `close` and `keep-alive`.
fn tokens_of_connection(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let lines = headers.get_all(header::CONNECTION).iter();
    let tokens = lines.flat_map(|line| line.as_bytes().split(|b| *b == b','));
    tokens.map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

fn wants_trailers(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::TE).iter();
    let mut codings = lines.flat_map(|line| line.as_bytes().split(|b| *b == b','));
    codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Calls `say` for each field that the backend gets about the client in addition to the prepared
/// `headers`. (Adding them to the map would cost more: each entry takes a search.)
pub(super) fn write_client_fields(
    headers: &HeaderMap,
    peer: &PeerFacts<'_>,
    mut say: impl FnMut(&HeaderName, &[u8]),
) {
    // Forwarding fields remain only if the peer is trusted.
    let said = |name: &HeaderName| peer.trusted && headers.contains_key(name);
    match headers.get(header::HOST) {
        Some(_) if said(&X_FORWARDED_HOST) => {}
        Some(host) => say(&X_FORWARDED_HOST, host.as_bytes()),
        None => say(&header::HOST, peer.backend.as_bytes()),
    }
    if !said(&X_FORWARDED_FOR) {
        say(&X_FORWARDED_FOR, peer.address.as_bytes());
    }
    if !said(&X_FORWARDED_PROTO) {
        say(&X_FORWARDED_PROTO, if peer.secure { b"https" } else { b"http" });
    }
}

/// Appends the peer to the chain that it sent, joining all lines into one.
fn add_to_chain(headers: &mut HeaderMap, address: &HeaderValue) {
    if headers.contains_key(X_FORWARDED_FOR) {
        let lines = headers.get_all(X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
        let joined = join(lines, address.as_bytes());
        set(headers, X_FORWARDED_FOR, joined);
    }
    if headers.contains_key(header::FORWARDED) {
        let element = match address.as_bytes().contains(&b':') {
            true => [b"for=\"[", address.as_bytes(), b"]\""].concat(),
            false => [b"for=", address.as_bytes()].concat(),
        };
        let joined = join(closed_forwarded(headers).into_iter(), &element);
        set(headers, header::FORWARDED, joined);
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        headers.insert(name, value);
    }
}

fn join<'a>(lines: impl Iterator<Item = &'a [u8]>, last: &[u8]) -> Option<HeaderValue> {
    let mut joined = Vec::with_capacity(64);
    for line in lines {
        joined.extend_from_slice(line);
        joined.extend_from_slice(b", ");
    }
    joined.extend_from_slice(last);
    HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_config::settings::ClientAddress;
    use http::Request;

    fn head(target: &str, lines: &[(&'static str, &str)]) -> Parts {
        let mut request = Request::builder().uri(target);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn forwarded(trusted: bool, lines: &[(&'static str, &str)]) -> HeaderMap {
        let head = head("/", lines);
        let address = HeaderValue::from_static("192.0.2.1");
        let backend = HeaderValue::from_static("backend:80");
        let own_header = Some("cf-connecting-ip");
        let peer =
            PeerFacts { address: &address, secure: false, trusted, own_header, backend: &backend };
        sent(head, &peer).expect("passes")
    }

    /// The fields that the backend receives.
    fn sent(mut head: Parts, peer: &PeerFacts<'_>) -> Result<HeaderMap, StatusCode> {
        let found = FieldKinds::look(&head.headers);
        forward(&mut head, found, peer)?;
        let mut sent = head.headers.clone();
        write_client_fields(&head.headers, peer, |name, value| {
            sent.append(name, HeaderValue::from_bytes(value).expect("a value"));
        });
        Ok(sent)
    }

    #[test]
    fn every_header_that_names_a_client_is_noticed() {
        let trust = ProxyTrust::new(&[], &ClientAddress::XForwardedFor);
        for name in evenkeel_telemetry::untrusted_proxy::FORWARDING_HEADERS {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static("203.0.113.9"));
            let peer = IpAddr::from([192, 0, 2, 1]);
            let found = FieldKinds::look(&headers);
            let PeerRequest::Other(seen) = peer_request(&headers, found, (&trust, peer)) else {
                panic!("{name}: not trusted");
            };
            assert_eq!(seen.names(), [name]);
        }
    }

    #[test]
    fn what_connection_names_ends_here() {
        let headers = forwarded(
            false,
            &[
                ("host", "a"),
                ("connection", "close, x-secret"),
                ("connection", "Host, Content-Length, X-Forwarded-For, bad name"),
                ("x-secret", "1"),
                ("content-length", "3"),
                ("keep-alive", "5"),
                ("proxy-connection", "close"),
                ("te", "gzip, trailers"),
                ("upgrade", "websocket"),
                ("proxy-authorization", "x"),
            ],
        );
        let names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        let expected = [
            "host",
            "content-length",
            "te",
            "connection",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
        ];
        assert_eq!(names.len(), expected.len(), "{names:?}");
        assert!(expected.iter().all(|name| names.contains(name)), "{names:?}");
        assert_eq!(headers["te"], "trailers");
    }

    #[test]
    fn no_hop_by_hop_field_passes_however_many_connection_names() {
        let names: Vec<String> = (0..CONNECTION_NAMES_MAX + 8).map(|n| format!("x-{n}")).collect();
        let mut fields = HeaderMap::new();
        fields.insert(header::CONNECTION, HeaderValue::try_from(names.join(",")).expect("a value"));
        for name in &names {
            let name = HeaderName::try_from(name).expect("a name");
            fields.insert(name, HeaderValue::from_static("1"));
        }
        for (_, name) in &FieldKinds::DROPPED {
            fields.insert(name, HeaderValue::from_static("1"));
        }
        let (mut answered, mut trailing) = (fields.clone(), fields.clone());
        answer(StatusCode::OK, &mut answered, FieldKinds::look(&fields));
        trailers(&mut trailing, None);
        assert_eq!((answered, trailing), (HeaderMap::new(), HeaderMap::new()));
        let mut head = head("/", &[("host", "a")]);
        head.headers.extend(fields);
        let found = FieldKinds::look(&head.headers);
        let address = HeaderValue::from_static("192.0.2.1");
        let backend = HeaderValue::from_static("b");
        let peer = PeerFacts {
            address: &address,
            secure: false,
            trusted: false,
            own_header: None,
            backend: &backend,
        };
        assert_eq!(forward(&mut head, found, &peer), Err(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn an_untrusted_peer_writes_no_addresses() {
        let headers = forwarded(
            false,
            &[
                ("host", "a"),
                ("x-forwarded-for", "6.6.6.6"),
                ("x_forwarded_for", "6.6.6.6"),
                ("x-real-ip", "6.6.6.6"),
                ("x_real-ip", "6.6.6.6"),
                ("x.forwarded~for", "6.6.6.6"),
                ("forwarded", "for=6.6.6.6"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-port", "6"),
                ("x-forwarded-host", "6.6.6.6"),
                ("cf-connecting-ip", "6.6.6.6"),
                ("cf_connecting_ip", "6.6.6.6"),
                ("cf.connecting-ip", "6.6.6.6"),
                ("cf-connecting~ip", "6.6.6.6"),
                ("proxy", "6.6.6.6"),
            ],
        );
        assert!(headers.values().all(|value| !value.as_bytes().starts_with(b"6")), "{headers:?}");
        assert_eq!(headers["x-forwarded-for"], "192.0.2.1");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "a");
    }

    #[test]
    fn a_trusted_peer_is_appended_to_its_chain() {
        let headers = forwarded(
            true,
            &[
                ("host", "a"),
                ("x-forwarded-for", "1.1.1.1"),
                ("x-forwarded-for", "2.2.2.2"),
                ("forwarded", "for=1.1.1.1"),
                ("x_forwarded_for", "6.6.6.6"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "b"),
                ("cf-connecting-ip", "1.1.1.1"),
                ("cf_connecting_ip", "6.6.6.6"),
                ("cf-connecting.ip", "6.6.6.6"),
                ("proxy", "6.6.6.6"),
                ("connection", "cf-connecting-ip, x-forwarded-for, x-real-ip, forwarded"),
                ("connection", "x-forwarded-proto, x-forwarded-host, x-forwarded-port"),
            ],
        );
        assert!(headers.values().all(|value| value != "6.6.6.6"), "{headers:?}");
        assert_eq!(headers["cf-connecting-ip"], "1.1.1.1");
        assert_eq!(headers["x-forwarded-for"], "1.1.1.1, 2.2.2.2, 192.0.2.1");
        assert_eq!(headers["forwarded"], "for=1.1.1.1, for=192.0.2.1");
        assert_eq!(
            (&headers["x-forwarded-proto"], &headers["x-forwarded-host"]),
            (&HeaderValue::from_static("https"), &HeaderValue::from_static("b"))
        );
        assert_eq!(headers.get_all("x-forwarded-for").iter().count(), 1);
    }

    #[test]
    fn an_open_quotation_is_not_handed_on() {
        let forged = r#"for="198.51.100.77";x=", for=203.0.113.66"#;
        let headers = forwarded(true, &[("host", "a"), ("forwarded", forged)]);
        assert_eq!(headers["forwarded"], " for=203.0.113.66, for=192.0.2.1");
        let headers = forwarded(true, &[("host", "a"), ("forwarded", "x=\"")]);
        assert_eq!(headers["forwarded"], "for=192.0.2.1");
    }

    #[test]
    fn trailers_say_nothing_that_a_head_would_have_to() {
        let lines = [
            ("cf-connecting-ip", "6.6.6.6"),
            ("cf_connecting_ip", "6.6.6.6"),
            ("x_forwarded_for", "6.6.6.6"),
            ("x-real-ip", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("proxy", "x"),
            ("proxy-authenticate", "x"),
            ("authorization", "x"),
            ("content_length", "1"),
            ("content-type", "x"),
            ("cookie", "x"),
            ("set-cookie", "x"),
            ("host", "x"),
            ("if-match", "x"),
            ("transfer-encoding", "chunked"),
            ("trailer", "x"),
            ("te", "trailers"),
            ("connection", "close"),
        ];
        let passing = [("grpc-status", "0"), ("x-sum", "1"), ("etag", "x"), ("server-timing", "x")];
        let mut headers = head("/", &[&lines[..], &passing].concat()).headers;
        trailers(&mut headers, Some("cf-connecting-ip"));
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["etag", "grpc-status", "server-timing", "x-sum"]);
    }

    #[test]
    fn cookies_of_several_lines_are_one_line() {
        let mut head = head("/", &[("host", "a"), ("cookie", "a=1"), ("cookie", "b=2; c=3")]);
        normalise(&mut head, false).expect("passes");
        let lines: Vec<_> = head.headers.get_all("cookie").iter().collect();
        assert_eq!(lines, ["a=1; b=2; c=3"]);
    }

    #[test]
    fn an_old_request_without_host_gets_the_backends() {
        assert_eq!(forwarded(false, &[])["host"], "backend:80");
    }

    #[test]
    fn faulty_heads_are_refused() {
        let bad = StatusCode::BAD_REQUEST;
        type Case<'a> = (&'a str, &'a [(&'static str, &'a str)], Result<(), StatusCode>);
        let cases: [Case<'_>; 20] = [
            ("/", &[], Err(bad)),
            ("/", &[("host", "a"), ("host", "a")], Err(bad)),
            ("/", &[("host", "a b")], Err(bad)),
            ("/", &[("host", "a/b")], Err(bad)),
            ("http://u@a/", &[("host", "a")], Err(bad)),
            ("/", &[("host", "a"), ("transfer-encoding", "gzip, chunked")], {
                Err(StatusCode::NOT_IMPLEMENTED)
            }),
            ("/", &[("host", "[::1]:80")], Ok(())),
            ("/", &[("host", "[::1]")], Ok(())),
            ("/", &[("host", "a.example.:80")], Ok(())),
            ("/", &[("host", "a:")], Ok(())),
            ("/", &[("host", "")], Ok(())),
            ("/", &[("host", "a:0x")], Err(bad)),
            ("/", &[("host", "a:80.")], Err(bad)),
            ("/", &[("host", "a:80:80")], Err(bad)),
            ("/", &[("host", "::1")], Err(bad)),
            ("/", &[("host", "[::1]x")], Err(bad)),
            ("/", &[("host", "[::1")], Err(bad)),
            ("/", &[("host", "[[::1]]")], Err(bad)),
            ("/", &[("host", "a]")], Err(bad)),
            ("http://b/x?y", &[("host", "a")], Ok(())),
        ];
        for (target, lines, expected) in cases {
            let checked = normalise(&mut head(target, lines), false).map(drop);
            assert_eq!(checked, expected, "{target} {lines:?}");
        }
    }

    #[test]
    fn an_absolute_target_becomes_a_path_and_a_host() {
        let mut head = head("http://b:81/x?y", &[("host", "a")]);
        normalise(&mut head, false).expect("passes");
        assert_eq!(
            (head.uri.to_string().as_str(), &head.headers["host"]),
            ("/x?y", &HeaderValue::from_static("b:81"))
        );
        assert_eq!(host(&head.headers), "b:81");
    }

    #[test]
    fn an_answer_loses_its_hop() {
        let mut headers = head(
            "/",
            &[
                ("connection", "x-hop"),
                ("x-hop", "1"),
                ("keep-alive", "9"),
                ("upgrade", "x"),
                ("proxy-authenticate", "x"),
            ],
        )
        .headers;
        let found = FieldKinds::look(&headers);
        answer(StatusCode::OK, &mut headers, found);
        assert!(headers.is_empty(), "{headers:?}");
    }

    #[test]
    fn fuzz_no_hop_passes_whatever_stands_in_its_fields() {
        evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(hop, chain)| {
            let value = |bytes: &[u8]| HeaderValue::from_bytes(bytes).ok();
            let (Some(hop), Some(chain)) = (value(hop), value(chain)) else { return };
            for trusted in [false, true] {
                let mut head = head("/", &[("host", "a"), ("content-length", "1")]);
                head.headers.insert(header::CONNECTION, hop.clone());
                head.headers.insert(header::TE, hop.clone());
                head.headers.insert(X_FORWARDED_FOR, chain.clone());
                let address = HeaderValue::from_static("192.0.2.1");
                let peer = PeerFacts {
                    address: &address,
                    secure: false,
                    trusted,
                    own_header: None,
                    backend: &address,
                };
                let Ok(sent) = sent(head, &peer) else { continue };
                let connection = sent.get(header::CONNECTION);
                assert!(connection.is_none_or(|names| names == "te"));
                assert_eq!(
                    (&sent["host"], &sent["content-length"]),
                    (&HeaderValue::from_static("a"), &HeaderValue::from_static("1"))
                );
                let mut written = sent.get_all(X_FORWARDED_FOR).iter();
                let (Some(written), None) = (written.next(), written.next()) else {
                    panic!("{sent:?}")
                };
                let written = written.as_bytes();
                assert!(written.ends_with(b"192.0.2.1") && (trusted || written.len() == 9));
            }
        });
    }
}
