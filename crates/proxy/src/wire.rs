//! A request on its way to a backend, and the answer on its way back.
//!
//! The request either has a connection to itself while it runs (HTTP/1.1, `connection.rs`), or is a
//! stream of a shared connection (HTTP/2, `call.rs` over `session.rs`). A closed enum hides the
//! difference from the caller. Which backend is asked: `backends.rs`.

mod call;
mod chunks;
mod connection;
pub(super) mod ends;
mod head;
mod lent;
mod sending;
mod session;

use super::backends::Backend;
use super::body::{Broken, Upload};
use super::headers::{Found, Peer};
use super::link::Since;
use super::worker::Worker;
use bytes::Bytes;
pub(super) use call::Call;
pub(super) use connection::Connection;
use evenkeel_telemetry::registry::Held;
use http::Response;
use http::request::Parts;
use http_body::{Frame, SizeHint};
pub(super) use session::Session;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Why there is no answer, or no more of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the backend closed the connection")]
    Closed,
    #[error(transparent)]
    Broken(#[from] io::Error),
    #[error("the answer is not proper HTTP: {0}")]
    Answer(&'static str),
    #[error("the answer is not proper HTTP: {0}{hint}", hint = hint(.0))]
    Syntax(#[from] httparse::Error),
    #[error(transparent)]
    Upload(Broken),
    #[error("{0}")]
    Stream(call::Ended),
}

impl Fault {
    /// Whether the backend sent something that cannot be parsed.
    pub(super) fn is_syntax(&self) -> bool {
        match self {
            Fault::Answer(_) | Fault::Syntax(_) => true,
            Fault::Stream(ended) => ended.is_syntax(),
            _ => false,
        }
    }
}

/// Suggests a likely configuration error if the answer is not HTTP/1.1.
fn hint(error: &httparse::Error) -> &'static str {
    match error {
        httparse::Error::Version => "; does it speak HTTP/2? write h2c://",
        _ => "",
    }
}

/// The backend's end of a request.
pub(super) struct Far {
    /// The backend.
    pub(super) backend: Rc<Backend>,
    /// The backend does not read what is written to it.
    pub(super) stuck: Since,
}

impl Far {
    fn of(backend: &Rc<Backend>) -> Rc<Far> {
        Rc::new(Far { backend: Rc::clone(backend), stuck: Since::default() })
    }

    /// Records whether a write is stuck.
    fn note<T>(&self, poll: Poll<T>, worker: &Worker) -> Poll<T> {
        match poll {
            Poll::Pending => self.stuck.begin(worker.now()),
            Poll::Ready(_) => self.stuck.end(),
        }
        poll
    }
}

/// A request on its way to the backend.
pub(super) struct Request<'a> {
    /// The head as it is written, without the fields that `headers::introduce` adds.
    pub(super) head: Parts,
    pub(super) peer: Peer<'a>,
    pub(super) body: Upload,
}

/// A connection on which a protocol other than HTTP is spoken.
pub(super) struct Tunnel {
    pub(super) reader: ends::Reader,
    pub(super) writer: ends::Writer,
    /// Bytes that have been read from the backend already.
    pub(super) unread: Bytes,
    /// Counts the connection in the metrics of backend connections.
    pub(super) counted: Option<Held>,
}

/// The connection or stream that carries one request.
pub(super) enum Wire {
    /// A connection to itself while the request runs.
    Whole(Box<Connection>),
    /// A stream of a shared connection.
    Stream(Box<Call>),
}

impl Wire {
    /// Returns the backend's end.
    pub(super) fn far(&self) -> &Rc<Far> {
        match self {
            Wire::Whole(connection) => &connection.far,
            Wire::Stream(call) => &call.far,
        }
    }

    /// Begins a request. Its head is written when the answer is polled, its body by a task.
    pub(super) fn begin(&mut self, request: Request<'_>, worker: &Rc<Worker>) {
        match self {
            Wire::Whole(connection) => connection.begin(request, worker),
            Wire::Stream(call) => call.begin(request, worker),
        }
    }

    /// Sends the request that failed on `before` again, in the HTTP version of this connection.
    /// Returns false if there is nothing to repeat.
    pub(super) fn repeat(&mut self, before: &mut Wire, worker: &Rc<Worker>) -> bool {
        match (self, before) {
            (Wire::Whole(connection), Wire::Whole(before)) => connection.repeat(before),
            (Wire::Stream(call), Wire::Stream(before)) => return call.repeat(before),
            (Wire::Whole(connection), Wire::Stream(before)) => {
                let Some((head, body)) = before.take_sent() else { return false };
                connection.begin_again(head, body, worker);
            }
            (Wire::Stream(call), Wire::Whole(before)) => {
                let Some(head) = before.sent() else { return false };
                call.begin_again(head, worker);
            }
        }
        true
    }

    /// Whether the request that failed here may be sent again.
    pub(super) fn may_repeat(&self) -> bool {
        match self {
            Wire::Whole(connection) => connection.may_repeat(),
            Wire::Stream(call) => call.may_repeat(),
        }
    }

    /// Whether the backend certainly has not processed the request that failed here.
    pub(super) fn is_unprocessed(&self) -> bool {
        matches!(self, Wire::Stream(call) if call.is_unprocessed())
    }

    /// Polls for the head of the answer, and which of its fields may have to be removed.
    pub(super) fn poll_answer(
        &mut self,
        worker: &Worker,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Response<()>, Found), Fault>> {
        match self {
            Wire::Whole(connection) => connection.poll_answer(worker, cx),
            Wire::Stream(call) => call.poll_answer(cx),
        }
    }

    /// Checks the part of the answer's body that has arrived, while the client can still get an
    /// error status. (In HTTP/1.1 the head is enough.)
    pub(super) fn look_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        match self {
            Wire::Whole(_) => Ok(()),
            Wire::Stream(call) => call.look_ahead(cx),
        }
    }

    /// Polls for the next frame of the answer's body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        match self {
            Wire::Whole(connection) => connection.poll_frame(cx),
            Wire::Stream(call) => call.poll_frame(cx),
        }
    }

    /// Takes the connection apart after an answer that switches protocols. Returns `None` if the
    /// request is not fully sent.
    pub(super) fn into_tunnel(self) -> Option<Tunnel> {
        match self {
            Wire::Whole(connection) => connection.into_tunnel(),
            Wire::Stream(_) => None,
        }
    }

    /// Takes the whole body of the answer, if its length is known and all of it has arrived.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        match self {
            Wire::Whole(connection) => connection.whole(),
            Wire::Stream(_) => None,
        }
    }

    /// Whether the answer's body is complete.
    pub(super) fn is_through(&self) -> bool {
        match self {
            Wire::Whole(connection) => connection.is_through(),
            Wire::Stream(call) => call.is_through(),
        }
    }

    /// Returns the known bounds of the length still to come.
    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Wire::Whole(connection) => connection.size_hint(),
            Wire::Stream(call) => call.size_hint(),
        }
    }

    /// The backend was silent for too long: no other request is to begin on a silent connection.
    pub(super) fn is_late(&self) {
        if let Wire::Stream(call) = self {
            call.is_late();
        }
    }
}
