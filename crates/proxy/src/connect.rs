//! Extended CONNECT: a client opens a WebSocket on an HTTP/2 stream (RFC 8441).
//!
//! The request is rewritten as the `Upgrade` request that it would be in HTTP/1.1, so limits,
//! routes and the backend see no difference. The answer is rewritten as the answer to a CONNECT.
//! HTTP/2 has no handshake key, so the proxy makes one and checks the backend's reply to it (RFC
//! 6455, 4.1). The stream after the answer: `front/streams.rs`.

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use hyper::ext::Protocol;
use rustix::rand::{GetRandomFlags, getrandom};

/// The protocol that has a handshake key.
const WEBSOCKET: &[u8] = b"websocket";

/// The string that a server appends to the key before hashing it (RFC 6455, 1.3).
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const SEC_WEBSOCKET_KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const SEC_WEBSOCKET_ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");

/// The state of a request that was rewritten as an `Upgrade` request: for a WebSocket, the key that
/// the backend must confirm.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectHandshake(Option<[u8; 16]>);

/// Rewrites an extended CONNECT as a request with `Upgrade`. Any other request is unchanged.
///
/// # Errors
/// The status to answer with: 501 if the protocol is not in `allowed` (RFC 9220, 3), 400 if its
/// name is not a valid header value, or 503 if there are no random numbers.
pub(super) fn translate(
    head: &mut Parts,
    allowed: &[String],
) -> Result<Option<ConnectHandshake>, StatusCode> {
    if head.method != Method::CONNECT {
        return Ok(None);
    }
    let Some(protocol) = head.extensions.remove::<Protocol>() else { return Ok(None) };
    let known = |name: &String| protocol.as_str().eq_ignore_ascii_case(name);
    if !allowed.iter().any(known) {
        return Err(StatusCode::NOT_IMPLEMENTED);
    }
    let protocol =
        HeaderValue::from_bytes(protocol.as_ref()).map_err(|_| StatusCode::BAD_REQUEST)?;
    let handshake = ConnectHandshake::new(&protocol).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    head.method = Method::GET;
    head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers.insert(header::UPGRADE, protocol);
    if let Some(key) = handshake.key() {
        head.headers.insert(SEC_WEBSOCKET_KEY, key);
    }
    Ok(Some(handshake))
}

impl ConnectHandshake {
    /// Returns `None` if the system has no random numbers.
    fn new(protocol: &HeaderValue) -> Option<ConnectHandshake> {
        if !protocol.as_bytes().eq_ignore_ascii_case(WEBSOCKET) {
            return Some(ConnectHandshake(None));
        }
        let mut key = [0; 16];
        let count = getrandom(&mut key, GetRandomFlags::empty()).ok()?;
        (count == key.len()).then_some(ConnectHandshake(Some(key)))
    }

    fn key(self) -> Option<HeaderValue> {
        HeaderValue::try_from(BASE64.encode(self.0?)).ok()
    }

    /// Rewrites the head of an answer that has switched protocols as an answer to a CONNECT. Call
    /// this after the head was prepared for the client. Returns false if the backend has not
    /// confirmed the key or has switched to another protocol.
    pub(super) fn answer(self, status: &mut StatusCode, headers: &mut HeaderMap) -> bool {
        let only = {
            let mut lines = headers.get_all(SEC_WEBSOCKET_ACCEPT).iter();
            lines.next().filter(|_| lines.next().is_none()).cloned()
        };
        let protocol = headers.remove(header::UPGRADE);
        headers.remove(SEC_WEBSOCKET_ACCEPT);
        headers.remove(header::CONNECTION);
        *status = StatusCode::OK;
        let Some(key) = self.key() else { return true };
        let websocket = protocol.is_some_and(|p| p.as_bytes().eq_ignore_ascii_case(WEBSOCKET));
        websocket && only.is_some_and(|only| only == accept(&key))
    }
}

/// Computes a server's `Sec-WebSocket-Accept` for a key.
fn accept(key: &HeaderValue) -> String {
    let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key.as_bytes());
    hash.update(WEBSOCKET_GUID);
    BASE64.encode(hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_answered_as_the_standard_says() {
        // RFC 6455, 1.3.
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept(&key), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn an_answer_must_show_that_its_sender_has_read_the_key() {
        let handshake = ConnectHandshake(Some([7; 16]));
        let right = accept(&handshake.key().expect("a key"));
        for (protocol, said, expected) in [
            ("WebSocket", &[&right[..]][..], true),
            ("websocket", &["x"], false),
            ("websocket", &[], false),
            ("websocket", &[&right, &right], false),
            ("foo", &[&right], false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::UPGRADE, HeaderValue::from_static(protocol));
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            for said in said {
                headers.append(SEC_WEBSOCKET_ACCEPT, HeaderValue::from_str(said).expect("a value"));
            }
            let mut status = StatusCode::SWITCHING_PROTOCOLS;
            assert_eq!(
                handshake.answer(&mut status, &mut headers),
                expected,
                "{protocol} {said:?}"
            );
            assert_eq!((status, headers.len()), (StatusCode::OK, 0));
        }
        let mut status = StatusCode::SWITCHING_PROTOCOLS;
        assert!(ConnectHandshake(None).answer(&mut status, &mut HeaderMap::new()), "no WebSocket");
    }
}
