//! The stream of a client that hyper reads and writes, which tells its link what moves.
//!
//! Short messages are written with one plain `send`: the system handles one buffer cheaper than a
//! list of them, and copying some hundred bytes costs less than the difference. Long ones are
//! never copied. What is in the bytes is not looked at here; the backend's side: `wire.rs`.

use crate::doors::proxy::link::Link;
use crate::doors::proxy::worker::Worker;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
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

/// A client's stream, which notes on its link when bytes move and when they do not.
pub(super) struct ClientStream<S> {
    inner: S,
    link: Rc<Link>,
    worker: Rc<Worker>,
    lingered: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream<S> {
    pub(super) fn new(inner: S, link: Rc<Link>, worker: Rc<Worker>) -> ClientStream<S> {
        ClientStream { inner, link, worker, lingered: 0 }
    }

    /// Notes whether a write could go on.
    fn note<T>(&self, poll: Poll<T>) -> Poll<T> {
        match poll {
            Poll::Pending => self.link.sticks(self.worker.now()),
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
        let Some(unread) = self.link.closing(self.worker.now()) else {
            return self.poll_linger(cx);
        };
        match Pin::new(&mut self.inner).poll_shutdown(cx) {
            Poll::Ready(Ok(())) if unread => self.poll_linger(cx),
            poll => poll,
        }
    }
}
