//! A request's body on its way over a stream (HTTP/2): lent to the library, which sends it, and
//! taken back when the server has not looked at the request.
//!
//! For that the beginning of what was sent is kept until the answer begins. Frames share their
//! buffers, so keeping one costs no copy. The library asks for a frame when the server has room for
//! one: that is how it is known that it takes nothing. What a body may be: `body.rs`.

use super::Far;
use crate::doors::proxy::body::{Broken, Upload};
use crate::doors::proxy::worker::Worker;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The most that is kept of a body to send it again, in bytes. A longer one is sent once.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// Frames kept of it: each takes some memory however short it is.
const KEPT_FRAMES_MAX: usize = 256;

/// A piece of a body.
#[derive(Clone)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Piece {
    fn frame(self) -> Frame<Bytes> {
        match self {
            Piece::Data(data) => Frame::data(data),
            Piece::Trailers(trailers) => Frame::trailers(trailers),
        }
    }
}

/// What has been sent of a body.
#[derive(Default)]
struct Sent {
    pieces: Vec<Piece>,
    bytes: usize,
    /// It is not all there: too much was sent, or nobody wants it any more.
    dropped: bool,
}

impl Sent {
    fn note(&mut self, frame: &Frame<Bytes>) {
        if self.dropped {
            return;
        }
        let piece = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => Piece::Data(data.clone()),
            (None, Some(trailers)) => Piece::Trailers(trailers.clone()),
            (None, None) => return,
        };
        self.bytes += frame.data_ref().map_or(0, Bytes::len);
        self.pieces.push(piece);
        if self.bytes > KEPT_BYTES_MAX || self.pieces.len() > KEPT_FRAMES_MAX {
            self.forget();
        }
    }

    fn forget(&mut self) {
        *self = Sent { dropped: true, ..Sent::default() };
    }
}

/// What the lender holds.
pub(super) struct Loan {
    /// What is still to come from the client; `None` when it was taken back.
    upload: RefCell<Option<Upload>>,
    /// What goes before it, once more.
    again: RefCell<VecDeque<Piece>>,
    sent: RefCell<Sent>,
    far: Rc<Far>,
    worker: Rc<Worker>,
}

impl Loan {
    pub(super) fn new(upload: Upload, far: &Rc<Far>, worker: &Rc<Worker>) -> Rc<Loan> {
        Rc::new(Loan {
            upload: RefCell::new(Some(upload)),
            again: RefCell::default(),
            sent: RefCell::default(),
            far: Rc::clone(far),
            worker: Rc::clone(worker),
        })
    }

    /// Whether the body can be sent from its beginning.
    pub(super) fn is_whole(&self) -> bool {
        !self.sent.borrow().dropped && self.upload.borrow().is_some()
    }

    /// Whether nothing was or will be sent.
    pub(super) fn is_nothing(&self) -> bool {
        self.upload.borrow().as_ref().is_some_and(Upload::is_nothing)
    }

    /// The same body from its beginning, for another stream. Whoever has it lent gets no more.
    pub(super) fn anew(&self, far: &Rc<Far>) -> Rc<Loan> {
        let sent = self.sent.take();
        Rc::new(Loan {
            upload: RefCell::new(self.upload.take()),
            again: RefCell::new(sent.pieces.iter().cloned().collect()),
            sent: RefCell::new(sent),
            far: Rc::clone(far),
            worker: Rc::clone(&self.worker),
        })
    }

    /// It will not be sent again.
    pub(super) fn forget(&self) {
        self.sent.borrow_mut().forget();
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        // The server takes the next one, so it has taken the one before.
        self.far.stuck.end();
        let again = self.again.borrow_mut().pop_front();
        if let Some(piece) = again {
            self.far.stuck.begin(self.worker.now());
            return Poll::Ready(Some(Ok(piece.frame())));
        }
        let mut upload = self.upload.borrow_mut();
        let Some(upload) = &mut *upload else {
            return Poll::Ready(Some(Err(Broken::TakenBack)));
        };
        let polled = Pin::new(upload).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.far.stuck.begin(self.worker.now());
            self.sent.borrow_mut().note(frame);
        }
        polled
    }
}

/// What the library holds.
pub(in crate::doors::proxy) struct Lent(pub(super) Rc<Loan>);

impl Body for Lent {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
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

impl Drop for Lent {
    /// All of it is in the library's hands.
    fn drop(&mut self) {
        self.0.far.stuck.end();
    }
}
