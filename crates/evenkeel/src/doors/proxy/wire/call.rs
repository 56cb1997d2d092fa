//! One request on a stream of a session (HTTP/2), and its answer.
//!
//! What a stream's end means is told by the library's words for it, since its types say only that
//! HTTP/2 has failed: a server that refuses a stream, or goes away before it has come to it, has
//! not looked at the request (RFC 9113, 8.7), which may then be sent again whatever it is. A word
//! that is not known here means that it has; tests hold the words in place. What may pass of a
//! head: `headers.rs`. The connection: `session.rs`; the request's body: `lent.rs`.

use super::lent::{Lent, Loan};
use super::session::{Answering, Place, Session};
use super::{Far, Fault, Request};
use crate::doors::proxy::backends::Backend;
use crate::doors::proxy::body::Upload;
use crate::doors::proxy::headers::{self, Found, Peer};
use crate::doors::proxy::worker::Worker;
use bytes::Bytes;
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Response, Uri, Version, header};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// What the library says of a stream that its server refused, and of one that it did not come to.
const REFUSED: &str =
    "stream error received: refused stream before processing any application logic";
const GONE: &str = "connection error received: ";

/// What it says of bytes that are no HTTP/2.
const NOT_HTTP2: [&str; 3] =
    ["connection error detected: ", "stream error detected: ", "protocol error: "];

/// What it says of an answer of HTTP/1.1, whose first three bytes are too great a length.
const HTTP1: &str = "connection error detected: frame with invalid size";

/// How it begins to speak of one stream alone, whichever side has ended it.
const STREAM: &str = "stream error ";

/// How a stream ended before its time.
#[derive(Debug)]
pub(in crate::doors::proxy) struct Ended {
    how: How,
    /// Whether it was this stream alone.
    alone: bool,
    said: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The connection had ended before anything of it was sent.
    Unsent,
    /// The server has not looked at it.
    Unprocessed,
    /// One of both sides has ended it.
    Reset,
    /// What came was no HTTP/2.
    Syntax,
    /// The connection has ended.
    Broken,
}

impl Ended {
    pub(super) fn of(error: &hyper::Error) -> Ended {
        let mut said = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            said = error.to_string();
            source = error.source();
        }
        Ended { how: How::told(&said), alone: said.starts_with(STREAM), said: said.into() }
    }

    /// The server has left out the rest of its answer.
    fn cut() -> Ended {
        Ended { how: How::Reset, alone: true, said: "reset before the end of the answer".into() }
    }

    pub(super) fn is_syntax(&self) -> bool {
        self.how == How::Syntax
    }
}

impl How {
    fn told(said: &str) -> How {
        match said {
            REFUSED => How::Unprocessed,
            _ if said.starts_with(GONE) => How::Unprocessed,
            _ if NOT_HTTP2.iter().any(|begin| said.starts_with(begin)) => How::Syntax,
            _ if said.starts_with(STREAM) => How::Reset,
            _ => How::Broken,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = match &*self.said {
            HTTP1 => "; does it speak HTTP/1.1? write http://",
            _ => "",
        };
        write!(f, "the backend ended the stream: {}{hint}", self.said)
    }
}

/// A request on a stream.
pub(in crate::doors::proxy) struct Call {
    pub(super) session: Rc<Session>,
    pub(super) far: Rc<Far>,
    state: State,
    /// A frame of the answer's body that was looked at before anybody asked for it.
    ahead: Option<Frame<Bytes>>,
    /// What was asked, until the answer begins. Its head has all that the backend is told.
    sent: Option<(Parts, Rc<Loan>)>,
    /// What had been heard on the session when it last was of this stream, or this one began.
    heard: u64,
    /// Counts as a stream while it runs.
    place: Option<Place>,
}

enum State {
    /// Nothing is sent yet.
    Begun,
    Waiting(Answering),
    Body(Incoming),
    Through,
    /// There was no answer.
    Failed(How),
}

impl Call {
    /// A stream of `session`, whose place it takes.
    pub(in crate::doors::proxy) fn new(session: &Rc<Session>, backend: &Rc<Backend>) -> Box<Call> {
        Box::new(Call {
            session: Rc::clone(session),
            far: Far::of(backend),
            state: State::Begun,
            ahead: None,
            sent: None,
            heard: session.heard(),
            place: Some(Place::take(session, backend)),
        })
    }

    pub(super) fn begin(&mut self, request: Request<'_>, worker: &Rc<Worker>) {
        let head = introduced(request.head, &request.peer);
        let loan = Loan::new(request.body, &self.far, worker);
        self.send(head, loan);
    }

    /// Begins the request once more that has failed on `before`.
    pub(super) fn repeat(&mut self, before: &mut Call) -> bool {
        let Some((head, loan)) = before.take_sent() else { return false };
        self.send(head, loan.anew(&self.far));
        true
    }

    /// Begins once more a request without a body that has failed elsewhere.
    pub(super) fn begin_again(&mut self, head: Parts, worker: &Rc<Worker>) {
        self.send(head, Loan::new(Upload::Nothing, &self.far, worker));
    }

    /// What was asked.
    pub(super) fn take_sent(&mut self) -> Option<(Parts, Rc<Loan>)> {
        self.sent.take()
    }

    fn send(&mut self, head: Parts, loan: Rc<Loan>) {
        let stated = stated(head.clone(), self.session.secure);
        let request = http::Request::from_parts(stated, Lent(Rc::clone(&loan)));
        self.state = State::Waiting(self.session.send(request));
        self.sent = Some((head, loan));
    }

    /// Whether the request that failed here may be sent again: the server has not looked at it, or
    /// nothing has come of an answer, it has no body, and doing it twice does no harm.
    pub(super) fn may_repeat(&self) -> bool {
        let (State::Failed(how), Some((head, loan))) = (&self.state, &self.sent) else {
            return false;
        };
        match how {
            How::Unsent | How::Unprocessed => loan.is_whole(),
            How::Broken => loan.is_nothing() && head.method.is_idempotent(),
            How::Reset | How::Syntax => false,
        }
    }

    pub(super) fn is_unprocessed(&self) -> bool {
        matches!(self.state, State::Failed(How::Unprocessed))
    }

    pub(super) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Response<()>, Found), Fault>> {
        let State::Waiting(answer) = &mut self.state else {
            return Poll::Ready(Err(Fault::Closed));
        };
        Poll::Ready(match ready!(answer.as_mut().poll(cx)) {
            Ok(response) => Ok(self.answered(response)),
            Err(mut failed) => {
                let unsent = failed.take_message().is_some();
                let mut ended = Ended::of(failed.error());
                if unsent {
                    ended.how = How::Unsent;
                }
                Err(self.failed(ended))
            }
        })
    }

    fn failed(&mut self, ended: Ended) -> Fault {
        self.state = State::Failed(ended.how);
        self.place = None;
        match ended.alone {
            true if ended.is_syntax() => self.session.has_erred(),
            true => {}
            false => self.session.retire(),
        }
        Fault::Stream(ended)
    }

    fn answered(&mut self, response: Response<Incoming>) -> (Response<()>, Found) {
        if let Some((_, loan)) = self.sent.take() {
            loan.forget();
        }
        self.heard = self.session.hears();
        let (head, body) = response.into_parts();
        self.state = State::Body(body);
        self.look();
        let found = Found::look(&head.headers);
        (Response::from_parts(head, ()), found)
    }

    /// Lets go of the stream if all of the answer is through.
    fn look(&mut self) {
        if matches!(&self.state, State::Body(body) if body.is_end_stream()) {
            self.state = State::Through;
            self.place = None;
        }
    }

    /// Whether the answer is proper as far as it has come: a body that contradicts its length shows
    /// with its first frame (RFC 9113, 8.1.1).
    pub(super) fn look_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        if let Poll::Ready(Some(next)) = self.poll_frame(cx) {
            self.ahead = Some(next?);
        }
        Ok(())
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        if let Some(frame) = self.ahead.take() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let State::Body(body) = &mut self.state else { return Poll::Ready(None) };
        Poll::Ready(match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                self.heard = self.session.hears();
                self.look();
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                let ended = Ended::of(&error);
                Some(Err(self.failed(ended)))
            }
            // The library ends a body so, too, whose stream was reset without an error. That has no
            // place before the end of an answer (RFC 9113, 8.1).
            None if !body.is_end_stream() => Some(Err(self.failed(Ended::cut()))),
            None => {
                self.state = State::Through;
                self.place = None;
                None
            }
        })
    }

    /// It kept silent for too long. If the others did too, it is the connection that is silent.
    pub(super) fn is_late(&self) {
        if self.session.heard() == self.heard {
            self.session.retire();
        }
    }

    pub(super) fn is_through(&self) -> bool {
        self.ahead.is_none() && matches!(self.state, State::Through)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let ahead = self.ahead.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len) as u64;
        let rest = match &self.state {
            State::Body(body) => body.size_hint(),
            State::Through => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(ahead));
        rest.upper().into_iter().for_each(|upper| hint.set_upper(upper.saturating_add(ahead)));
        hint
    }
}

/// A head that is ready for the backend, with what that is told besides.
fn introduced(head: Parts, peer: &Peer<'_>) -> Parts {
    let mut said = Vec::new();
    headers::introduce(&head.headers, peer, |name, value| {
        said.extend(HeaderValue::from_bytes(value).map(|value| (name.clone(), value)).ok());
    });
    let (mut made, ()) = http::Request::new(()).into_parts();
    (made.method, made.uri, made.headers) = (head.method, head.uri, head.headers);
    made.headers.extend(said);
    made
}

/// The same as it is said in HTTP/2: the host stands in the target, and there are no words about
/// the connection (RFC 9113, 8.2.2 and 8.3.1). A host that cannot stand there is passed as a field,
/// as HTTP/2 has it for what was HTTP/1.1.
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
