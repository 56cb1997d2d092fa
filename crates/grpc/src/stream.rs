//! A connection that counts the bytes read and hides that it supports vectored writes.
//!
//! On a connection with vectored writes, the HTTP/2 implementation passes every message of 256
//! bytes or more to the system by itself. An answer to ten descriptors is that long, and the
//! additional system call would take longer than the rest of the answer. Without vectored writes,
//! messages below a kilobyte are copied into one buffer and written together. The number of bytes
//! read shows whether the peer has sent anything at all.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream without vectored writes that counts the bytes read.
pub struct ReadCountingStream<S> {
    stream: S,
    read: Rc<Cell<usize>>,
}

impl<S> ReadCountingStream<S> {
    /// Wraps `stream`; `read` grows by the number of bytes read.
    pub fn new(stream: S, read: Rc<Cell<usize>>) -> ReadCountingStream<S> {
        ReadCountingStream { stream, read }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadCountingStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        let before = into.filled().len();
        let polled = Pin::new(&mut me.stream).poll_read(cx, into);
        me.read.set(me.read.get().saturating_add(into.filled().len() - before));
        polled
    }
}

/// The methods for vectored writes keep their defaults, which write one buffer at a time.
impl<S: AsyncWrite + Unpin> AsyncWrite for ReadCountingStream<S> {
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
