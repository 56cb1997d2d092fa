//! A connection to a server behind that carries many requests at once (HTTP/2).
//!
//! The library (hyper) speaks it, in tasks of its own on this thread; here is what bounds it. A
//! stream has a window of [`WINDOW_BYTES`], and the connection has room for the windows of all
//! streams that may run: what slow clients leave unread holds up nobody else. The tasks end when
//! the last stream and whoever keeps the session have let go of it.
//!
//! There are no pings: servers of gRPC take them for abuse. A connection that went silent is found
//! by the request that waits too long while nothing is heard of any other, and gets no more of
//! them. One stream: `call.rs`. Which session is taken: `backends/sessions.rs`.

use super::call::Ended;
use super::lent::Lent;
use super::{Fault, ends};
use crate::doors::proxy::backends::Backend;
use crate::watch::registry::Held;
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

/// What a stream may be sent of an answer before we have passed it on, in bytes; it is what a
/// client that reads slowly has us hold.
const WINDOW_BYTES: u32 = 64 * 1024;

/// The largest window that there is (RFC 9113, 6.9.1).
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// What is kept of a request that the server does not take yet, for each stream, in bytes.
const SEND_BYTES: usize = 64 * 1024;

/// Answers that are no HTTP/2, each on a stream of its own, after which a session gets no more
/// streams. The library ends a connection, and all requests on it, at 1 024 of them.
const ERRORS_MAX: u32 = 256;

/// How long a session that nobody needs has to say so to the server.
const FAREWELL: Duration = Duration::from_secs(1);

/// What becomes of a request.
pub(super) type Answering =
    Pin<Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<Lent>>>>>>;

type Connection = http2::Connection<TokioIo<Join<ends::Reader, ends::Writer>>, Lent, Tasks>;

/// A connection while it is driven. `None` once it has ended: to drop it is what tells the sender,
/// and gives back the requests that wait in it.
type Driven = Rc<RefCell<Option<Connection>>>;

/// A connection with streams.
pub(in crate::doors::proxy) struct Session {
    sender: RefCell<SendRequest<Lent>>,
    /// Whether it is under TLS.
    pub(super) secure: bool,
    /// The library's own, which a task drives to its end.
    connection: Driven,
    /// Streams that run, and how many may by our bound.
    streams: Cell<usize>,
    bound: usize,
    /// It gets no more streams.
    retired: Cell<bool>,
    /// Answers that were no HTTP/2.
    errors: Cell<u32>,
    /// Heads and frames of answers so far.
    heard: Cell<u64>,
    /// Since when it has been without a stream, as far as anybody has looked.
    idle: Cell<Option<u64>>,
    /// Dropped, it ends the tasks.
    _alive: watch::Sender<()>,
    _counted: Held,
}

impl Session {
    /// Begins to speak on `stream`, for at most `bound` streams at once. Waits for the server to
    /// say how many it allows: those beyond would be refused, and again if all come at once.
    pub(in crate::doors::proxy) async fn open(
        stream: ends::Stream,
        bound: u32,
        counted: Held,
    ) -> Result<Rc<Session>, Fault> {
        let secure = matches!(stream, ends::Stream::Tls(_));
        let (reader, writer) = stream.into_split();
        let (alive, watched) = watch::channel(());
        let tasks = Tasks { alive: watched, ran: Rc::default() };
        let window = WINDOW_BYTES.saturating_mul(bound).min(WINDOW_BYTES_MAX);
        let handshake = Builder::new(tasks.clone())
            .initial_max_send_streams(0)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(window)
            .max_header_list_size(super::head::HEAD_BYTES_MAX as u32)
            .max_send_buf_size(SEND_BYTES)
            .handshake(TokioIo::new(tokio::io::join(reader, writer)));
        let broken = |error: hyper::Error| Fault::Stream(Ended::of(&error));
        let (sender, mut connection) = handshake.await.map_err(broken)?;
        while connection.current_max_send_streams() == 0 {
            tokio::select! {
                ended = &mut connection => return Err(ended.err().map_or(Fault::Closed, broken)),
                () = tasks.ran.notified() => {}
            }
        }
        let connection = Rc::new(RefCell::new(Some(connection)));
        tasks.execute(drive(Rc::clone(&connection)));
        Ok(Rc::new(Session {
            sender: RefCell::new(sender),
            secure,
            connection,
            streams: Cell::new(0),
            bound: bound as usize,
            retired: Cell::new(false),
            errors: Cell::new(0),
            heard: Cell::new(0),
            idle: Cell::new(None),
            _alive: alive,
            _counted: counted,
        }))
    }

    /// Whether one more stream may be begun.
    pub(in crate::doors::proxy) fn has_room(&self) -> bool {
        // As the server says by now.
        let connection = self.connection.borrow();
        let allowed = connection.as_ref().map_or(0, Connection::current_max_send_streams);
        !self.is_over() && self.streams.get() < self.bound.min(allowed)
    }

    /// It gets no more streams. Those that run go on.
    pub(in crate::doors::proxy) fn retire(&self) {
        self.retired.set(true);
    }

    /// Notes that something of an answer has come, and how much there was so far.
    pub(super) fn hears(&self) -> u64 {
        self.heard.set(self.heard.get() + 1);
        self.heard.get()
    }

    /// How much has been heard so far.
    pub(super) fn heard(&self) -> u64 {
        self.heard.get()
    }

    /// An answer was no HTTP/2, which is its stream's affair.
    pub(super) fn has_erred(&self) {
        self.errors.set(self.errors.get() + 1);
        if self.errors.get() >= ERRORS_MAX {
            self.retire();
        }
    }

    /// Whether nothing can be begun here any more.
    pub(in crate::doors::proxy) fn is_over(&self) -> bool {
        self.retired.get() || self.sender.borrow().is_closed()
    }

    /// Since when it has been without a stream; to be asked now and then.
    pub(in crate::doors::proxy) fn idle_since(&self, now: u64) -> Option<u64> {
        let idle = (self.streams.get() == 0).then(|| self.idle.get().unwrap_or(now));
        self.idle.set(idle);
        idle
    }

    pub(super) fn send(&self, request: Request<Lent>) -> Answering {
        Box::pin(self.sender.borrow_mut().try_send_request(request))
    }
}

/// Drives a connection until it has ended, and lets go of it.
async fn drive(connection: Driven) {
    poll_fn(|cx| match connection.borrow_mut().as_mut() {
        // What goes wrong, the requests on it are told.
        Some(connection) => Pin::new(connection).poll(cx).map(drop),
        None => Poll::Ready(()),
    })
    .await;
    // Dropped when nothing is borrowed any more: what it gives back may come here.
    let ended = connection.borrow_mut().take();
    drop(ended);
}

/// A stream's place among those of its session, and among the requests that the server has.
pub(super) struct Place(Rc<Session>, Rc<Backend>);

impl Place {
    pub(super) fn take(session: &Rc<Session>, backend: &Rc<Backend>) -> Place {
        session.streams.set(session.streams.get() + 1);
        session.idle.set(None);
        backend.begins();
        Place(Rc::clone(session), Rc::clone(backend))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get().saturating_sub(1));
        self.1.ends();
    }
}

/// Runs the library's tasks on this thread, while their session lives and a little longer.
#[derive(Clone)]
struct Tasks {
    alive: watch::Receiver<()>,
    /// One of them did something.
    ran: Rc<Notify>,
}

impl<F: Future<Output = ()> + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        let (mut alive, ran) = (self.alive.clone(), Rc::clone(&self.ran));
        tokio::task::spawn_local(async move {
            let over = async {
                // Nothing is ever sent: it fails when the session is dropped.
                let _ = alive.changed().await;
                tokio::time::sleep(FAREWELL).await;
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
