//! A connection with a bound on the bytes that the server can send beyond the answers to its
//! commands.
//!
//! The reader of answers buffers an answer until it is complete, however long it gets. So this
//! module follows the bytes in both directions, only as far as to find where each command and each
//! answer ends. A command grants its answer some bytes. The bytes beyond all grants are bounded,
//! and a length that an answer announces counts before its bytes have arrived. When the bound is
//! exceeded, the connection returns errors only. The meaning of answers: `script`, and the library
//! that reads them.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The number of bytes that answers may have beyond their grants: enough for a cluster of a
/// thousand nodes that lists five thousand ranges of slots.
pub const EXCESS_BYTES_MAX: u64 = 1 << 20;
/// The number of bytes that a command grants its answer in addition to its own length. A counter
/// takes fewer bytes in an answer than in the command.
const GRANT_BYTES: u64 = 4_096;
/// The length of the shortest part of an answer.
const PART_BYTES_MIN: u64 = 3;
/// The longest line with a number, in bytes.
const NUMBER_BYTES_MAX: usize = 32;

/// The server has sent more bytes than the bound allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it sends more than 1 MiB that was not requested")]
pub struct ExcessBytesError;
const _: () = assert!(EXCESS_BYTES_MAX == 1 << 20, "the message says so");

/// A stream with the bound applied to the bytes that are read from it.
pub struct BoundedStream<S> {
    stream: S,
    balance: GrantBalance,
    exceeded: Arc<AtomicBool>,
}

impl<S> BoundedStream<S> {
    /// Wraps a stream on which no bytes have been sent yet. The returned flag becomes true when the
    /// server has sent too many bytes.
    pub fn new(stream: S) -> (BoundedStream<S>, Arc<AtomicBool>) {
        let exceeded = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&exceeded);
        (BoundedStream { stream, balance: GrantBalance::default(), exceeded }, told)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
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
        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, ExcessBytesError)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
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

/// The account of commands and answers on a connection.
#[derive(Default)]
struct GrantBalance {
    commands: ValueEnds,
    answers: ValueEnds,
    /// The grant of each command that has no answer yet.
    granted: VecDeque<u64>,
    /// The bytes of complete answers beyond their grants, since all commands were last answered.
    excess: u64,
    /// The bytes of answers without a command. A server may report, before any command, that it
    /// accepts no more clients.
    unasked: u64,
}

impl GrantBalance {
    fn sent(&mut self, bytes: &[u8]) {
        let granted = &mut self.granted;
        self.commands.pass(bytes, |size| granted.push_back(size.saturating_add(GRANT_BYTES)));
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), ExcessBytesError> {
        let GrantBalance { granted, excess, unasked, .. } = self;
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
        if most > EXCESS_BYTES_MAX { Err(ExcessBytesError) } else { Ok(()) }
    }
}

/// Finds the ends of values in bytes that arrive in pieces of any size (protocol version 2).
#[derive(Default)]
struct ValueEnds {
    part: ValuePart,
    /// The number of parts of the current value that have not ended.
    left: u64,
    /// The number of bytes of the current value so far.
    size: u64,
    /// The first bytes of the current line.
    line: [u8; NUMBER_BYTES_MAX],
    /// The length of the current line so far.
    length: usize,
    /// Whether the last byte of the line was a carriage return.
    ending: bool,
}

/// The part of a value that comes next.
#[derive(Clone, Copy, Default)]
enum ValuePart {
    /// The byte that gives the type of the next part.
    #[default]
    Kind,
    /// The rest of a line of this type.
    Line(u8),
    /// This number of bytes of a text, its line end included.
    Text(u64),
    /// A part of unknown type: all further bytes count towards the same value.
    Unknown,
}

impl ValueEnds {
    /// Processes the next bytes, and calls `ended` with the length of each value that ends in them.
    fn pass(&mut self, mut bytes: &[u8], mut ended: impl FnMut(u64)) {
        while let Some(first) = bytes.first() {
            let taken = match self.part {
                ValuePart::Kind => self.begin(*first),
                ValuePart::Line(kind) => self.go_on(kind, bytes),
                ValuePart::Text(rest) => self.skip(rest, bytes),
                ValuePart::Unknown => bytes.len(),
            };
            self.size = self.size.saturating_add(taken as u64);
            bytes = &bytes[taken..];
            if self.left == 0 {
                ended(std::mem::take(&mut self.size));
            }
        }
    }

    /// The least number of bytes that the current value will have.
    fn least(&self) -> u64 {
        let text = if let ValuePart::Text(rest) = self.part { rest } else { 0 };
        let parts = self.left.saturating_sub(1).saturating_mul(PART_BYTES_MIN);
        self.size.saturating_add(text).saturating_add(parts)
    }

    fn begin(&mut self, kind: u8) -> usize {
        if self.size == 0 {
            self.left = 1;
        }
        (self.length, self.ending) = (0, false);
        self.part = match kind {
            b'+' | b'-' | b':' | b'$' | b'*' => ValuePart::Line(kind),
            _ => ValuePart::Unknown,
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
        self.part = ValuePart::Kind;
        match (kind, self.number()) {
            (b'$', Some(count @ 0..)) => {
                self.part = ValuePart::Text(count.unsigned_abs().saturating_add(2));
            }
            (b'*', Some(count @ 0..)) => {
                self.left = (self.left - 1).saturating_add(count.unsigned_abs());
            }
            (b'$' | b'*', None) => self.part = ValuePart::Unknown,
            // A negative length stands for a null value, without contents.
            _ => self.left -= 1,
        }
    }

    /// The number in the current line.
    fn number(&self) -> Option<i64> {
        str::from_utf8(self.line.get(..self.length)?).ok()?.trim().parse().ok()
    }

    fn skip(&mut self, rest: u64, bytes: &[u8]) -> usize {
        let taken = usize::try_from(rest).unwrap_or(usize::MAX).min(bytes.len());
        let rest = rest - taken as u64;
        self.part = if rest == 0 { ValuePart::Kind } else { ValuePart::Text(rest) };
        self.left -= u64::from(rest == 0);
        taken
    }
}

#[cfg(test)]
mod tests;
