//! A connection on which a server cannot send more than what it was asked can have as its answer.
//!
//! Who reads answers keeps what has come until the answer is whole, however long that gets. So the
//! bytes are followed both ways as they pass: where each command and each answer ends, nothing else
//! of them. A command grants its answer some bytes; what goes beyond all that was granted is
//! bounded, and a length that an answer announces counts before its bytes have come. After that the
//! connection gives no more. What answers mean: `script`, and the library that reads them.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that answers may have beyond what was granted them: enough for a cluster of a thousand
/// nodes that says who has which of five thousand ranges of slots.
pub const EXCESS_BYTES_MAX: u64 = 1 << 20;
/// Bytes that a command grants its answer beside as many as it has itself. A counter takes fewer in
/// an answer than in the command.
const GRANT_BYTES: u64 = 4_096;
/// The shortest part of an answer.
const PART_BYTES_MIN: u64 = 3;
/// A line that gives a number has no more bytes than this.
const NUMBER_BYTES_MAX: usize = 32;

/// The server has sent more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it sends more than 1 MiB beyond what it was asked for")]
pub struct Excess;
const _: () = assert!(EXCESS_BYTES_MAX == 1 << 20, "the message says so");

/// Such a connection.
pub struct Bounded<S> {
    stream: S,
    balance: Balance,
    exceeded: Arc<AtomicBool>,
}

impl<S> Bounded<S> {
    /// Nothing has been sent on `stream`. What is returned besides becomes true when the server has
    /// sent too much.
    pub fn new(stream: S) -> (Bounded<S>, Arc<AtomicBool>) {
        let exceeded = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&exceeded);
        (Bounded { stream, balance: Balance::default(), exceeded }, told)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if !self.exceeded.load(Relaxed) {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
            if self.balance.received(&buf.filled()[before..]).is_ok() {
                return Poll::Ready(Ok(()));
            }
            self.exceeded.store(true, Relaxed);
        }
        buf.set_filled(before);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, Excess)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.balance.sent(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What was asked, and what has come.
#[derive(Default)]
struct Balance {
    commands: Ends,
    answers: Ends,
    /// What each command that is not answered grants.
    granted: VecDeque<u64>,
    /// Bytes of whole answers beyond what they were granted, since nothing was left to answer.
    excess: u64,
    /// Bytes of answers to nothing: a server may say, before it is asked, that it takes no more
    /// clients.
    unasked: u64,
}

impl Balance {
    fn sent(&mut self, bytes: &[u8]) {
        let granted = &mut self.granted;
        self.commands.pass(bytes, |size| granted.push_back(size.saturating_add(GRANT_BYTES)));
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), Excess> {
        let Balance { granted, excess, unasked, .. } = self;
        let mut most = 0;
        self.answers.pass(bytes, |size| {
            match granted.pop_front() {
                Some(grant) => *excess = excess.saturating_add(size).saturating_sub(grant),
                None => *unasked = unasked.saturating_add(size),
            }
            most = most.max(excess.saturating_add(*unasked));
            if granted.is_empty() {
                *excess = 0;
            }
        });
        let grant = granted.front().copied().unwrap_or(0);
        let coming = excess.saturating_add(self.answers.least()).saturating_sub(grant);
        most = most.max(coming.saturating_add(*unasked));
        if most > EXCESS_BYTES_MAX { Err(Excess) } else { Ok(()) }
    }
}

/// Where values end in bytes that come in pieces of any size (the protocol's second version).
#[derive(Default)]
struct Ends {
    part: Part,
    /// Parts of the value that have not ended.
    left: u64,
    /// Its bytes so far.
    size: u64,
    /// The line so far,
    line: [u8; NUMBER_BYTES_MAX],
    /// how long it is,
    length: usize,
    /// and whether its end has begun.
    ending: bool,
}

/// What comes next.
#[derive(Clone, Copy, Default)]
enum Part {
    /// The byte that says what follows.
    #[default]
    Kind,
    /// The rest of a line of this kind.
    Line(u8),
    /// So many bytes of a text, with its end.
    Text(u64),
    /// Nobody knows: all that follows is taken for the same value.
    Unknown,
}

impl Ends {
    /// These bytes come next. `ended` is told how long each value was that ends in them.
    fn pass(&mut self, mut bytes: &[u8], mut ended: impl FnMut(u64)) {
        while let Some(first) = bytes.first() {
            let taken = match self.part {
                Part::Kind => self.begin(*first),
                Part::Line(kind) => self.go_on(kind, bytes),
                Part::Text(rest) => self.skip(rest, bytes),
                Part::Unknown => bytes.len(),
            };
            self.size = self.size.saturating_add(taken as u64);
            bytes = &bytes[taken..];
            if self.left == 0 {
                ended(std::mem::take(&mut self.size));
            }
        }
    }

    /// Bytes that the value which has not ended will have at least.
    fn least(&self) -> u64 {
        let text = if let Part::Text(rest) = self.part { rest } else { 0 };
        let parts = self.left.saturating_sub(1).saturating_mul(PART_BYTES_MIN);
        self.size.saturating_add(text).saturating_add(parts)
    }

    fn begin(&mut self, kind: u8) -> usize {
        if self.size == 0 {
            self.left = 1;
        }
        (self.length, self.ending) = (0, false);
        self.part = match kind {
            b'+' | b'-' | b':' | b'$' | b'*' => Part::Line(kind),
            _ => Part::Unknown,
        };
        1
    }

    fn go_on(&mut self, kind: u8, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            if self.ending && *byte == b'\n' {
                self.end_line(kind);
                return at + 1;
            }
            self.ending = *byte == b'\r';
            if let Some(place) = self.line.get_mut(self.length) {
                *place = *byte;
            }
            self.length = self.length.saturating_add(1);
        }
        bytes.len()
    }

    fn end_line(&mut self, kind: u8) {
        self.part = Part::Kind;
        match (kind, self.number()) {
            (b'$', Some(count @ 0..)) => {
                self.part = Part::Text(count.unsigned_abs().saturating_add(2));
            }
            (b'*', Some(count @ 0..)) => {
                self.left = (self.left - 1).saturating_add(count.unsigned_abs());
            }
            (b'$' | b'*', None) => self.part = Part::Unknown,
            // Below zero there is nothing.
            _ => self.left -= 1,
        }
    }

    /// What the line says.
    fn number(&self) -> Option<i64> {
        str::from_utf8(self.line.get(..self.length)?).ok()?.trim().parse().ok()
    }

    fn skip(&mut self, rest: u64, bytes: &[u8]) -> usize {
        let taken = usize::try_from(rest).unwrap_or(usize::MAX).min(bytes.len());
        let rest = rest - taken as u64;
        self.part = if rest == 0 { Part::Kind } else { Part::Text(rest) };
        self.left -= u64::from(rest == 0);
        taken
    }
}

#[cfg(test)]
mod tests;
