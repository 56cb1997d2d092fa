//! Gathers the short writes of a thread's connections and sends them together, once all tasks that
//! are ready have run.
//!
//! Handling a request and sending evict each other's code from the processor's caches, and a
//! sleeping receiver is woken once for everything sent at that time. So sending together costs
//! less. No write waits for others to come. Figures: docs/performance.md, "Deferred sends".
//!
//! A stream accepts a short write only if the socket seems to have room. If it has none, a separate
//! task sends the rest, and later writes to the stream wait for it. If a send fails, the next write
//! fails too.

use std::cell::{Cell, Ref, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The maximum length of a write that is deferred, in bytes. It is copied.
const SHORT_BYTES: usize = 4 * 1024;

/// The maximum number of bytes gathered, after which they are sent at once.
const GATHERED_BYTES_MAX: usize = 64 * 1024;

const _: () = assert!(SHORT_BYTES <= GATHERED_BYTES_MAX, "a short write can be gathered");

/// The short writes of a thread that have not been sent yet.
#[derive(Default)]
pub(crate) struct Outbox {
    gathered: RefCell<GatheredWrites>,
    /// The task that sends them.
    task: RefCell<Option<Waker>>,
}

#[derive(Default)]
struct GatheredWrites {
    bytes: Vec<u8>,
    /// Where each write is to be sent, and the index in `bytes` at which it ends.
    writes: Vec<(Rc<Socket>, usize)>,
}

impl Outbox {
    /// Sends what the tasks of this thread write. Never ends.
    pub(crate) async fn run(self: Rc<Outbox>) {
        poll_fn(|cx| {
            // Tasks run in the order in which they are woken, so all that had been woken before the
            // first of these writes have run.
            self.send();
            self.task.borrow_mut().get_or_insert_with(|| cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Sends what is gathered.
    pub(crate) fn send(&self) {
        let GatheredWrites { bytes, writes } = &mut *self.gathered.borrow_mut();
        let mut begin = 0;
        for (socket, end) in writes.drain(..) {
            socket.gathered.set(false);
            socket.send(&bytes[begin..end]);
            begin = end;
        }
        bytes.clear();
    }

    fn gather(&self, socket: &Rc<Socket>, slices: &[IoSlice<'_>], length: usize) {
        if self.gathered.borrow().bytes.len() + length > GATHERED_BYTES_MAX {
            self.send();
        }
        let gathered = &mut *self.gathered.borrow_mut();
        if gathered.writes.is_empty()
            && let Some(task) = &*self.task.borrow()
        {
            task.wake_by_ref();
        }
        slices.iter().for_each(|slice| gathered.bytes.extend_from_slice(slice));
        let end = gathered.bytes.len();
        match gathered.writes.last_mut() {
            Some((last, its_end)) if Rc::ptr_eq(last, socket) => *its_end = end,
            _ => gathered.writes.push((Rc::clone(socket), end)),
        }
        socket.gathered.set(true);
    }
}

/// A connection, and what is known about the writes that it has accepted.
struct Socket {
    stream: RefCell<TcpStream>,
    /// Whether some of its bytes are in the outbox.
    gathered: Cell<bool>,
    /// Bytes for which the socket had no room, and the writer that waits until they are sent.
    rest: RefCell<Vec<u8>>,
    writer: RefCell<Option<Waker>>,
    /// The error of a send.
    failed: Cell<Option<io::ErrorKind>>,
}

impl Socket {
    /// Sends `bytes` after the rest.
    fn send(self: &Rc<Socket>, bytes: &[u8]) {
        if self.has_rest() {
            self.rest.borrow_mut().extend_from_slice(bytes);
            return;
        }
        let sent = self.try_send(bytes);
        if sent < bytes.len() {
            self.rest.borrow_mut().extend_from_slice(&bytes[sent..]);
            // The task ends when the socket is dropped, even if the peer reads nothing.
            let socket = Rc::downgrade(self);
            tokio::task::spawn_local(poll_fn(move |cx| match Weak::upgrade(&socket) {
                Some(socket) => socket.poll_send_rest(cx),
                None => Poll::Ready(()),
            }));
        }
    }

    /// Sends as much as the socket has room for. Returns the number of bytes sent or lost.
    fn try_send(&self, bytes: &[u8]) -> usize {
        use io::ErrorKind::{Interrupted, WouldBlock};
        match self.stream.borrow().try_write(bytes) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => 0,
            Err(error) => self.fail(&error, bytes.len()),
        }
    }

    /// Records an error. Returns `length`: the bytes are lost.
    fn fail(&self, error: &io::Error, length: usize) -> usize {
        self.failed.set(Some(error.kind()));
        length
    }

    fn has_rest(&self) -> bool {
        !self.rest.borrow().is_empty()
    }

    /// Sends the rest. Only called by the task for it, as the stream wakes only one task.
    fn poll_send_rest(&self, cx: &mut Context<'_>) -> Poll<()> {
        while self.has_rest() {
            let room = ready!(self.stream.borrow().poll_write_ready(cx));
            let mut rest = self.rest.borrow_mut();
            let done = match room {
                Ok(()) => self.try_send(&rest),
                Err(error) => self.fail(&error, rest.len()),
            };
            rest.drain(..done);
        }
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
        Poll::Ready(())
    }

    /// Waits until the rest is sent.
    fn poll_rest(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_rest() {
            *self.writer.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(self.failed.get().map_or(Ok(()), |kind| Err(kind.into())))
    }
}

/// The bytes that a connection has accepted but cannot send yet, because the socket has no room.
/// The default is always empty.
#[derive(Default)]
pub(crate) struct UnsentBytes(Weak<Socket>);

impl UnsentBytes {
    /// Whether there are any now.
    pub(crate) fn any(&self) -> bool {
        self.0.upgrade().is_some_and(|socket| socket.has_rest())
    }
}

/// A TCP connection whose short writes are sent together with those of other connections. Clones
/// are the same connection.
#[derive(Clone)]
pub(crate) struct DeferredStream {
    socket: Rc<Socket>,
    outbox: Rc<Outbox>,
}

impl DeferredStream {
    pub(crate) fn new(stream: TcpStream, outbox: &Rc<Outbox>) -> DeferredStream {
        let socket = Rc::new(Socket {
            stream: RefCell::new(stream),
            gathered: Cell::default(),
            rest: RefCell::default(),
            writer: RefCell::default(),
            failed: Cell::default(),
        });
        DeferredStream { socket, outbox: Rc::clone(outbox) }
    }

    pub(crate) fn socket(&self) -> Ref<'_, TcpStream> {
        self.socket.stream.borrow()
    }

    /// Returns a handle to the unsent bytes, for code that does not write to the connection.
    pub(crate) fn unsent(&self) -> UnsentBytes {
        UnsentBytes(Rc::downgrade(&self.socket))
    }

    /// Sends what is gathered.
    pub(crate) fn send(&self) {
        if self.socket.gathered.get() {
            self.outbox.send();
        }
    }

    /// Waits until all that was written is sent.
    fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send();
        self.socket.poll_rest(cx)
    }
}

impl AsyncRead for DeferredStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.socket.stream.borrow_mut()).poll_read(cx, buffer)
    }
}

impl AsyncWrite for DeferredStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        if length > SHORT_BYTES {
            ready!(self.poll_sent(cx))?;
            let stream = &mut *self.socket.stream.borrow_mut();
            return match slices {
                [only] => Pin::new(stream).poll_write(cx, only),
                _ => Pin::new(stream).poll_write_vectored(cx, slices),
            };
        }
        ready!(self.socket.poll_rest(cx))?;
        ready!(self.socket().poll_write_ready(cx))?;
        self.outbox.gather(&self.socket, slices, length);
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Waits if the socket has no room for earlier writes. Does not send gathered bytes.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_rest(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_sent(cx))?;
        Pin::new(&mut *self.socket.stream.borrow_mut()).poll_shutdown(cx)
    }
}

#[cfg(test)]
pub(crate) mod tests;
