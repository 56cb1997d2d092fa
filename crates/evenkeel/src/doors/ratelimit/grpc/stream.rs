//! A connection that counts what it reads, and whose writes are copied together.
//!
//! Where a stream can write from several places at once, the HTTP/2 implementation hands every
//! message of 256 bytes or more to the system by itself. An answer to ten descriptors is as long,
//! so each would cost a system call, which takes longer than all else of it. Of a stream that
//! cannot, messages below a kilobyte are copied into one buffer and written together. How much was
//! read says whether the other side has said anything at all.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that writes from one place at a time.
pub struct Counted<S> {
    stream: S,
    read: Rc<Cell<usize>>,
}

impl<S> Counted<S> {
    /// Of `stream`; `read` grows by what is read.
    pub fn new(stream: S, read: Rc<Cell<usize>>) -> Counted<S> {
        Counted { stream, read }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
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

/// What is not here has the trait's own form: one place at a time.
impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
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
