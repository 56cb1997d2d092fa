//! A connection of which some bytes have been read, to see what is spoken on it.
//!
//! They are given back before what comes after them, so whoever reads next reads everything. What
//! they mean is not decided here.

use crate::doors::proxy::link::Link;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What is read at once, in bytes. Most requests have shorter heads.
const FIRST_BYTES: usize = 2048;

/// What HTTP/2 begins with (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection, and what has been read of it.
pub(super) struct Begun {
    stream: TcpStream,
    /// Bytes from `given` on are given back yet.
    read: Vec<u8>,
    given: usize,
}

impl Begun {
    /// One of which nothing has been read.
    pub(super) fn new(stream: TcpStream) -> Begun {
        Begun { stream, read: Vec::new(), given: 0 }
    }

    /// What has been read and not given back.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.read[self.given..]
    }

    /// Gives so many bytes to nobody.
    pub(super) fn skip(&mut self, count: usize) {
        self.given = (self.given + count).min(self.read.len());
    }

    /// Whether HTTP/2 is spoken here.
    pub(super) fn is_http2(&self) -> bool {
        self.bytes().starts_with(PREFACE)
    }

    /// Whether it may be that after more bytes.
    pub(super) fn may_be_http2(&self) -> bool {
        self.bytes().len() < PREFACE.len() && PREFACE.starts_with(self.bytes())
    }

    /// Reads more, at least one byte. False when there is none: the client has gone, or `link` was
    /// closed.
    pub(super) async fn more(&mut self, link: &Link) -> bool {
        let more = std::future::poll_fn(|cx| {
            link.served_by(cx.waker());
            if link.is_closed() {
                return Poll::Ready(false);
            }
            // Not kept while it waits: many connections may wait.
            let mut chunk = [0; FIRST_BYTES];
            let mut buffer = ReadBuf::new(&mut chunk);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            self.read.extend_from_slice(buffer.filled());
            Poll::Ready(read.is_ok() && !buffer.filled().is_empty())
        });
        more.await
    }
}

impl AsyncRead for Begun {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let count = self.bytes().len().min(buffer.remaining());
        buffer.put_slice(&self.bytes()[..count]);
        self.skip(count);
        if self.bytes().is_empty() {
            (self.read, self.given) = (Vec::new(), 0);
        }
        if count > 0 {
            Poll::Ready(Ok(()))
        } else {
            Pin::new(&mut self.stream).poll_read(cx, buffer)
        }
    }
}

impl AsyncWrite for Begun {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
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
