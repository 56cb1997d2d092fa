//! Reads the heads of requests and responses as Envoy sends them.
//!
//! Envoy has parsed them already, so what is not valid in a header is rare; it is left out. Which
//! attributes Envoy adds: `request_attributes` of its filter.

use super::wire::{HeaderMap as WireHeaders, HeaderValue as WireHeader, ProcessingRequest};
use crate::original::PseudoHeaders;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use prost_types::value::Kind;
use std::net::{IpAddr, SocketAddr};

/// The attribute with the address of the client, as Envoy has found it.
const SOURCE: &str = "source.address";

/// The head of a request, or of a response.
#[derive(Debug, Default)]
pub struct MessageHead {
    pub pseudo: PseudoHeaders,
    /// `:status` of a response.
    pub status: StatusCode,
    pub headers: HeaderMap,
}

impl MessageHead {
    pub fn read(headers: Option<WireHeaders>) -> MessageHead {
        let mut head = MessageHead::default();
        for header in headers.into_iter().flat_map(|headers| headers.headers) {
            head.add(header);
        }
        head
    }

    fn add(&mut self, header: WireHeader) {
        let WireHeader { key, value, raw_value } = header;
        let bytes = if raw_value.is_empty() { Bytes::from(value) } else { raw_value };
        let pseudo = match &*key {
            ":method" => &mut self.pseudo.method,
            ":scheme" => &mut self.pseudo.scheme,
            ":authority" => &mut self.pseudo.authority,
            ":path" => &mut self.pseudo.path,
            ":status" => {
                self.status = StatusCode::from_bytes(&bytes).unwrap_or_default();
                return;
            }
            _ => {
                let name = HeaderName::from_bytes(key.as_bytes());
                if let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(bytes)) {
                    // Those beyond the number that fits are left out.
                    let _ = self.headers.try_append(name, value);
                }
                return;
            }
        };
        *pseudo = String::from_utf8_lossy(&bytes).into_owned();
    }

    /// The path without the query.
    pub fn path(&self) -> &str {
        let end = self.pseudo.path.find(['?', '#']).unwrap_or(self.pseudo.path.len());
        &self.pseudo.path[..end]
    }

    /// The length of the body, if it is stated.
    pub fn length(&self) -> Option<u64> {
        let length = self.headers.get(header::CONTENT_LENGTH)?;
        length.to_str().ok()?.parse().ok()
    }

    /// Whether this is the head of an event stream.
    pub fn is_event_stream(&self) -> bool {
        let kind = self.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        let kind = kind.and_then(|kind| kind.split(|byte| *byte == b';').next());
        kind.is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream"))
    }
}

/// The address of the client according to Envoy, if it says so.
pub fn source(request: &ProcessingRequest) -> Option<IpAddr> {
    let found = request.attributes.values().find_map(|filter| filter.fields.get(SOURCE))?;
    let Some(Kind::StringValue(text)) = &found.kind else { return None };
    let address = text.parse().map(|address: SocketAddr| address.ip());
    address.or_else(|_| text.parse()).ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_types::{Struct, Value};

    fn header(key: &str, value: &str, raw_value: &'static [u8]) -> WireHeader {
        WireHeader {
            key: key.into(),
            value: value.into(),
            raw_value: Bytes::from_static(raw_value),
        }
    }

    #[test]
    fn a_head_is_read_from_raw_values_and_from_texts() {
        let headers = vec![
            header(":method", "", b"POST"),
            header(":path", "/a?b=c", b""),
            header(":status", "", b"404"),
            header("content-length", "12", b""),
            header("cookie", "", b"one=1"),
            header("cookie", "", b"\xff"),
            header("not a name", "", b"x"),
            header("x-line", "", b"a\nb"),
            header("content-type", "Text/Event-Stream; charset=utf-8", b""),
        ];
        let head = MessageHead::read(Some(WireHeaders { headers }));
        let PseudoHeaders { method, path, authority, .. } = &head.pseudo;
        assert_eq!((&**method, &**path, &**authority), ("POST", "/a?b=c", ""));
        let cookies: Vec<_> = head.headers.get_all("cookie").iter().collect();
        assert_eq!(cookies, [&b"one=1"[..], b"\xff"]);
        assert_eq!(
            (head.path(), head.status, head.length()),
            ("/a", StatusCode::NOT_FOUND, Some(12))
        );
        assert_eq!(head.headers.len(), 4);
        assert!(head.is_event_stream() && !MessageHead::read(None).is_event_stream());
    }

    #[test]
    fn headers_beyond_the_number_that_fits_are_left_out() {
        let headers = (0..40_000).map(|n| header(&format!("x-{n}"), "", b"1")).collect();
        let head = MessageHead::read(Some(WireHeaders { headers }));
        assert!((20_000..40_000).contains(&head.headers.len()));
    }

    #[test]
    fn the_client_is_read_from_the_attributes_of_the_filter() {
        let with = |text: &str| {
            let value = Value { kind: Some(Kind::StringValue(text.into())) };
            let filter = Struct { fields: [(SOURCE.to_owned(), value)].into() };
            let attributes = [("envoy.filters.http.ext_proc".to_owned(), filter)].into();
            source(&ProcessingRequest { attributes, ..ProcessingRequest::default() })
        };
        assert_eq!(with("192.0.2.7:443"), Some([192, 0, 2, 7].into()));
        assert_eq!(with("[::ffff:192.0.2.7]:443"), Some([192, 0, 2, 7].into()));
        assert_eq!(
            with("2001:db8::1").map(|address| address.to_string()).as_deref(),
            Some("2001:db8::1")
        );
        assert_eq!(with("unix:///socket"), None);
        assert_eq!(source(&ProcessingRequest::default()), None);
    }
}
