//! The raw backend: reads each connection byte by byte, answers each request according to the plan,
//! and records when it works.
//!
//! It knows everything that clients send. If a head was not written by any client, or a body has a
//! byte that its client has not sent there, it was left on the connection by another request.

use crate::client::pause;
use crate::law::Ledger;
use crate::plan::{After, Asked, Form, Stated, pattern, pattern_at};
use std::fmt::Write as _;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, Ready};
use tokio::net::{TcpListener, TcpStream};

/// The time between two pieces of an answer.
const BETWEEN_PIECES: Duration = Duration::from_millis(1);

/// An answer that was not requested.
const OVERRUN: &[u8] = b"HTTP/1.1 200 OK\r\nx-token: smuggled\r\ncontent-length: 8\r\n\r\nsmuggled";

/// Header fields that may appear besides those that are checked.
const FIELDS: [&str; 10] = [
    "host",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "connection",
    "upgrade",
    "sec-websocket-key",
    "sec-websocket-version",
    "expect",
    "trailer",
];

/// The end of a connection: the peer has closed it, or has sent invalid bytes.
#[derive(Debug)]
struct Over;

type Step<T> = Result<T, Over>;

/// Accepts connections for as long as it is polled.
pub async fn serve(listener: TcpListener, ledger: Rc<Ledger>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let (ledger, unread) = (Rc::clone(&ledger), Vec::new());
        tokio::task::spawn_local(async move {
            let mut wire = Wire { stream, unread, ledger, before: None };
            while wire.exchange().await.is_ok() {}
        });
    }
}

/// A connection from the proxy.
struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
    ledger: Rc<Ledger>,
    /// The token of the request before the current one.
    before: Option<String>,
}

/// A parsed head.
struct Head {
    index: usize,
    stated: Stated,
    upgrade: bool,
}

impl Wire {
    /// Reads one request and answers it.
    async fn exchange(&mut self) -> Step<()> {
        let head = self.head().await?;
        let ledger = Rc::clone(&self.ledger);
        let asked = &ledger.plan.requests[head.index];
        if !asked.answer.early {
            self.body(&head, asked).await?;
        }
        let from = Instant::now();
        let switches = asked.answer.switches && head.upgrade;
        let answered = self.answer(asked, switches, from).await;
        if switches && answered.is_ok() {
            return self.tunnel(asked).await;
        }
        if asked.answer.early && answered.is_ok() {
            self.body(&head, asked).await?;
        }
        self.before = Some(asked.token.clone());
        answered
    }

    /// Notes a violation: the bytes after a request are not what its client has sent.
    fn strange(&self, what: &str) -> Over {
        let before = self.before.as_deref().unwrap_or("nothing");
        let bytes = String::from_utf8_lossy(&self.unread[..self.unread.len().min(80)]).into_owned();
        self.ledger.violated(format!("(b) after {before}, the backend read {what}: {bytes:?}"));
        Over
    }

    async fn more(&mut self) -> Step<()> {
        match self.stream.read_buf(&mut self.unread).await {
            Ok(count) if count > 0 => Ok(()),
            _ => Err(Over),
        }
    }

    /// The next line, without its line ending.
    async fn line(&mut self) -> Step<String> {
        loop {
            if let Some(at) = self.unread.windows(2).position(|window| window == b"\r\n") {
                let line = String::from_utf8(self.unread.drain(..at + 2).take(at).collect());
                return line.map_err(|_| self.strange("a line that is no text"));
            }
            if self.unread.len() > 8_192 {
                return Err(self.strange("a line without an end"));
            }
            self.more().await?;
        }
    }

    async fn head(&mut self) -> Step<Head> {
        let first = self.line().await?;
        let mut words = first.split(' ');
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let ledger = Rc::clone(&self.ledger);
        let token = target.rsplit('/').next().unwrap_or("");
        let Some((index, asked)) = ledger.request(token) else {
            return Err(self.strange(&format!("`{first}`, which is no request")));
        };
        if first != format!("{} {} HTTP/1.1", asked.method, asked.target) {
            return Err(self.strange(&format!("`{first}` in place of the request of {method}")));
        }
        let mut head = Head { index, stated: Stated::Nothing, upgrade: false };
        let mut named = false;
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(": ") else {
                match line.as_str() {
                    "" => break,
                    _ => return Err(self.strange(&format!("`{line}` in the head of {token}"))),
                }
            };
            match name {
                "x-token" if value == token && !named => named = true,
                "content-length" if head.stated == Stated::Nothing => {
                    let length = value.parse().map_err(|_| self.strange("a bad length"))?;
                    head.stated = Stated::Length(length);
                }
                "transfer-encoding" if value == "chunked" && head.stated == Stated::Nothing => {
                    head.stated = Stated::Open;
                }
                _ if FIELDS.contains(&name) => head.upgrade |= name == "upgrade",
                _ => return Err(self.strange(&format!("`{line}` in the head of {token}"))),
            }
        }
        if !named || head.stated != asked.stated {
            let stated = head.stated;
            return Err(self.strange(&format!("{token} with {stated:?}, named: {named}")));
        }
        Ok(head)
    }

    async fn body(&mut self, head: &Head, asked: &Asked) -> Step<()> {
        let mut read = 0;
        match head.stated {
            Stated::Nothing => {}
            Stated::Length(length) => self.data(asked, &mut read, length).await?,
            Stated::Open => {
                loop {
                    let line = self.line().await?;
                    let Ok(size) = usize::from_str_radix(&line, 16) else {
                        return Err(self.strange(&format!("`{line}` in place of a chunk's size")));
                    };
                    if size == 0 {
                        break;
                    }
                    self.data(asked, &mut read, size).await?;
                    if !self.line().await?.is_empty() {
                        return Err(self.strange("a chunk that does not end"));
                    }
                }
                let trailer = self.line().await?;
                let own = trailer == format!("x-token: {}", asked.token);
                if (own && !self.line().await?.is_empty()) || !(own || trailer.is_empty()) {
                    return Err(self.strange(&format!("`{trailer}` behind {}", asked.token)));
                }
            }
        }
        self.ledger.was_read(head.index, read);
        Ok(())
    }

    /// Reads `left` bytes of a body from position `at` on, and checks each one.
    async fn data(&mut self, asked: &Asked, at: &mut usize, mut left: usize) -> Step<()> {
        while left > 0 {
            if self.unread.is_empty() {
                self.more().await?;
            }
            let most = left.min(self.unread.len());
            let mut bytes = self.unread[..most].iter().enumerate();
            let own = |(i, byte): (usize, &u8)| *byte == pattern_at(&asked.token, b',', *at + i);
            if let Some(strange) = bytes.position(|one| !own(one)) {
                let place = *at + strange;
                self.unread.drain(..strange);
                let what = format!("a strange byte at {place} of the body of {}", asked.token);
                return Err(self.strange(&what));
            }
            self.unread.drain(..most);
            (*at, left) = (*at + most, left - most);
        }
        Ok(())
    }

    /// Works from `from` on, and answers. Returns an error if the connection has to end.
    async fn answer(&mut self, asked: &Asked, switches: bool, from: Instant) -> Step<()> {
        let answer = &asked.answer;
        if answer.interim {
            self.send(b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n").await?;
        }
        if answer.after == After::Silent {
            self.work(asked, from).await;
            return Err(Over);
        }
        let mut head = match switches {
            true => "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                     upgrade: websocket\r\nsec-websocket-accept: x\r\n"
                .to_owned(),
            false => format!("HTTP/1.1 {} Said\r\n", answer.status),
        };
        let _ = write!(head, "x-token: {}\r\n", asked.token);
        let form = if asked.method == "HEAD" { Form::Length } else { answer.form };
        let framing = match form {
            _ if switches => String::new(),
            Form::Length => format!("content-length: {}\r\n", answer.size),
            Form::Chunks => "transfer-encoding: chunked\r\n".to_owned(),
            Form::ToTheEnd => String::new(),
        };
        head += &framing;
        let closes = answer.after == After::SaysClose || form == Form::ToTheEnd;
        head += if closes && !switches { "connection: close\r\n\r\n" } else { "\r\n" };
        let bodyless = switches || asked.method == "HEAD";
        let size = if bodyless { 0 } else { answer.size };
        // If no body follows the head, the head is the whole answer.
        let head_first = answer.head_first && !bodyless && (size > 0 || form != Form::Length);
        if !head_first {
            self.work(asked, from).await;
        }
        let mut before = head.into_bytes();
        if head_first {
            self.send(&std::mem::take(&mut before)).await?;
            self.work(asked, from).await;
        }
        let mut tail =
            if form == Form::Chunks && !bodyless { b"0\r\n\r\n".to_vec() } else { Vec::new() };
        if answer.after == After::Overruns && !switches && form != Form::ToTheEnd {
            tail.extend_from_slice(OVERRUN);
        }
        for piece in in_pieces(size, answer.pieces) {
            if piece.start > 0 {
                if answer.after == After::Breaks {
                    return Err(Over);
                }
                self.send(&std::mem::take(&mut before)).await?;
                pause(BETWEEN_PIECES).await;
            }
            before.extend(framed(asked, form, piece));
        }
        // The end goes out in the same write, because the proxy may reuse a connection after a
        // complete answer.
        before.extend(tail);
        self.send(&before).await?;
        if closes || matches!(answer.after, After::Closes | After::Breaks) {
            Err(Over)
        } else {
            Ok(())
        }
    }

    /// Works for the planned time. If the proxy closes the connection in the meantime, the client
    /// is charged by an estimate, and the work is not recorded.
    async fn work(&self, asked: &Asked, from: Instant) {
        let end = from + Duration::from_millis(asked.answer.work);
        let gone = |ready: Ready| ready.is_read_closed() || ready.is_error();
        loop {
            let now = tokio::time::timeout(Duration::ZERO, self.stream.ready(Interest::READABLE));
            if now.await.is_ok_and(|ready| ready.is_ok_and(gone)) {
                return;
            }
            if Instant::now() >= end {
                return self.ledger.worked(asked, from);
            }
            pause(Duration::from_millis(1)).await;
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Step<()> {
        self.stream.write_all(bytes).await.map_err(|_| Over)
    }

    /// Uses another protocol than HTTP: sends bytes that belong to this client alone, and reads the
    /// client's.
    async fn tunnel(&mut self, asked: &Asked) -> Step<()> {
        self.send(&pattern(&asked.token, b';', 0..asked.answer.size)).await?;
        self.data(asked, &mut 0, usize::MAX).await
    }
}

/// Divides `size` bytes into `count` pieces, of which the last may be shorter.
fn in_pieces(size: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    let length = size.div_ceil(count).max(1);
    (0..size).step_by(length).map(move |start| start..size.min(start + length))
}

/// A piece of an answer's body in its encoding.
fn framed(asked: &Asked, form: Form, piece: Range<usize>) -> Vec<u8> {
    let data = pattern(&asked.token, b';', piece);
    match form {
        Form::Chunks => [format!("{:x}\r\n", data.len()).as_bytes(), &data, b"\r\n"].concat(),
        Form::Length | Form::ToTheEnd => data,
    }
}
