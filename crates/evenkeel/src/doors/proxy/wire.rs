//! A request on its way to a backend, and the answer on its way back.
//!
//! It either has a connection of its own while it runs (HTTP/1.1, `connection.rs`) or is one of
//! the streams of a connection that others use too (HTTP/2, `call.rs` over `session.rs`). A closed
//! enum: whoever passes requests on need not know which. Who is asked: `backends.rs`.

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
use crate::watch::registry::Held;
use bytes::Bytes;
pub(super) use call::Call;
pub(super) use connection::Connection;
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
    /// Whether the backend said something that cannot be understood.
    pub(super) fn is_syntax(&self) -> bool {
        match self {
            Fault::Answer(_) | Fault::Syntax(_) => true,
            Fault::Stream(ended) => ended.is_syntax(),
            _ => false,
        }
    }
}

/// What may be wrong on our side where HTTP/1.1 was expected.
fn hint(error: &httparse::Error) -> &'static str {
    match error {
        httparse::Error::Version => "; does it speak HTTP/2? write h2c://",
        _ => "",
    }
}

/// The far end of a request.
pub(super) struct Far {
    /// Whose it is.
    pub(super) backend: Rc<Backend>,
    /// It does not take what we write.
    pub(super) stuck: Since,
}

impl Far {
    fn of(backend: &Rc<Backend>) -> Rc<Far> {
        Rc::new(Far { backend: Rc::clone(backend), stuck: Since::default() })
    }

    /// Notes whether a write could go on.
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
    /// As it is written, but for what the backend is told besides.
    pub(super) head: Parts,
    pub(super) peer: Peer<'a>,
    pub(super) body: Upload,
}

/// A connection on which something else than HTTP is spoken.
pub(super) struct Tunnel {
    pub(super) reader: ends::Reader,
    pub(super) writer: ends::Writer,
    /// Bytes that have come.
    pub(super) unread: Bytes,
    /// Counts as a connection to the backend.
    pub(super) counted: Option<Held>,
}

/// What carries one request.
pub(super) enum Wire {
    /// A connection, for as long as it takes.
    Whole(Box<Connection>),
    /// One of a connection's streams.
    Stream(Box<Call>),
}

impl Wire {
    /// Where it ends.
    pub(super) fn far(&self) -> &Rc<Far> {
        match self {
            Wire::Whole(connection) => &connection.far,
            Wire::Stream(call) => &call.far,
        }
    }

    /// Begins a request: its head is written when the answer is asked for, its body by itself.
    pub(super) fn begin(&mut self, request: Request<'_>, worker: &Rc<Worker>) {
        match self {
            Wire::Whole(connection) => connection.begin(request, worker),
            Wire::Stream(call) => call.begin(request, worker),
        }
    }

    /// Begins the request once more that `before` has failed, in the version that is spoken here.
    /// False if there is nothing that could be said again.
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

    /// Whether the backend is known not to have looked at the request that failed here.
    pub(super) fn is_unprocessed(&self) -> bool {
        matches!(self, Wire::Stream(call) if call.is_unprocessed())
    }

    /// The head of the answer, and what in it may have to be taken out.
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

    /// Looks whether what has come of the answer's body is proper, while the client can be told.
    /// (In HTTP/1.1 the head tells as much.)
    pub(super) fn look_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        match self {
            Wire::Whole(_) => Ok(()),
            Wire::Stream(call) => call.look_ahead(cx),
        }
    }

    /// The next frame of the answer's body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        match self {
            Wire::Whole(connection) => connection.poll_frame(cx),
            Wire::Stream(call) => call.poll_frame(cx),
        }
    }

    /// Takes it apart, after an answer that switches protocols. `None` if the request is not
    /// through.
    pub(super) fn into_tunnel(self) -> Option<Tunnel> {
        match self {
            Wire::Whole(connection) => connection.into_tunnel(),
            Wire::Stream(_) => None,
        }
    }

    /// All of the answer's body, if it is of known length and there.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        match self {
            Wire::Whole(connection) => connection.whole(),
            Wire::Stream(_) => None,
        }
    }

    /// Whether the answer's body is through.
    pub(super) fn is_through(&self) -> bool {
        match self {
            Wire::Whole(connection) => connection.is_through(),
            Wire::Stream(call) => call.is_through(),
        }
    }

    /// What is known of the length that is still to come.
    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Wire::Whole(connection) => connection.size_hint(),
            Wire::Stream(call) => call.size_hint(),
        }
    }

    /// It kept silent for too long: nothing else is to be begun on a connection that is silent.
    pub(super) fn is_late(&self) {
        if let Wire::Stream(call) = self {
            call.is_late();
        }
    }
}
