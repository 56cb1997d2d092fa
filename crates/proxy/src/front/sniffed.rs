//! A connection from which some bytes have already been read, to detect its protocol.
//!
//! Reading from it returns those bytes first, so the next reader sees everything. They are not
//! interpreted here.

use crate::link::ClientLink;
use crate::outbox::DeferredStream;
use evenkeel_core::units::Time;
use evenkeel_runtime::clock::Clock;
use std::cell::Ref;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The size of one read, in bytes. Most request heads are shorter.
const FIRST_BYTES: usize = 2048;

/// The connection preface of HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection, and the bytes already read from it.
pub(super) struct SniffedStream {
    stream: DeferredStream,
    /// The bytes read in advance. Those from index `given` on have not been handed to a reader.
    read: Vec<u8>,
    given: usize,
    /// Measures the handshake.
    timing: Option<Box<HandshakeTiming>>,
}

/// The times of a TLS handshake.
struct HandshakeTiming {
    clock: Clock,
    /// When bytes were last written.
    written: Option<Time>,
    /// The time from the last write before the last read to that read, and when that was.
    answered: Option<(Duration, Time)>,
}

impl SniffedStream {
    /// A connection before the first read.
    pub(super) fn new(stream: DeferredStream) -> SniffedStream {
        SniffedStream { stream, read: Vec::new(), given: 0, timing: None }
    }

    /// Returns the bytes read in advance and not yet handed to a reader.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.read[self.given..]
    }

    pub(super) fn socket(&self) -> Ref<'_, TcpStream> {
        self.stream.socket()
    }

    /// Begins to measure how long the peer takes to answer what is written.
    pub(super) fn begin_timing(&mut self, clock: Clock) {
        self.timing = Some(Box::new(HandshakeTiming { clock, written: None, answered: None }));
    }

    /// Ends the measurement. Returns how long the peer took for its last answer, which it cannot
    /// have sent in advance, and the time since that was read.
    pub(super) fn end_timing(&mut self) -> Option<(Duration, Duration)> {
        let timing = self.timing.take()?;
        let (answered, at) = timing.answered?;
        let since = timing.clock.now().0.saturating_sub(at.0);
        Some((answered, Duration::from_nanos(since)))
    }

    /// Reads from the socket.
    fn poll_socket(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Some(timing) = &mut self.timing
            && polled.is_ready()
        {
            let now = timing.clock.now();
            let passed = timing.written.map(|written| now.0.saturating_sub(written.0));
            timing.answered = passed.map(|passed| (Duration::from_nanos(passed), now));
        }
        polled
    }

    /// Notes that bytes were written.
    fn note_write(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Some(timing) = &mut self.timing
            && polled.is_ready()
        {
            self.stream.send();
            timing.written = Some(timing.clock.now());
        }
        polled
    }

    /// Discards the next `count` bytes.
    pub(super) fn skip(&mut self, count: usize) {
        self.given = (self.given + count).min(self.read.len());
    }

    /// Whether the client has sent the HTTP/2 preface.
    pub(super) fn is_http2(&self) -> bool {
        self.bytes().starts_with(PREFACE)
    }

    /// Whether the bytes are an incomplete HTTP/2 preface.
    pub(super) fn may_be_http2(&self) -> bool {
        self.bytes().len() < PREFACE.len() && PREFACE.starts_with(self.bytes())
    }

    /// Reads at least one more byte. Returns false if there is none: the client has disconnected,
    /// or `link` was closed.
    pub(super) async fn more(&mut self, link: &ClientLink) -> bool {
        let more = std::future::poll_fn(|cx| {
            link.task.set(cx.waker());
            if link.is_closed() {
                return Poll::Ready(false);
            }
            // On the stack and not kept while waiting: many connections may wait.
            let mut chunk = [0; FIRST_BYTES];
            let mut buffer = ReadBuf::new(&mut chunk);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            self.read.extend_from_slice(buffer.filled());
            Poll::Ready(read.is_ok() && !buffer.filled().is_empty())
        });
        more.await
    }
}

impl AsyncRead for SniffedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return self.poll_socket(cx, buffer);
        }
        let count = self.bytes().len().min(buffer.remaining());
        buffer.put_slice(&self.bytes()[..count]);
        self.skip(count);
        if self.bytes().is_empty() {
            (self.read, self.given) = (Vec::new(), 0);
        }
        if count > 0 { Poll::Ready(Ok(())) } else { self.poll_socket(cx, buffer) }
    }
}

impl AsyncWrite for SniffedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_write(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note_write(polled)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
