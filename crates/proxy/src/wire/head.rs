//! Heads on a connection to the backend: writing a request's head, reading it back to send it in
//! another HTTP version, and reading an answer's head.
//!
//! Anything ambiguous is an error, never a guess: contradictory lengths, codings other than
//! `chunked`, a coding in HTTP/1.0. Which fields may pass: `headers.rs`. The body that follows:
//! `connection.rs`.

use crate::failure::WireError;
use crate::headers::{self, FieldKinds, PeerFacts};
use bytes::{Buf, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode, Version};
use std::mem::MaybeUninit;

/// The maximum number of fields in a head or in trailers.
pub(super) const FIELDS_MAX: usize = 100;

/// The maximum length of an answer's head, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How the end of a message's body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// After this number of bytes.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// At the end of the connection.
    Close,
}

/// The head of an answer, without the fields that only frame it.
#[derive(Debug)]
pub(super) struct AnswerHead {
    pub(super) head: Response<()>,
    /// Which other fields in it are for this connection alone.
    pub(super) found: FieldKinds,
    pub(super) framing: BodyFraming,
    /// Whether another request may follow on the connection.
    pub(super) keeps: bool,
}

/// Appends a request's head to `out`. Fields about `peer` are added unless the head has them
/// already. `chunked`: a body follows without a stated length.
pub(super) fn write(head: &Parts, peer: Option<&PeerFacts<'_>>, chunked: bool, out: &mut Vec<u8>) {
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    for piece in [head.method.as_str(), " ", target, " HTTP/1.1\r\n"] {
        out.extend_from_slice(piece.as_bytes());
    }
    write_fields(&head.headers, out);
    if let Some(peer) = peer {
        headers::write_client_fields(&head.headers, peer, |name, value| {
            write_field(name, value, out)
        });
    }
    if chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Returns the length of a request's body in bytes, if its head states one. An invalid number
/// counts as `u64::MAX`, which no body reaches.
pub(super) fn stated_length(headers: &HeaderMap) -> Option<u64> {
    let length = headers.get(header::CONTENT_LENGTH)?.to_str().ok();
    Some(length.and_then(|length| length.parse().ok()).unwrap_or(u64::MAX))
}

/// Appends fields, one per line.
pub(super) fn write_fields(fields: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in fields {
        write_field(name, value.as_bytes(), out);
    }
}

fn write_field(name: &HeaderName, value: &[u8], out: &mut Vec<u8>) {
    for piece in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(piece);
    }
}

/// Reads back the head of a request without a body that [`write`] has made, to send it in another
/// HTTP version. Returns `None` for anything else.
pub(super) fn unwritten(head: &[u8]) -> Option<Parts> {
    let lines = head.strip_suffix(b"\r\n\r\n")?.split(|byte| *byte == b'\n');
    let mut lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut words = lines.next()?.split(|byte| *byte == b' ');
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.method = Method::from_bytes(words.next()?).ok()?;
    head.uri = PathAndQuery::try_from(words.next()?).ok()?.into();
    for line in lines {
        let at = line.windows(2).position(|pair| pair == b": ")?;
        let name = HeaderName::from_bytes(&line[..at]).ok()?;
        head.headers.append(name, HeaderValue::from_bytes(&line[at + 2..]).ok()?);
    }
    Some(head)
}

/// Takes the head of the final answer to a `method` request off `unread`. Returns `None` if it is
/// incomplete. Interim answers are dropped. The answer's fields reuse the memory of `room`; its own
/// fields are dropped.
pub(super) fn read(
    unread: &mut BytesMut,
    method: &Method,
    room: &mut HeaderMap,
) -> Result<Option<AnswerHead>, WireError> {
    while !unread.is_empty() {
        let mut lines = [MaybeUninit::uninit(); FIELDS_MAX];
        let mut found = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let parsed = config.parse_response_with_uninit_headers(&mut found, unread, &mut lines)?;
        let length = match parsed {
            httparse::Status::Complete(length) if length <= HEAD_BYTES_MAX => length,
            httparse::Status::Partial if unread.len() < HEAD_BYTES_MAX => return Ok(None),
            _ => return Err(WireError::Answer("its headers are too long")),
        };
        let status = StatusCode::from_u16(found.code.unwrap_or_default());
        let status = status.map_err(|_| WireError::Answer("its status is invalid"))?;
        if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            unread.advance(length);
            continue;
        }
        let mut fields = std::mem::take(room);
        fields.clear();
        let mut said = AnswerFields { fields, ..AnswerFields::default() };
        found.headers.iter().try_for_each(|line| said.hear(line))?;
        let version = if found.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
        unread.advance(length);
        return said.answer(status, version, method).map(Some);
    }
    Ok(None)
}

pub(super) fn field(line: &httparse::Header<'_>) -> Result<(HeaderName, HeaderValue), WireError> {
    match (HeaderName::from_bytes(line.name.as_bytes()), HeaderValue::from_bytes(line.value)) {
        (Ok(name), Ok(value)) => Ok((name, value)),
        _ => Err(WireError::Answer("a header is malformed")),
    }
}

/// The framing of an answer by its fields, and the fields to pass on.
#[derive(Default)]
struct AnswerFields {
    fields: HeaderMap,
    found: FieldKinds,
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep: bool,
}

impl AnswerFields {
    /// Handles one field. Of the fields that frame the answer, only the length is kept, once.
    fn hear(&mut self, line: &httparse::Header<'_>) -> Result<(), WireError> {
        let (name, value) = field(line)?;
        let passes = match name {
            header::CONTENT_LENGTH => self.hear_length(line.value)?,
            header::CONNECTION => self.hear_connection(line.value),
            header::TRANSFER_ENCODING => {
                if self.chunked || !line.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(WireError::Answer("its transfer coding is not `chunked`"));
                }
                self.chunked = true;
                false
            }
            _ => true,
        };
        if passes {
            self.found.add(&name);
            self.fields.append(name, value);
        }
        Ok(())
    }

    /// Records a length. All lengths must agree. Returns whether this is the first.
    fn hear_length(&mut self, value: &[u8]) -> Result<bool, WireError> {
        let first = self.length.is_none();
        for text in value.split(|b| *b == b',') {
            let length = number(text);
            if length.is_none() || self.length.is_some_and(|known| Some(known) != length) {
                return Err(WireError::Answer("its content-length is not a single number"));
            }
            self.length = length;
        }
        Ok(first)
    }

    /// Records the options `close` and `keep-alive`. Returns whether other fields are named, which
    /// must also end here (`headers.rs`).
    fn hear_connection(&mut self, value: &[u8]) -> bool {
        let mut names = false;
        for token in value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
            let (close, keep) =
                (token.eq_ignore_ascii_case(b"close"), token.eq_ignore_ascii_case(b"keep-alive"));
            self.close |= close;
            self.keep |= keep;
            names |= !close && !keep;
        }
        names
    }

    /// Decides how the body is framed (RFC 9112, 6.3) and whether the connection persists (9.3).
    fn answer(
        mut self,
        status: StatusCode,
        version: Version,
        method: &Method,
    ) -> Result<AnswerHead, WireError> {
        let modern = version == Version::HTTP_11;
        if self.chunked && !modern {
            return Err(WireError::Answer("HTTP/1.0 has no transfer codings"));
        }
        let bodyless = *method == Method::HEAD
            || status == StatusCode::NO_CONTENT
            || status == StatusCode::NOT_MODIFIED;
        let framing = match self.length {
            _ if bodyless => BodyFraming::Length(0),
            _ if self.chunked => BodyFraming::Chunked,
            Some(length) => BodyFraming::Length(length),
            None => BodyFraming::Close,
        };
        // With both, another hop may have read the answer differently.
        let ambiguous = self.chunked && self.length.is_some();
        if ambiguous {
            self.fields.remove(header::CONTENT_LENGTH);
        } else if let (Some(length), Some(written)) =
            (self.length, self.fields.get_mut(header::CONTENT_LENGTH))
            && written.as_bytes().contains(&b',')
        {
            *written = HeaderValue::from(length);
        }
        let stays = !self.close && (modern || self.keep);
        let keeps = stays && !ambiguous && framing != BodyFraming::Close;
        let mut head = Response::new(());
        *head.status_mut() = status;
        *head.headers_mut() = self.fields;
        Ok(AnswerHead { head, found: self.found, framing, keeps })
    }
}

/// Parses digits only, with optional surrounding whitespace.
fn number(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text.trim_ascii()).ok()?;
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8], method: &Method) -> Result<Option<(AnswerHead, BytesMut)>, WireError> {
        let mut unread = BytesMut::from(bytes);
        let answer = read(&mut unread, method, &mut HeaderMap::new())?;
        Ok(answer.map(|answer| (answer, unread)))
    }

    fn framing(lines: &str) -> Option<(BodyFraming, bool)> {
        let head = format!("HTTP/1.{lines}\r\n\r\n");
        let (answer, unread) = whole(head.as_bytes(), &Method::GET).ok()??;
        assert!(unread.is_empty(), "{lines}");
        Some((answer.framing, answer.keeps))
    }

    #[test]
    fn a_request_as_it_is_written() {
        let request = http::Request::builder()
            .method("PUT")
            .uri("/a?b=%20")
            .header("host", "a")
            .header("x-twice", "1")
            .header("x-twice", "2");
        let (head, ()) = request.body(()).expect("a request").into_parts();
        let mut out = Vec::new();
        let address = HeaderValue::from_static("192.0.2.1");
        let peer = PeerFacts {
            address: &address,
            secure: false,
            trusted: false,
            own_header: None,
            backend: &address,
        };
        write(&head, Some(&peer), true, &mut out);
        let expected = "PUT /a?b=%20 HTTP/1.1\r\nhost: a\r\nx-twice: 1\r\nx-twice: 2\r\n\
                        x-forwarded-host: a\r\nx-forwarded-for: 192.0.2.1\r\n\
                        x-forwarded-proto: http\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    /// A head with these names and values, as far as they are valid.
    fn request(target: &str, lines: &[(Vec<u8>, Vec<u8>)]) -> Option<Parts> {
        let (mut head, ()) = http::Request::new(()).into_parts();
        head.uri = PathAndQuery::try_from(target).ok()?.into();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name).ok()?;
            head.headers.append(name, HeaderValue::from_bytes(value).ok()?);
        }
        Some(head)
    }

    fn is_read_back(head: &Parts) {
        let mut out = Vec::new();
        write(head, None, false, &mut out);
        let back = unwritten(&out).expect("a head");
        assert_eq!((&back.method, &back.uri), (&head.method, &head.uri));
        assert_eq!(back.headers, head.headers);
        assert!(unwritten(&out[..out.len() - 1]).is_none(), "it is cut off");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let lines = [("host", "a"), ("x-twice", "1"), ("x-twice", ": 2: "), ("x-none", "")];
        let lines = lines.map(|(name, value)| (name.into(), value.into()));
        for target in ["/", "*", "/a?b=%20", "//a//b", "/?", "/a:b@c"] {
            is_read_back(&request(target, &lines).expect("a head"));
        }
        is_read_back(&request("/", &[]).expect("a head"));
        for wrong in ["", "\r\n\r\n", "GET /\r\n", "GET\r\n\r\n", "GET / HTTP/1.1\r\na\r\n\r\n"] {
            assert!(unwritten(wrong.as_bytes()).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn fuzz_what_is_written_is_read_back() {
        type Lines = Vec<(Vec<u8>, Vec<u8>)>;
        evenkeel_fuzz::fuzz().with_type::<(String, Lines, Vec<u8>)>().for_each(
            |(target, lines, other)| {
                request(&format!("/{target}"), lines).iter().for_each(is_read_back);
                let _ = unwritten(other);
            },
        );
    }

    #[test]
    fn the_end_of_a_body_is_known_or_the_answer_is_refused() {
        use BodyFraming::{Chunked, Close, Length};
        for (lines, expected) in [
            ("1 200 OK\r\ncontent-length: 3", Some((Length(3), true))),
            ("1 200 OK\r\ncontent-length: 3\r\nContent-Length: 3", Some((Length(3), true))),
            ("1 200 OK\r\ncontent-length: 3, 3", Some((Length(3), true))),
            ("1 200 OK\r\ntransfer-encoding: Chunked", Some((Chunked, true))),
            ("1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3", Some((Chunked, false))),
            ("1 200 OK", Some((Close, false))),
            ("1 204 No Content\r\ncontent-length: 3", Some((Length(0), true))),
            ("1 304 Not Modified\r\ncontent-length: 3", Some((Length(0), true))),
            ("1 200 OK\r\nconnection: x, Close\r\ncontent-length: 3", Some((Length(3), false))),
            ("0 200 OK\r\ncontent-length: 3", Some((Length(3), false))),
            ("0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 3", Some((Length(3), true))),
            ("0 200 OK\r\ntransfer-encoding: chunked", None),
            ("1 200 OK\r\ntransfer-encoding: gzip, chunked", None),
            ("1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked", None),
            ("1 200 OK\r\ntransfer-encoding: chunked, identity", None),
            ("1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4", None),
            ("1 200 OK\r\ncontent-length: 3, 4", None),
            ("1 200 OK\r\ncontent-length: +3", None),
            ("1 200 OK\r\ncontent-length: 3,", None),
            ("1 200 OK\r\ncontent-length:", None),
            ("1 200 OK\r\ncontent-length: 99999999999999999999", None),
            ("1 200 OK\r\ncontent-length : 3", None),
            ("1 200 OK\r\na: b\r\n c", None),
            ("2 200 OK\r\n", None),
            ("1 20 OK\r\n", None),
        ] {
            assert_eq!(framing(lines), expected, "{lines}");
        }
        let (answer, _) = whole(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", &Method::HEAD)
            .expect("an answer")
            .expect("all of it");
        assert_eq!((answer.framing, answer.keeps), (BodyFraming::Length(0), true));
    }

    #[test]
    fn interim_answers_are_passed_over_and_what_follows_is_left() {
        let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n\
                      HTTP/1.1 201 Created\r\ncontent-length: 1\r\nx-a: b\r\n\r\nz";
        let (answer, unread) = whole(bytes, &Method::GET).expect("an answer").expect("all of it");
        assert_eq!(answer.head.status(), 201);
        assert_eq!(answer.head.headers().len(), 2);
        assert_eq!(answer.head.headers()["x-a"], "b");
        assert_eq!(unread, &b"z"[..]);
    }

    #[test]
    fn heads_are_bounded() {
        let long = format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
        assert!(whole(long.as_bytes(), &Method::GET).is_err());
        assert!(whole(&long.as_bytes()[..HEAD_BYTES_MAX], &Method::GET).is_err());
        let many = "a: b\r\n".repeat(FIELDS_MAX + 1);
        let many = format!("HTTP/1.1 200 OK\r\n{many}\r\n");
        assert!(whole(many.as_bytes(), &Method::GET).is_err());
    }

    /// Turns bytes into pieces of heads, so that random input is often nearly valid.
    fn pieces(bytes: &[u8]) -> Vec<u8> {
        let pieces: [&[u8]; 16] = [
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.0 404 No\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"content-length: 3\r\n",
            b"content-length: 4\r\n",
            b"transfer-encoding: chunked\r\n",
            b"transfer-encoding: gzip\r\n",
            b"connection: close\r\n",
            b"x-a: b\r\n",
            b"\r\n",
            b"\r\n",
            b"\n",
            b"\r",
            b":",
            b" ",
            b"\x00\xff",
        ];
        bytes.iter().flat_map(|b| pieces[usize::from(*b) % 16]).copied().collect()
    }

    #[test]
    fn fuzz_a_head_is_the_same_however_it_comes_and_never_ambiguous() {
        evenkeel_fuzz::fuzz().for_each(|input: &[u8]| {
            let Some((at, input)) = input.split_first() else { return };
            let bytes = pieces(input);
            let at = usize::from(*at) % (bytes.len() + 1);
            let at_once = whole(&bytes, &Method::GET);
            let mut unread = BytesMut::from(&bytes[..at]);
            let mut room = HeaderMap::new();
            let begun = read(&mut unread, &Method::GET, &mut room);
            let in_two = match begun {
                Ok(None) => {
                    unread.extend_from_slice(&bytes[at..]);
                    read(&mut unread, &Method::GET, &mut room)
                }
                begun => {
                    unread.extend_from_slice(&bytes[at..]);
                    begun
                }
            };
            match (at_once, in_two) {
                (Ok(Some((one, rest))), Ok(Some(two))) => {
                    assert_eq!(one.head.headers(), two.head.headers());
                    assert_eq!((one.framing, one.keeps), (two.framing, two.keeps));
                    assert_eq!(rest, unread);
                    let fields = one.head.headers();
                    assert!(!one.head.status().is_informational());
                    let length = fields.get("content-length");
                    let length =
                        length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
                    match (one.framing, length) {
                        (BodyFraming::Length(framed), Some(length)) => assert_eq!(length, framed),
                        (BodyFraming::Length(_), None) | (_, Some(_)) => panic!("{fields:?}"),
                        (BodyFraming::Chunked, None) => {}
                        (BodyFraming::Close, None) => assert!(!one.keeps),
                    }
                }
                (Ok(None), Ok(None)) | (Err(_), Err(_)) => {}
                (one, two) => panic!("{one:?} at once, {two:?} in two"),
            }
        });
    }
}
