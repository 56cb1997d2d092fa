//! External authorization: decides on a request at once.
//!
//! Envoy waits for the answer, but neither says when a response has ended nor what it cost. What
//! that means: `permit`. Over HTTP, Envoy asks the door `check`.

use super::answer::refusal_headers;
use super::authz_wire::attribute_context::HttpRequest;
use super::authz_wire::check_response::HttpResponse;
use super::authz_wire::{
    AttributeContext, CheckRequest, CheckResponse, DeniedHttpResponse, HeaderValue,
    HeaderValueOption, HttpStatus, OkHttpResponse, RpcStatus,
};
use super::context::{ExchangeSettings, ExchangeThread};
use crate::original::{OriginalRequest, PseudoHeaders};
use crate::permit::permit;
use evenkeel_engine::RequestRefusal;
use evenkeel_identity::answer::{self, AnswerFormat};
use http::{HeaderMap, HeaderName};
use std::net::IpAddr;
use tonic::Code;

/// Answers the Envoy at `peer`.
pub async fn check(
    request: CheckRequest,
    peer: IpAddr,
    thread: &ExchangeThread,
    settings: &ExchangeSettings,
) -> CheckResponse {
    let AttributeContext { source, request } = request.attributes.unwrap_or_default();
    let source = source.and_then(|peer| peer.address?.socket_address?.address.parse().ok());
    let http = request.and_then(|request| request.http).unwrap_or_default();
    let (pseudo, headers) = head(http);
    let client = settings.trust.client_of_envoy(peer, source, &headers);
    let mut original = OriginalRequest::of_pseudo_headers(client, &pseudo, &headers, true);
    let robots = thread.lane.robots();
    original.signer =
        robots.as_ref().and_then(|robots| robots.signed(&original.signed(), thread.clock.now()));
    let format = AnswerFormat::of(&headers);
    match permit(&thread.lane, thread.store.as_deref(), &original).await {
        Ok(()) => pass(),
        Err(refusal) => deny(&refusal, format),
    }
}

/// The pseudo-headers and the headers of a request. Envoy sends the headers as a map, or as a list
/// with `encode_raw_headers`; the pseudo-headers are among them.
fn head(http: HttpRequest) -> (PseudoHeaders, HeaderMap) {
    let HttpRequest { method, headers, path, host, scheme, header_map } = http;
    let pairs = headers.into_iter().map(|(key, value)| (key, value.into_bytes()));
    let raw = header_map.into_iter().flat_map(|map| map.headers);
    let raw = raw.map(|header| (header.key, header.raw_value));
    let mut all = HeaderMap::new();
    for (key, value) in pairs.chain(raw) {
        let name = HeaderName::from_bytes(key.as_bytes());
        if let (Ok(name), Ok(value)) = (name, http::HeaderValue::from_bytes(&value)) {
            // Those beyond the number that fits are left out.
            let _ = all.try_append(name, value);
        }
    }
    (PseudoHeaders { method, scheme, authority: host, path }, all)
}

fn pass() -> CheckResponse {
    CheckResponse {
        status: Some(RpcStatus { code: Code::Ok.into() }),
        http_response: Some(HttpResponse::OkResponse(OkHttpResponse {})),
    }
}

fn deny(refusal: &RequestRefusal, format: AnswerFormat) -> CheckResponse {
    let status = answer::refused(refusal.kind);
    let header = |(key, value): (&str, Vec<u8>)| HeaderValueOption {
        header: Some(HeaderValue {
            key: key.to_owned(),
            value: String::from_utf8_lossy(&value).into_owned(),
            raw_value: Vec::new(),
        }),
    };
    CheckResponse {
        status: Some(RpcStatus { code: Code::PermissionDenied.into() }),
        http_response: Some(HttpResponse::DeniedResponse(DeniedHttpResponse {
            status: Some(HttpStatus { code: status.as_u16().into() }),
            headers: refusal_headers(refusal, format).map(header).collect(),
            body: format.refusal(status, &refusal.limit, refusal.retry_after_secs),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_beyond_the_number_that_fits_are_left_out() {
        let headers = (0..40_000).map(|n| (format!("x-{n}"), String::new())).collect();
        let (_, headers) = head(HttpRequest { headers, ..HttpRequest::default() });
        assert!((20_000..40_000).contains(&headers.len()));
    }

    #[test]
    fn headers_are_read_from_the_map_and_from_the_list() {
        let list = super::super::authz_wire::HeaderMap {
            headers: vec![HeaderValue {
                key: "cookie".into(),
                value: String::new(),
                raw_value: b"\xff=1".to_vec(),
            }],
        };
        let headers = [(":path", "/a"), ("user-agent", "x"), ("bad name", "y")];
        let headers = headers.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let http = HttpRequest {
            method: "POST".into(),
            path: "/a?b".into(),
            headers,
            header_map: Some(list),
            ..HttpRequest::default()
        };
        let (pseudo, headers) = head(http);
        assert_eq!((&*pseudo.method, &*pseudo.path, headers.len()), ("POST", "/a?b", 2));
        assert_eq!(headers["cookie"].as_bytes(), b"\xff=1");
    }
}
