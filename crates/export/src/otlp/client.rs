//! Delivers a message to a collector: protobuf over HTTP/1.1, or gRPC over HTTP/2.
//!
//! One connection is kept, and replaced when it breaks. The result says whether the collector
//! accepted the message and, if not, whether a retry makes sense. The caller decides about retries
//! and fills the message (`spans`, `metrics_export`).

use bytes::{BufMut, Bytes, BytesMut};
use evenkeel_config::settings::otlp::{CollectorSettings, OtlpProtocol};
use evenkeel_tls::{client, pem};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::io::Write;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The maximum size of a collector's error message that is logged, in bytes.
const COMPLAINT_BYTES_MAX: usize = 200;
/// The gRPC status codes after which a retry makes sense: cancelled, deadline exceeded, resource
/// exhausted, aborted, out of range, unavailable, data loss.
const RETRYABLE_GRPC_CODES: [i32; 7] = [1, 4, 8, 10, 11, 14, 15];

/// Why a message was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum OtlpDeliveryError {
    /// The connection to the collector cannot be made.
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    /// A file for TLS is faulty, or the name of the host is.
    #[error("TLS: {0}")]
    Tls(#[from] pem::TlsFileError),
    /// The connection broke during the handshake or the request.
    #[error("the connection failed: {0}")]
    Broken(#[from] hyper::Error),
    /// The answer broke off, or is longer than allowed.
    #[error("its response cannot be read: {0}")]
    Answer(Box<dyn std::error::Error + Send + Sync>),
    /// No answer arrived within the timeout.
    #[error("no response in time")]
    Late,
    /// The request cannot be built from the endpoint and the headers.
    #[error("the endpoint or a header is invalid: {0}")]
    Request(#[from] http::Error),
    /// The collector refused the message.
    #[error("it responds with {what}")]
    Refused {
        /// The status, and the message of the collector if there is one.
        what: String,
        /// Whether a retry makes sense.
        transient: bool,
    },
}

impl OtlpDeliveryError {
    /// Whether a retry of the same message makes sense.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            OtlpDeliveryError::Refused { transient, .. } => *transient,
            OtlpDeliveryError::Request(_) => false,
            _ => true,
        }
    }
}

/// The endpoint of a collector for one kind of message.
#[derive(Clone, Copy, Debug)]
pub struct OtlpService {
    /// The path over HTTP, if the configured endpoint has no path.
    pub path: &'static str,
    /// The method over gRPC.
    pub method: &'static str,
}

/// The endpoint for traces.
pub const TRACES_SERVICE: OtlpService = OtlpService {
    path: "/v1/traces",
    method: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
};

/// The endpoint for metrics.
pub const METRICS_SERVICE: OtlpService = OtlpService {
    path: "/v1/metrics",
    method: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
};

/// A collector, and the connection to it.
#[derive(Debug)]
pub struct OtlpClient {
    to: CollectorSettings,
    call: OtlpService,
    sender: Option<OtlpConnection>,
}

#[derive(Debug)]
enum OtlpConnection {
    Http(http1::SendRequest<Full<Bytes>>),
    Grpc(http2::SendRequest<Full<Bytes>>),
}

/// The byte stream below a connection: TCP, or TLS over TCP.
trait CollectorStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> CollectorStream for S {}

impl OtlpClient {
    /// Makes a client that is not connected yet.
    #[must_use]
    pub fn new(to: CollectorSettings, call: OtlpService) -> OtlpClient {
        OtlpClient { to, call, sender: None }
    }

    /// Delivers a message, and returns the message in the answer.
    ///
    /// # Errors
    /// Returns [`OtlpDeliveryError`]. If no answer arrived, the collector may have accepted the
    /// message.
    pub async fn deliver(&mut self, message: &impl Message) -> Result<Bytes, OtlpDeliveryError> {
        let bytes = self.body(message);
        let attempt = tokio::time::timeout(self.to.timeout, self.attempt(bytes));
        let outcome = attempt.await.unwrap_or(Err(OtlpDeliveryError::Late));
        let broken =
            |error: &OtlpDeliveryError| !matches!(error, OtlpDeliveryError::Refused { .. });
        if outcome.as_ref().is_err_and(broken) {
            self.sender = None;
        }
        outcome
    }

    fn body(&self, message: &impl Message) -> Bytes {
        let mut bytes = message.encode_to_vec();
        if self.to.gzip {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            // Writing to a Vec cannot fail.
            let _ = packed.write_all(&bytes);
            bytes = packed.finish().unwrap_or_default();
        }
        if self.to.protocol == OtlpProtocol::Http {
            return bytes.into();
        }
        let mut framed = BytesMut::with_capacity(5 + bytes.len());
        framed.put_u8(u8::from(self.to.gzip));
        framed.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        framed.put_slice(&bytes);
        framed.freeze()
    }

    async fn attempt(&mut self, body: Bytes) -> Result<Bytes, OtlpDeliveryError> {
        let request = self.request(body)?;
        let sender = match self.sender.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => connect(&self.to).await?,
        };
        match self.sender.insert(sender) {
            OtlpConnection::Http(sender) => {
                sender.ready().await?;
                answer(sender.send_request(request).await?).await
            }
            OtlpConnection::Grpc(sender) => {
                sender.ready().await?;
                grpc_answer(sender.send_request(request).await?).await
            }
        }
    }

    fn request(&self, body: Bytes) -> http::Result<Request<Full<Bytes>>> {
        let endpoint = &self.to.endpoint;
        let mut request = match self.to.protocol {
            OtlpProtocol::Http => {
                let own = Some(&*endpoint.path).filter(|path| !path.is_empty());
                Request::post(own.unwrap_or(self.call.path))
                    .header("host", &endpoint.authority)
                    .header("content-type", "application/x-protobuf")
            }
            OtlpProtocol::Grpc => {
                let scheme = if endpoint.tls { "https" } else { "http" };
                let authority = &endpoint.authority;
                Request::post(format!("{scheme}://{authority}{}", self.call.method))
                    .header("content-type", "application/grpc")
                    .header("te", "trailers")
            }
        };
        if self.to.gzip {
            let http = self.to.protocol == OtlpProtocol::Http;
            let name = if http { "content-encoding" } else { "grpc-encoding" };
            request = request.header(name, "gzip");
        }
        for (name, value) in &self.to.headers {
            request = request.header(name, value);
        }
        let program = concat!("evenkeel/", env!("CARGO_PKG_VERSION"));
        request.header("user-agent", program).body(Full::new(body))
    }
}

impl OtlpConnection {
    fn is_closed(&self) -> bool {
        match self {
            OtlpConnection::Http(sender) => sender.is_closed(),
            OtlpConnection::Grpc(sender) => sender.is_closed(),
        }
    }
}

async fn connect(to: &CollectorSettings) -> Result<OtlpConnection, OtlpDeliveryError> {
    let socket = TcpStream::connect(&to.endpoint.authority).await?;
    let grpc = to.protocol == OtlpProtocol::Grpc;
    let socket: Box<dyn CollectorStream> = match to.endpoint.tls {
        false => Box::new(socket),
        true => {
            let protocol: &[u8] = if grpc { b"h2" } else { b"http/1.1" };
            let name = client::name(&to.tls, to.endpoint.host())?;
            let connector = TlsConnector::from(client::config(&to.tls, &[protocol])?);
            Box::new(connector.connect(name, socket).await?)
        }
    };
    // The task of a connection ends with its sender; errors of the connection reach the request.
    if grpc {
        let io = TokioIo::new(socket);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        tokio::spawn(async { _ = connection.await });
        Ok(OtlpConnection::Grpc(sender))
    } else {
        let (sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        tokio::spawn(async { _ = connection.await });
        Ok(OtlpConnection::Http(sender))
    }
}

async fn answer(response: http::Response<Incoming>) -> Result<Bytes, OtlpDeliveryError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(OtlpDeliveryError::Answer)?.to_bytes();
    if status.is_success() {
        return Ok(body);
    }
    let transient = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    Err(OtlpDeliveryError::Refused { what: status.to_string(), transient })
}

async fn grpc_answer(response: http::Response<Incoming>) -> Result<Bytes, OtlpDeliveryError> {
    let status = response.status();
    if status != StatusCode::OK {
        let transient = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        return Err(OtlpDeliveryError::Refused { what: status.to_string(), transient });
    }
    refused(response.headers()).map_or(Ok(()), Err)?;
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(OtlpDeliveryError::Answer)?;
    body.trailers().and_then(refused).map_or(Ok(()), Err)?;
    let bytes = body.to_bytes();
    // The request did not ask for a compressed answer, so one is ignored.
    Ok(if bytes.first() == Some(&0) && bytes.len() > 5 { bytes.slice(5..) } else { Bytes::new() })
}

fn refused(headers: &HeaderMap) -> Option<OtlpDeliveryError> {
    let status = tonic::Status::from_header_map(headers)?;
    if status.code() == tonic::Code::Ok {
        return None;
    }
    let mut complaint = status.message().to_owned();
    complaint.truncate(complaint.floor_char_boundary(COMPLAINT_BYTES_MAX));
    let what = format!("{:?} {complaint}", status.code());
    Some(OtlpDeliveryError::Refused {
        what,
        transient: RETRYABLE_GRPC_CODES.contains(&(status.code() as i32)),
    })
}
