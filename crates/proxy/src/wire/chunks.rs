//! A chunked body, decoded from the bytes that have arrived (RFC 9112, 7.1).
//!
//! The decoder is strict: a line ends with CR LF, a size is only hexadecimal digits, and data end
//! where they must. Extensions are skipped. A less strict reader would see other messages on the
//! connection. This file reads no socket; `connection.rs` does.

use super::head::{self, FIELDS_MAX};
use crate::failure::WireError;
use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;

/// The maximum length of the line with a chunk's size, in bytes, with extensions.
const LINE_BYTES_MAX: usize = 4096;

/// The maximum length of trailers, in bytes.
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// The maximum number of digits in a size. No real chunk is larger.
const DIGITS_MAX: usize = 15;

const _: () = {
    assert!(4 * DIGITS_MAX <= u64::BITS as usize, "a size has 64 bits");
    assert!(DIGITS_MAX + b"\r\n".len() <= LINE_BYTES_MAX, "the longest size fits a line");
};

/// The position of the decoder in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkDecoder {
    /// At the line with a chunk's size.
    Size,
    /// Within a chunk, with this number of bytes left.
    Data(u64),
    /// At the line end after a chunk.
    DataEnd,
    /// After the last chunk.
    Trailers,
    /// After the end of the body.
    End,
}

#[derive(Debug, PartialEq)]
pub(super) enum BodyPiece {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
}

impl ChunkDecoder {
    /// Takes the next piece off `unread`. Returns `None` if more bytes are needed.
    pub(super) fn next(&mut self, unread: &mut BytesMut) -> Result<Option<BodyPiece>, WireError> {
        loop {
            match *self {
                ChunkDecoder::Size => match size(unread)? {
                    None => return Ok(None),
                    Some(0) => *self = ChunkDecoder::Trailers,
                    Some(size) => *self = ChunkDecoder::Data(size),
                },
                ChunkDecoder::Data(_) if unread.is_empty() => return Ok(None),
                ChunkDecoder::Data(left) => {
                    let data = up_to(unread, left);
                    let left = left - data.len() as u64;
                    *self =
                        if left == 0 { ChunkDecoder::DataEnd } else { ChunkDecoder::Data(left) };
                    return Ok(Some(BodyPiece::Data(data)));
                }
                ChunkDecoder::DataEnd => match unread.get(..2) {
                    None => return Ok(None),
                    Some(b"\r\n") => {
                        unread.advance(2);
                        *self = ChunkDecoder::Size;
                    }
                    Some(_) => return Err(WireError::Answer("a chunk does not end where it must")),
                },
                ChunkDecoder::Trailers => {
                    let Some(trailers) = trailers(unread)? else { return Ok(None) };
                    *self = ChunkDecoder::End;
                    if !trailers.is_empty() {
                        return Ok(Some(BodyPiece::Trailers(trailers)));
                    }
                }
                ChunkDecoder::End => return Ok(Some(BodyPiece::End)),
            }
        }
    }
}

pub(super) fn up_to(unread: &mut BytesMut, most: u64) -> Bytes {
    let length = usize::try_from(most).map_or(unread.len(), |most| most.min(unread.len()));
    unread.split_to(length).freeze()
}

/// Takes the line with a chunk's size off `unread`.
fn size(unread: &mut BytesMut) -> Result<Option<u64>, WireError> {
    let bad = WireError::Answer("the size of a chunk is invalid");
    let line = &unread[..unread.len().min(LINE_BYTES_MAX)];
    let Some(end) = line.iter().position(|b| *b == b'\n') else {
        return if unread.len() < LINE_BYTES_MAX { Ok(None) } else { Err(bad) };
    };
    let Some(line) = line[..end].strip_suffix(b"\r") else { return Err(bad) };
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let extension = line[digits..].trim_ascii_start();
    let proper = (extension.is_empty() || extension[0] == b';') && !line.contains(&b'\r');
    if digits == 0 || digits > DIGITS_MAX || !proper {
        return Err(bad);
    }
    let digits = line[..digits].iter().filter_map(|b| char::from(*b).to_digit(16));
    let size = digits.fold(0, |size, digit| size << 4 | u64::from(digit));
    unread.advance(end + 1);
    Ok(Some(size))
}

/// Takes the trailers and the empty line after them off `unread`.
fn trailers(unread: &mut BytesMut) -> Result<Option<HeaderMap>, WireError> {
    let bad = WireError::Answer("its trailers are malformed");
    let mut fields = HeaderMap::new();
    if unread.starts_with(b"\r\n") {
        unread.advance(2);
        return Ok(Some(fields));
    }
    let within = &unread[..unread.len().min(TRAILER_BYTES_MAX)];
    let Some(end) = within.windows(4).position(|w| w == b"\r\n\r\n") else {
        return if unread.len() < TRAILER_BYTES_MAX { Ok(None) } else { Err(bad) };
    };
    let mut lines = [httparse::EMPTY_HEADER; FIELDS_MAX];
    match httparse::parse_headers(&within[..end + 4], &mut lines)? {
        // A bare line feed must not end the trailers earlier.
        httparse::Status::Complete((length, lines)) if length == end + 4 => {
            for line in lines {
                let (name, value) = head::field(line)?;
                fields.append(name, value);
            }
        }
        _ => return Err(bad),
    }
    unread.advance(end + 4);
    Ok(Some(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data and trailers of a body that arrives at once, and the bytes left after it. `None` if
    /// the body is malformed; the last field is `None` if it has no end yet.
    type Decoded = Option<(Vec<u8>, HeaderMap, Option<BytesMut>)>;

    fn decoded<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Decoded {
        let (mut chunks, mut unread) = (ChunkDecoder::Size, BytesMut::new());
        let (mut data, mut trailers) = (Vec::new(), HeaderMap::new());
        for part in parts {
            unread.extend_from_slice(part);
            while let Some(piece) = chunks.next(&mut unread).ok()? {
                match piece {
                    BodyPiece::Data(bytes) => data.extend_from_slice(&bytes),
                    BodyPiece::Trailers(fields) => trailers.extend(fields),
                    BodyPiece::End => break,
                }
            }
        }
        Some((data, trailers, (chunks == ChunkDecoder::End).then_some(unread)))
    }

    #[test]
    fn chunks_are_joined_and_what_follows_is_left() {
        let body = b"3\r\none\r\n0A ; a=b\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\nHTTP";
        let (data, trailers, rest) = decoded([&body[..]]).expect("proper chunks");
        assert_eq!(data, b"one0123456789");
        assert_eq!(trailers["x-sum"], "1");
        assert_eq!(rest.expect("an end"), &b"HTTP"[..]);
        let bytes = body.chunks(1);
        let (data, _, rest) = decoded(bytes).expect("proper chunks");
        assert_eq!((&data[..], rest.expect("an end")), (&b"one0123456789"[..], "HTTP".into()));
    }

    #[test]
    fn faulty_chunks_are_refused() {
        for body in [
            "\r\n",
            "x\r\n",
            "-1\r\nx\r\n",
            "0x1\r\nx\r\n",
            "1 1\r\nx\r\n",
            " 1\r\nx\r\n",
            "1\nx\r\n",
            "1\r\nxy\r\n",
            "1\r\nx\n\n",
            "1;a\rb\r\nx\r\n",
            "1000000000000000\r\nx\r\n",
            "0\r\nbad line\r\n\r\n",
            "0\r\na: b\n\nHTTP/1.1 200 OK\r\n\r\n",
        ] {
            assert_eq!(decoded([body.as_bytes()]), None, "{body:?}");
        }
        assert_eq!(decoded([format!("1;{}", "a".repeat(LINE_BYTES_MAX)).as_bytes()]), None);
        let trailers = format!("0\r\na: {}", "b".repeat(TRAILER_BYTES_MAX));
        assert_eq!(decoded([trailers.as_bytes()]), None);
    }

    #[test]
    fn fuzz_chunks_are_the_same_however_they_come() {
        let pieces: [&[u8]; 12] = [
            b"0",
            b"1",
            b"2",
            b"a",
            b"\r\n",
            b"\r\n",
            b"\n",
            b"xy",
            b";e",
            b"0\r\n\r\n",
            b"t: u\r\n",
            b"\xff",
        ];
        evenkeel_fuzz::fuzz().for_each(|input: &[u8]| {
            let Some((at, input)) = input.split_first() else { return };
            let bytes = input.iter().flat_map(|b| pieces[usize::from(*b) % 12]);
            let bytes: Vec<u8> = bytes.copied().collect();
            let (first, second) = bytes.split_at(usize::from(*at) % (bytes.len() + 1));
            let at_once = decoded([&bytes[..]]);
            assert_eq!(at_once, decoded([first, second]), "{bytes:?}");
            assert_eq!(at_once, decoded(bytes.chunks(1)), "{bytes:?}");
        });
    }

    #[test]
    fn fuzz_what_is_put_in_chunks_comes_out_of_them() {
        evenkeel_fuzz::fuzz().for_each(|input: &[u8]| {
            let mut body = Vec::new();
            for data in input.split(|b| *b == 0).filter(|data| !data.is_empty()) {
                body.extend_from_slice(format!("{:X}\r\n", data.len()).as_bytes());
                body.extend_from_slice(data);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"0\r\n\r\n");
            let expected: Vec<u8> = input.iter().copied().filter(|b| *b != 0).collect();
            let (data, _, rest) = decoded([&body[..]]).expect("proper chunks");
            assert_eq!((data, rest), (expected, Some(BytesMut::new())));
        });
    }
}
