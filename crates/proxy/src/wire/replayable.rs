//! A request's body on an HTTP/2 stream. It is lent to the library that sends it, and taken back if
//! the backend has not processed the request.
//!
//! For that, the beginning of what was sent is kept until the answer begins. Frames share their
//! buffers, so keeping one costs no copy. The library asks for a frame when the backend has room
//! for one; that shows whether the backend is stuck. The kinds of bodies: `body.rs`.

use crate::body::RequestBody;
use crate::context::ThreadContext;
use crate::failure::BodyError;
use crate::timer::WaitTimer;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The maximum number of body bytes kept for sending them again. A longer body is sent only once.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// The maximum number of frames kept: each takes some memory, however short.
const KEPT_FRAMES_MAX: usize = 256;

#[derive(Clone)]
enum SentPiece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl SentPiece {
    fn frame(self) -> Frame<Bytes> {
        match self {
            SentPiece::Data(data) => Frame::data(data),
            SentPiece::Trailers(trailers) => Frame::trailers(trailers),
        }
    }
}

/// The part of a body that has been sent.
#[derive(Default)]
struct SentBody {
    pieces: Vec<SentPiece>,
    bytes: usize,
    /// The part is incomplete: too much was sent, or it is no longer needed.
    dropped: bool,
}

impl SentBody {
    fn note(&mut self, frame: &Frame<Bytes>) {
        if self.dropped {
            return;
        }
        let piece = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => SentPiece::Data(data.clone()),
            (None, Some(trailers)) => SentPiece::Trailers(trailers.clone()),
            (None, None) => return,
        };
        self.bytes += frame.data_ref().map_or(0, Bytes::len);
        self.pieces.push(piece);
        if self.bytes > KEPT_BYTES_MAX || self.pieces.len() > KEPT_FRAMES_MAX {
            self.forget();
        }
    }

    fn forget(&mut self) {
        *self = SentBody { dropped: true, ..SentBody::default() };
    }
}

/// The side of the loan that stays with the [`StreamCall`](super::call::Call).
pub(super) struct ReplayableBody {
    /// The rest of the body from the client; `None` after the body was taken back.
    upload: RefCell<Option<RequestBody>>,
    /// Pieces to send again before that rest.
    again: RefCell<VecDeque<SentPiece>>,
    sent: RefCell<SentBody>,
    stuck: Rc<WaitTimer>,
    thread: Rc<ThreadContext>,
}

impl ReplayableBody {
    pub(super) fn new(
        upload: RequestBody,
        stuck: &Rc<WaitTimer>,
        thread: &Rc<ThreadContext>,
    ) -> Rc<ReplayableBody> {
        Rc::new(ReplayableBody {
            upload: RefCell::new(Some(upload)),
            again: RefCell::default(),
            sent: RefCell::default(),
            stuck: Rc::clone(stuck),
            thread: Rc::clone(thread),
        })
    }

    /// Whether the body can be sent again from its beginning.
    pub(super) fn is_whole(&self) -> bool {
        !self.sent.borrow().dropped && self.upload.borrow().is_some()
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.upload.borrow().as_ref().is_some_and(RequestBody::is_nothing)
    }

    /// Returns the same body from its beginning, for another stream. The library gets no more of it
    /// through this loan.
    pub(super) fn anew(&self, stuck: &Rc<WaitTimer>) -> Rc<ReplayableBody> {
        let sent = self.sent.take();
        Rc::new(ReplayableBody {
            upload: RefCell::new(self.upload.take()),
            again: RefCell::new(sent.pieces.iter().cloned().collect()),
            sent: RefCell::new(sent),
            stuck: Rc::clone(stuck),
            thread: Rc::clone(&self.thread),
        })
    }

    /// Forgets what was sent: the body will not be sent again.
    pub(super) fn forget(&self) {
        self.sent.borrow_mut().forget();
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // The backend accepts the next frame, so it has accepted the one before.
        self.stuck.end();
        let again = self.again.borrow_mut().pop_front();
        if let Some(piece) = again {
            self.stuck.begin(self.thread.now());
            return Poll::Ready(Some(Ok(piece.frame())));
        }
        let mut upload = self.upload.borrow_mut();
        let Some(upload) = &mut *upload else {
            return Poll::Ready(Some(Err(BodyError::TakenBack)));
        };
        let polled = Pin::new(upload).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.stuck.begin(self.thread.now());
            self.sent.borrow_mut().note(frame);
        }
        polled
    }
}

/// The side of the loan that the library holds.
pub(crate) struct OutgoingBody(pub(super) Rc<ReplayableBody>);

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.poll(cx)
    }

    fn is_end_stream(&self) -> bool {
        let over = self.0.upload.borrow().as_ref().is_some_and(Body::is_end_stream);
        over && self.0.again.borrow().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match &*self.0.upload.borrow() {
            Some(upload) if self.0.again.borrow().is_empty() => upload.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

impl Drop for OutgoingBody {
    /// The library has the whole body, or needs no more of it.
    fn drop(&mut self) {
        self.0.stuck.end();
    }
}
