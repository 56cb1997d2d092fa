//! A connection that notes when it was last read, and hides that it supports vectored writes.
//!
//! On a connection with vectored writes, the HTTP/2 implementation passes every message of 256
//! bytes or more to the system by itself. An answer to ten descriptors is that long, and the
//! additional system call would take longer than the rest of the answer. Without vectored writes,
//! messages below a kilobyte are copied into one buffer and written together.

use evenkeel_runtime::clock::Clock;
use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// A stream without vectored writes that notes when its peer last sent something.
pub struct HeardStream<S> {
    stream: S,
    heard: Rc<Cell<Instant>>,
}

impl<S> HeardStream<S> {
    /// Wraps `stream`; `heard` is the time of the last bytes from its peer.
    pub fn new(stream: S, heard: Rc<Cell<Instant>>) -> HeardStream<S> {
        HeardStream { stream, heard }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeardStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        let before = into.filled().len();
        let polled = Pin::new(&mut me.stream).poll_read(cx, into);
        if into.filled().len() > before {
            me.heard.set(Clock::deadline(Duration::ZERO));
        }
        polled
    }
}

/// The methods for vectored writes keep their defaults, which write one buffer at a time.
impl<S: AsyncWrite + Unpin> AsyncWrite for HeardStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
