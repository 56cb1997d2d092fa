//! Gathers the writes of an HTTP/2 connection, so that answers that are ready at the same time go
//! out together.
//!
//! The HTTP/2 library flushes after every answer, and each flush would cost a system call and,
//! under TLS, a record. This layer buffers the library's writes until it has done all it can, or
//! the buffer holds a full record. Then the task that drives the connection writes the buffer
//! ([`WriteBatcher::poll_out`]). No write is delayed to wait for more, and no long one is copied.
//!
//! The library also tries to read again after each request, although a moment ago there was nothing
//! to read. This layer answers that second read itself, without asking TLS and the system.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The maximum number of bytes gathered for one write: the content of one TLS record.
const KEPT_BYTES: usize = 16 * 1024;

/// A write buffer that the connections of a thread take turns to use.
pub(crate) type SpareBuffer = Rc<Cell<Vec<u8>>>;

/// The connection, shared by the library and the task that drives it.
pub(super) struct WriteBatcher<S>(Rc<RefCell<WriteBatch<S>>>);

struct WriteBatch<S> {
    stream: S,
    /// Gathered bytes. Those from index `written` on are still to be written.
    kept: Vec<u8>,
    written: usize,
    /// The last read since the library was polled found nothing, so its task is woken when there is
    /// something to read.
    dry: bool,
    spare: SpareBuffer,
}

impl<S> Clone for WriteBatcher<S> {
    fn clone(&self) -> WriteBatcher<S> {
        WriteBatcher(Rc::clone(&self.0))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WriteBatcher<S> {
    pub(super) fn new(stream: S, spare: &SpareBuffer) -> WriteBatcher<S> {
        let spare = Rc::clone(spare);
        let (kept, written, dry) = (Vec::new(), 0, false);
        WriteBatcher(Rc::new(RefCell::new(WriteBatch { stream, kept, written, dry, spare })))
    }

    /// Writes the gathered bytes. Call this whenever the library has been polled.
    pub(super) fn poll_out(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.0.borrow_mut();
        inner.dry = false;
        ready!(inner.poll_out(cx))?;
        // A TLS buffer may hold some of the bytes.
        Pin::new(&mut inner.stream).poll_flush(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WriteBatch<S> {
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.kept.len() {
            let rest = &self.kept[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        if self.kept.capacity() > 0 {
            self.written = 0;
            self.kept.clear();
            self.spare.set(std::mem::take(&mut self.kept));
        }
        Poll::Ready(Ok(()))
    }

    /// Gathers the bytes of `slices`, or writes them if they are too long.
    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.kept.len() + length > KEPT_BYTES {
            ready!(self.poll_out(cx))?;
        }
        if length > KEPT_BYTES {
            return Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        }
        if self.kept.capacity() == 0 {
            self.kept = self.spare.take();
            self.kept.reserve_exact(KEPT_BYTES);
        }
        slices.iter().for_each(|slice| self.kept.extend_from_slice(slice));
        Poll::Ready(Ok(length))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WriteBatcher<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.0.borrow_mut();
        if inner.dry {
            return Poll::Pending;
        }
        let poll = Pin::new(&mut inner.stream).poll_read(cx, buffer);
        inner.dry = poll.is_pending();
        poll
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteBatcher<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_take(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_take(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing; [`WriteBatcher::poll_out`] flushes.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.borrow_mut().poll_out(cx))?;
        Pin::new(&mut self.0.borrow_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// A writer that accepts `room` bytes and records the length of each write.
    struct Taker {
        room: usize,
        reads: usize,
        writes: Vec<Vec<u8>>,
        closed: bool,
    }

    impl AsyncRead for Taker {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.reads += 1;
            if self.reads.is_multiple_of(2) {
                return Poll::Pending;
            }
            buffer.put_slice(b"x");
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Taker {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Poll::Pending;
            }
            self.room -= count;
            self.writes.push(bytes[..count].to_vec());
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.closed = true;
            Poll::Ready(Ok(()))
        }
    }

    fn gathered(room: usize) -> WriteBatcher<Taker> {
        WriteBatcher::new(
            Taker { room, reads: 0, writes: Vec::new(), closed: false },
            &SpareBuffer::default(),
        )
    }

    fn write(to: &mut WriteBatcher<Taker>, bytes: &[u8]) -> Poll<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(to).poll_write(&mut cx, bytes).map(|written| written.expect("no fault"))
    }

    fn out(of: &WriteBatcher<Taker>) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        of.poll_out(&mut cx).map(|out| out.expect("no fault")).is_ready()
    }

    fn lengths(of: &WriteBatcher<Taker>) -> Vec<usize> {
        of.0.borrow().stream.writes.iter().map(Vec::len).collect()
    }

    #[test]
    fn what_is_ready_at_once_goes_out_in_one_write() {
        let mut to = gathered(usize::MAX);
        for _ in 0..10 {
            assert_eq!(write(&mut to, &[b'a'; 1000]), Poll::Ready(1000));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut to).poll_flush(&mut cx).is_ready());
        }
        assert!(lengths(&to).is_empty());
        assert!(out(&to));
        assert_eq!(lengths(&to), [10_000]);
        assert!(out(&to));
        assert_eq!(lengths(&to), [10_000], "nothing twice");
    }

    #[test]
    fn no_more_is_kept_than_a_record_holds_and_nothing_long_is_copied() {
        let mut to = gathered(usize::MAX);
        assert_eq!(write(&mut to, &[0; 10_000]), Poll::Ready(10_000));
        assert_eq!(write(&mut to, &[0; 10_000]), Poll::Ready(10_000));
        assert_eq!(lengths(&to), [10_000]);
        assert_eq!(write(&mut to, &[0; KEPT_BYTES + 1]), Poll::Ready(KEPT_BYTES + 1));
        assert_eq!(lengths(&to), [10_000, 10_000, KEPT_BYTES + 1]);
        assert_eq!(to.0.borrow().kept.capacity(), 0, "the buffer is for others");
    }

    #[test]
    fn a_client_that_takes_little_gets_everything_once_and_in_order() {
        let sent: Vec<u8> = (0..60_000u32).map(|n| (n % 251) as u8).collect();
        let mut to = gathered(0);
        let (mut at, mut turns) = (0, 0);
        while at < sent.len() || !out(&to) {
            let piece = &sent[at..(at + 3_000).min(sent.len())];
            match write(&mut to, piece) {
                Poll::Ready(count) => at += count,
                Poll::Pending => assert!(to.0.borrow().kept.len() > KEPT_BYTES - 3_000),
            }
            out(&to);
            to.0.borrow_mut().stream.room += 700;
            turns += 1;
            assert!(turns < 1_000, "it goes on");
        }
        assert_eq!(to.0.borrow().stream.writes.concat(), sent);
    }

    #[test]
    fn it_is_closed_after_all_is_written() {
        let mut to = gathered(3);
        assert_eq!(write(&mut to, b"12345"), Poll::Ready(5));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut to).poll_shutdown(&mut cx).is_pending());
        assert!(!to.0.borrow().stream.closed);
        to.0.borrow_mut().stream.room = 3;
        assert!(Pin::new(&mut to).poll_shutdown(&mut cx).is_ready());
        assert!(to.0.borrow().stream.closed);
        assert_eq!(lengths(&to), [3, 2]);
    }

    #[test]
    fn what_has_nothing_to_read_is_not_asked_again_in_the_same_turn() {
        let mut from = gathered(0);
        let mut read = || {
            let mut cx = Context::from_waker(Waker::noop());
            let mut room = [0; 8];
            let mut buffer = ReadBuf::new(&mut room);
            Pin::new(&mut from).poll_read(&mut cx, &mut buffer).is_ready()
        };
        assert_eq!([read(), read(), read(), read()], [true, false, false, false]);
        assert_eq!(from.0.borrow().stream.reads, 2);
        assert!(out(&from));
        let mut cx = Context::from_waker(Waker::noop());
        let mut room = [0; 8];
        assert!(Pin::new(&mut from).poll_read(&mut cx, &mut ReadBuf::new(&mut room)).is_ready());
    }
}
