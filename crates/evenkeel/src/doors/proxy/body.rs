//! A request's body on its way to the backend.
//!
//! A frame is passed on when the backend takes it, and not read before; only the beginning of a
//! body is collected, before there is a backend that could wait for it (`kept.rs`). What the time
//! costs in which a backend waits for the rest: `engine/charge/delivery.rs`. The answer's body:
//! `download.rs`.

mod kept;

use super::account::Account;
use super::headers;
use super::link::{Link, UploadFault};
use super::worker::Worker;
use crate::engine::{Entered, Turn};
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use kept::Kept;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the client sent nothing for too long")]
    ClientLate,
    #[error("the client broke the request's body off")]
    ClientEnded,
    #[error("the request's body is not as long as its head states")]
    Length,
    #[error("the request's body is longer than bounds.body_bytes")]
    TooLong,
    #[error("there was no room before the backend for the rest of the request")]
    NoRoom,
    #[error("the backend sent nothing for too long")]
    BackendLate,
    #[error("the backend's answer broke off")]
    BackendEnded,
    #[error("the body is sent on another connection")]
    TakenBack,
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// What polling a body for its next frame gives.
pub(super) type Polled = Option<Result<Frame<Bytes>, Broken>>;

/// The request's body.
pub(super) enum Upload {
    /// There is none.
    Nothing,
    /// It comes from the client.
    Stream(Box<Stream>),
}

/// A body that comes from the client.
pub(super) struct Stream {
    body: Incoming,
    link: Rc<Link>,
    worker: Rc<Worker>,
    account: Account,
    /// It is a call in which client and backend may talk by turns.
    is_call: bool,
    /// Bytes that may still come.
    allowed: u64,
    /// What came of it before the backend was asked.
    kept: Kept,
    /// A frame that waits for room before the backend, which it gave up while none came.
    waiting: Option<(Frame<Bytes>, Turn)>,
}

impl Upload {
    pub(super) fn new(
        body: Incoming,
        link: &Rc<Link>,
        worker: &Rc<Worker>,
        account: &Account,
        bound: u64,
    ) -> Upload {
        if body.is_end_stream() {
            return Upload::Nothing;
        }
        Upload::Stream(Box::new(Stream {
            body,
            link: Rc::clone(link),
            worker: Rc::clone(worker),
            account: account.clone(),
            is_call: false,
            allowed: if bound == 0 { u64::MAX } else { bound },
            kept: Kept::nothing(worker),
            waiting: None,
        }))
    }

    /// Whether there is none.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Upload::Nothing)
    }

    /// Waits until the body is whole, as long as it has at most `bound` bytes. `by_turns`: client
    /// and backend may talk by turns.
    ///
    /// # Errors
    /// If it breaks off, does not come or is too long.
    pub(super) async fn gather(
        &mut self,
        headers: &HeaderMap,
        bound: usize,
        by_turns: bool,
    ) -> Result<(), Broken> {
        let Upload::Stream(stream) = self else { return Ok(()) };
        stream.is_call = by_turns && kept::is_call(headers);
        let fits = !stream.is_call && stream.body.size_hint().lower() <= bound as u64;
        let room = if fits { bound } else { 0 };
        poll_fn(|cx| stream.poll_gather(room, cx)).await
    }
}

impl Stream {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Polled> {
        if self.waiting.is_some() {
            return self.poll_turn(cx);
        }
        if let Some(frame) = self.kept.take_next() {
            return self.enter(frame, cx);
        }
        match self.poll_client(cx) {
            Poll::Pending => {
                let flows = self.link.upload.flows(self.worker.now());
                if !self.account.is_answered() && self.account.stall(flows) {
                    self.worker.step_aside(&self.link);
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

    /// Keeps what comes until there is all of it, or as much as there is room for.
    fn poll_gather(&mut self, room: usize, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        while !self.is_over() && self.kept.has_room(room) {
            match ready!(self.poll_client(cx)).transpose()? {
                Some(frame) => self.kept.add(frame),
                None => self.kept.whole = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The next frame that the client sends, if it may send it.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> Poll<Polled> {
        if self.is_over() {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending if self.link.upload.fault() == Some(UploadFault::Late) => {
                Poll::Ready(Some(Err(Broken::ClientLate)))
            }
            Poll::Pending => {
                self.link.upload.wait(cx.waker(), self.worker.now());
                Poll::Pending
            }
            Poll::Ready(next) => {
                let frame = next.as_ref().and_then(|next| next.as_ref().ok());
                let bytes = frame.and_then(Frame::data_ref).map_or(0, Bytes::len);
                self.link.upload.arrived(bytes, self.worker.now());
                let broken = match next {
                    Some(Ok(frame)) => return Poll::Ready(Some(self.checked(frame))),
                    None if self.has_ended() => return Poll::Ready(None),
                    None => Broken::ClientEnded,
                    Some(Err(error)) => error.into(),
                };
                self.link.upload.fail(UploadFault::Broken);
                Poll::Ready(Some(Err(broken)))
            }
        }
    }

    /// Whether a body without another frame has come to its end. The library ends one so, too,
    /// whose stream is reset with NO_ERROR, and only END_STREAM is the end of a request (RFC 9113,
    /// 8.1). Over HTTP/1.1 it reports a connection that ends too early as an error, and a body in
    /// chunks has no other end than this one.
    fn has_ended(&self) -> bool {
        let in_chunks = !self.link.is_stream() && self.body.size_hint().exact().is_none();
        in_chunks || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (kept, rest) = (self.kept.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(kept));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(kept));
        }
        hint
    }

    /// The client sends no more.
    fn is_over(&self) -> bool {
        self.kept.whole || self.body.is_end_stream()
    }

    /// Passes a frame on, as soon as there is room for this request again.
    fn enter(&mut self, frame: Frame<Bytes>, cx: &mut Context<'_>) -> Poll<Polled> {
        if self.account.is_answered() {
            return Poll::Ready(Some(Ok(self.passed(frame))));
        }
        match self.account.enter() {
            Entered::Room => Poll::Ready(Some(Ok(self.passed(frame)))),
            Entered::Refused(_) => Poll::Ready(Some(Err(self.refused()))),
            Entered::Waits(turn) => {
                self.waiting = Some((frame, turn));
                self.poll_turn(cx)
            }
        }
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Polled> {
        let Some((_, turn)) = &mut self.waiting else { return Poll::Pending };
        let turned = ready!(Pin::new(turn).poll(cx));
        let frame = self.waiting.take().map(|(frame, _)| frame);
        let turned = self.account.turned(turned).map_err(|_| self.refused());
        Poll::Ready(frame.map(|frame| turned.map(|()| self.passed(frame))))
    }

    fn refused(&self) -> Broken {
        self.link.upload.fail(UploadFault::Refused);
        Broken::NoRoom
    }

    fn checked(&mut self, mut frame: Frame<Bytes>) -> Result<Frame<Bytes>, Broken> {
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        let Some(allowed) = self.allowed.checked_sub(length) else {
            self.link.upload.fail(UploadFault::TooLong);
            return Err(Broken::TooLong);
        };
        self.allowed = allowed;
        if let Some(trailers) = frame.trailers_mut() {
            headers::trailers(trailers, self.worker.site().trust.header());
        }
        Ok(frame)
    }

    /// A frame goes to the backend.
    fn passed(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        // What is said by turns comes in short pieces, each of which is waited for.
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        self.account.delivers(if self.is_call { usize::MAX } else { bytes });
        if self.kept.is_empty() && self.is_over() {
            self.sent();
        }
        frame
    }

    /// All of it is with the backend, which works from now on unless it has answered already.
    fn sent(&mut self) {
        if self.link.upload.end() && self.account.sent() {
            self.link.head.begin(self.worker.now());
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.link.upload.stops_waiting();
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        match self.get_mut() {
            Upload::Nothing => Poll::Ready(None),
            Upload::Stream(stream) => stream.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Upload::Nothing => true,
            Upload::Stream(stream) => stream.kept.is_empty() && stream.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Upload::Nothing => SizeHint::with_exact(0),
            Upload::Stream(stream) => stream.size_hint(),
        }
    }
}
