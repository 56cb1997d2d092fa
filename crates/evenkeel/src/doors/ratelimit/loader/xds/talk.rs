//! The stream to a management server: gRPC over HTTP/2, one call whose messages go both ways.
//!
//! It is asked from time to time whether it is there, so a server that is gone without a word is
//! noticed. What is said: `xds`.

use crate::config::settings::Xds;
use crate::doors::ratelimit::wire::discovery::{DiscoveryRequest, DiscoveryResponse};
use crate::doors::ratelimit::wire::framed;
use crate::doors::ratelimit::wire::reports::{FrameFault, Frames};
use crate::tls::client;
use crate::tls::pem::Fault;
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

const PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// To find a server and be accepted.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that says nothing for so long is asked whether it is there,
const PING_AFTER: Duration = Duration::from_secs(30);
/// and has so long to say so.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    /// Nobody is there.
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    /// Nobody answers.
    #[error("cannot connect within {CONNECT_TIMEOUT:?}")]
    Silent,
    /// The files that TLS takes are faulty, or the server's name is.
    #[error("TLS: {0}")]
    Tls(#[from] Fault),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Http(#[from] hyper::Error),
    /// The request cannot be written.
    #[error("the server's address or a header cannot be written: {0}")]
    Request(#[from] http::Error),
    /// It answers something that is not gRPC.
    #[error("it answers with status {0}, not gRPC")]
    Status(http::StatusCode),
    /// The call failed.
    #[error("the call failed: {0}")]
    Failed(String),
    /// What comes cannot be read.
    #[error("{0}")]
    Frame(#[from] FrameFault),
    /// A message that is none.
    #[error("not a message of xDS: {0}")]
    Message(#[from] prost::DecodeError),
    /// It ended.
    #[error("the server ended the stream")]
    Ended,
}

impl TalkError {
    /// Whether there was no server to speak of.
    pub fn is_of_connecting(&self) -> bool {
        matches!(self, TalkError::Connect(_) | TalkError::Silent | TalkError::Tls(_))
    }
}

/// A stream to a server.
pub struct Stream {
    outgoing: mpsc::Sender<Bytes>,
    incoming: Incoming,
    frames: Frames,
}

impl Stream {
    /// Connects and says the first message.
    pub async fn open(settings: &Xds, first: &DiscoveryRequest) -> Result<Stream, TalkError> {
        let connect = tokio::time::timeout(CONNECT_TIMEOUT, connect(settings));
        let socket = connect.await.map_err(|_| TalkError::Silent)??;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new());
        builder.keep_alive_interval(PING_AFTER).keep_alive_timeout(PING_TIMEOUT);
        let (mut sender, connection) = builder.handshake(TokioIo::new(socket)).await?;
        // It ends with the stream, whose end says why.
        tokio::spawn(async { _ = connection.await });
        let (outgoing, messages) = mpsc::channel(4);
        let stream_open = outgoing.send(framed(first)).await;
        stream_open.map_err(|_| TalkError::Ended)?;
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        let mut request = Request::post(format!("{scheme}://{}{PATH}", settings.server))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in &settings.headers {
            request = request.header(name, value);
        }
        let response = sender.send_request(request.body(Messages(messages))?).await?;
        if response.status() != http::StatusCode::OK {
            return Err(TalkError::Status(response.status()));
        }
        if let Some(error) = failure(response.headers()) {
            return Err(error);
        }
        let frames = Frames::new(settings.message_bytes_max);
        Ok(Stream { outgoing, incoming: response.into_body(), frames })
    }

    /// The next message.
    pub async fn receive(&mut self) -> Result<DiscoveryResponse, TalkError> {
        loop {
            if let Some(message) = self.frames.take()? {
                return Ok(DiscoveryResponse::decode(message)?);
            }
            let frame = self.incoming.frame().await.ok_or(TalkError::Ended)??;
            match frame.into_data() {
                Ok(bytes) => self.frames.push(&bytes),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return Err(failure(&trailers).unwrap_or(TalkError::Ended));
                }
            }
        }
    }

    /// Says something.
    pub async fn send(&self, request: &DiscoveryRequest) -> Result<(), TalkError> {
        self.outgoing.send(framed(request)).await.map_err(|_| TalkError::Ended)
    }
}

/// What the stream runs over.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

async fn connect(settings: &Xds) -> Result<Box<dyn Socket>, TalkError> {
    let socket = TcpStream::connect(&settings.server).await?;
    let Some(tls) = &settings.tls else { return Ok(Box::new(socket)) };
    let host = settings.server.rsplit_once(':').map_or(&*settings.server, |(host, _)| host);
    let name = client::name(tls, host)?;
    let connector = TlsConnector::from(client::config(tls, &[b"h2"])?);
    Ok(Box::new(connector.connect(name, socket).await?))
}

/// What headers or trailers say of a call, if it failed.
fn failure(headers: &HeaderMap) -> Option<TalkError> {
    let status = tonic::Status::from_header_map(headers)?;
    let told = || TalkError::Failed(format!("{:?} {}", status.code(), status.message()));
    (status.code() != tonic::Code::Ok).then(told)
}

/// A body of what is sent to it.
struct Messages(mpsc::Receiver<Bytes>);

impl Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
