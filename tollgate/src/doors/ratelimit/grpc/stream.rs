//! A connection whose writes are copied together.
//!
//! Where a stream can write from several places at once, the HTTP/2 implementation hands every
//! message of 256 bytes or more to the system by itself. An answer to ten descriptors is as long,
//! so each would cost a system call, which takes longer than all else of it. Of a stream that
//! cannot, messages below a kilobyte are copied into one buffer and written together.

use hyper::rt::{Read, ReadBufCursor, Write};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A stream that writes from one place at a time.
pub struct Copied<S>(pub S);

impl<S: Read + Unpin> Read for Copied<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, into)
    }
}

/// What is not here has the trait's own form: one place at a time.
impl<S: Write + Unpin> Write for Copied<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}
