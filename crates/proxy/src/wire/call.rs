//! One request on a stream of a session (HTTP/2), and its answer.
//!
//! A request that the backend has not processed may be sent again, whatever its method. How that is
//! known: `failure/stream_error.rs`. Which fields of a head may pass: `headers.rs`. The connection:
//! `session.rs`. The request's body: `replayable.rs`.

use super::replayable::{OutgoingBody, ReplayableBody};
use super::request::UpstreamRequest;
use super::session::{AnswerFuture, Http2Session, SessionPlace};
use crate::body::{RequestBody, extended};
use crate::context::ThreadContext;
use crate::failure::{StreamError, StreamErrorKind, WireError};
use crate::headers::{self, FieldKinds, PeerFacts};
use crate::timer::WaitTimer;
use bytes::Bytes;
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Response, Uri, Version, header};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

pub(crate) struct StreamCall {
    pub(super) session: Rc<Http2Session>,
    /// Runs while the backend does not read what is written to it.
    pub(super) stuck: Rc<WaitTimer>,
    state: CallState,
    /// A frame of the answer's body that was checked before it was asked for.
    ahead: Option<Frame<Bytes>>,
    /// The request, until the answer begins. Its head is complete, with the fields about the
    /// client.
    sent: Option<(Parts, Rc<ReplayableBody>)>,
    /// The session's count of received frames when it last included this stream, or when this
    /// stream began.
    heard: u64,
    /// Counts as a stream of the session while it runs.
    place: Option<SessionPlace>,
}

enum CallState {
    /// No byte has been sent yet.
    Begun,
    Waiting(AnswerFuture),
    Body(Incoming),
    Through,
    /// The request failed without an answer.
    Failed(StreamErrorKind),
}

impl StreamCall {
    /// Creates a stream of `session` and takes a place in it.
    pub(crate) fn new(session: &Rc<Http2Session>, running: &Rc<()>) -> Box<StreamCall> {
        Box::new(StreamCall {
            session: Rc::clone(session),
            stuck: Rc::default(),
            state: CallState::Begun,
            ahead: None,
            sent: None,
            heard: session.received_count(),
            place: Some(SessionPlace::take(session, running)),
        })
    }

    pub(super) fn begin(&mut self, request: UpstreamRequest<'_>, thread: &Rc<ThreadContext>) {
        let head = introduced(request.head, &request.peer);
        let loan = ReplayableBody::new(request.body, &self.stuck, thread);
        self.send(head, loan);
    }

    /// Sends the request that failed on `before` again.
    pub(super) fn repeat(&mut self, before: &mut StreamCall) -> bool {
        let Some((head, loan)) = before.take_sent() else { return false };
        self.send(head, loan.anew(&self.stuck));
        true
    }

    /// Sends a request without a body, which failed elsewhere, again.
    pub(super) fn begin_again(&mut self, head: Parts, thread: &Rc<ThreadContext>) {
        self.send(head, ReplayableBody::new(RequestBody::Nothing, &self.stuck, thread));
    }

    /// Takes the request, to send it elsewhere.
    pub(super) fn take_sent(&mut self) -> Option<(Parts, Rc<ReplayableBody>)> {
        self.sent.take()
    }

    fn send(&mut self, head: Parts, loan: Rc<ReplayableBody>) {
        let stated = stated(head.clone(), self.session.secure);
        let request = http::Request::from_parts(stated, OutgoingBody(Rc::clone(&loan)));
        self.state = CallState::Waiting(self.session.send(request));
        self.sent = Some((head, loan));
    }

    /// Whether the request that failed here may be sent again. Either the backend has not processed
    /// it and the whole body is still available; or nothing of an answer has arrived, it has no
    /// body and its method is idempotent.
    pub(super) fn may_repeat(&self) -> bool {
        let (CallState::Failed(how), Some((head, loan))) = (&self.state, &self.sent) else {
            return false;
        };
        match how {
            StreamErrorKind::Unsent | StreamErrorKind::Unprocessed => loan.is_whole(),
            StreamErrorKind::Broken => loan.is_nothing() && head.method.is_idempotent(),
            StreamErrorKind::Reset | StreamErrorKind::Syntax => false,
        }
    }

    pub(super) fn is_unprocessed(&self) -> bool {
        matches!(self.state, CallState::Failed(StreamErrorKind::Unprocessed))
    }

    /// Whether the connection carried other requests too.
    pub(super) fn was_shared(&self) -> bool {
        self.session.is_shared()
    }

    pub(super) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Response<()>, FieldKinds), WireError>> {
        let CallState::Waiting(answer) = &mut self.state else {
            return Poll::Ready(Err(WireError::Closed));
        };
        Poll::Ready(match ready!(answer.as_mut().poll(cx)) {
            Ok(response) => Ok(self.answered(response)),
            Err(mut failed) => {
                let unsent = failed.take_message().is_some();
                let mut ended = StreamError::of(failed.error());
                if unsent {
                    ended.how = StreamErrorKind::Unsent;
                }
                Err(self.failed(ended))
            }
        })
    }

    fn failed(&mut self, ended: StreamError) -> WireError {
        self.state = CallState::Failed(ended.how);
        self.place = None;
        match ended.alone {
            true if ended.is_syntax() => self.session.count_error(),
            true => {}
            false => self.session.retire(),
        }
        WireError::Stream(ended)
    }

    fn answered(&mut self, response: Response<Incoming>) -> (Response<()>, FieldKinds) {
        if let Some((_, loan)) = self.sent.take() {
            loan.forget();
        }
        self.heard = self.session.count_received();
        let (head, body) = response.into_parts();
        self.state = CallState::Body(body);
        self.look();
        let found = FieldKinds::look(&head.headers);
        (Response::from_parts(head, ()), found)
    }

    /// Releases the stream if the whole answer has arrived.
    fn look(&mut self) {
        if matches!(&self.state, CallState::Body(body) if body.is_end_stream()) {
            self.state = CallState::Through;
            self.place = None;
        }
    }

    /// Checks the part of the answer that has arrived: a body that contradicts its stated length
    /// shows that with its first frame (RFC 9113, 8.1.1).
    pub(super) fn look_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        if let Poll::Ready(Some(next)) = self.poll_frame(cx) {
            self.ahead = Some(next?);
        }
        Ok(())
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        if let Some(frame) = self.ahead.take() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let CallState::Body(body) = &mut self.state else { return Poll::Ready(None) };
        Poll::Ready(match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                self.heard = self.session.count_received();
                self.look();
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                let ended = StreamError::of(&error);
                Some(Err(self.failed(ended)))
            }
            // The library also ends a body in this way if its stream was reset without an error.
            // That is not allowed before the end of an answer (RFC 9113, 8.1).
            None if !body.is_end_stream() => Some(Err(self.failed(StreamError::cut()))),
            None => {
                self.state = CallState::Through;
                self.place = None;
                None
            }
        })
    }

    /// The stream was silent for too long. If all other streams were too, the connection is dead.
    pub(super) fn retire_if_silent(&self) {
        if self.session.received_count() == self.heard {
            self.session.retire();
        }
    }

    pub(super) fn is_through(&self) -> bool {
        self.ahead.is_none() && matches!(self.state, CallState::Through)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let ahead = self.ahead.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len);
        let rest = match &self.state {
            CallState::Body(body) => body.size_hint(),
            CallState::Through => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        };
        extended(&rest, ahead)
    }
}

/// Takes a prepared head, and adds the fields about the client.
fn introduced(head: &mut Parts, peer: &PeerFacts<'_>) -> Parts {
    let mut said = Vec::new();
    headers::write_client_fields(&head.headers, peer, |name, value| {
        said.extend(HeaderValue::from_bytes(value).map(|value| (name.clone(), value)).ok());
    });
    let (mut made, ()) = http::Request::new(()).into_parts();
    made.method = std::mem::take(&mut head.method);
    made.uri = std::mem::take(&mut head.uri);
    made.headers = std::mem::take(&mut head.headers);
    made.headers.extend(said);
    made
}

/// Converts a head to HTTP/2: the host moves into the target, and fields about the connection are
/// removed (RFC 9113, 8.2.2 and 8.3.1). A host that is not a valid authority stays a `Host` field,
/// as HTTP/2 allows for requests that were HTTP/1.1.
fn stated(mut head: Parts, secure: bool) -> Parts {
    head.headers.remove(header::CONNECTION);
    head.headers.remove(header::UPGRADE);
    let host = head.headers.get(header::HOST).map(HeaderValue::as_bytes);
    let mut target = std::mem::take(&mut head.uri).into_parts();
    target.authority = host.and_then(|host| Authority::try_from(host).ok());
    let path = target.path_and_query.clone();
    let stated = target.authority.is_some();
    target.scheme = stated.then_some(if secure { Scheme::HTTPS } else { Scheme::HTTP });
    let relative = || path.map(Uri::from).unwrap_or_default();
    (head.uri, head.version) = match Uri::from_parts(target) {
        Ok(uri) if stated => (uri, Version::HTTP_2),
        Ok(uri) => (uri, Version::HTTP_11),
        Err(_) => (relative(), Version::HTTP_11),
    };
    if head.version == Version::HTTP_2 {
        head.headers.remove(header::HOST);
    }
    head
}
