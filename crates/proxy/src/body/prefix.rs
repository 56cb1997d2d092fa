//! The beginning of a request's body, buffered until the body is complete or too large to buffer.
//!
//! Without it, a client that sends slowly would occupy a connection to the backend, and a worker
//! process of a backend that does not buffer. The data are copied: frames are slices of larger
//! buffers.

use crate::context::ThreadContext;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Frame;
use std::rc::Rc;

/// The least number of bytes that one thread may buffer for all bodies together. Beyond it, bodies
/// are passed on as they arrive.
const KEPT_MAX: usize = 32 << 20;
/// A thread may buffer this many of the largest bodies, if that is more.
const KEPT_BODIES_MAX: usize = 16;
/// The beginning of a body that the decision needs. It is buffered however much other bodies take.
pub(super) const BEGINNING_BYTES: usize = 64 << 10;

/// How much of a body may be buffered, in bytes: at most, and whatever other bodies take.
#[derive(Clone, Copy)]
pub(super) struct BodyRoom {
    pub most: usize,
    pub least: usize,
}

/// Content types of calls in which client and backend may take turns, which needs HTTP/2 on both
/// sides. A client that waits for an answer before it sends more would wait forever if its body
/// were held back.
const RPC_MEDIA_TYPES: [&[u8]; 2] = [b"application/grpc", b"application/connect+"];

/// Whether a request is a call in which client and backend may take turns.
pub(super) fn is_call(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let starts =
        |with: &&[u8]| kind.get(..with.len()).is_some_and(|k| k.eq_ignore_ascii_case(with));
    RPC_MEDIA_TYPES.iter().any(starts)
}

/// The buffered beginning of one body.
pub(super) struct BodyPrefix {
    data: BytesMut,
    trailers: Option<HeaderMap>,
    /// The body is complete: no frame follows.
    pub(super) whole: bool,
    thread: Rc<ThreadContext>,
}

impl BodyPrefix {
    pub(super) fn nothing(thread: &Rc<ThreadContext>) -> BodyPrefix {
        BodyPrefix {
            data: BytesMut::new(),
            trailers: None,
            whole: false,
            thread: Rc::clone(thread),
        }
    }

    /// Whether more may be buffered.
    pub(super) fn has_room(&self, room: BodyRoom) -> bool {
        let all = KEPT_MAX.max(room.most.saturating_mul(KEPT_BODIES_MAX));
        let is_free = self.thread.kept.get() < all || self.data.len() < room.least;
        !self.whole && self.data.len() < room.most && is_free
    }

    pub(super) fn add(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) => {
                self.data.extend_from_slice(&data);
                self.thread.kept.set(self.thread.kept.get() + data.len());
            }
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                self.whole = true;
            }
        }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Replaces the data.
    pub(super) fn replace(&mut self, data: &[u8]) {
        self.forget();
        self.data = BytesMut::from(data);
        self.thread.kept.set(self.thread.kept.get() + data.len());
    }

    pub(super) fn len(&self) -> usize {
        self.data.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    /// Takes the next frame to send: the data first, then the trailers.
    pub(super) fn take_next(&mut self) -> Option<Frame<Bytes>> {
        if self.data.is_empty() {
            return self.trailers.take().map(Frame::trailers);
        }
        self.forget();
        Some(Frame::data(std::mem::take(&mut self.data).freeze()))
    }

    fn forget(&self) {
        self.thread.kept.set(self.thread.kept.get().saturating_sub(self.data.len()));
    }
}

impl Drop for BodyPrefix {
    fn drop(&mut self) {
        self.forget();
    }
}
