//! The stream to a management server: gRPC over HTTP/2, one bidirectional call.
//!
//! Pings are sent on an idle connection, so that a server which disappeared without closing it is
//! noticed. The content of the messages: `xds`.

use crate::wire::discovery::{DiscoveryRequest, DiscoveryResponse};
use bytes::Bytes;
use evenkeel_config::settings::XdsSettings;
use evenkeel_grpc::frames::{FrameError, FrameReader, encode_frame};
use evenkeel_tls::client;
use evenkeel_tls::pem::TlsFileError;
use futures_util::stream::poll_fn;
use http::{HeaderMap, Request};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use std::convert::Infallible;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

const XDS_METHOD_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// The time limit for connecting, with the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time without incoming data after which a ping is sent.
const PING_AFTER: Duration = Duration::from_secs(30);
/// The time that the server has to answer a ping before the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum XdsStreamError {
    /// The server cannot be reached, or the TLS handshake failed.
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    /// The server did not accept the connection in time.
    #[error("cannot connect within {CONNECT_TIMEOUT:?}")]
    Silent,
    /// The TLS files or the server's name cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] TlsFileError),
    /// The HTTP/2 connection failed.
    #[error("the connection failed: {0}")]
    Http(#[from] hyper::Error),
    /// The configured server address or a configured header is invalid.
    #[error("the server's address or a header is invalid: {0}")]
    Request(#[from] http::Error),
    /// The server answered with an HTTP status that gRPC does not use.
    #[error("it responds with status {0}, not with gRPC")]
    Status(http::StatusCode),
    /// The server reported an error for the call.
    #[error("the call failed: {0}")]
    Failed(String),
    /// A gRPC frame of the server cannot be read.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// A message of the server is not a discovery response.
    #[error("not an xDS message: {0}")]
    Message(#[from] prost::DecodeError),
    /// The server ended the stream without an error.
    #[error("the server ended the stream")]
    Ended,
}

impl XdsStreamError {
    /// Whether no connection was made, as opposed to a stream that failed later.
    pub fn is_of_connecting(&self) -> bool {
        matches!(self, XdsStreamError::Connect(_) | XdsStreamError::Silent | XdsStreamError::Tls(_))
    }
}

/// An open stream to a server.
pub struct XdsStream {
    outgoing: mpsc::Sender<Bytes>,
    incoming: Incoming,
    frames: FrameReader,
}

impl XdsStream {
    /// Connects and sends the first message.
    pub async fn open(
        settings: &XdsSettings,
        first: &DiscoveryRequest,
    ) -> Result<XdsStream, XdsStreamError> {
        let connect = tokio::time::timeout(CONNECT_TIMEOUT, connect(settings));
        let socket = connect.await.map_err(|_| XdsStreamError::Silent)??;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new());
        builder.keep_alive_interval(PING_AFTER).keep_alive_timeout(PING_TIMEOUT);
        let (mut sender, connection) = builder.handshake(TokioIo::new(socket)).await?;
        // This task ends with the stream, and the stream reports the reason.
        tokio::spawn(async { _ = connection.await });
        let (outgoing, mut messages) = mpsc::channel(4);
        let frames = poll_fn(move |cx| {
            messages
                .poll_recv(cx)
                .map(|bytes| bytes.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes))))
        });
        let stream_open = outgoing.send(encode_frame(first)).await;
        stream_open.map_err(|_| XdsStreamError::Ended)?;
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        let mut request = Request::post(format!("{scheme}://{}{XDS_METHOD_PATH}", settings.server))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in &settings.headers {
            request = request.header(name, value);
        }
        let response = sender.send_request(request.body(StreamBody::new(frames))?).await?;
        if response.status() != http::StatusCode::OK {
            return Err(XdsStreamError::Status(response.status()));
        }
        if let Some(error) = failure(response.headers()) {
            return Err(error);
        }
        let frames = FrameReader::new(settings.message_bytes_max);
        Ok(XdsStream { outgoing, incoming: response.into_body(), frames })
    }

    /// Waits for the next message.
    pub async fn receive(&mut self) -> Result<DiscoveryResponse, XdsStreamError> {
        loop {
            if let Some(message) = self.frames.take()? {
                return Ok(DiscoveryResponse::decode(message)?);
            }
            let frame = self.incoming.frame().await.ok_or(XdsStreamError::Ended)??;
            match frame.into_data() {
                Ok(bytes) => self.frames.push(bytes),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return Err(failure(&trailers).unwrap_or(XdsStreamError::Ended));
                }
            }
        }
    }

    /// Queues a message for sending; waits while four messages are queued.
    pub async fn send(&self, request: &DiscoveryRequest) -> Result<(), XdsStreamError> {
        self.outgoing.send(encode_frame(request)).await.map_err(|_| XdsStreamError::Ended)
    }
}

/// A plain TCP connection or one with TLS.
trait XdsSocket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> XdsSocket for S {}

async fn connect(settings: &XdsSettings) -> Result<Box<dyn XdsSocket>, XdsStreamError> {
    let socket = TcpStream::connect(&settings.server).await?;
    let Some(tls) = &settings.tls else { return Ok(Box::new(socket)) };
    let host = settings.server.rsplit_once(':').map_or(&*settings.server, |(host, _)| host);
    let name = client::name(tls, host)?;
    let connector = TlsConnector::from(client::config(tls, &[b"h2"])?);
    Ok(Box::new(connector.connect(name, socket).await?))
}

/// The error of a call in headers or trailers; `None` if they report none.
fn failure(headers: &HeaderMap) -> Option<XdsStreamError> {
    let status = tonic::Status::from_header_map(headers)?;
    let told = || XdsStreamError::Failed(format!("{:?} {}", status.code(), status.message()));
    (status.code() != tonic::Code::Ok).then(told)
}
