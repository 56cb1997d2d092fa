//! A connection to a backend that carries many requests at once (HTTP/2).
//!
//! The library (hyper) implements the protocol in tasks on this thread; this file sets its bounds.
//! A stream has a window of [`WINDOW_BYTES`], and the connection has a window for all streams that
//! may run, so what slow clients leave unread blocks no other stream. The tasks end when the last
//! stream and all owners of the session have dropped it.
//!
//! There are no pings: gRPC servers treat them as abuse. A dead connection is found by the request
//! that waits too long while no other stream receives anything. It then gets no more requests. One
//! stream: `call.rs`. Which session is taken: `backends/sessions.rs`.

use super::halves;
use super::head::HEAD_BYTES_MAX;
use super::replayable::OutgoingBody;
use crate::failure::{StreamError, WireError};
use evenkeel_telemetry::registry::GaugeGuard;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::{self, Builder, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::Join;
use tokio::sync::{Notify, watch};

/// The flow control window of a stream: the bytes of an answer that a backend may send before they
/// are passed on. A client that reads slowly makes the proxy hold this much.
const WINDOW_BYTES: u32 = 64 * 1024;

/// The largest window that the protocol allows (RFC 9113, 6.9.1).
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// The maximum number of bytes of a request that are buffered for each stream while the backend
/// does not read them.
const SEND_BYTES: usize = 64 * 1024;

/// The number of invalid HTTP/2 answers, each on its own stream, after which a session gets no more
/// streams. The library ends a connection, with all its requests, at [`LIBRARY_ERRORS_MAX`].
const ERRORS_MAX: u32 = 256;

/// The number of invalid answers at which the library ends a connection: its default for
/// `max_local_error_reset_streams`.
const LIBRARY_ERRORS_MAX: u32 = 1_024;

/// How long a session that is no longer needed may take to say goodbye to the backend.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

const _: () = {
    assert!(ERRORS_MAX < LIBRARY_ERRORS_MAX, "a session retires before the library ends it");
    assert!(WINDOW_BYTES <= WINDOW_BYTES_MAX, "the connection has room for one stream");
    assert!(HEAD_BYTES_MAX <= u32::MAX as usize, "the library takes 32 bits");
};

pub(super) type AnswerFuture =
    Pin<Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<OutgoingBody>>>>>>;

type LibraryConnection = http2::Connection<
    TokioIo<Join<halves::UpstreamReader, halves::UpstreamWriter>>,
    OutgoingBody,
    SessionTasks,
>;

/// A connection while it is driven, `None` once it has ended. Dropping it notifies the sender and
/// gives back the requests that wait in it.
type DrivenConnection = Rc<RefCell<Option<LibraryConnection>>>;

pub(crate) struct Http2Session {
    sender: RefCell<SendRequest<OutgoingBody>>,
    /// Whether the connection is under TLS.
    pub(super) secure: bool,
    /// The library's connection, which a task drives to its end.
    connection: DrivenConnection,
    /// The number of running streams, and its bound from the settings.
    streams: Cell<usize>,
    /// The number of streams that have begun.
    begun: Cell<u64>,
    bound: usize,
    /// The session gets no more streams.
    retired: Cell<bool>,
    /// The number of answers that were not valid HTTP/2.
    errors: Cell<u32>,
    /// The number of heads and frames of answers received so far.
    heard: Cell<u64>,
    /// The time since when the session has had no stream, as of the last check.
    idle: Cell<Option<u64>>,
    /// Dropping this ends the tasks.
    _alive: watch::Sender<()>,
    _counted: GaugeGuard,
}

impl Http2Session {
    /// Opens a session on `stream`, for at most `bound` streams at once. Waits until the backend
    /// has announced its own bound: streams beyond that would be refused, and refused again if all
    /// are repeated at once.
    pub(crate) async fn open(
        stream: halves::UpstreamStream,
        bound: u32,
        counted: GaugeGuard,
    ) -> Result<Rc<Http2Session>, WireError> {
        let secure = matches!(stream, halves::UpstreamStream::Tls(_));
        let (reader, writer) = stream.into_split();
        let (alive, watched) = watch::channel(());
        let tasks = SessionTasks { alive: watched, ran: Rc::default() };
        let window = WINDOW_BYTES.saturating_mul(bound).min(WINDOW_BYTES_MAX);
        let handshake = Builder::new(tasks.clone())
            .initial_max_send_streams(0)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(window)
            .max_header_list_size(HEAD_BYTES_MAX as u32)
            .max_send_buf_size(SEND_BYTES)
            .handshake(TokioIo::new(tokio::io::join(reader, writer)));
        let broken = |error: hyper::Error| WireError::Stream(StreamError::of(&error));
        let (sender, mut connection) = handshake.await.map_err(broken)?;
        while connection.current_max_send_streams() == 0 {
            tokio::select! {
                ended = &mut connection => {
                    return Err(ended.err().map_or(WireError::Closed, broken));
                }
                () = tasks.ran.notified() => {}
            }
        }
        let connection = Rc::new(RefCell::new(Some(connection)));
        tasks.execute(drive(Rc::clone(&connection)));
        Ok(Rc::new(Http2Session {
            sender: RefCell::new(sender),
            secure,
            connection,
            streams: Cell::new(0),
            begun: Cell::new(0),
            bound: bound as usize,
            retired: Cell::new(false),
            errors: Cell::new(0),
            heard: Cell::new(0),
            idle: Cell::new(None),
            _alive: alive,
            _counted: counted,
        }))
    }

    /// Whether one more stream may begin.
    pub(crate) fn has_room(&self) -> bool {
        // The backend's current bound; it may change.
        let connection = self.connection.borrow();
        let allowed = connection.as_ref().map_or(0, LibraryConnection::current_max_send_streams);
        !self.is_over() && self.streams.get() < self.bound.min(allowed)
    }

    /// Gives the session no more streams. Running streams continue.
    pub(crate) fn retire(&self) {
        self.retired.set(true);
    }

    /// Whether more than one stream has begun here.
    pub(super) fn is_shared(&self) -> bool {
        self.begun.get() > 1
    }

    /// Counts a received head or frame of an answer. Returns the new count.
    pub(super) fn count_received(&self) -> u64 {
        self.heard.set(self.heard.get() + 1);
        self.heard.get()
    }

    /// Returns the number of heads and frames received so far.
    pub(super) fn received_count(&self) -> u64 {
        self.heard.get()
    }

    /// Counts an answer that was not valid HTTP/2 and affects its stream only.
    pub(super) fn count_error(&self) {
        self.errors.set(self.errors.get() + 1);
        if self.errors.get() >= ERRORS_MAX {
            self.retire();
        }
    }

    /// Whether no more streams can begin here.
    pub(crate) fn is_over(&self) -> bool {
        self.retired.get() || self.sender.borrow().is_closed()
    }

    /// Returns the time since when the session has had no stream. Must be called regularly.
    pub(crate) fn idle_since(&self, now: u64) -> Option<u64> {
        let idle = (self.streams.get() == 0).then(|| self.idle.get().unwrap_or(now));
        self.idle.set(idle);
        idle
    }

    pub(super) fn send(&self, request: Request<OutgoingBody>) -> AnswerFuture {
        Box::pin(self.sender.borrow_mut().try_send_request(request))
    }
}

/// Drives a connection until it has ended, then drops it.
async fn drive(connection: DrivenConnection) {
    poll_fn(|cx| match connection.borrow_mut().as_mut() {
        // Errors reach the requests on the connection.
        Some(connection) => Pin::new(connection).poll(cx).map(drop),
        None => Poll::Ready(()),
    })
    .await;
    // Dropped only after the borrow has ended: the requests that it gives back may access the
    // session.
    let ended = connection.borrow_mut().take();
    drop(ended);
}

/// A stream's place in its session, and the count of its request on the backend.
pub(super) struct SessionPlace {
    session: Rc<Http2Session>,
    _running: Rc<()>,
}

impl SessionPlace {
    pub(super) fn take(session: &Rc<Http2Session>, running: &Rc<()>) -> SessionPlace {
        session.streams.set(session.streams.get() + 1);
        session.begun.set(session.begun.get() + 1);
        session.idle.set(None);
        SessionPlace { session: Rc::clone(session), _running: Rc::clone(running) }
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        let streams = &self.session.streams;
        streams.set(streams.get().saturating_sub(1));
    }
}

/// Runs the library's tasks on this thread, as long as their session lives and a little longer.
#[derive(Clone)]
struct SessionTasks {
    alive: watch::Receiver<()>,
    /// Notified when one of the tasks has run.
    ran: Rc<Notify>,
}

impl<F: Future<Output = ()> + 'static> Executor<F> for SessionTasks {
    fn execute(&self, future: F) {
        let (mut alive, ran) = (self.alive.clone(), Rc::clone(&self.ran));
        tokio::task::spawn_local(async move {
            let over = async {
                // No message is ever sent: this fails when the session is dropped.
                let _ = alive.changed().await;
                tokio::time::sleep(CLOSE_TIMEOUT).await;
            };
            let mut future = pin!(future);
            let future = poll_fn(|cx| {
                let polled = future.as_mut().poll(cx);
                ran.notify_one();
                polled
            });
            tokio::select! {
                () = future => {}
                () = over => {}
            }
        });
    }
}
