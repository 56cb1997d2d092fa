//! An HTTP/1.1 connection to the backend. It carries one request after the other and is driven by
//! the task of the current request.
//!
//! It has no task of its own: the task that serves the client writes the request's head and reads
//! the answer, so a request needs no queues and wakers. Only a request with a body is written by a
//! separate task (`request_send.rs`), because its answer may begin before the body is sent. How
//! bytes become heads and bodies: `head.rs`, `chunks.rs`. Which connection is taken: `pool.rs`.

use super::chunks::{self, BodyPiece, ChunkDecoder};
use super::halves;
use super::head::{self, BodyFraming};
use super::replayable::{OutgoingBody, ReplayableBody};
use super::request::UpstreamRequest;
use super::request_send::{RequestSend, SendError};
use crate::context::ThreadContext;
use crate::failure::{BodyError, WireError};
use crate::headers::{FieldKinds, PeerFacts};
use crate::timer::WaitTimer;
use bytes::{Buf, Bytes, BytesMut};
use evenkeel_telemetry::registry::GaugeGuard;
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Frame, SizeHint};
use std::io;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::task::JoinHandle;

/// The minimum and maximum size of a read, in bytes. The size doubles after a full read. It is also
/// what a connection holds of an answer for a client that reads slowly.
const READ_BYTES: (usize, usize) = (8 * 1024, 64 * 1024);

const _: () = assert!(0 < READ_BYTES.0 && READ_BYTES.0 <= READ_BYTES.1, "a read has room");

/// A complete body up to this length is copied, in bytes: that is cheaper than sharing the buffer
/// and allocating another.
const COPIED_BYTES_MAX: usize = 1024;

/// Which task writes.
enum RequestWriter {
    /// The task that owns the connection.
    Here(halves::UpstreamWriter),
    /// A separate task, until the request's body is sent.
    Task(JoinHandle<Result<halves::UpstreamWriter, SendError>>),
    /// None; the writer was lost or taken.
    Gone,
}

/// What is expected next from the backend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpectedPart {
    Head,
    /// A body with this number of bytes left.
    Length(u64),
    Chunks(ChunkDecoder),
    /// A body that ends with the connection.
    Close,
    /// Nothing: the answer is complete.
    Nothing,
}

pub(crate) struct Http1Connection {
    reader: halves::UpstreamReader,
    writer: RequestWriter,
    /// Runs while the backend does not read what is written to it.
    pub(super) stuck: Rc<WaitTimer>,
    /// The count of the requests that run on the backend, and the current request in it.
    running: Weak<()>,
    _runs: Option<Rc<()>>,
    /// Bytes that have arrived and are not parsed yet.
    unread: BytesMut,
    /// The size of the next read, in bytes.
    read_bytes: usize,
    expected: ExpectedPart,
    /// Whether an earlier request has been answered.
    has_answered: bool,
    /// Whether another request may follow the current one.
    keeps: bool,
    method: Method,
    /// The head of the current request unless it has a body, and the number of its bytes written.
    request: Vec<u8>,
    written: usize,
    /// Whether the whole head has been sent, with nothing left in a TLS buffer.
    flushed: bool,
    /// An empty map with capacity for the fields of an answer, reused.
    room: HeaderMap,
    counted: Option<GaugeGuard>,
}

impl Http1Connection {
    pub(crate) fn new(
        stream: halves::UpstreamStream,
        running: Weak<()>,
        counted: GaugeGuard,
    ) -> Box<Http1Connection> {
        let (reader, writer) = stream.into_split();
        Box::new(Http1Connection {
            reader,
            writer: RequestWriter::Here(writer),
            stuck: Rc::default(),
            running,
            _runs: None,
            unread: BytesMut::new(),
            read_bytes: READ_BYTES.0,
            expected: ExpectedPart::Nothing,
            has_answered: false,
            keeps: true,
            method: Method::GET,
            request: Vec::new(),
            written: 0,
            flushed: true,
            room: HeaderMap::new(),
            counted: Some(counted),
        })
    }

    /// Begins a request. Its head is written when the answer is polled, its body by a task.
    pub(super) fn begin(&mut self, request: UpstreamRequest<'_>, thread: &Rc<ThreadContext>) {
        let UpstreamRequest { head, peer, body } = request;
        let body = (!body.is_nothing()).then_some(body);
        self.send(head, Some(&peer), body, thread);
    }

    /// Sends a request that failed elsewhere again. `head` is complete, with the fields about the
    /// client.
    pub(super) fn begin_again(
        &mut self,
        mut head: Parts,
        body: Rc<ReplayableBody>,
        thread: &Rc<ThreadContext>,
    ) {
        let body = (!body.is_nothing()).then(|| OutgoingBody(body.anew(&self.stuck)));
        self.send(&mut head, None, body, thread);
    }

    fn send<B>(
        &mut self,
        head: &mut Parts,
        peer: Option<&PeerFacts<'_>>,
        body: Option<B>,
        thread: &Rc<ThreadContext>,
    ) where
        B: http_body::Body<Data = Bytes, Error = BodyError> + Unpin + 'static,
    {
        let length = head::stated_length(&head.headers);
        self.request.clear();
        head::write(head, peer, body.is_some() && length.is_none(), &mut self.request);
        self.method = std::mem::take(&mut head.method);
        self.room = std::mem::take(&mut head.headers);
        self.expect_answer();
        // Without the body that it states, the backend would read the next request as that body.
        self.keeps = body.is_some() || length.unwrap_or(0) == 0;
        let Some(body) = body else { return };
        if let RequestWriter::Here(writer) =
            std::mem::replace(&mut self.writer, RequestWriter::Gone)
        {
            let (stuck, thread) = (Rc::clone(&self.stuck), Rc::clone(thread));
            let sending = RequestSend { writer, body, left: length, stuck, thread };
            let head = std::mem::take(&mut self.request);
            self.writer = RequestWriter::Task(tokio::task::spawn_local(sending.run(head)));
        }
    }

    /// Sends the request that failed on `before` again.
    pub(super) fn repeat(&mut self, before: &mut Http1Connection) {
        self.request = std::mem::take(&mut before.request);
        self.method = before.method.clone();
        self.expect_answer();
    }

    /// Returns the head of the request that failed here, if it has no body.
    pub(super) fn sent(&self) -> Option<Parts> {
        head::unwritten(&self.request)
    }

    fn expect_answer(&mut self) {
        self._runs = self.running.upgrade();
        self.written = 0;
        self.flushed = false;
        self.expected = ExpectedPart::Head;
        self.keeps = true;
    }

    /// Whether the request that failed here may be sent again: nothing of an answer has arrived, it
    /// has no body, and its method is idempotent.
    pub(super) fn may_repeat(&self) -> bool {
        self.expected == ExpectedPart::Head
            && self.unread.is_empty()
            && !self.request.is_empty()
            && self.method.is_idempotent()
    }

    /// Polls for the head of the answer, and which of its fields may have to be removed.
    pub(super) fn poll_answer(
        &mut self,
        thread: &ThreadContext,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Response<()>, FieldKinds), WireError>> {
        self.poll_write(thread, cx);
        loop {
            if let Some(answer) = head::read(&mut self.unread, &self.method, &mut self.room)? {
                self.keeps &= answer.keeps;
                if self.is_idle_timeout(&answer.head) {
                    return Poll::Ready(Err(WireError::Closed));
                }
                self.has_answered = true;
                self.expected = match answer.framing {
                    BodyFraming::Length(0) => ExpectedPart::Nothing,
                    BodyFraming::Length(length) => ExpectedPart::Length(length),
                    BodyFraming::Chunked => ExpectedPart::Chunks(ChunkDecoder::Size),
                    BodyFraming::Close => ExpectedPart::Close,
                };
                if self.breaks_off(cx) {
                    return Poll::Ready(Err(WireError::Closed));
                }
                return Poll::Ready(Ok((answer.head, answer.found)));
            }
            match self.poll_read(cx) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(WireError::Closed)),
                Poll::Ready(read) => read?,
                Poll::Pending => {
                    ready!(self.poll_task(cx)).map_err(WireError::Upload)?;
                    return Poll::Pending;
                }
            };
        }
    }

    /// Whether the backend has said that the connection was idle for too long (RFC 9110, 15.5.9)
    /// while the request was on its way. It is not an answer to the request, which may be sent
    /// again.
    fn is_idle_timeout(&mut self, head: &Response<()>) -> bool {
        let is_idle_timeout = self.has_answered
            && !self.keeps
            && head.status() == StatusCode::REQUEST_TIMEOUT
            && !self.request.is_empty()
            && self.method.is_idempotent();
        if is_idle_timeout {
            self.unread.clear();
        }
        is_idle_timeout
    }

    /// Whether the backend has already closed the connection within the body that it announced.
    /// Nothing has been passed on yet, so the client can still get an error status.
    fn breaks_off(&mut self, cx: &mut Context<'_>) -> bool {
        let lacks = match self.expected {
            ExpectedPart::Length(left) => (self.unread.len() as u64) < left,
            ExpectedPart::Chunks(_) => true,
            ExpectedPart::Head | ExpectedPart::Close | ExpectedPart::Nothing => false,
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
        let ExpectedPart::Chunks(mut chunks) = self.expected else { return true };
        let mut unread = self.unread.clone();
        loop {
            match chunks.next(&mut unread) {
                Ok(Some(BodyPiece::End)) => return false,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return true,
            }
        }
    }

    /// Writes the request's head. Even if that fails, there may be an answer.
    fn poll_write(&mut self, thread: &ThreadContext, cx: &mut Context<'_>) {
        let RequestWriter::Here(writer) = &mut self.writer else { return };
        if self.flushed {
            return;
        }
        while self.written < self.request.len() {
            let poll = Pin::new(&mut *writer).poll_write(cx, &self.request[self.written..]);
            match self.stuck.track(poll, thread.now()) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) if count > 0 => self.written += count,
                Poll::Ready(_) => {
                    self.writer = RequestWriter::Gone;
                    self.keeps = false;
                    return;
                }
            }
        }
        self.flushed = Pin::new(writer).poll_flush(cx).is_ready();
    }

    /// Checks the task that writes. Pending while it runs, and also if its outcome does not end the
    /// request.
    fn poll_task(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let RequestWriter::Task(task) = &mut self.writer else { return Poll::Pending };
        let ended = ready!(Pin::new(task).poll(cx));
        self.writer = RequestWriter::Gone;
        match ended {
            Ok(Ok(writer)) => self.writer = RequestWriter::Here(writer),
            Ok(Err(SendError::Body(broken))) => return Poll::Ready(Err(broken)),
            Ok(Err(SendError::Backend)) | Err(_) => self.keeps = false,
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
    ) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        loop {
            match self.next() {
                Ok(Some(BodyPiece::Data(data))) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Some(BodyPiece::Trailers(t))) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(t))));
                }
                Ok(Some(BodyPiece::End)) => return Poll::Ready(None),
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Some(Err(fault))),
            }
            let Poll::Ready(read) = self.poll_read(cx) else {
                return self
                    .poll_task(cx)
                    .map_err(WireError::Upload)
                    .map(|lost| lost.err().map(Err));
            };
            match read {
                Ok(0) if self.expected == ExpectedPart::Close => {
                    self.expected = ExpectedPart::Nothing
                }
                Ok(0) => return Poll::Ready(Some(Err(WireError::Closed))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    /// Decodes the next piece of the body from the bytes that have arrived.
    fn next(&mut self) -> Result<Option<BodyPiece>, WireError> {
        let most = match &mut self.expected {
            ExpectedPart::Nothing | ExpectedPart::Head => return Ok(Some(BodyPiece::End)),
            ExpectedPart::Chunks(chunks) => {
                let piece = chunks.next(&mut self.unread);
                if *chunks == ChunkDecoder::End {
                    self.expected = ExpectedPart::Nothing;
                }
                return piece;
            }
            ExpectedPart::Length(left) => *left,
            ExpectedPart::Close => u64::MAX,
        };
        if self.unread.is_empty() {
            return Ok(None);
        }
        let data = chunks::up_to(&mut self.unread, most);
        if let ExpectedPart::Length(left) = &mut self.expected {
            *left -= data.len() as u64;
            if *left == 0 {
                self.expected = ExpectedPart::Nothing;
            }
        }
        Ok(Some(BodyPiece::Data(data)))
    }

    /// Takes the connection apart after an answer that switches protocols. Returns `None` if the
    /// request is not fully sent.
    pub(super) fn into_tunnel(mut self) -> Option<halves::UpstreamTunnel> {
        let RequestWriter::Here(writer) = std::mem::replace(&mut self.writer, RequestWriter::Gone)
        else {
            return None;
        };
        let reader = std::mem::replace(&mut self.reader, halves::UpstreamReader::None);
        let unread = std::mem::take(&mut self.unread).freeze();
        Some(halves::UpstreamTunnel { reader, writer, unread, counted: self.counted.take() })
    }

    /// Takes the whole body of the answer, if its length is known and all of it has arrived.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        let ExpectedPart::Length(left) = self.expected else { return None };
        let length = usize::try_from(left).ok().filter(|length| *length <= self.unread.len())?;
        self.expected = ExpectedPart::Nothing;
        if length > COPIED_BYTES_MAX {
            return Some(chunks::up_to(&mut self.unread, left));
        }
        let whole = Bytes::copy_from_slice(&self.unread[..length]);
        self.unread.advance(length);
        Some(whole)
    }

    pub(super) fn is_through(&self) -> bool {
        self.expected == ExpectedPart::Nothing
    }

    /// Returns the known bounds of the length still to come.
    pub(super) fn size_hint(&self) -> SizeHint {
        match self.expected {
            ExpectedPart::Length(left) => SizeHint::with_exact(left),
            ExpectedPart::Nothing => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }

    /// Whether another request may follow, at once or when the last one's body is sent.
    pub(crate) fn check_reusable(&mut self) -> bool {
        if self.is_through() {
            self._runs = None;
        }
        self.keeps
            && self.is_through()
            && self.unread.is_empty()
            && self.written == self.request.len()
            && !matches!(self.writer, RequestWriter::Gone)
    }

    /// Whether another request may be sent now. Unexpected bytes, or the end of the connection,
    /// make the connection unusable (`None`): they would be taken for the answer to the next
    /// request. `may_repeat`: that request can be sent again if the connection turns out to be
    /// closed.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>, may_repeat: bool) -> Option<bool> {
        if !self.reader.is_silent(cx, may_repeat) {
            return None;
        }
        match self.poll_task(cx) {
            Poll::Ready(Err(_)) => None,
            _ if !self.check_reusable() => None,
            _ => Some(matches!(self.writer, RequestWriter::Here(_))),
        }
    }
}

impl Drop for Http1Connection {
    fn drop(&mut self) {
        if let RequestWriter::Task(task) = &self.writer {
            task.abort();
        }
    }
}
