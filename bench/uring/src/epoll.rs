//! The proxy on epoll, edge triggered: receive, send, receive, send.

use crate::proxy::{Id, Proxy};
use crate::sockets::{Setup, accept, receive, send};
use std::io::ErrorKind::WouldBlock;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

const LISTENER: u64 = u64::MAX;
const EVENTS: usize = 512;

struct Epoll(i32);

impl Epoll {
    fn add(&self, fd: i32, id: u64, events: i32) {
        let mut event = libc::epoll_event { events: events as u32, u64: id };
        // SAFETY: the event lives during the call.
        let done = unsafe { libc::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, fd, &mut event) };
        assert_eq!(done, 0, "epoll_ctl");
    }

    fn wait(&self, events: &mut [libc::epoll_event]) -> usize {
        // SAFETY: the kernel writes at most this many events.
        let found =
            unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), events.len() as i32, -1) };
        usize::try_from(found).unwrap_or(0)
    }
}

#[derive(Default)]
struct Socket {
    stream: Option<TcpStream>,
    sending: Vec<u8>,
    sent: usize,
}

struct Server {
    proxy: Proxy,
    sockets: Vec<Socket>,
    buffer: Vec<u8>,
}

pub fn run(setup: Setup) {
    const BOTH: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
    // SAFETY: no memory is handed over.
    let epoll = Epoll(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    epoll.add(setup.listener.as_raw_fd(), LISTENER, libc::EPOLLIN);
    let mut server =
        Server { proxy: Proxy::default(), sockets: vec![], buffer: vec![0; setup.buffer] };
    for stream in setup.backends {
        let fd = stream.as_raw_fd();
        let id = server.proxy.add_backend();
        server.keep(id, stream);
        epoll.add(fd, id as u64, BOTH);
    }
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS];
    loop {
        let found = epoll.wait(&mut events);
        for event in &events[..found] {
            if event.u64 == LISTENER {
                while let Some(stream) = accept(&setup.listener) {
                    let fd = stream.as_raw_fd();
                    let id = server.proxy.add_client();
                    server.keep(id, stream);
                    epoll.add(fd, id as u64, BOTH);
                }
            } else {
                server.turn(event.u64 as Id, event.events as i32);
            }
        }
    }
}

impl Server {
    fn keep(&mut self, id: Id, stream: TcpStream) {
        if self.sockets.len() <= id {
            self.sockets.resize_with(id + 1, Socket::default);
        }
        self.sockets[id].stream = Some(stream);
    }

    fn turn(&mut self, id: Id, events: i32) {
        if events & libc::EPOLLOUT != 0 && self.sockets[id].sent < self.sockets[id].sending.len() {
            self.send(id);
        }
        if events & (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) == 0 {
            return;
        }
        let is_ending = events & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) != 0;
        loop {
            let Some(stream) = &self.sockets[id].stream else { return };
            match receive(stream, &mut self.buffer) {
                Err(error) if error.kind() == WouldBlock => break,
                Err(_) | Ok(0) => return self.close(id),
                Ok(bytes) => {
                    if self.proxy.received(id, &self.buffer[..bytes]).is_err() {
                        return self.close(id);
                    }
                    while let Some(other) = self.proxy.ready.pop() {
                        self.send(other);
                    }
                    // Less than there was room for: no more has arrived.
                    if bytes < self.buffer.len() && !is_ending {
                        break;
                    }
                }
            }
        }
    }

    fn send(&mut self, id: Id) {
        let socket = &mut self.sockets[id];
        let Some(stream) = &socket.stream else { return };
        loop {
            if socket.sent == socket.sending.len() {
                socket.sending.clear();
                socket.sent = 0;
                self.proxy.take_output(id, &mut socket.sending);
                if socket.sending.is_empty() {
                    return;
                }
            }
            match send(stream, &socket.sending[socket.sent..]) {
                Ok(bytes) => socket.sent += bytes,
                // The end of the connection is found when it is received from.
                Err(_) => return,
            }
        }
    }

    fn close(&mut self, id: Id) {
        self.proxy.client_left(id);
        self.proxy.forget(id);
        self.sockets[id] = Socket::default();
    }
}
