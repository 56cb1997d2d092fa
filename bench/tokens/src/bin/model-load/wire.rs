//! The client half of HTTP/1.1, as far as the load needs it: one request, and its answer byte by
//! byte as it arrives.

use model_bench::TOKEN;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The answer is complete.
    Done,
    /// The client disconnected, as planned.
    HungUp,
    /// The time was up.
    Cut,
    /// The connection failed, or the answer is not HTTP.
    Error,
}

/// What was measured of an answer.
pub struct Seen {
    pub status: u16,
    /// When the first byte of the body came, and the last one.
    pub first: Option<Instant>,
    pub last: Option<Instant>,
    /// Tokens of the engine in the body.
    pub tokens: u64,
    /// FNV-1a of the body.
    pub hash: u64,
    /// How much of a token the last bytes are.
    matched: usize,
}

impl Seen {
    pub fn new() -> Seen {
        let hash = 0xcbf2_9ce4_8422_2325;
        Seen { status: 0, first: None, last: None, tokens: 0, hash, matched: 0 }
    }

    fn body(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        for &byte in bytes {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            let fits = |at: usize| TOKEN.as_bytes()[at] == byte;
            self.matched = if fits(self.matched) { self.matched + 1 } else { fits(0).into() };
            self.tokens += (self.matched / TOKEN.len()) as u64;
            self.matched %= TOKEN.len();
        }
    }
}

/// How the body of an answer ends.
enum Framing {
    Length(u64),
    Chunked(Chunks),
    Close,
}

/// Where in a chunked body the next byte belongs.
enum Chunks {
    Size(u64),
    Extension(u64),
    Data(u64),
    DataEnd,
    /// In the trailers; the number of bytes in this line.
    Trailer(u64),
    End,
}

/// A connection.
pub struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Whether its last answer was complete, so that it can be used again.
    pub is_reusable: bool,
}

impl Wire {
    pub async fn open(port: u16) -> std::io::Result<Wire> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Wire { stream, buffer: vec![0; 16 << 10], is_reusable: false })
    }

    /// Sends a request and reads its answer into `seen`, until this number of tokens has arrived.
    pub async fn exchange(&mut self, text: &str, hang_up: u64, seen: &mut Seen) -> End {
        if self.stream.write_all(text.as_bytes()).await.is_err() {
            return End::Error;
        }
        let mut head = Vec::new();
        let mut framing = loop {
            let Some(read) = self.read().await else { return End::Error };
            head.extend_from_slice(&self.buffer[..read]);
            let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let rest = head.split_off(end + 4);
            let Some(mut framing) = framing(&head, seen) else { return End::Error };
            framing.take(&rest, seen);
            break framing;
        };
        while !framing.is_ended() {
            if seen.tokens >= hang_up {
                return End::HungUp;
            }
            match self.read().await {
                Some(read) => framing.take(&self.buffer[..read], seen),
                None if matches!(framing, Framing::Close) => break,
                None => return End::Error,
            }
        }
        self.is_reusable = !matches!(framing, Framing::Close);
        End::Done
    }

    async fn read(&mut self) -> Option<usize> {
        self.stream.read(&mut self.buffer).await.ok().filter(|read| *read > 0)
    }
}

fn framing(head: &[u8], seen: &mut Seen) -> Option<Framing> {
    let head = std::str::from_utf8(head).ok()?.to_ascii_lowercase();
    let mut lines = head.split("\r\n");
    seen.status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let mut framing = Framing::Close;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        match (name, value.trim()) {
            ("content-length", value) => framing = Framing::Length(value.parse().ok()?),
            ("transfer-encoding", "chunked") => framing = Framing::Chunked(Chunks::Size(0)),
            _ => {}
        }
    }
    Some(framing)
}

impl Framing {
    fn is_ended(&self) -> bool {
        matches!(self, Framing::Length(0) | Framing::Chunked(Chunks::End))
    }

    fn take(&mut self, bytes: &[u8], seen: &mut Seen) {
        match self {
            Framing::Length(left) => {
                let part = bytes.len().min(*left as usize);
                seen.body(&bytes[..part]);
                *left -= part as u64;
            }
            Framing::Chunked(chunks) => chunks.take(bytes, seen),
            Framing::Close => seen.body(bytes),
        }
    }
}

impl Chunks {
    fn take(&mut self, mut bytes: &[u8], seen: &mut Seen) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let Chunks::Data(left) = self {
                let part = bytes.len().min(*left as usize);
                seen.body(&bytes[..part]);
                bytes = &bytes[part..];
                *self = match *left - part as u64 {
                    0 => Chunks::DataEnd,
                    left => Chunks::Data(left),
                };
                continue;
            }
            bytes = rest;
            self.step(byte);
        }
    }

    fn step(&mut self, byte: u8) {
        *self = match (&*self, byte) {
            (Chunks::Size(0) | Chunks::Extension(0), b'\n') => Chunks::Trailer(0),
            (Chunks::Size(size) | Chunks::Extension(size), b'\n') => Chunks::Data(*size),
            (Chunks::Size(size), byte) => match (byte as char).to_digit(16) {
                Some(digit) => Chunks::Size(size * 16 + u64::from(digit)),
                None => Chunks::Extension(*size),
            },
            (Chunks::Extension(size), _) => Chunks::Extension(*size),
            (Chunks::DataEnd, b'\n') => Chunks::Size(0),
            (Chunks::DataEnd, _) => Chunks::DataEnd,
            (Chunks::Trailer(0), b'\n') => Chunks::End,
            (Chunks::Trailer(_), b'\n') => Chunks::Trailer(0),
            (Chunks::Trailer(length), b'\r') => Chunks::Trailer(*length),
            (Chunks::Trailer(length), _) => Chunks::Trailer(length + 1),
            (Chunks::Data(_) | Chunks::End, _) => Chunks::End,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an answer in pieces of this many bytes.
    fn read(answer: &[u8], piece: usize) -> (Seen, bool) {
        let mut seen = Seen::new();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let mut framing = framing(&answer[..end], &mut seen).expect("HTTP");
        answer[end..].chunks(piece).for_each(|bytes| framing.take(bytes, &mut seen));
        (seen, framing.is_ended())
    }

    #[test]
    fn an_answer_is_the_same_in_any_pieces() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            7;x=1\r\n tok to\r\nA\r\nk tok tok \r\n0\r\na: b\r\n\r\n";
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n tok tok tok tok ";
        let (expected, _) = read(whole, 1_000);
        assert_eq!((expected.status, expected.tokens), (200, 4));
        for piece in 1..30 {
            for answer in [&chunked[..], &whole[..]] {
                let (seen, is_ended) = read(answer, piece);
                assert!(is_ended);
                assert_eq!((seen.hash, seen.tokens), (expected.hash, 4));
            }
        }
    }

    #[test]
    fn an_answer_without_its_end_has_not_ended() {
        let chunked = b"HTTP/1.1 429 No\r\nTransfer-Encoding: chunked\r\n\r\n\
            1\r\na\r\n0\r\n";
        let (seen, is_ended) = read(chunked, 1_000);
        assert_eq!((seen.status, is_ended), (429, false));
    }
}
