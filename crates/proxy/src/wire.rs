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
pub(super) mod request;
mod request_send;
mod session;

use super::context::ThreadContext;
use super::failure::WireError;
use super::headers::FieldKinds;
use super::timer::WaitTimer;
use bytes::Bytes;
pub(super) use call::StreamCall;
pub(super) use connection::Http1Connection;
use http::Response;
use http_body::{Frame, SizeHint};
use request::UpstreamRequest;
pub(super) use session::Http2Session;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The connection or stream that carries one request.
pub(super) enum UpstreamWire {
    /// A connection to itself while the request runs.
    Whole(Box<Http1Connection>),
    /// A stream of a shared connection.
    Stream(Box<StreamCall>),
}

impl UpstreamWire {
    /// Returns the timer that runs while the backend does not read what is written to it.
    pub(super) fn stuck(&self) -> &Rc<WaitTimer> {
        match self {
            UpstreamWire::Whole(connection) => &connection.stuck,
            UpstreamWire::Stream(call) => &call.stuck,
        }
    }

    /// Begins a request. Its head is written when the answer is polled, its body by a task.
    pub(super) fn begin(&mut self, request: UpstreamRequest<'_>, thread: &Rc<ThreadContext>) {
        match self {
            UpstreamWire::Whole(connection) => connection.begin(request, thread),
            UpstreamWire::Stream(call) => call.begin(request, thread),
        }
    }

    /// Sends the request that failed on `before` again, in the HTTP version of this connection.
    /// Returns false if there is nothing to repeat.
    pub(super) fn repeat(&mut self, before: &mut UpstreamWire, thread: &Rc<ThreadContext>) -> bool {
        match (self, before) {
            (UpstreamWire::Whole(connection), UpstreamWire::Whole(before)) => {
                connection.repeat(before)
            }
            (UpstreamWire::Stream(call), UpstreamWire::Stream(before)) => {
                return call.repeat(before);
            }
            (UpstreamWire::Whole(connection), UpstreamWire::Stream(before)) => {
                let Some((head, body)) = before.take_sent() else { return false };
                connection.begin_again(head, body, thread);
            }
            (UpstreamWire::Stream(call), UpstreamWire::Whole(before)) => {
                let Some(head) = before.sent() else { return false };
                call.begin_again(head, thread);
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

    /// Whether the connection carried other requests too, one of which may be what ended it.
    pub(super) fn was_shared(&self) -> bool {
        matches!(self, UpstreamWire::Stream(call) if call.was_shared())
    }

    /// Polls for the head of the answer, and which of its fields may have to be removed.
    pub(super) fn poll_answer(
        &mut self,
        thread: &ThreadContext,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Response<()>, FieldKinds), WireError>> {
        match self {
            UpstreamWire::Whole(connection) => connection.poll_answer(thread, cx),
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
    pub(super) fn into_tunnel(self) -> Option<halves::UpstreamTunnel> {
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
