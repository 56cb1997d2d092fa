//! The request that a front asks about, read from the headers of its query.
//!
//! nginx describes it in `X-Original-*`, as configured in the example; Caddy and Traefik in
//! `X-Forwarded-*`. All other headers (User-Agent, Cookie) are as the client sent them. Missing
//! values get the simplest default: `GET /` without a host. How the client is found:
//! `identity::address`.

use evenkeel_core::classify::RequestAttributes;
use http::header::{HeaderMap, HeaderValue};
use std::borrow::Cow;
use std::net::IpAddr;

/// The attributes of that request that limits can match.
pub struct OriginalRequest<'a> {
    client: IpAddr,
    method: Cow<'a, str>,
    path: Cow<'a, str>,
    query: Cow<'a, str>,
    vhost: Cow<'a, str>,
    headers: &'a HeaderMap,
}

impl<'a> OriginalRequest<'a> {
    /// Reads the headers of a query about a request of `client`.
    pub fn read(client: IpAddr, headers: &'a HeaderMap) -> OriginalRequest<'a> {
        let method = first(headers, ["x-original-method", "x-forwarded-method"]);
        let uri = first(headers, ["x-original-uri", "x-forwarded-uri"]);
        let host = first(headers, ["x-original-host", "x-forwarded-host"]);
        OriginalRequest {
            client,
            method: method.map_or("GET".into(), String::from_utf8_lossy),
            path: String::from_utf8_lossy(path(uri.unwrap_or(b"/"))),
            query: String::from_utf8_lossy(query(uri.unwrap_or_default())),
            vhost: String::from_utf8_lossy(host.unwrap_or_default()),
            headers,
        }
    }
}

impl RequestAttributes for OriginalRequest<'_> {
    fn address(&self) -> IpAddr {
        self.client
    }

    fn method(&self) -> &str {
        &self.method
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn vhost(&self) -> &str {
        &self.vhost
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.get(name).map(HeaderValue::as_bytes)
    }

    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.headers.get_all(name).iter().map(HeaderValue::as_bytes)
    }

    fn query(&self) -> &str {
        &self.query
    }
}

/// Returns the first of these headers that is not empty. Clients choose the bytes of a target, so a
/// value that is not text is not skipped.
fn first<'a>(headers: &'a HeaderMap, names: [&str; 2]) -> Option<&'a [u8]> {
    let mut values = names.into_iter().filter_map(|name| headers.get(name));
    values.find(|value| !value.is_empty()).map(HeaderValue::as_bytes)
}

/// Returns the query of a target without its question mark; empty if there is none.
fn query(target: &[u8]) -> &[u8] {
    let target = target.split(|byte| *byte == b'#').next().unwrap_or_default();
    let mark = target.iter().position(|byte| *byte == b'?');
    mark.map_or(&b""[..], |mark| &target[mark + 1..])
}

/// Returns the path of a target without its query. The target may be a whole URL.
fn path(target: &[u8]) -> &[u8] {
    let target = target.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default();
    let scheme = target.windows(3).position(|three| three == b"://");
    let path = match scheme.filter(|at| !target[..*at].contains(&b'/')) {
        Some(at) => {
            let rest = &target[at + 3..];
            rest.iter().position(|byte| *byte == b'/').map_or(&b""[..], |slash| &rest[slash..])
        }
        None => target,
    };
    if path.is_empty() { b"/" } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn seen(lines: &[(&'static str, &str)]) -> (String, String, String) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        let original = OriginalRequest::read(IpAddr::from([192, 0, 2, 1]), &headers);
        let [method, path, vhost] =
            [original.method(), original.path(), original.vhost()].map(str::to_owned);
        (method, path, vhost)
    }

    #[test]
    fn the_original_request_by_either_name() {
        let is = |method: &str, path: &str, vhost: &str| {
            (method.to_owned(), path.to_owned(), vhost.to_owned())
        };
        let nginx = [
            ("x-original-method", "POST"),
            ("x-original-uri", "/login?next=/"),
            ("x-original-host", "www.example.com:8443"),
            ("x-forwarded-uri", "/what-a-client-wrote"),
        ];
        assert_eq!(seen(&nginx), is("POST", "/login", "www.example.com:8443"));
        let caddy = [
            ("x-forwarded-method", "PUT"),
            ("x-forwarded-uri", "/a/b"),
            ("x-forwarded-host", "[2001:db8::1]"),
        ];
        assert_eq!(seen(&caddy), is("PUT", "/a/b", "[2001:db8::1]"));
        assert_eq!(seen(&[]), is("GET", "/", ""));
        for (uri, path) in [
            ("http://www.example.com/a?b", "/a"),
            ("http://www.example.com", "/"),
            ("/a://b", "/a://b"),
            ("?", "/"),
            ("/a#b", "/a"),
            ("/a?\u{e9}", "/a"),
            ("/\u{e9}", "/\u{e9}"),
        ] {
            assert_eq!(seen(&[("x-original-uri", uri)]).1, path, "{uri}");
        }
    }

    #[test]
    fn fuzz_any_question_is_about_some_request() {
        evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
            let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
            let mut headers = HeaderMap::new();
            for name in ["x-original-uri", "x-original-host", "x-forwarded-method"] {
                headers.append(name, value.clone());
            }
            let original = OriginalRequest::read(IpAddr::from([192, 0, 2, 1]), &headers);
            assert!(!original.path().is_empty() && !original.path().contains(['?', '#']));
            assert!(!original.method().is_empty());
        });
    }
}
