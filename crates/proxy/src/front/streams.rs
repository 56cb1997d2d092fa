//! HTTP/2 towards clients: each stream is an exchange with a link of its own.
//!
//! hyper reads the frames and bounds what they may ask for. A stream runs as a task on the thread
//! of its connection. It is charged like any other request, even if it is reset at once: its task
//! is polled, and so the request is charged, before the reset is handled. A client that resets most
//! of its requests loses its connection (`ClientLink::end_stream`). If an answer switches
//! protocols, the task continues as the tunnel (`tunnel.rs`).

use super::stream::ClientStream;
use super::tunnel;
use super::write_batch::WriteBatcher;
use crate::download::AnswerBody;
use crate::exchange;
use crate::link::ClientLink;
use crate::worker::ProxyWorker;
use bytes::Bytes;
use evenkeel_telemetry::counts::ConnectionRefusal;
use http::{HeaderValue, Method, Request, Response, header};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use tokio::io::{AsyncRead, AsyncWrite};

/// Flow control windows of one stream and of the whole connection: the bytes that a client may send
/// before the proxy has passed them on. Smaller windows would slow down uploads over long
/// distances.
const WINDOW_BYTES: (u32, u32) = (128 * 1024, 512 * 1024);

/// The maximum number of bytes of an answer that are buffered for each stream while the client does
/// not read it.
const SEND_BYTES: usize = 64 * 1024;

/// The maximum number of streams that the client reset and that are not handled yet, and of streams
/// reset by this side because of an error. Beyond either the connection ends.
const RESETS_MAX: (usize, usize) = (64, 256);

const _: () = assert!(WINDOW_BYTES.0 <= WINDOW_BYTES.1, "the connection has room for one stream");

pub(super) async fn serve<S>(
    worker: &Rc<ProxyWorker>,
    stream: ClientStream<S>,
    link: &Rc<ClientLink>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    link.streams.enable();
    let streams = StreamExecutor(Rc::new(StreamsConnection {
        worker: Rc::clone(worker),
        link: Rc::clone(link),
        next: RefCell::default(),
        carrier: RefCell::default(),
    }));
    let service = service_fn(|request| streams.0.begin(request));
    let builder = builder(worker, streams.clone());
    let gathered = WriteBatcher::new(stream, &worker.gathering);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(gathered.clone()), service));
    let mut told = false;
    let ended = poll_fn(|cx| {
        link.task.set(cx.waker());
        if link.is_closed() {
            return Poll::Ready(Ok(()));
        }
        if (worker.thread.is_draining() || link.streams.is_ending()) && !told {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        let polled = worker.lane.at_once(|| connection.as_mut().poll(cx));
        match gathered.poll_out(cx) {
            // The client has disconnected.
            Poll::Ready(Err(_)) if polled.is_pending() => Poll::Ready(Ok(())),
            _ => polled,
        }
    });
    if let Err(error) = ended.await
        && error.source().is_none_or(|source| !source.is::<std::io::Error>())
    {
        worker.thread.watch.proxy.bad_requests.increment(1);
        let source = error.source().map(ToString::to_string);
        tracing::debug!(
            target: "evenkeel::proxy", client = %link.peer.address(), %error, source, "bad HTTP/2"
        );
    }
}

fn builder(worker: &ProxyWorker, streams: StreamExecutor) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(streams);
    builder
        .max_concurrent_streams(worker.thread.settings().bounds.streams)
        .max_header_list_size(
            u32::try_from(worker.thread.settings().header_bytes()).unwrap_or(u32::MAX),
        )
        .initial_stream_window_size(WINDOW_BYTES.0)
        .initial_connection_window_size(WINDOW_BYTES.1)
        .max_send_buf_size(SEND_BYTES)
        .max_pending_accept_reset_streams(RESETS_MAX.0)
        .max_local_error_reset_streams(RESETS_MAX.1)
        .auto_date_header(false);
    if !worker.thread.settings().upgrades.is_empty() {
        builder.enable_connect_protocol();
    }
    builder
}

/// The shared state of one connection's streams.
struct StreamsConnection {
    worker: Rc<ProxyWorker>,
    link: Rc<ClientLink>,
    /// The stream that hyper spawns the task of next: hyper does so as soon as it has the future.
    next: RefCell<Option<NextStream>>,
    /// The future that carries bytes to the client for the tunnel that the running task has opened.
    carrier: RefCell<Option<TunnelCarrier>>,
}

/// A stream, and its upgrade if it is a CONNECT.
type NextStream = (Rc<ClientLink>, Option<OnUpgrade>);

/// hyper's part of a tunnel. It ends when either side ends.
type TunnelCarrier = Pin<Box<dyn Future<Output = ()>>>;

impl StreamsConnection {
    fn begin(
        &self,
        mut request: Request<Incoming>,
    ) -> Pin<Box<impl Future<Output = Result<Response<AnswerBody>, Infallible>> + use<>>> {
        let worker = Rc::clone(&self.worker);
        let link = Rc::new(ClientLink::stream(&self.link, worker.thread.now()));
        let upgrade = request.extensions_mut().remove();
        *self.next.borrow_mut() = Some((Rc::clone(&link), upgrade));
        let is_head = *request.method() == Method::HEAD;
        // Boxed because it is large: hyper and the runtime move it several times until it is in its
        // task.
        Box::pin(async move {
            let answer = exchange::serve(worker, link, request).await;
            if is_head { answer.map(without_body) } else { answer }
        })
    }
}

/// Removes the body of Evenkeel's own answer to a HEAD request, but states its length. (In HTTP/1.1
/// hyper does so.)
fn without_body(mut answer: Response<AnswerBody>) -> Response<AnswerBody> {
    if matches!(answer.body(), AnswerBody::Whole(Some(_))) {
        let length = answer.body().size_hint().lower();
        *answer.body_mut() = AnswerBody::Whole(None);
        answer.headers_mut().entry(header::CONTENT_LENGTH).or_insert(HeaderValue::from(length));
    }
    answer
}

/// Runs the tasks of streams on the thread of their connection.
#[derive(Clone)]
struct StreamExecutor(Rc<StreamsConnection>);

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, future: F) {
        let Some((link, upgrade)) = self.0.next.take() else {
            *self.0.carrier.borrow_mut() = Some(Box::pin(future));
            return;
        };
        let place = StreamGuard::take(&self.0.worker, link);
        let streams = upgrade.is_some().then(|| self.clone());
        tokio::task::spawn_local(async move {
            place.run(future).await;
            let carrier = streams.and_then(|streams| streams.0.carrier.take());
            if let (Some(upgrade), Some(carrier)) = (upgrade, carrier) {
                Box::pin(place.tunnel(upgrade, carrier)).await;
            }
        });
    }
}

/// A stream's entry in the list that the sweep checks, removed when its task ends.
struct StreamGuard {
    worker: Rc<ProxyWorker>,
    link: Rc<ClientLink>,
}

impl StreamGuard {
    fn take(worker: &Rc<ProxyWorker>, link: Rc<ClientLink>) -> StreamGuard {
        worker.thread.streams.add(&link);
        StreamGuard { worker: Rc::clone(worker), link }
    }

    /// Runs a request until its answer is handed over.
    async fn run(&self, future: impl Future<Output = ()>) {
        let StreamGuard { worker, link } = self;
        let mut future = pin!(future);
        poll_fn(|cx| {
            link.task.set(cx.waker());
            if link.is_closed() {
                return Poll::Ready(());
            }
            let polled = worker.lane.at_once(|| future.as_mut().poll(cx));
            if polled.is_pending() {
                link.note_task_ran(cx, worker.thread.now());
            }
            polled
        })
        .await;
    }

    /// Carries bytes between the client and the backend, which has switched protocols. If one side
    /// breaks off, returning drops the stream, which resets it.
    async fn tunnel(&self, upgrade: OnUpgrade, carrier: TunnelCarrier) {
        let StreamGuard { worker, link } = self;
        let Some((backend, _room)) = link.upgrade.take() else { return };
        let Ok(upgraded) = upgrade.await else { return };
        let thread = &worker.thread;
        let client = ClientStream::new(TokioIo::new(upgraded), Rc::clone(link), Rc::clone(thread));
        let mut both = pin!(tunnel::run(thread, link, client, Bytes::new(), backend));
        let mut carrier = Some(carrier);
        poll_fn(|cx| {
            if both.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if !carrier.as_mut().is_some_and(|carrier| carrier.as_mut().poll(cx).is_ready()) {
                return Poll::Pending;
            }
            // The carrier ends when all bytes are sent, or when the client accepts no more.
            carrier = None;
            both.as_mut().poll(cx)
        })
        .await;
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.worker.thread.streams.remove(&self.link);
        self.worker.thread.release_aside(&self.link);
        if self.link.end_stream(self.worker.thread.now()) {
            self.worker
                .thread
                .watch
                .proxy
                .refused_connections(ConnectionRefusal::Resets)
                .increment(1);
            let client = self.link.peer.address();
            tracing::debug!(target: "evenkeel::proxy", %client, "closed: a flood of resets");
        }
    }
}
