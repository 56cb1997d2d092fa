//! The proxy on io_uring: everything that a turn of the loop finds to send goes to the kernel with
//! one call, which waits for what happens next, too.

use crate::buffers::{Buffers, GROUP};
use crate::proxy::{Id, Proxy};
use crate::sockets::{Setup, prepare};
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, cqueue, opcode, types};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};

/// What distinguishes the variants.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// One request for all that a connection receives, into buffers of a registered ring.
    pub is_multishot: bool,
    /// Sockets are registered with the ring.
    pub is_fixed: bool,
    /// Each send is linked with the receive that follows it on the same connection.
    pub is_linked: bool,
    /// `SEND_ZC`.
    pub is_zero_copy: bool,
    /// A thread of the kernel, on this CPU, looks for new requests.
    pub polled_by: Option<u32>,
}

const ENTRIES: u32 = 1024;
const CONNS_MAX: u32 = 4096;
/// Buffers of the registered ring: used in turn, so more of them leave the processor's caches.
const BUFFERS: u16 = 512;
/// `IORING_RECVSEND_POLL_FIRST`: do not try before something has arrived.
const POLL_FIRST: u16 = 1;
const ACCEPT: u64 = 0 << 32;
const RECEIVE: u64 = 1 << 32;
const SEND: u64 = 2 << 32;

#[derive(Default)]
struct Socket {
    stream: Option<TcpStream>,
    /// Where a single-shot receive puts what arrives.
    buffer: Vec<u8>,
    sending: Vec<u8>,
    sent: usize,
    is_sending: bool,
    is_receiving: bool,
    has_left: bool,
}

struct Server {
    ring: IoUring,
    options: Options,
    buffer: usize,
    buffers: Option<Buffers>,
    proxy: Proxy,
    sockets: Vec<Socket>,
    listener: i32,
}

fn new_ring(options: Options) -> IoUring {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_cqsize(8 * ENTRIES);
    match options.polled_by {
        Some(cpu) => builder.setup_sqpoll(1000).setup_sqpoll_cpu(cpu),
        None => builder.setup_coop_taskrun().setup_defer_taskrun(),
    };
    let ring = builder.build(ENTRIES).expect("io_uring (Linux 6.1)");
    ring.submitter().register_ring_fd().expect("the ring's descriptor");
    if options.is_fixed {
        ring.submitter().register_files_sparse(CONNS_MAX).expect("a table of files");
    }
    ring
}

pub fn run(setup: Setup, options: Options) {
    let ring = new_ring(options);
    let buffers = options.is_multishot.then(|| Buffers::new(&ring, BUFFERS, setup.buffer));
    let mut server = Server {
        ring,
        options,
        buffer: setup.buffer,
        buffers,
        proxy: Proxy::default(),
        sockets: vec![],
        listener: setup.listener.as_raw_fd(),
    };
    for stream in setup.backends {
        let id = server.proxy.add_backend();
        server.keep(id, stream);
    }
    server.accept();
    let mut done: Vec<cqueue::Entry> = vec![];
    loop {
        match server.ring.submit_and_wait(1) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                panic!("io_uring_enter: {error}")
            }
            _ => {}
        }
        done.extend(server.ring.completion());
        for entry in done.drain(..) {
            server.completed(&entry);
        }
        assert_eq!(server.ring.completion().overflow(), 0);
    }
}

impl Server {
    fn keep(&mut self, id: Id, stream: TcpStream) {
        if self.sockets.len() <= id {
            self.sockets.resize_with(id + 1, Socket::default);
        }
        if self.options.is_fixed {
            let fds = [stream.as_raw_fd()];
            self.ring.submitter().register_files_update(id as u32, &fds).expect("a file");
        }
        self.sockets[id].stream = Some(stream);
        if !self.options.is_multishot {
            self.sockets[id].buffer.resize(self.buffer, 0);
        }
        if !self.options.is_linked || self.proxy.awaits(id) {
            self.receive(id);
        }
    }

    fn push(&mut self, entry: Entry) {
        // SAFETY: buffers stay where they are until their request has completed, see `Socket`:
        // one is neither changed nor dropped while `is_sending` or `is_receiving`.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit().expect("io_uring_enter");
        }
    }

    fn accept(&mut self) {
        let fd = types::Fd(self.listener);
        let entry = if self.options.is_multishot {
            opcode::AcceptMulti::new(fd).build()
        } else {
            opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).build()
        };
        self.push(entry.user_data(ACCEPT));
    }

    fn receive(&mut self, id: Id) {
        self.sockets[id].is_receiving = true;
        let entry = match (self.options.is_multishot, self.options.is_fixed) {
            (true, true) => opcode::RecvMulti::new(types::Fixed(id as u32), GROUP).build(),
            (true, false) => opcode::RecvMulti::new(self.fd(id), GROUP).build(),
            (false, is_fixed) => {
                let fd = self.fd(id);
                let buffer = &mut self.sockets[id].buffer;
                let (at, bytes) = (buffer.as_mut_ptr(), buffer.len() as u32);
                if is_fixed {
                    opcode::Recv::new(types::Fixed(id as u32), at, bytes).ioprio(POLL_FIRST).build()
                } else {
                    opcode::Recv::new(fd, at, bytes).ioprio(POLL_FIRST).build()
                }
            }
        };
        self.push(entry.user_data(RECEIVE | id as u64));
    }

    fn fd(&self, id: Id) -> types::Fd {
        types::Fd(self.sockets[id].stream.as_ref().map_or(-1, AsRawFd::as_raw_fd))
    }

    fn completed(&mut self, entry: &cqueue::Entry) {
        let id = entry.user_data() as u32 as Id;
        match entry.user_data() >> 32 << 32 {
            ACCEPT => self.accepted(entry),
            RECEIVE => self.received(id, entry),
            _ => self.sent(id, entry),
        }
    }

    fn accepted(&mut self, entry: &cqueue::Entry) {
        assert!(entry.result() >= 0, "accept: {}", entry.result());
        // SAFETY: a new descriptor that nothing else has.
        let stream = unsafe { TcpStream::from_raw_fd(entry.result()) };
        prepare(&stream).expect("an option of a new socket");
        let id = self.proxy.add_client();
        self.keep(id, stream);
        if !cqueue::more(entry.flags()) {
            self.accept();
        }
    }

    fn received(&mut self, id: Id, entry: &cqueue::Entry) {
        self.sockets[id].is_receiving = cqueue::more(entry.flags());
        let bytes = usize::try_from(entry.result()).unwrap_or(0);
        let nothing_yet = matches!(-entry.result(), libc::ENOBUFS | libc::ECANCELED);
        let is_refused = match cqueue::buffer_select(entry.flags()) {
            Some(buffer) => {
                let buffers = self.buffers.as_mut().expect("multishot");
                let is_refused = self.proxy.received(id, buffers.get(buffer, bytes)).is_err();
                buffers.give_back(buffer);
                is_refused
            }
            None => {
                bytes > 0 && self.proxy.received(id, &self.sockets[id].buffer[..bytes]).is_err()
            }
        };
        let has_left = is_refused || (bytes == 0 && !nothing_yet);
        if has_left && !self.sockets[id].has_left {
            self.proxy.client_left(id);
            self.sockets[id].has_left = true;
            // Ends a receive that goes on.
            _ = self.sockets[id].stream.as_ref().map(|stream| stream.shutdown(Shutdown::Both));
        }
        self.send_all();
        let socket = &self.sockets[id];
        if socket.has_left {
            self.forget(id);
        } else if !socket.is_receiving && (!self.options.is_linked || self.proxy.awaits(id)) {
            self.receive(id);
        }
    }

    fn send_all(&mut self) {
        while let Some(id) = self.proxy.ready.pop() {
            if !self.sockets[id].is_sending && !self.sockets[id].has_left {
                self.send(id);
            }
        }
    }

    fn send(&mut self, id: Id) {
        let socket = &mut self.sockets[id];
        if socket.sent == socket.sending.len() {
            socket.sending.clear();
            socket.sent = 0;
            self.proxy.take_output(id, &mut socket.sending);
            if socket.sending.is_empty() {
                return;
            }
        }
        socket.is_sending = true;
        let rest = &socket.sending[socket.sent..];
        let (at, bytes, all) =
            (rest.as_ptr(), rest.len() as u32, libc::MSG_WAITALL | libc::MSG_NOSIGNAL);
        let (fd, fixed) = (self.fd(id), types::Fixed(id as u32));
        let entry = match (self.options.is_zero_copy, self.options.is_fixed) {
            (true, true) => opcode::SendZc::new(fixed, at, bytes).flags(all).build(),
            (true, false) => opcode::SendZc::new(fd, at, bytes).flags(all).build(),
            (false, true) => opcode::Send::new(fixed, at, bytes).flags(all).build(),
            (false, false) => opcode::Send::new(fd, at, bytes).flags(all).build(),
        };
        let entry = entry.user_data(SEND | id as u64);
        if self.options.is_linked && !self.sockets[id].is_receiving {
            self.push(entry.flags(Flags::IO_LINK));
            self.receive(id);
        } else {
            self.push(entry);
        }
    }

    fn sent(&mut self, id: Id, entry: &cqueue::Entry) {
        let socket = &mut self.sockets[id];
        if !cqueue::notif(entry.flags()) {
            match usize::try_from(entry.result()) {
                Ok(bytes) => socket.sent += bytes,
                // The end of the connection is found when it is received from.
                Err(_) => socket.sent = socket.sending.len(),
            }
        }
        // More follows when the kernel has done with the buffer (`SEND_ZC`).
        if cqueue::more(entry.flags()) {
            return;
        }
        socket.is_sending = false;
        if socket.has_left {
            self.forget(id);
        } else {
            self.send(id);
        }
    }

    /// Frees the place of a client that has left, unless the kernel uses its buffers.
    fn forget(&mut self, id: Id) {
        let socket = &self.sockets[id];
        if socket.is_sending || socket.is_receiving {
            return;
        }
        if self.options.is_fixed {
            self.ring.submitter().register_files_update(id as u32, &[-1]).expect("a file");
        }
        self.sockets[id] = Socket::default();
        self.proxy.forget(id);
    }
}
