//! A request on its way to a backend, and the answer on its way back.
//!
//! The request either has a connection to itself while it runs (HTTP/1.1, `connection.rs`), or is a
//! stream of a shared connection (HTTP/2, `call.rs` over `session.rs`). A closed enum hides the
//! difference from the caller. Which backend is asked: `backends.rs`.

mod call;
mod chunks;
mod connection;
pub(super) mod halves;
mod head;
mod replayable;
mod request_send;
mod session;

use super::backends::UpstreamBackend;
use super::body::{BodyError, RequestBody};
use super::headers::{FieldKinds, PeerFacts};
use super::link::WaitTimer;
use super::worker::ProxyWorker;
use bytes::Bytes;
pub(super) use call::StreamCall;
pub(super) use connection::Http1Connection;
use evenkeel_telemetry::registry::GaugeGuard;
use http::Response;
use http::request::Parts;
use http_body::{Frame, SizeHint};
pub(super) use session::Http2Session;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Why there is no answer, or no more of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("the backend closed the connection")]
    Closed,
    #[error(transparent)]
    Broken(#[from] io::Error),
    #[error("the answer is not proper HTTP: {0}")]
    Answer(&'static str),
    #[error("the answer is not proper HTTP: {0}{hint}", hint = hint(.0))]
    Syntax(#[from] httparse::Error),
    #[error(transparent)]
    Upload(BodyError),
    #[error("{0}")]
    Stream(call::StreamError),
}

impl WireError {
    /// Whether the backend sent something that cannot be parsed.
    pub(super) fn is_syntax(&self) -> bool {
        match self {
            WireError::Answer(_) | WireError::Syntax(_) => true,
            WireError::Stream(ended) => ended.is_syntax(),
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
pub(super) struct UpstreamEnd {
    /// The backend.
    pub(super) backend: Rc<UpstreamBackend>,
    /// The backend does not read what is written to it.
    pub(super) stuck: WaitTimer,
}

impl UpstreamEnd {
    fn of(backend: &Rc<UpstreamBackend>) -> Rc<UpstreamEnd> {
        Rc::new(UpstreamEnd { backend: Rc::clone(backend), stuck: WaitTimer::default() })
    }

    /// Records whether a write is stuck.
    fn note<T>(&self, poll: Poll<T>, worker: &ProxyWorker) -> Poll<T> {
        match poll {
            Poll::Pending => self.stuck.begin(worker.now()),
            Poll::Ready(_) => self.stuck.end(),
        }
        poll
    }
}

/// A request on its way to the backend.
pub(super) struct UpstreamRequest<'a> {
    /// The head as it is written, without the fields that `headers::write_client_fields` adds.
    pub(super) head: Parts,
    pub(super) peer: PeerFacts<'a>,
    pub(super) body: RequestBody,
}

/// A connection on which a protocol other than HTTP is spoken.
pub(super) struct UpstreamTunnel {
    pub(super) reader: halves::UpstreamReader,
    pub(super) writer: halves::UpstreamWriter,
    /// Bytes that have been read from the backend already.
    pub(super) unread: Bytes,
    /// Counts the connection in the metrics of backend connections.
    pub(super) counted: Option<GaugeGuard>,
}

/// The connection or stream that carries one request.
pub(super) enum UpstreamWire {
    /// A connection to itself while the request runs.
    Whole(Box<Http1Connection>),
    /// A stream of a shared connection.
    Stream(Box<StreamCall>),
}

impl UpstreamWire {
    /// Returns the backend's end.
    pub(super) fn far(&self) -> &Rc<UpstreamEnd> {
        match self {
            UpstreamWire::Whole(connection) => &connection.far,
            UpstreamWire::Stream(call) => &call.far,
        }
    }

    /// Begins a request. Its head is written when the answer is polled, its body by a task.
    pub(super) fn begin(&mut self, request: UpstreamRequest<'_>, worker: &Rc<ProxyWorker>) {
        match self {
            UpstreamWire::Whole(connection) => connection.begin(request, worker),
            UpstreamWire::Stream(call) => call.begin(request, worker),
        }
    }

    /// Sends the request that failed on `before` again, in the HTTP version of this connection.
    /// Returns false if there is nothing to repeat.
    pub(super) fn repeat(&mut self, before: &mut UpstreamWire, worker: &Rc<ProxyWorker>) -> bool {
        match (self, before) {
            (UpstreamWire::Whole(connection), UpstreamWire::Whole(before)) => {
                connection.repeat(before)
            }
            (UpstreamWire::Stream(call), UpstreamWire::Stream(before)) => {
                return call.repeat(before);
            }
            (UpstreamWire::Whole(connection), UpstreamWire::Stream(before)) => {
                let Some((head, body)) = before.take_sent() else { return false };
                connection.begin_again(head, body, worker);
            }
            (UpstreamWire::Stream(call), UpstreamWire::Whole(before)) => {
                let Some(head) = before.sent() else { return false };
                call.begin_again(head, worker);
            }
        }
        true
    }

    /// Whether the request that failed here may be sent again.
    pub(super) fn may_repeat(&self) -> bool {
        match self {
            UpstreamWire::Whole(connection) => connection.may_repeat(),
            UpstreamWire::Stream(call) => call.may_repeat(),
        }
    }

    /// Whether the backend certainly has not processed the request that failed here.
    pub(super) fn is_unprocessed(&self) -> bool {
        matches!(self, UpstreamWire::Stream(call) if call.is_unprocessed())
    }

    /// Polls for the head of the answer, and which of its fields may have to be removed.
    pub(super) fn poll_answer(
        &mut self,
        worker: &ProxyWorker,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Response<()>, FieldKinds), WireError>> {
        match self {
            UpstreamWire::Whole(connection) => connection.poll_answer(worker, cx),
            UpstreamWire::Stream(call) => call.poll_answer(cx),
        }
    }

    /// Checks the part of the answer's body that has arrived, while the client can still get an
    /// error status. (In HTTP/1.1 the head is enough.)
    pub(super) fn look_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        match self {
            UpstreamWire::Whole(_) => Ok(()),
            UpstreamWire::Stream(call) => call.look_ahead(cx),
        }
    }

    /// Polls for the next frame of the answer's body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        match self {
            UpstreamWire::Whole(connection) => connection.poll_frame(cx),
            UpstreamWire::Stream(call) => call.poll_frame(cx),
        }
    }

    /// Takes the connection apart after an answer that switches protocols. Returns `None` if the
    /// request is not fully sent.
    pub(super) fn into_tunnel(self) -> Option<UpstreamTunnel> {
        match self {
            UpstreamWire::Whole(connection) => connection.into_tunnel(),
            UpstreamWire::Stream(_) => None,
        }
    }

    /// Takes the whole body of the answer, if its length is known and all of it has arrived.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        match self {
            UpstreamWire::Whole(connection) => connection.whole(),
            UpstreamWire::Stream(_) => None,
        }
    }

    /// Whether the answer's body is complete.
    pub(super) fn is_through(&self) -> bool {
        match self {
            UpstreamWire::Whole(connection) => connection.is_through(),
            UpstreamWire::Stream(call) => call.is_through(),
        }
    }

    /// Returns the known bounds of the length still to come.
    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            UpstreamWire::Whole(connection) => connection.size_hint(),
            UpstreamWire::Stream(call) => call.size_hint(),
        }
    }

    /// The backend was silent for too long: no other request is to begin on a silent connection.
    pub(super) fn retire_if_silent(&self) {
        if let UpstreamWire::Stream(call) = self {
            call.retire_if_silent();
        }
    }
}
