//! Serves a client's connection. First it detects the protocol: TLS or not, HTTP/1.1 or HTTP/2.
//!
//! HTTP/2 is used if TLS has negotiated it (ALPN), and without TLS if the client begins with it
//! ("prior knowledge"). Streams: `streams.rs`. What is done with a request: `exchange.rs`.

mod prints;
mod proxy_header;
mod sniffed;
pub(super) mod stream;
mod streams;
mod tcp_info;
mod tunnel;
pub(super) mod write_batch;

use super::context::settings::HEADER_BYTES_MAX;
use super::exchange;
use super::link::ClientLink;
use super::outbox::DeferredStream;
use super::worker::ProxyWorker;
use arc_swap::ArcSwap;
use evenkeel_telemetry::counts::ConnectionRefusal;
use evenkeel_tls::challenges;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prints::WantedPrints;
use proxy_header::{ProxiedParty, ProxyHeaderParse};
use rustls::ServerConfig;
use sniffed::SniffedStream;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use stream::ClientStream;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The TLS configuration with the certificates for clients; replaced when their files change.
pub(super) type LiveServerConfig = Arc<ArcSwap<Arc<ServerConfig>>>;

/// The smallest connection buffer that hyper accepts, in bytes.
const BUFFER_BYTES_MIN: usize = 8192;

const _: () = assert!(BUFFER_BYTES_MIN <= HEADER_BYTES_MAX, "an unbounded head fits the buffer");

/// The first byte of a TLS connection: the content type of a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

const ALPN_HTTP2: &[u8] = b"h2";

/// The answer to a browser that speaks plain HTTP to a TLS port.
const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 44\r\nconnection: close\r\n\r\nThis port is for HTTPS. Begin with https://\n";

/// The answer to a request that did not arrive in time.
const HEAD_LATE: &[u8] = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain\r\n\
    content-length: 38\r\nconnection: close\r\n\r\nThe request took too long to send it.\n";

/// Serves one connection until it ends.
pub(super) async fn converse(
    worker: &Rc<ProxyWorker>,
    stream: DeferredStream,
    link: &Rc<ClientLink>,
    shown: Option<LiveServerConfig>,
) {
    let said = worker.thread.settings().trust.expects_proxy_header(link.peer.address());
    let Some(begun) = Box::pin(introduced(worker, stream, link, said)).await else { return };
    let Some(_share) = worker.thread.take_address_share(link) else { return };
    let wanted = WantedPrints::new(&worker.thread.settings(), link, said);
    if let Some(shown) = shown {
        return Box::pin(converse_under_tls(worker, begun, link, (&shown, wanted))).await;
    }
    let Some((begun, is_http2)) = Box::pin(sniffed(begun, link)).await else { return };
    let stream = ClientStream::new(begun, Rc::clone(link), Rc::clone(&worker.thread));
    if is_http2 && worker.thread.settings().http2 {
        begin_streams(link, wanted);
        Box::pin(streams::serve(worker, stream, link)).await;
    } else {
        serve(worker, Box::new(stream), link).await;
    }
}

/// Reads until the protocol is known. Returns the connection and whether it is HTTP/2, or `None` if
/// it ends first.
async fn sniffed(mut begun: SniffedStream, link: &ClientLink) -> Option<(SniffedStream, bool)> {
    while begun.may_be_http2() {
        if !begun.more(link).await {
            return None;
        }
    }
    let is_http2 = begun.is_http2();
    Some((begun, is_http2))
}

async fn converse_under_tls(
    worker: &Rc<ProxyWorker>,
    mut begun: SniffedStream,
    link: &Rc<ClientLink>,
    (shown, wanted): (&LiveServerConfig, WantedPrints),
) {
    if begun.bytes().is_empty() && !begun.more(link).await {
        return;
    }
    if wanted.ja4 {
        prints::read_hello(&mut begun, link).await;
    }
    if wanted.rtt {
        begun.begin_timing(worker.thread.clock);
    }
    let Some(mut stream) = secured(worker, begun, link, shown).await else { return };
    let protocol = stream.get_ref().1.alpn_protocol();
    if protocol == Some(challenges::PROTOCOL) {
        // An authority has seen the certificate that it came for; nothing else may follow.
        let _ = stream.shutdown().await;
        return;
    }
    let streams = protocol == Some(ALPN_HTTP2);
    prints::compare_round_trips(stream.get_mut().0, link, streams);
    let stream = ClientStream::new(stream, Rc::clone(link), Rc::clone(&worker.thread));
    if streams {
        begin_streams(link, wanted);
        Box::pin(streams::serve(worker, stream, link)).await;
    } else {
        serve(worker, Box::new(stream), link).await;
    }
}

fn begin_streams(link: &ClientLink, wanted: WantedPrints) {
    if wanted.h2 {
        link.prints.expect_frames();
    }
}

/// Begins a connection. If `expected`, reads the PROXY protocol header that a trusted front sends
/// before anything else, and returns `None` if it is missing or malformed.
async fn introduced(
    worker: &ProxyWorker,
    stream: DeferredStream,
    link: &ClientLink,
    expected: bool,
) -> Option<SniffedStream> {
    let mut begun = SniffedStream::new(stream);
    if !expected {
        return Some(begun);
    }
    loop {
        match proxy_header::read(begun.bytes()) {
            ProxyHeaderParse::More if begun.more(link).await => {}
            ProxyHeaderParse::Whole(length, said) => {
                begun.skip(length);
                if let ProxiedParty::Client { address, secure } = said {
                    link.peer.replace(address, secure);
                }
                return Some(begun);
            }
            // The peer connected and sent nothing, such as a health check.
            ProxyHeaderParse::More if begun.bytes().is_empty() => return None,
            ProxyHeaderParse::More | ProxyHeaderParse::Bad => {
                worker
                    .thread
                    .watch
                    .record_missing_preface(link.peer.address(), worker.thread.time());
                return None;
            }
        }
    }
}

/// Does the TLS handshake. Returns `None` if it fails or the link is closed.
async fn secured(
    worker: &ProxyWorker,
    mut begun: SniffedStream,
    link: &ClientLink,
    shown: &LiveServerConfig,
) -> Option<TlsStream<SniffedStream>> {
    if begun.bytes().first() != Some(&TLS_HANDSHAKE) {
        worker.thread.watch.proxy.refused_connections(ConnectionRefusal::Tls).increment(1);
        // It does no harm if the client does not read this answer.
        let _ = begun.write_all(NOT_TLS).await;
        let _ = begun.shutdown().await;
        return None;
    }
    let acceptor = TlsAcceptor::from(Arc::clone(&**shown.load()));
    let mut handshake = pin!(acceptor.accept(begun));
    let made = poll_fn(|cx| {
        link.task.set(cx.waker());
        if link.is_closed() {
            return Poll::Ready(None);
        }
        handshake.as_mut().poll(cx).map(Some)
    });
    match made.await {
        Some(Ok(stream)) => {
            link.phase.start_head_timeout(worker.thread.now());
            Some(stream)
        }
        Some(Err(error)) => {
            worker.thread.watch.proxy.refused_connections(ConnectionRefusal::Tls).increment(1);
            let client = link.peer.address();
            tracing::debug!(target: "evenkeel::proxy", %client, %error, "no TLS handshake");
            None
        }
        None => {
            worker.thread.watch.proxy.refused_connections(ConnectionRefusal::Tls).increment(1);
            None
        }
    }
}

/// Serves requests one after the other. While the connection is idle for long, no hyper
/// connection exists: its buffers and the memory for an exchange take many times what the
/// connection itself needs.
///
/// The stream is in a box: a future keeps space for each variable that has held it.
async fn serve<S>(worker: &Rc<ProxyWorker>, stream: Box<ClientStream<S>>, link: &Rc<ClientLink>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut served = Box::pin(serve_on(worker, stream, link)).await;
    while let Some(mut idle) = served {
        let counted = worker.thread.watch.proxy.resting.hold();
        if !idle.rest().await {
            return;
        }
        drop(counted);
        link.phase.end_rest();
        served = Box::pin(serve_on(worker, idle, link)).await;
    }
}

/// Serves requests until the connection ends or goes idle. If it goes idle, returns the stream.
async fn serve_on<S>(
    worker: &Rc<ProxyWorker>,
    stream: Box<ClientStream<S>>,
    link: &Rc<ClientLink>,
) -> Option<Box<ClientStream<S>>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service =
        service_fn(|request| exchange::serve(Rc::clone(worker), Rc::clone(link), request));
    let mut connection = builder(worker).serve_connection(TokioIo::new(stream), service);
    poll_fn(|cx| {
        link.task.set(cx.waker());
        if link.is_closed() || link.head_late.get() || link.phase.should_rest() {
            return Poll::Ready(());
        }
        let polled = worker.lane.at_once(|| Pin::new(&mut connection).poll(cx));
        if polled.is_pending() {
            link.note_task_ran(cx, worker.thread.now());
        }
        polled.map(|end| ended(worker, link, end))
    })
    .await;
    if link.is_closed() {
        return None;
    }
    if link.head_late.get() {
        give_up(connection.into_parts().io.into_inner(), link).await;
        return None;
    }
    if link.phase.should_rest() {
        let parts = connection.into_parts();
        let mut stream = parts.io.into_inner();
        stream.unread(parts.read_buf);
        return Some(stream);
    }
    if let Some(backend) = link.upgrade.take().map(|(backend, _)| backend) {
        let parts = connection.into_parts();
        let client = parts.io.into_inner();
        Box::pin(tunnel::run(&worker.thread, link, *client, parts.read_buf, backend)).await;
    }
    None
}

/// Counts and logs a request that hyper could not parse and has answered by itself.
fn ended(worker: &ProxyWorker, link: &ClientLink, end: hyper::Result<()>) {
    if let Some(error) = end.err().filter(hyper::Error::is_parse) {
        worker.thread.watch.proxy.bad_requests.increment(1);
        let client = link.peer.address();
        tracing::debug!(target: "evenkeel::proxy", %client, %error, "bad request");
    }
}

fn builder(worker: &ProxyWorker) -> hyper::server::conn::http1::Builder {
    let bytes = worker.thread.settings().header_bytes();
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .max_header_size(bytes)
        .max_buf_size(bytes.max(BUFFER_BYTES_MIN))
        .header_read_timeout(None)
        .auto_date_header(false);
    builder
}

/// Sends a client the answer that its head is late, as far as the client reads it at once, and
/// closes its connection.
async fn give_up(mut stream: impl AsyncWrite + Unpin, link: &ClientLink) {
    let mut told = false;
    poll_fn(|cx| {
        link.task.set(cx.waker());
        if link.is_closed() {
            return Poll::Ready(());
        }
        if !std::mem::replace(&mut told, true) {
            let _ = Pin::new(&mut stream).poll_write(cx, HEAD_LATE);
        }
        Pin::new(&mut stream).poll_shutdown(cx).map(drop)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<A, B, C, F>(_: fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    fn bytes_of_four<A, B, C, D, F>(_: fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// The future of each connection contains these, so their size counts for every open
    /// connection.
    #[test]
    fn what_a_connection_and_a_request_keep_is_small() {
        let link = size_of::<ClientLink>();
        assert!(link <= 336, "{link} bytes");
        let connection = bytes_of_four(converse);
        assert!(connection <= 224, "{connection} bytes");
        let request = bytes(exchange::serve);
        assert!(request <= 2320, "{request} bytes");
    }
}
