//! Asks a backend for `HEAD /`, as the proxy would connect to it, and notes how it answers.
//!
//! One request for each backend, on a new connection that is closed after it. What the answers
//! mean: `examine/backends.rs`.

use super::facts::BackendAnswer;
use bytes::Bytes;
use evenkeel_config::settings::{BackendAddress, BackendScheme, BackendTls};
use evenkeel_core::units::{SECOND, Time};
use evenkeel_runtime::clock::Clock;
use evenkeel_tls::client;
use http::header::{CONNECTION, DATE, HOST, USER_AGENT};
use http::{Request, Response, Version};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// The time limit for connecting, and for the answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the backend once. The error is a text for people.
pub async fn ask(backend: &BackendAddress, tls: &BackendTls) -> Result<BackendAnswer, String> {
    let clock = Clock::start();
    let begin = clock.now();
    let is_http2 = matches!(backend.scheme, BackendScheme::H2c | BackendScheme::UnixH2c);
    if backend.scheme.is_file() {
        let stream = limited("connect", UnixStream::connect(&backend.place)).await?;
        return answer(backend, stream, is_http2, (&clock, begin)).await;
    }
    let stream = limited("connect", TcpStream::connect(&*backend.place)).await?;
    if !backend.is_secured() {
        return answer(backend, stream, is_http2, (&clock, begin)).await;
    }
    let name = client::name(&tls.client, backend.host()).map_err(|error| error.to_string())?;
    let config = client::backend(tls).map_err(|error| error.to_string())?;
    let stream = limited("TLS", TlsConnector::from(config).connect(name, stream)).await?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    answer(backend, stream, is_http2, (&clock, begin)).await
}

/// Waits for a step, but not for long.
async fn limited<T, E: std::fmt::Display>(
    step: &str,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match tokio::time::timeout(TIMEOUT, future).await {
        Ok(done) => done.map_err(|error| format!("{step}: {error}")),
        Err(_) => Err(format!("{step}: no answer within {} s", TIMEOUT.as_secs())),
    }
}

async fn answer(
    backend: &BackendAddress,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    is_http2: bool,
    (clock, begin): (&Clock, Time),
) -> Result<BackendAnswer, String> {
    let start = clock.now();
    let connect = start.since(begin);
    let stream = TokioIo::new(stream);
    let response = if is_http2 {
        let (mut sender, connection) =
            limited("HTTP/2", http2::handshake(TokioExecutor::new(), stream)).await?;
        tokio::spawn(connection);
        let uri = format!("http://{}/", backend.host_header());
        limited("HTTP/2", sender.send_request(request(&uri)?)).await?
    } else {
        let (mut sender, connection) = limited("HTTP", http1::handshake(stream)).await?;
        tokio::spawn(connection);
        let mut request = request("/")?;
        let host = backend.host_header().parse().map_err(|_| "not a host name".to_owned())?;
        request.headers_mut().insert(HOST, host);
        limited("HTTP", sender.send_request(request)).await?
    };
    let now = clock.now();
    Ok(BackendAnswer {
        connect: Duration::from_nanos(connect.0),
        took: Duration::from_nanos(now.since(start).0),
        version: format!("{:?}", response.version()),
        status: response.status().as_u16(),
        keeps_alive: keeps_alive(&response),
        clock_ahead: clock_ahead(&response, now.0 / SECOND),
    })
}

fn request(uri: &str) -> Result<Request<Empty<Bytes>>, String> {
    let request = Request::head(uri)
        .header(USER_AGENT, concat!("evenkeel-doctor/", env!("CARGO_PKG_VERSION")))
        .body(Empty::new());
    request.map_err(|error| error.to_string())
}

/// Whether the connection stays open after this answer.
fn keeps_alive(response: &Response<Incoming>) -> bool {
    let fields = response.headers().get_all(CONNECTION).iter();
    let words = fields.filter_map(|field| field.to_str().ok()).flat_map(|field| field.split(','));
    let words: Vec<&str> = words.map(str::trim).collect();
    let says = |word: &str| words.iter().any(|found| found.eq_ignore_ascii_case(word));
    match response.version() {
        Version::HTTP_10 => says("keep-alive"),
        _ => !says("close"),
    }
}

/// How far the clock of the backend is ahead of `now`, in seconds.
fn clock_ahead(response: &Response<Incoming>, now: u64) -> Option<f64> {
    let date = httpdate::parse_http_date(response.headers().get(DATE)?.to_str().ok()?).ok()?;
    let date = date.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    Some(date as f64 - now as f64)
}
