//! Bodies on their way: the request's to the backend, the answer's to the client.
//!
//! A frame is passed on when the other side takes it, and not read before; only the beginning of a
//! request's body is collected, before there is a backend that could wait for it (`kept.rs`).
//! The meter runs while we wait for the backend and rests while we wait for the client.
//!
//! When a client goes away: `abort.rs`.

mod kept;

use super::abort;
use super::account::Account;
use super::exchange::Failure;
use super::headers;
use super::link::Link;
use super::wire::Wire;
use super::worker::Worker;
use crate::engine::{Entered, Turn};
use crate::watch::counts::BackendFault;
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
type Polled = Option<Result<Frame<Bytes>, Broken>>;

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
        link.uploading.set(true);
        Upload::Stream(Box::new(Stream {
            body,
            link: Rc::clone(link),
            worker: Rc::clone(worker),
            account: account.clone(),
            allowed: if bound == 0 { u64::MAX } else { bound },
            kept: Kept::nothing(worker),
            waiting: None,
        }))
    }

    /// Whether there is none.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Upload::Nothing)
    }

    /// Waits until the body is whole, as long as it has at most `bound` bytes.
    ///
    /// # Errors
    /// If it breaks off, does not come or is too long.
    pub(super) async fn gather(&mut self, headers: &HeaderMap, bound: usize) -> Result<(), Broken> {
        let Upload::Stream(stream) = self else { return Ok(()) };
        let room = kept::room(headers, stream.body.size_hint().lower(), bound);
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
                if !self.account.is_answered() {
                    self.account.give_way();
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
            Poll::Pending if self.link.upload_late.get() => {
                Poll::Ready(Some(Err(Broken::ClientLate)))
            }
            Poll::Pending => {
                self.link.uploaded_by(cx.waker());
                self.link.upload.begin(self.worker.now());
                Poll::Pending
            }
            Poll::Ready(next) => {
                self.link.upload.end();
                let broken = match next {
                    Some(Ok(frame)) => return Poll::Ready(Some(self.checked(frame))),
                    None if self.has_ended() => return Poll::Ready(None),
                    None => Broken::ClientEnded,
                    Some(Err(error)) => error.into(),
                };
                self.link.upload_broken.set(true);
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
        self.link.upload_refused.set(true);
        Broken::NoRoom
    }

    fn checked(&mut self, mut frame: Frame<Bytes>) -> Result<Frame<Bytes>, Broken> {
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        let Some(allowed) = self.allowed.checked_sub(length) else {
            self.link.upload_too_long.set(true);
            return Err(Broken::TooLong);
        };
        self.allowed = allowed;
        if let Some(trailers) = frame.trailers_mut() {
            headers::trailers(trailers);
        }
        Ok(frame)
    }

    /// A frame goes to the backend.
    fn passed(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        if self.kept.is_empty() && self.is_over() {
            self.sent();
        }
        frame
    }

    /// All of it is with the backend, which works from now on unless it has answered already.
    fn sent(&mut self) {
        if self.link.uploading.replace(false) {
            self.link.upload.end();
            if self.account.sent() {
                self.link.head.begin(self.worker.now());
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.link.upload.end();
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

/// The answer's body.
pub(super) enum Body {
    /// All of it at once.
    Whole(Option<Bytes>),
    /// It comes from the backend.
    Stream(Download),
}

/// A body that comes from the backend, with the connection that it comes on.
pub(super) struct Download {
    /// `None` when it is through or given up.
    source: Option<Wire>,
    link: Rc<Link>,
    worker: Rc<Worker>,
    account: Account,
    /// Whether the client is being sent the answer; before, it is held.
    released: bool,
    /// Why it breaks off when it is asked for the next time.
    broken: Option<Broken>,
}

impl Download {
    pub(super) fn new(
        wire: Wire,
        link: &Rc<Link>,
        worker: &Rc<Worker>,
        account: Account,
    ) -> Download {
        let (link, worker) = (Rc::clone(link), Rc::clone(worker));
        Download { source: Some(wire), link, worker, account, released: false, broken: None }
    }

    /// The hold is over: the client gets the answer.
    ///
    /// # Errors
    /// If it is known to be broken by now, and the client can be told so.
    pub(super) async fn release(mut self) -> Result<Body, Failure> {
        self.released = true;
        poll_fn(|cx| Poll::Ready(self.look_ahead(cx))).await?;
        let Some(wire) = &mut self.source else { return Ok(Body::Whole(None)) };
        let whole = wire.whole();
        if wire.is_through() {
            self.finish();
            return Ok(Body::Whole(whole));
        }
        self.link.offers();
        Ok(Body::Stream(self))
    }

    fn look_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        let Some(wire) = &mut self.source else { return Ok(()) };
        let Err(fault) = wire.look_ahead(cx) else { return Ok(()) };
        let failure = Failure::from(fault).by(&wire.far().backend);
        self.source = None;
        self.account.settle();
        Err(failure)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Polled> {
        let Some(wire) = &mut self.source else {
            return Poll::Ready(self.broken.take().map(Err));
        };
        self.link.is_asked();
        let polled = wire.poll_frame(cx);
        if polled.is_pending() {
            if self.link.backend_late.get() {
                wire.is_late();
                self.give_up(&Failure::new(BackendFault::Idle));
                return Poll::Ready(Some(Err(Broken::BackendLate)));
            }
            self.account.work();
            self.link.answer.begin(self.worker.now());
            return Poll::Pending;
        }
        self.account.rest();
        self.link.answer.end();
        let ended = wire.is_through();
        match ready!(polled) {
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    headers::trailers(trailers);
                }
                self.link.hands_over(self.worker.now());
                if ended {
                    self.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(fault)) => {
                self.give_up(&Failure::from(fault));
                // A moment later: hyper throws away what it has not written yet when a body
                // fails, and who got no byte takes it that nobody has looked at the request.
                self.broken = Some(Broken::BackendEnded);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => {
                self.finish();
                Poll::Ready(None)
            }
        }
    }

    /// All is through: the account is closed, the connection is free.
    fn finish(&mut self) {
        if let Some(wire) = self.source.take() {
            self.worker.keep(wire);
        }
        self.account.settle();
        self.link.done(self.worker.now());
    }

    /// The backend failed, unless the client's own body did: its connection is closed.
    fn give_up(&mut self, failure: &Failure) {
        if let Some(wire) = self.source.take().filter(|_| !self.link.upload_failed()) {
            self.worker.failed(&self.link, &wire.far().backend.name, failure);
        }
        self.account.settle();
        self.link.done(self.worker.now());
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let Some(wire) = self.source.take() else { return };
        self.link.done(self.worker.now());
        if wire.is_through() {
            self.worker.keep(wire);
        } else if self.released {
            abort::run_on(&self.worker, &self.account, abort::Rest::Body(wire));
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        match self.get_mut() {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Stream(download) => download.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole(bytes) => bytes.is_none(),
            Body::Stream(download) => download.source.is_none() && download.broken.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Body::Stream(Download { source: Some(wire), .. }) => wire.size_hint(),
            Body::Stream(_) => SizeHint::with_exact(0),
        }
    }
}
