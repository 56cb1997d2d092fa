//! The proxy itself, without input and output: received bytes are handed in, bytes to send are taken
//! out. Every variant on epoll and io_uring runs this same code.
//!
//! It has the part of HTTP/1.1 that the measurement needs: `GET` without a body, answers with a
//! `Content-Length`, connections kept open on both sides. A head gets one more line on its way to
//! the backend, so every byte is copied once in each direction.

use memchr::{memchr, memmem};

pub type Id = usize;

const ADDED: &[u8] = b"X-Forwarded-For: 127.0.0.1\r\n\r\n";

/// A connection is gone or unusable, and has to be closed.
#[derive(Debug)]
pub struct Closed;

#[derive(Default)]
struct Conn {
    is_backend: bool,
    /// Whose request a backend answers, or which backend answers a client.
    partner: Option<Id>,
    /// A backend that answers; without a partner if the client has left.
    is_busy: bool,
    /// Received and not complete.
    input: Vec<u8>,
    /// Of an answer: bytes that follow, once its head is known.
    left: Option<usize>,
    /// To be sent.
    output: Vec<u8>,
}

#[derive(Default)]
pub struct Proxy {
    conns: Vec<Conn>,
    free: Vec<Id>,
    idle: Vec<Id>,
    /// Connections that got something to send since this was emptied.
    pub ready: Vec<Id>,
}

impl Proxy {
    pub fn add_client(&mut self) -> Id {
        self.free.pop().unwrap_or_else(|| {
            self.conns.push(Conn::default());
            self.conns.len() - 1
        })
    }

    pub fn add_backend(&mut self) -> Id {
        let id = self.add_client();
        self.conns[id].is_backend = true;
        self.idle.push(id);
        id
    }

    /// Moves what is to be sent into `buffer`, which is empty.
    pub fn take_output(&mut self, id: Id, buffer: &mut Vec<u8>) {
        std::mem::swap(&mut self.conns[id].output, buffer);
    }

    pub fn received(&mut self, id: Id, data: &[u8]) -> Result<(), Closed> {
        if self.conns[id].is_backend {
            return self.answered(id, data);
        }
        self.conns[id].input.extend_from_slice(data);
        self.next_request(id)
    }

    /// Whether more is to come from a connection before anything is sent to it.
    pub fn awaits(&self, id: Id) -> bool {
        let conn = &self.conns[id];
        if conn.is_backend { conn.is_busy } else { conn.partner.is_none() }
    }

    /// The client has left. Its `Id` is free once nothing of it is being sent: `forget`.
    pub fn client_left(&mut self, id: Id) {
        assert!(!self.conns[id].is_backend, "a backend closed its connection");
        if let Some(backend) = self.conns[id].partner.take() {
            self.conns[backend].partner = None;
        }
    }

    pub fn forget(&mut self, id: Id) {
        self.conns[id] = Conn::default();
        self.free.push(id);
    }

    fn next_request(&mut self, id: Id) -> Result<(), Closed> {
        let client = &mut self.conns[id];
        if client.partner.is_some() {
            return Ok(());
        }
        let Some(end) = head_end(&client.input) else { return Ok(()) };
        if !client.input.starts_with(b"GET ") {
            return Err(Closed);
        }
        let backend = self.idle.pop().expect("more requests than connections to the backend");
        client.partner = Some(backend);
        let [client, server] = self.conns.get_disjoint_mut([id, backend]).expect("two of them");
        server.output.extend_from_slice(&client.input[..end - 2]);
        server.output.extend_from_slice(ADDED);
        client.input.drain(..end);
        server.is_busy = true;
        server.partner = Some(id);
        self.ready.push(backend);
        Ok(())
    }

    fn answered(&mut self, id: Id, data: &[u8]) -> Result<(), Closed> {
        let server = &mut self.conns[id];
        assert!(server.is_busy, "an answer without a request");
        let partner = server.partner;
        let left = match server.left {
            Some(left) => left,
            None if server.input.is_empty() => match answer_bytes(data) {
                Some(bytes) => bytes,
                None => {
                    server.input.extend_from_slice(data);
                    return Ok(());
                }
            },
            None => {
                server.input.extend_from_slice(data);
                let Some(bytes) = answer_bytes(&server.input) else { return Ok(()) };
                let all = std::mem::take(&mut server.input);
                server.left = Some(bytes);
                return self.answered(id, &all);
            }
        };
        let left = left.checked_sub(data.len()).expect("more than one answer");
        server.left = (left > 0).then_some(left);
        if left == 0 {
            server.partner = None;
            server.is_busy = false;
            self.idle.push(id);
        }
        let Some(client) = partner else { return Ok(()) };
        self.conns[client].output.extend_from_slice(data);
        self.ready.push(client);
        if left == 0 {
            self.conns[client].partner = None;
            _ = self.next_request(client);
        }
        Ok(())
    }
}

pub fn head_end(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

/// Bytes of head and body together, if the head is complete.
pub fn answer_bytes(bytes: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let end = head_end(bytes)?;
    let mut head = &bytes[..end];
    while let Some(at) = memchr(b'\n', head) {
        let line = &head[..at];
        if line.len() > NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME) {
            let value = str::from_utf8(&line[NAME.len()..]).expect("a number");
            return Some(end + value.trim().parse::<usize>().expect("a number"));
        }
        head = &head[at + 1..];
    }
    panic!("an answer without a Content-Length")
}
