//! The stream of a client that hyper reads and writes, which tells its link what moves.
//!
//! Short messages are written with one plain `send`: the system handles one buffer cheaper than a
//! list of them, and copying some hundred bytes costs less than the difference. Long ones are
//! never copied. What is in the bytes is not looked at here; the backend's side: `wire.rs`.

use crate::doors::proxy::link::Link;
use crate::doors::proxy::worker::Worker;
use bytes::Bytes;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is read from a connection that is being closed, in bytes; for how long: `link.rs`.
const LINGER_BYTES: usize = 1 << 20;

/// Slices that are shorter together are written as one, in bytes.
const SMALL_BYTES: usize = 1024;

/// Writes several slices: at once if they are short.
pub(in crate::doors::proxy) fn poll_write_slices(
    stream: &mut (impl AsyncWrite + Unpin),
    cx: &mut Context<'_>,
    slices: &[io::IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let stream = Pin::new(stream);
    if let [only] = slices {
        return stream.poll_write(cx, only);
    }
    let length: usize = slices.iter().map(|slice| slice.len()).sum();
    if length > SMALL_BYTES {
        return stream.poll_write_vectored(cx, slices);
    }
    let mut small = [0; SMALL_BYTES];
    let mut end = 0;
    for slice in slices {
        small[end..end + slice.len()].copy_from_slice(slice);
        end += slice.len();
    }
    stream.poll_write(cx, &small[..end])
}

/// What is read of a request before there is somebody to read the rest, in bytes.
const FIRST_BYTES: usize = 2048;

/// A client's stream, which notes on its link when bytes move and when they do not.
pub(super) struct ClientStream<S> {
    inner: S,
    /// Bytes that have been read and are given to whoever reads next.
    unread: Bytes,
    link: Rc<Link>,
    worker: Rc<Worker>,
    /// Its end is with the system.
    shut: bool,
    /// It is read from after that, for so many bytes by now.
    lingers: bool,
    lingered: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream<S> {
    pub(super) fn new(inner: S, link: Rc<Link>, worker: Rc<Worker>) -> ClientStream<S> {
        let unread = Bytes::new();
        ClientStream { inner, unread, link, worker, shut: false, lingers: false, lingered: 0 }
    }

    /// Gives back what was read too much.
    pub(super) fn unread(mut self, bytes: Bytes) -> ClientStream<S> {
        // None at all may still hold the buffer that they were in.
        self.unread = if bytes.is_empty() { Bytes::new() } else { bytes };
        self
    }

    /// Waits, with hardly any memory, until there is something to read, the end included. False if
    /// the connection is to be closed.
    pub(super) async fn rest(&mut self) -> bool {
        let link = Rc::clone(&self.link);
        poll_fn(|cx| {
            link.served_by(cx.waker());
            if link.is_closed() {
                return Poll::Ready(false);
            }
            if !self.unread.is_empty() {
                return Poll::Ready(true);
            }
            // A buffer of TLS may hold the end of an answer.
            let _ = Pin::new(&mut self.inner).poll_flush(cx);
            let mut piece = [0; FIRST_BYTES];
            let mut buffer = ReadBuf::new(&mut piece);
            // An end, however it comes, is met again by whoever reads next.
            let _ = ready!(Pin::new(&mut *self).poll_read(cx, &mut buffer));
            self.unread = Bytes::copy_from_slice(buffer.filled());
            Poll::Ready(true)
        })
        .await
    }

    /// Notes whether a write could go on.
    fn note<T>(&self, poll: Poll<T>) -> Poll<T> {
        match poll {
            Poll::Pending => self.link.stuck.begin(self.worker.now()),
            Poll::Ready(_) => self.link.stuck.end(),
        }
        poll
    }

    /// Reads on until the peer has closed its side, for a while.
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
            self.link.arrived(self.worker.now());
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.link.arrived(self.worker.now());
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
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(unread) = self.link.closing(self.worker.now()) {
            self.lingers = unread;
        }
        if !self.shut {
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
            self.shut = true;
        }
        if self.lingers { self.poll_linger(cx) } else { Poll::Ready(Ok(())) }
    }
}
