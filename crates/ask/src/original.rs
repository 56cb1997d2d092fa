//! The request that a front asks about.
//!
//! nginx describes it in `X-Original-*`, as configured in the example; Caddy and Traefik in
//! `X-Forwarded-*`; Envoy in the pseudo-headers of HTTP/2. All other headers (User-Agent, Cookie)
//! are as the client sent them. Missing values get the simplest default: `GET /` over HTTP without
//! a host. How the client is found: `identity::address`.

use evenkeel_core::classify::{ModelCall, RequestAttributes};
use evenkeel_core::fact::ClientFact;
use evenkeel_identity::prints::fetch::FetchRequest;
use evenkeel_identity::signature::SignedRequest;
use evenkeel_models::ModelExchange;
use http::header::{HeaderMap, HeaderValue};
use std::borrow::Cow;
use std::net::IpAddr;

/// The attributes of that request that limits can match.
pub struct OriginalRequest<'a> {
    client: IpAddr,
    method: Cow<'a, str>,
    /// Whether the client has reached the front over TLS.
    secure: bool,
    path: Cow<'a, str>,
    query: Option<Cow<'a, str>>,
    vhost: Cow<'a, str>,
    headers: &'a HeaderMap,
    /// Whether the front passes on all headers of its clients.
    has_all_headers: bool,
    /// The robot that has signed the request.
    pub signer: Option<&'a str>,
    /// The beginning of the body, if the front has sent it.
    pub body: &'a [u8],
    /// The exchange with a language model, if the request asks one.
    pub model: Option<&'a ModelExchange>,
}

/// The pseudo-headers of a request in HTTP/2; those that are missing are empty.
#[derive(Debug, Default)]
pub struct PseudoHeaders {
    /// `:method`.
    pub method: String,
    /// `:scheme`.
    pub scheme: String,
    /// `:authority`.
    pub authority: String,
    /// `:path`, with the query.
    pub path: String,
}

impl<'a> OriginalRequest<'a> {
    /// Reads the headers of a query about a request of `client`.
    pub fn read(
        client: IpAddr,
        headers: &'a HeaderMap,
        has_all_headers: bool,
    ) -> OriginalRequest<'a> {
        let method = first(headers, ["x-original-method", "x-forwarded-method"]);
        let uri = first(headers, ["x-original-uri", "x-forwarded-uri"]);
        let host = first(headers, ["x-original-host", "x-forwarded-host"]);
        let scheme = first(headers, ["x-original-proto", "x-forwarded-proto"]);
        OriginalRequest {
            client,
            method: method.map_or("GET".into(), String::from_utf8_lossy),
            secure: scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"https")),
            path: String::from_utf8_lossy(path(uri.unwrap_or(b"/"))),
            query: query(uri.unwrap_or_default()).map(String::from_utf8_lossy),
            vhost: String::from_utf8_lossy(host.unwrap_or_default()),
            headers,
            has_all_headers,
            signer: None,
            body: &[],
            model: None,
        }
    }

    /// A request of `client` with these pseudo-headers of HTTP/2.
    pub fn of_pseudo_headers(
        client: IpAddr,
        pseudo: &'a PseudoHeaders,
        headers: &'a HeaderMap,
        has_all_headers: bool,
    ) -> OriginalRequest<'a> {
        let PseudoHeaders { method, scheme, authority, path: target } = pseudo;
        OriginalRequest {
            client,
            method: if method.is_empty() { "GET".into() } else { method.into() },
            secure: scheme.eq_ignore_ascii_case("https"),
            path: String::from_utf8_lossy(path(target.as_bytes())),
            query: query(target.as_bytes()).map(String::from_utf8_lossy),
            vhost: authority.into(),
            headers,
            has_all_headers,
            signer: None,
            body: &[],
            model: None,
        }
    }

    /// The request as a robot may have signed it. A signature that covers what the front does not
    /// pass on unchanged proves nothing.
    pub fn signed(&self) -> SignedRequest<'_> {
        SignedRequest {
            method: &self.method,
            scheme: if self.secure { "https" } else { "http" },
            authority: &self.vhost,
            path: &self.path,
            query: self.query.as_deref(),
            // Fronts say what is asked for, not in which form.
            absolute: None,
            headers: self.headers,
        }
    }

    /// Whether the headers agree with the browser that the client claims to be; `None` if some of
    /// them are unknown.
    fn fetch(&self) -> Option<&'static str> {
        let request = FetchRequest {
            method: &self.method,
            secure: self.secure,
            repeats_agent: self.headers("user-agent").nth(1).is_some(),
            header: |name| self.header(name),
        };
        self.has_all_headers.then(|| request.verdict().as_str())
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
        self.query.as_deref().unwrap_or_default()
    }

    fn json(&self, pointer: &str) -> Option<Cow<'_, str>> {
        evenkeel_usage::value_at(self.body, pointer).map(Cow::Owned)
    }

    fn model_call(&self) -> Option<ModelCall<'_>> {
        self.model.map(ModelExchange::call)
    }

    fn fact(&self, fact: ClientFact) -> Option<Cow<'_, str>> {
        match fact {
            ClientFact::Bot => self.signer.map(Cow::Borrowed),
            ClientFact::Fetch => self.fetch().map(Cow::Borrowed),
            _ => None,
        }
    }
}

/// Returns the first of these headers that is not empty. Clients choose the bytes of a target, so a
/// value that is not text is not skipped.
fn first<'a>(headers: &'a HeaderMap, names: [&str; 2]) -> Option<&'a [u8]> {
    let mut values = names.into_iter().filter_map(|name| headers.get(name));
    values.find(|value| !value.is_empty()).map(HeaderValue::as_bytes)
}

/// Returns the query of a target without its question mark, if there is one.
fn query(target: &[u8]) -> Option<&[u8]> {
    let target = target.split(|byte| *byte == b'#').next().unwrap_or_default();
    let mark = target.iter().position(|byte| *byte == b'?');
    mark.map(|mark| &target[mark + 1..])
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
        let original = OriginalRequest::read(IpAddr::from([192, 0, 2, 1]), &headers, true);
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
    fn a_signed_request_is_as_the_client_has_sent_it() {
        let mut headers = HeaderMap::new();
        let signed = |headers: &HeaderMap| {
            let original = OriginalRequest::read(IpAddr::from([192, 0, 2, 1]), headers, false);
            let SignedRequest { method, scheme, authority, path, query, .. } = original.signed();
            format!("{method} {scheme}://{authority}{path} {query:?}")
        };
        assert_eq!(signed(&headers), "GET http:/// None");
        for (name, value) in [
            ("x-original-method", "POST"),
            ("x-original-uri", "/a%2Fb?"),
            ("x-original-host", "www.example.com:8443"),
            ("x-forwarded-proto", "HTTPS"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        assert_eq!(signed(&headers), "POST https://www.example.com:8443/a%2Fb Some(\"\")");
        headers.insert("x-original-uri", HeaderValue::from_static("http://x/a?b=c"));
        headers.insert("x-original-proto", HeaderValue::from_static("http"));
        assert_eq!(signed(&headers), "POST http://www.example.com:8443/a Some(\"b=c\")");
    }

    #[test]
    fn headers_are_compared_with_the_browser_only_if_all_are_known() {
        let mut headers = HeaderMap::new();
        let agent = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";
        headers.insert("user-agent", HeaderValue::from_static(agent));
        let fetch = |headers: &HeaderMap, all| {
            let original = OriginalRequest::read(IpAddr::from([192, 0, 2, 1]), headers, all);
            original.fact(ClientFact::Fetch).map(Cow::into_owned)
        };
        assert_eq!(fetch(&headers, false), None);
        assert_eq!(fetch(&headers, true).as_deref(), Some("differs"));
        headers.insert("accept", HeaderValue::from_static("text/html"));
        headers.insert("accept-language", HeaderValue::from_static("de"));
        assert_eq!(fetch(&headers, true).as_deref(), Some("agrees"));
        headers.insert("x-original-proto", HeaderValue::from_static("https"));
        assert_eq!(fetch(&headers, true).as_deref(), Some("differs"), "no Sec-Fetch");
    }

    #[test]
    fn fuzz_any_question_is_about_some_request() {
        evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
            let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
            let mut headers = HeaderMap::new();
            for name in ["x-original-uri", "x-original-host", "x-forwarded-method"] {
                headers.append(name, value.clone());
            }
            let original = OriginalRequest::read(IpAddr::from([192, 0, 2, 1]), &headers, true);
            assert!(!original.path().is_empty() && !original.path().contains(['?', '#']));
            assert!(!original.method().is_empty());
        });
    }
}
