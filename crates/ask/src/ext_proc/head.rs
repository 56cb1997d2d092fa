//! Reads the heads of requests and responses as Envoy sends them.
//!
//! Envoy has parsed them already, so what is not valid in a header is rare; it is left out. Which
//! attributes Envoy adds: `request_attributes` of its filter.

use super::view::HeadersView;
use crate::original::PseudoHeaders;
use bytes::Bytes;
use evenkeel_grpc::protobuf::ProtobufResult;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use std::net::{IpAddr, SocketAddr};

/// The number of headers that Envoy accepts unless `max_request_headers_count` says otherwise.
pub const HEADERS_MAX: usize = 100;
/// The number of headers that there is room for at first.
const HEADERS_LIKELY: usize = 16;

/// The head of a request, or of a response.
#[derive(Debug, Default)]
pub struct MessageHead {
    pub pseudo: PseudoHeaders,
    /// `:status` of a response.
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The number of all headers, pseudo-headers among them.
    pub count: usize,
}

impl MessageHead {
    /// Reads the head of a request. It keeps nothing of the bytes in which the message came.
    pub fn of_request(headers: HeadersView<'_>) -> ProtobufResult<MessageHead> {
        MessageHead::read(headers, HeaderMap::with_capacity(HEADERS_LIKELY), |_| true)
    }

    /// Reads the head of a response, and of its headers those for which `is_needed` holds.
    pub fn of_response(
        headers: HeadersView<'_>,
        is_needed: impl Fn(&[u8]) -> bool,
    ) -> ProtobufResult<MessageHead> {
        MessageHead::read(headers, HeaderMap::new(), is_needed)
    }

    fn read(
        headers: HeadersView<'_>,
        map: HeaderMap,
        is_needed: impl Fn(&[u8]) -> bool,
    ) -> ProtobufResult<MessageHead> {
        let mut head = MessageHead { headers: map, ..MessageHead::default() };
        let kept = headers.to_owned();
        for header in kept.iter() {
            let (name, value) = header?;
            head.count += 1;
            if let [b':', ..] = name {
                head.add_pseudo(name, value);
            } else if is_needed(name) {
                head.add(name, kept.share(value));
            }
        }
        Ok(head)
    }

    fn add_pseudo(&mut self, name: &[u8], value: &[u8]) {
        let pseudo = match name {
            b":method" => &mut self.pseudo.method,
            b":scheme" => &mut self.pseudo.scheme,
            b":authority" => &mut self.pseudo.authority,
            b":path" => &mut self.pseudo.path,
            b":status" => {
                self.status = StatusCode::from_bytes(value).unwrap_or_default();
                return;
            }
            _ => return,
        };
        *pseudo = String::from_utf8_lossy(value).into_owned();
    }

    fn add(&mut self, name: &[u8], value: Bytes) {
        let name = HeaderName::from_bytes(name);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(value)) {
            // Those beyond the number that fits are left out.
            let _ = self.headers.try_append(name, value);
        }
    }

    /// Whether Envoy accepts a change of these headers. Those that it adds to what a client sends
    /// may be too many.
    pub fn may_change(&self) -> bool {
        self.count <= HEADERS_MAX
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

/// The address in the attribute `source.address`.
pub fn source(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let address = text.parse().map(|address: SocketAddr| address.ip());
    address.or_else(|_| text.parse()).ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::headers;
    use super::*;

    fn read(list: &[(&str, &str, &[u8])]) -> MessageHead {
        let bytes = headers(list.iter().copied());
        MessageHead::of_request(HeadersView::of(&bytes)).expect("headers")
    }

    #[test]
    fn a_head_is_read_from_raw_values_and_from_texts() {
        let head = read(&[
            (":method", "", b"POST"),
            (":path", "/a?b=c", b""),
            (":status", "", b"404"),
            ("content-length", "12", b""),
            ("cookie", "", b"one=1"),
            ("cookie", "", b"\xff"),
            ("not a name", "", b"x"),
            ("x-line", "", b"a\nb"),
            ("content-type", "Text/Event-Stream; charset=utf-8", b""),
        ]);
        let PseudoHeaders { method, path, authority, .. } = &head.pseudo;
        assert_eq!((&**method, &**path, &**authority), ("POST", "/a?b=c", ""));
        let cookies: Vec<_> = head.headers.get_all("cookie").iter().collect();
        assert_eq!(cookies, [&b"one=1"[..], b"\xff"]);
        assert_eq!(
            (head.path(), head.status, head.length()),
            ("/a", StatusCode::NOT_FOUND, Some(12))
        );
        assert_eq!((head.headers.len(), head.count), (4, 9));
        assert!(head.is_event_stream() && !read(&[]).is_event_stream());
    }

    #[test]
    fn of_a_response_only_the_headers_that_are_needed_are_read() {
        let list: [(&str, &str, &[u8]); 3] =
            [(":status", "", b"503"), ("x-a", "1", b""), ("x-b", "2", b"")];
        let bytes = headers(list.into_iter());
        let head = MessageHead::of_response(HeadersView::of(&bytes), |name| name == b"x-b");
        let head = head.expect("headers");
        assert_eq!((head.status.as_u16(), head.headers.len()), (503, 1));
        assert_eq!(head.headers["x-b"], "2");
    }

    #[test]
    fn headers_beyond_the_number_that_fits_are_left_out() {
        let names: Vec<String> = (0..40_000).map(|n| format!("x-{n}")).collect();
        let list: Vec<_> = names.iter().map(|name| (&**name, "", &b"1"[..])).collect();
        assert!((20_000..40_000).contains(&read(&list).headers.len()));
    }

    #[test]
    fn an_address_is_read_with_and_without_its_port() {
        assert_eq!(source(b"192.0.2.7:443"), Some([192, 0, 2, 7].into()));
        assert_eq!(source(b"[::ffff:192.0.2.7]:443"), Some([192, 0, 2, 7].into()));
        let address = source(b"2001:db8::1").map(|address| address.to_string());
        assert_eq!(address.as_deref(), Some("2001:db8::1"));
        assert_eq!(source(b"unix:///socket"), None);
        assert_eq!(source(b"\xff"), None);
    }
}
