//! A client's stream as hyper reads and writes it. It records on the link when bytes move.
//!
//! The content is not examined here. The backend's side: `wire.rs`.

use crate::context::ThreadContext;
use crate::link::ClientLink;
use crate::write_slices::poll_write_slices;
use bytes::Bytes;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The maximum number of bytes read from a connection that is being closed. The maximum time is in
/// `link.rs`.
const LINGER_BYTES: usize = 1 << 20;

/// The size of the read that ends a rest, in bytes. The rest of the request is read later.
const FIRST_BYTES: usize = 2048;

/// A client's stream, which records on its link when bytes move and when they do not.
pub(super) struct ClientStream<S> {
    inner: S,
    /// Bytes that have been read and are returned to the next reader first.
    unread: Bytes,
    link: Rc<ClientLink>,
    thread: Rc<ThreadContext>,
    /// The write side has been shut down.
    shut: bool,
    /// The stream is read from after the shutdown, `lingered` bytes so far.
    lingers: bool,
    lingered: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream<S> {
    pub(super) fn new(
        inner: S,
        link: Rc<ClientLink>,
        thread: Rc<ThreadContext>,
    ) -> ClientStream<S> {
        let unread = Bytes::new();
        ClientStream { inner, unread, link, thread, shut: false, lingers: false, lingered: 0 }
    }

    /// Puts back `bytes` that were read in advance.
    pub(super) fn unread(&mut self, bytes: Bytes) {
        // Even an empty slice may keep its large buffer alive.
        self.unread = if bytes.is_empty() { Bytes::new() } else { bytes };
    }

    /// Waits, with very little memory, until there is something to read; the end of the stream
    /// counts too. Returns false if the connection is to be closed.
    pub(super) async fn rest(&mut self) -> bool {
        let link = Rc::clone(&self.link);
        poll_fn(|cx| {
            link.task.set(cx.waker());
            if link.is_closed() {
                return Poll::Ready(false);
            }
            if !self.unread.is_empty() {
                return Poll::Ready(true);
            }
            // A TLS buffer may hold the end of an answer.
            let _ = Pin::new(&mut self.inner).poll_flush(cx);
            let mut piece = [0; FIRST_BYTES];
            let mut buffer = ReadBuf::new(&mut piece);
            // The next reader meets an end or an error again.
            let _ = ready!(Pin::new(&mut *self).poll_read(cx, &mut buffer));
            self.unread = Bytes::copy_from_slice(buffer.filled());
            Poll::Ready(true)
        })
        .await
    }

    /// Waits until the system has accepted all written bytes.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut *self).poll_flush(cx))?;
        // Only sending shows whether the socket has room for the gathered bytes.
        self.thread.outbox.send();
        Pin::new(self).poll_flush(cx)
    }

    /// Records whether a write is stuck.
    fn note<T>(&self, poll: Poll<T>) -> Poll<T> {
        if self.link.prints.note_write(&self.thread.clock) {
            self.thread.outbox.send();
        }
        self.link.writes.stuck().track(poll, self.thread.now())
    }

    /// Reads and discards bytes until the peer has closed its side, up to [`LINGER_BYTES`].
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.lingered < LINGER_BYTES {
            let mut scratch = [0; 4096];
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.inner).poll_read(cx, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.lingered += buffer.filled().len();
                }
                Poll::Ready(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let count = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread.split_to(count));
            self.link.receive(self.thread.now());
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.link.receive(self.thread.now());
            self.link.prints.note_read(&buffer.filled()[before..], &self.thread.clock);
        }
        poll
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.note(poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = poll_write_slices(&mut self.inner, cx, slices);
        self.note(poll)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(cx);
        self.link.writes.stuck().track(poll, self.thread.now())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shut {
            // A slow client may need more time for its last answer than the close may take.
            ready!(self.poll_sent(cx))?;
        }
        if let Some(unread) = self.link.begin_close(self.thread.now()) {
            self.lingers = unread;
        }
        if !self.shut {
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
            self.shut = true;
        }
        if self.lingers { self.poll_linger(cx) } else { Poll::Ready(Ok(())) }
    }
}

#[cfg(test)]
mod tests;
