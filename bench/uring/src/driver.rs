//! Streams for tokio on a ring of io_uring.
//!
//! One ring a thread. Tokio calls `turn` whenever no task can run (`on_thread_park`). It hands over
//! what tasks want to send, and wakes the tasks of completed requests. If none has, tokio
//! waits in `epoll_wait` as usual, for the ring's `eventfd` too (`watch`). Receiving is
//! multishot, into a registered ring of buffers; sending copies, as its buffer has to stay.

use crate::buffers::{Buffers, GROUP};
use io_uring::{IoUring, cqueue, opcode, types};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{Ordering, fence};
use std::task::{Context, Poll, Waker};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

const ENTRIES: u32 = 1024;
const BUFFERS: u16 = 512;
const RECEIVE: u64 = 0;
const SEND: u64 = 1 << 32;
/// `IORING_ENTER_GETEVENTS`
const GETEVENTS: u32 = 1;

thread_local! {
    static DRIVER: RefCell<Option<Driver>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Socket {
    stream: Option<TcpStream>,
    /// Buffers with what has arrived, and how much of each.
    received: VecDeque<(u16, usize)>,
    /// Of the first of these, taken already.
    taken: usize,
    has_ended: bool,
    reader: Option<Waker>,
    sending: Vec<u8>,
    sent: usize,
    is_sending: bool,
    has_failed: bool,
    writer: Option<Waker>,
    is_dropped: bool,
}

struct Driver {
    ring: IoUring,
    buffers: Buffers,
    sockets: Vec<Socket>,
    free: Vec<usize>,
    done: Vec<cqueue::Entry>,
    woken: Vec<Waker>,
}

fn with<T>(act: impl FnOnce(&mut Driver) -> T) -> T {
    DRIVER.with_borrow_mut(|driver| act(driver.as_mut().expect("a ring of this thread")))
}

/// Makes the ring of this thread.
pub fn open(buffer: usize) {
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_cqsize(8 * ENTRIES)
        .build(ENTRIES)
        .expect("io_uring (Linux 6.1)");
    ring.submitter().register_ring_fd().expect("the ring's descriptor");
    let buffers = Buffers::new(&ring, BUFFERS, buffer);
    let driver =
        Driver { ring, buffers, sockets: vec![], free: vec![], done: vec![], woken: vec![] };
    DRIVER.set(Some(driver));
}

/// Lets tokio wake up when something has completed; `turn` does the rest.
pub async fn watch() {
    // SAFETY: a new descriptor that nothing else has.
    let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) };
    with(|driver| driver.ring.submitter().register_eventfd(event.as_raw_fd())).expect("eventfd");
    // SAFETY: the descriptor is open as long as this owns it.
    let event =
        unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) }.expect("eventfd");
    loop {
        // Not read: each event is announced, whatever the counter says.
        event.readable().await.expect("eventfd").clear_ready();
    }
}

/// Hands over what is to be done, and wakes the tasks of what has been.
pub fn turn() {
    let woken = DRIVER.with_borrow_mut(|driver| driver.as_mut().map(Driver::turn));
    let Some(mut woken) = woken else { return };
    woken.drain(..).for_each(Waker::wake);
    with(|driver| driver.woken = woken);
}

impl Driver {
    fn turn(&mut self) -> Vec<Waker> {
        self.ring.completion().disable_eventfd();
        loop {
            self.enter();
            if !self.woken.is_empty() {
                return std::mem::take(&mut self.woken);
            }
            // Tokio is going to wait. What has completed until now might not have been announced.
            self.ring.completion().enable_eventfd();
            fence(Ordering::SeqCst);
            if !self.ring.submission().taskrun() && self.ring.completion().is_empty() {
                return vec![];
            }
            self.ring.completion().disable_eventfd();
        }
    }

    fn enter(&mut self) {
        let queue = self.ring.submission();
        let (ready, has_work) = (queue.len(), queue.taskrun());
        drop(queue);
        if ready > 0 || has_work {
            // SAFETY: no argument.
            let entered = unsafe {
                self.ring.submitter().enter::<libc::sigset_t>(ready as u32, 0, GETEVENTS, None)
            };
            if let Err(error) = entered {
                assert_eq!(error.kind(), io::ErrorKind::Interrupted, "io_uring_enter: {error}");
            }
        }
        let mut done = std::mem::take(&mut self.done);
        done.extend(self.ring.completion());
        for entry in done.drain(..) {
            let id = entry.user_data() as u32 as usize;
            if entry.user_data() & SEND == 0 {
                self.received(id, &entry);
            } else {
                self.sent(id, entry.result());
            }
        }
        self.done = done;
    }

    fn received(&mut self, id: usize, entry: &cqueue::Entry) {
        let socket = &mut self.sockets[id];
        if let Some(buffer) = cqueue::buffer_select(entry.flags()) {
            socket.received.push_back((buffer, entry.result().max(0) as usize));
        }
        if !cqueue::more(entry.flags()) {
            socket.has_ended = entry.result() <= 0 && entry.result() != -libc::ENOBUFS;
            if !socket.has_ended {
                self.receive(id);
            }
        }
        let socket = &mut self.sockets[id];
        self.woken.extend(socket.reader.take());
        self.forget(id);
    }

    fn sent(&mut self, id: usize, result: i32) {
        let socket = &mut self.sockets[id];
        socket.is_sending = false;
        match usize::try_from(result) {
            Ok(bytes) => socket.sent += bytes,
            Err(_) => socket.has_failed = true,
        }
        if socket.sent < socket.sending.len() && !socket.has_failed {
            return self.send(id);
        }
        self.woken.extend(socket.writer.take());
        self.forget(id);
    }

    fn push(&mut self, entry: io_uring::squeue::Entry) {
        // SAFETY: what is sent is neither changed nor dropped while `is_sending`.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit().expect("io_uring_enter");
        }
    }

    fn fd(&self, id: usize) -> types::Fd {
        types::Fd(self.sockets[id].stream.as_ref().map_or(-1, AsRawFd::as_raw_fd))
    }

    fn receive(&mut self, id: usize) {
        let entry = opcode::RecvMulti::new(self.fd(id), GROUP).build();
        self.push(entry.user_data(RECEIVE | id as u64));
    }

    fn send(&mut self, id: usize) {
        let fd = self.fd(id);
        let socket = &mut self.sockets[id];
        socket.is_sending = true;
        let rest = &socket.sending[socket.sent..];
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let entry = opcode::Send::new(fd, rest.as_ptr(), rest.len() as u32).flags(flags).build();
        self.push(entry.user_data(SEND | id as u64));
    }

    /// Frees the place of a socket that has been dropped, unless the kernel works on it.
    fn forget(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        if !socket.is_dropped {
            return;
        }
        for (buffer, _) in socket.received.drain(..) {
            self.buffers.give_back(buffer);
        }
        if socket.has_ended && !socket.is_sending {
            *socket = Socket::default();
            self.free.push(id);
        }
    }
}

/// A connection whose sends and receives go through the ring of the thread that made it.
pub struct Stream(usize);

impl Stream {
    pub fn new(stream: TcpStream) -> Self {
        with(|driver| {
            let id = driver.free.pop().unwrap_or_else(|| {
                driver.sockets.push(Socket::default());
                driver.sockets.len() - 1
            });
            driver.sockets[id].stream = Some(stream);
            driver.receive(id);
            Self(id)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        with(|driver| {
            let socket = &mut driver.sockets[self.0];
            socket.is_dropped = true;
            _ = socket.stream.as_ref().map(|stream| stream.shutdown(std::net::Shutdown::Both));
            driver.forget(self.0);
        });
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        with(|driver| {
            let socket = &mut driver.sockets[self.0];
            let Some(&(buffer, bytes)) = socket.received.front() else {
                if socket.has_ended {
                    return Poll::Ready(Ok(()));
                }
                socket.reader = Some(context.waker().clone());
                return Poll::Pending;
            };
            let rest = &driver.buffers.get(buffer, bytes)[socket.taken..];
            let copied = rest.len().min(into.remaining());
            into.put_slice(&rest[..copied]);
            socket.taken += copied;
            if socket.taken == bytes {
                socket.received.pop_front();
                socket.taken = 0;
                driver.buffers.give_back(buffer);
            }
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        with(|driver| {
            let socket = &mut driver.sockets[self.0];
            if socket.has_failed {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if socket.is_sending {
                socket.writer = Some(context.waker().clone());
                return Poll::Pending;
            }
            socket.sending.clear();
            socket.sending.extend_from_slice(data);
            socket.sent = 0;
            driver.send(self.0);
            Poll::Ready(Ok(data.len()))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        with(|driver| {
            let socket = &driver.sockets[self.0];
            _ = socket.stream.as_ref().map(|stream| stream.shutdown(std::net::Shutdown::Write));
        });
        Poll::Ready(Ok(()))
    }
}
