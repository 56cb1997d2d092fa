//! An HTTP/1.1 connection to the backend. It carries one request after the other and is driven by
//! the task of the current request.
//!
//! It has no task of its own: the task that serves the client writes the request's head and reads
//! the answer, so a request needs no queues and wakers. Only a request with a body is written by a
//! separate task (`sending.rs`), because its answer may begin before the body is sent. How bytes
//! become heads and bodies: `head.rs`, `chunks.rs`. Which connection is taken: `pool.rs`.

use super::chunks::{self, Chunks, Piece};
use super::head::{self, Framing};
use super::lent::{Lent, Loan};
use super::sending::{Lost, Sending};
use super::{Far, Fault, Request, ends};
use crate::backends::Backend;
use crate::body::Broken;
use crate::headers::{Found, Peer};
use crate::worker::Worker;
use bytes::{Buf, Bytes, BytesMut};
use evenkeel_telemetry::registry::Held;
use http::request::Parts;
use http::{HeaderMap, Method, Response};
use http_body::{Frame, SizeHint};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::task::JoinHandle;

/// The minimum and maximum size of a read, in bytes. The size doubles after a full read. It is also
/// what a connection holds of an answer for a client that reads slowly.
const READ_BYTES: (usize, usize) = (8 * 1024, 64 * 1024);

/// A complete body up to this length is copied, in bytes: that is cheaper than sharing the buffer
/// and allocating another.
const COPIED_BYTES_MAX: usize = 1024;

/// Which task writes.
enum Writer {
    /// The task that owns the connection.
    Here(ends::Writer),
    /// A separate task, until the request's body is sent.
    Task(JoinHandle<Result<ends::Writer, Lost>>),
    /// None; the writer was lost or taken.
    Gone,
}

/// What is expected next from the backend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The head of an answer.
    Head,
    /// A body with this number of bytes left.
    Length(u64),
    Chunks(Chunks),
    /// A body that ends with the connection.
    Close,
    /// Nothing: the answer is complete.
    Nothing,
}

/// An HTTP/1.1 connection to a backend.
pub(crate) struct Connection {
    reader: ends::Reader,
    writer: Writer,
    pub(super) far: Rc<Far>,
    /// Bytes that have arrived and are not parsed yet.
    unread: BytesMut,
    /// The size of the next read, in bytes.
    read_bytes: usize,
    expected: Expected,
    /// Whether another request may follow the current one.
    keeps: bool,
    /// The method of the current request.
    method: Method,
    /// The head of the current request unless it has a body, and the number of its bytes written.
    request: Vec<u8>,
    written: usize,
    /// Whether the whole head has been sent, with nothing left in a TLS buffer.
    flushed: bool,
    /// An empty map with capacity for the fields of an answer, reused.
    room: HeaderMap,
    /// Whether the request counts as running on the backend.
    running: bool,
    counted: Option<Held>,
}

impl Connection {
    pub(crate) fn new(
        stream: ends::Stream,
        backend: &Rc<Backend>,
        counted: Held,
    ) -> Box<Connection> {
        let (reader, writer) = stream.into_split();
        Box::new(Connection {
            reader,
            writer: Writer::Here(writer),
            far: Far::of(backend),
            unread: BytesMut::new(),
            read_bytes: READ_BYTES.0,
            expected: Expected::Nothing,
            keeps: true,
            method: Method::GET,
            request: Vec::new(),
            written: 0,
            flushed: true,
            room: HeaderMap::new(),
            running: false,
            counted: Some(counted),
        })
    }

    /// Begins a request. Its head is written when the answer is polled, its body by a task.
    pub(super) fn begin(&mut self, request: Request<'_>, worker: &Rc<Worker>) {
        let Request { head, peer, body } = request;
        let body = (!body.is_nothing()).then_some(body);
        self.send(head, Some(&peer), body, worker);
    }

    /// Sends a request that failed elsewhere again. `head` is complete, with the fields about the
    /// client.
    pub(super) fn begin_again(&mut self, head: Parts, body: Rc<Loan>, worker: &Rc<Worker>) {
        let body = (!body.is_nothing()).then(|| Lent(body.anew(&self.far)));
        self.send(head, None, body, worker);
    }

    fn send<B>(
        &mut self,
        head: Parts,
        peer: Option<&Peer<'_>>,
        body: Option<B>,
        worker: &Rc<Worker>,
    ) where
        B: http_body::Body<Data = Bytes, Error = Broken> + Unpin + 'static,
    {
        self.counts_as(true);
        let length = head::stated_length(&head.headers);
        self.request.clear();
        head::write(&head, peer, body.is_some() && length.is_none(), &mut self.request);
        self.method = head.method;
        self.room = head.headers;
        self.expect_answer();
        // Without the body that it states, the backend would read the next request as that body.
        self.keeps = body.is_some() || length.unwrap_or(0) == 0;
        let Some(body) = body else { return };
        if let Writer::Here(writer) = std::mem::replace(&mut self.writer, Writer::Gone) {
            let (far, worker) = (Rc::clone(&self.far), Rc::clone(worker));
            let sending = Sending { writer, body, left: length, far, worker };
            let head = std::mem::take(&mut self.request);
            self.writer = Writer::Task(tokio::task::spawn_local(sending.run(head)));
        }
    }

    /// Sends the request that failed on `before` again.
    pub(super) fn repeat(&mut self, before: &mut Connection) {
        self.counts_as(true);
        self.request = std::mem::take(&mut before.request);
        self.method = before.method.clone();
        self.expect_answer();
    }

    /// Returns the head of the request that failed here, if it has no body.
    pub(super) fn sent(&self) -> Option<Parts> {
        head::unwritten(&self.request)
    }

    /// Sets whether the request counts as running on the backend.
    fn counts_as(&mut self, running: bool) {
        match (self.running, running) {
            (false, true) => self.far.backend.begins(),
            (true, false) => self.far.backend.ends(),
            _ => {}
        }
        self.running = running;
    }

    fn expect_answer(&mut self) {
        self.written = 0;
        self.flushed = false;
        self.expected = Expected::Head;
        self.keeps = true;
    }

    /// Whether the request that failed here may be sent again: nothing of an answer has arrived, it
    /// has no body, and its method is idempotent.
    pub(super) fn may_repeat(&self) -> bool {
        self.expected == Expected::Head
            && self.unread.is_empty()
            && !self.request.is_empty()
            && self.method.is_idempotent()
    }

    /// Polls for the head of the answer, and which of its fields may have to be removed.
    pub(super) fn poll_answer(
        &mut self,
        worker: &Worker,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Response<()>, Found), Fault>> {
        self.poll_write(worker, cx);
        loop {
            if let Some(answer) = head::read(&mut self.unread, &self.method, &mut self.room)? {
                self.keeps &= answer.keeps;
                self.expected = match answer.framing {
                    Framing::Length(0) => Expected::Nothing,
                    Framing::Length(length) => Expected::Length(length),
                    Framing::Chunked => Expected::Chunks(Chunks::Size),
                    Framing::Close => Expected::Close,
                };
                if self.breaks_off(cx) {
                    return Poll::Ready(Err(Fault::Closed));
                }
                return Poll::Ready(Ok((answer.head, answer.found)));
            }
            match self.poll_read(cx) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(Fault::Closed)),
                Poll::Ready(read) => read?,
                Poll::Pending => {
                    ready!(self.poll_task(cx)).map_err(Fault::Upload)?;
                    return Poll::Pending;
                }
            };
        }
    }

    /// Whether the backend has already closed the connection within the body that it announced.
    /// Nothing has been passed on yet, so the client can still get an error status.
    fn breaks_off(&mut self, cx: &mut Context<'_>) -> bool {
        let lacks = match self.expected {
            Expected::Length(left) => (self.unread.len() as u64) < left,
            Expected::Chunks(_) => true,
            Expected::Head | Expected::Close | Expected::Nothing => false,
        };
        if !lacks {
            return false;
        }
        match self.poll_read(cx) {
            Poll::Ready(Ok(0) | Err(_)) => {}
            Poll::Ready(Ok(_)) => return false,
            Poll::Pending => {
                self.reader.acknowledge();
                return false;
            }
        }
        let Expected::Chunks(mut chunks) = self.expected else { return true };
        let mut unread = self.unread.clone();
        loop {
            match chunks.next(&mut unread) {
                Ok(Some(Piece::End)) => return false,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return true,
            }
        }
    }

    /// Writes the request's head. Even if that fails, there may be an answer.
    fn poll_write(&mut self, worker: &Worker, cx: &mut Context<'_>) {
        let Writer::Here(writer) = &mut self.writer else { return };
        if self.flushed {
            return;
        }
        while self.written < self.request.len() {
            let poll = Pin::new(&mut *writer).poll_write(cx, &self.request[self.written..]);
            match self.far.note(poll, worker) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) if count > 0 => self.written += count,
                Poll::Ready(_) => {
                    self.writer = Writer::Gone;
                    self.keeps = false;
                    return;
                }
            }
        }
        self.flushed = Pin::new(writer).poll_flush(cx).is_ready();
    }

    /// Checks the task that writes. Pending while it runs, and also if its outcome does not end the
    /// request.
    fn poll_task(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let Writer::Task(task) = &mut self.writer else { return Poll::Pending };
        let ended = ready!(Pin::new(task).poll(cx));
        self.writer = Writer::Gone;
        match ended {
            Ok(Ok(writer)) => self.writer = Writer::Here(writer),
            Ok(Err(Lost::Body(broken))) => return Poll::Ready(Err(broken)),
            Ok(Err(Lost::Backend)) | Err(_) => self.keeps = false,
        }
        Poll::Pending
    }

    /// Reads more. Zero bytes: the backend has closed the connection.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.unread.reserve(self.read_bytes);
        let count = ready!(pin!(self.reader.read_buf(&mut self.unread)).poll(cx))?;
        if count >= self.read_bytes {
            self.read_bytes = (2 * self.read_bytes).min(READ_BYTES.1);
        } else if count < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES.0);
        }
        Poll::Ready(Ok(count))
    }

    /// Polls for the next frame of the answer's body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        loop {
            match self.next() {
                Ok(Some(Piece::Data(data))) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Some(Piece::Trailers(t))) => return Poll::Ready(Some(Ok(Frame::trailers(t)))),
                Ok(Some(Piece::End)) => return Poll::Ready(None),
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Some(Err(fault))),
            }
            let Poll::Ready(read) = self.poll_read(cx) else {
                return self.poll_task(cx).map_err(Fault::Upload).map(|lost| lost.err().map(Err));
            };
            match read {
                Ok(0) if self.expected == Expected::Close => self.expected = Expected::Nothing,
                Ok(0) => return Poll::Ready(Some(Err(Fault::Closed))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    /// Decodes the next piece of the body from the bytes that have arrived.
    fn next(&mut self) -> Result<Option<Piece>, Fault> {
        let most = match &mut self.expected {
            Expected::Nothing | Expected::Head => return Ok(Some(Piece::End)),
            Expected::Chunks(chunks) => {
                let piece = chunks.next(&mut self.unread);
                if *chunks == Chunks::End {
                    self.expected = Expected::Nothing;
                }
                return piece;
            }
            Expected::Length(left) => *left,
            Expected::Close => u64::MAX,
        };
        if self.unread.is_empty() {
            return Ok(None);
        }
        let data = chunks::up_to(&mut self.unread, most);
        if let Expected::Length(left) = &mut self.expected {
            *left -= data.len() as u64;
            if *left == 0 {
                self.expected = Expected::Nothing;
            }
        }
        Ok(Some(Piece::Data(data)))
    }

    /// Takes the connection apart after an answer that switches protocols. Returns `None` if the
    /// request is not fully sent.
    pub(super) fn into_tunnel(mut self) -> Option<super::Tunnel> {
        let Writer::Here(writer) = std::mem::replace(&mut self.writer, Writer::Gone) else {
            return None;
        };
        let reader = std::mem::replace(&mut self.reader, ends::Reader::None);
        let unread = std::mem::take(&mut self.unread).freeze();
        Some(super::Tunnel { reader, writer, unread, counted: self.counted.take() })
    }

    /// Takes the whole body of the answer, if its length is known and all of it has arrived.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        let Expected::Length(left) = self.expected else { return None };
        let length = usize::try_from(left).ok().filter(|length| *length <= self.unread.len())?;
        self.expected = Expected::Nothing;
        if length > COPIED_BYTES_MAX {
            return Some(chunks::up_to(&mut self.unread, left));
        }
        let whole = Bytes::copy_from_slice(&self.unread[..length]);
        self.unread.advance(length);
        Some(whole)
    }

    /// Whether the answer's body is complete.
    pub(super) fn is_through(&self) -> bool {
        self.expected == Expected::Nothing
    }

    /// Returns the known bounds of the length still to come.
    pub(super) fn size_hint(&self) -> SizeHint {
        match self.expected {
            Expected::Length(left) => SizeHint::with_exact(left),
            Expected::Nothing => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }

    /// Whether another request may follow, at once or when the last one's body is sent.
    pub(crate) fn may_stay(&mut self) -> bool {
        self.counts_as(!self.is_through());
        self.keeps
            && self.is_through()
            && self.unread.is_empty()
            && self.written == self.request.len()
            && !matches!(self.writer, Writer::Gone)
    }

    /// Whether another request may be sent now. Unexpected bytes, or the end of the connection,
    /// make the connection unusable (`None`): they would be taken for the answer to the next
    /// request.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Option<bool> {
        if !self.reader.is_silent(cx) {
            return None;
        }
        match self.poll_task(cx) {
            Poll::Ready(Err(_)) => None,
            _ if !self.may_stay() => None,
            _ => Some(matches!(self.writer, Writer::Here(_))),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counts_as(false);
        if let Writer::Task(task) = &self.writer {
            task.abort();
        }
    }
}
