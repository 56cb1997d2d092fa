//! A request's body on its way to the backend.
//!
//! A frame is read when the backend takes it, not before. Only the beginning of a body is buffered,
//! before a backend is chosen that could wait for it (`prefix.rs`). How the time is charged in
//! which a backend waits for the rest: `engine/charge/delivery.rs`. The answer's body:
//! `download.rs`.

mod prefix;

use super::account::RequestAccount;
use super::context::ThreadContext;
use super::failure::{BodyError, UploadError};
use super::headers;
use super::link::ClientLink;
use bytes::Bytes;
use evenkeel_engine::{QueueAdmission, QueueTurn};
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use prefix::{BEGINNING_BYTES, BodyPrefix, BodyRoom};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// The number of bytes that are read on while a part of the body waits for a slot.
const READ_ON_BYTES: usize = 64 << 10;

pub(super) type PolledFrame = Option<Result<Frame<Bytes>, BodyError>>;

pub(super) enum RequestBody {
    Nothing,
    Stream(Box<ClientBody>),
}

pub(super) struct ClientBody {
    body: Incoming,
    link: Rc<ClientLink>,
    thread: Rc<ThreadContext>,
    account: RequestAccount,
    /// The request is an RPC call in which client and backend may take turns.
    is_call: bool,
    /// The number of bytes that may still come (`bounds.body_bytes`).
    allowed: u64,
    /// The beginning that was buffered before a backend was chosen.
    kept: BodyPrefix,
    /// A frame that waits for a slot, because the request gave up its slot while no frame came.
    waiting: Option<(Frame<Bytes>, QueueTurn)>,
}

impl RequestBody {
    pub(super) fn new(
        body: Incoming,
        link: &Rc<ClientLink>,
        thread: &Rc<ThreadContext>,
        account: &RequestAccount,
        bound: u64,
    ) -> RequestBody {
        if body.is_end_stream() {
            return RequestBody::Nothing;
        }
        RequestBody::Stream(Box::new(ClientBody {
            body,
            link: Rc::clone(link),
            thread: Rc::clone(thread),
            account: account.clone(),
            is_call: false,
            allowed: if bound == 0 { u64::MAX } else { bound },
            kept: BodyPrefix::nothing(thread),
            waiting: None,
        }))
    }

    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, RequestBody::Nothing)
    }

    /// The beginning of the body, as far as it is buffered.
    pub(super) fn begin(&self) -> &[u8] {
        match self {
            RequestBody::Nothing => &[],
            RequestBody::Stream(stream) => stream.kept.data(),
        }
    }

    /// The whole body, if it is buffered.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        match self {
            RequestBody::Nothing => None,
            RequestBody::Stream(stream) => stream.is_over().then(|| stream.kept.data()),
        }
    }

    /// Replaces the body, which is buffered as a whole.
    pub(super) fn replace(&mut self, body: Bytes) {
        if let RequestBody::Stream(stream) = self {
            stream.kept.replace(&body);
        }
    }

    /// Waits until the whole body is buffered, if it has at most `bound` bytes, or its first
    /// `bound` bytes if the decision needs its beginning (`decides`). `by_turns`: client and
    /// backend may take turns, so a body that is an RPC call is not waited for.
    ///
    /// # Errors
    /// The body breaks off, does not arrive in time or is too long.
    pub(super) async fn gather(
        &mut self,
        headers: &HeaderMap,
        bound: usize,
        (by_turns, decides): (bool, bool),
    ) -> Result<(), BodyError> {
        let RequestBody::Stream(stream) = self else { return Ok(()) };
        stream.is_call = by_turns && prefix::is_call(headers);
        let fits = decides || stream.body.size_hint().lower() <= bound as u64;
        let room = if fits && !stream.is_call { bound } else { 0 };
        let room = BodyRoom { most: room, least: if decides { BEGINNING_BYTES } else { 0 } };
        poll_fn(|cx| stream.poll_gather(room, cx)).await
    }
}

impl ClientBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        if self.waiting.is_some() {
            return self.poll_turn(cx);
        }
        if let Some(frame) = self.kept.take_next() {
            return self.enter(frame, cx);
        }
        match self.poll_client(cx) {
            Poll::Pending => {
                let flows = self.link.upload.flows(self.thread.now());
                if !self.account.is_answered() && self.account.stall(flows) {
                    self.thread.set_aside(&self.link);
                }
                Poll::Pending
            }
            Poll::Ready(Some(Ok(frame))) => self.enter(frame, cx),
            Poll::Ready(None) => {
                self.sent();
                Poll::Ready(None)
            }
            failed @ Poll::Ready(Some(Err(_))) => failed,
        }
    }

    /// Buffers frames until the body is complete or the buffer is full.
    fn poll_gather(&mut self, room: BodyRoom, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        while !self.is_over() && self.kept.has_room(room) {
            match ready!(self.poll_client(cx)).transpose()? {
                Some(frame) => self.kept.add(frame),
                None => self.kept.whole = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the next frame from the client, after checking the bounds.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        if self.is_over() {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending if self.link.upload.fault() == Some(UploadError::Late) => {
                Poll::Ready(Some(Err(BodyError::ClientLate)))
            }
            Poll::Pending => {
                self.link.upload.wait(cx.waker(), self.thread.now());
                Poll::Pending
            }
            Poll::Ready(next) => {
                let frame = next.as_ref().and_then(|next| next.as_ref().ok());
                let bytes = frame.and_then(Frame::data_ref).map_or(0, Bytes::len);
                self.link.upload.arrived(bytes, self.thread.now());
                let broken = match next {
                    Some(Ok(frame)) => return Poll::Ready(Some(self.checked(frame))),
                    None if self.has_ended() => return Poll::Ready(None),
                    None => BodyError::ClientEnded,
                    Some(Err(error)) => error.into(),
                };
                self.link.upload.fail(UploadError::Broken);
                Poll::Ready(Some(Err(broken)))
            }
        }
    }

    /// Whether a body that yields no further frame has really ended. hyper also ends a body in this
    /// way if the stream is reset with NO_ERROR, but only END_STREAM ends a request (RFC 9113,
    /// 8.1). Over HTTP/1.1, hyper reports a connection that ends too early as an error, and a
    /// chunked body has no other end than this one.
    fn has_ended(&self) -> bool {
        let in_chunks = !self.link.is_stream() && self.body.size_hint().exact().is_none();
        in_chunks || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        extended(&self.body.size_hint(), self.kept.len())
    }

    /// Whether the client sends no more frames.
    fn is_over(&self) -> bool {
        self.kept.whole || self.body.is_end_stream()
    }

    /// Passes a frame on as soon as this request has a slot again.
    fn enter(&mut self, frame: Frame<Bytes>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        if self.account.is_answered() {
            return Poll::Ready(Some(Ok(self.passed(frame))));
        }
        match self.account.enter() {
            QueueAdmission::Room => Poll::Ready(Some(Ok(self.passed(frame)))),
            QueueAdmission::Refused(_) => Poll::Ready(Some(Err(self.refused()))),
            QueueAdmission::Waits(turn) => {
                self.waiting = Some((frame, turn));
                self.poll_turn(cx)
            }
        }
    }

    /// Waits for a slot, and reads on in the meantime. Otherwise a client that sends very little
    /// could not be distinguished from one that would send more if it were read.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let Some((_, turn)) = &mut self.waiting else { return Poll::Pending };
        let Poll::Ready(turned) = Pin::new(turn).poll(cx) else {
            self.link.upload.note_queued(true);
            return match self.poll_gather(BodyRoom { most: READ_ON_BYTES, least: 0 }, cx) {
                Poll::Ready(Err(broken)) => Poll::Ready(Some(Err(broken))),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            };
        };
        self.link.upload.note_queued(false);
        let frame = self.waiting.take().map(|(frame, _)| frame);
        let turned = self.account.turned(turned).map_err(|_| self.refused());
        Poll::Ready(frame.map(|frame| turned.map(|()| self.passed(frame))))
    }

    fn refused(&self) -> BodyError {
        self.link.upload.fail(UploadError::Refused);
        BodyError::NoRoom
    }

    fn checked(&mut self, mut frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        let Some(allowed) = self.allowed.checked_sub(length) else {
            self.link.upload.fail(UploadError::TooLong);
            return Err(BodyError::TooLong);
        };
        self.allowed = allowed;
        if let Some(trailers) = frame.trailers_mut() {
            headers::trailers(trailers, self.thread.settings().trust.header());
        }
        Ok(frame)
    }

    /// Accounts for a frame that goes to the backend.
    fn passed(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        // An RPC call comes in short pieces, and the backend waits for each of them.
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let passed = if self.is_call { usize::MAX } else { bytes };
        self.account.with(|charge| charge.note_delivered(passed));
        if self.kept.is_empty() && self.is_over() {
            self.sent();
        }
        frame
    }

    /// The backend has the whole body. It works from now on, unless it has already answered.
    fn sent(&mut self) {
        if self.link.upload.end() && self.account.sent() {
            self.link.backend.begin_head(self.thread.now());
        }
    }
}

/// Returns the bounds for a body of which `more` bytes come in addition to those of `rest`.
pub(super) fn extended(rest: &SizeHint, more: usize) -> SizeHint {
    let mut hint = SizeHint::new();
    hint.set_lower(rest.lower().saturating_add(more as u64));
    if let Some(upper) = rest.upper() {
        hint.set_upper(upper.saturating_add(more as u64));
    }
    hint
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        self.link.upload.stop_waiting();
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        match self.get_mut() {
            RequestBody::Nothing => Poll::Ready(None),
            RequestBody::Stream(stream) => stream.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Nothing => true,
            RequestBody::Stream(stream) => stream.kept.is_empty() && stream.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Nothing => SizeHint::with_exact(0),
            RequestBody::Stream(stream) => stream.size_hint(),
        }
    }
}
