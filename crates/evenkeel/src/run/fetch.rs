//! Fetches documents that this program itself asks other servers for, over HTTP/1.1.
//!
//! The size of an answer is bounded, and redirects are not followed. Who is asked for what, and how
//! long that may take: `robots/directory.rs`, `engine_pages/page.rs`.

use bytes::Bytes;
use evenkeel_config::settings::{BackendProtocol, BackendTls};
use evenkeel_tls::{client, pem};
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Why a document could not be fetched.
#[derive(Debug, Error)]
pub enum FetchError {
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    #[error("{0}")]
    Tls(#[from] pem::TlsFileError),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Request(#[from] http::Error),
    #[error("status {0}; {1} answers with 200")]
    Status(StatusCode, &'static str),
    #[error("the answer is longer than {0} KiB or broke off")]
    Body(usize),
}

/// What to ask for.
pub struct Document<'a> {
    /// What it is, with its article, for messages.
    pub what: &'static str,
    pub host: &'a str,
    pub path: &'a str,
    /// The media type that it has.
    pub accept: &'static str,
    /// Maximum size, in bytes.
    pub bytes_max: usize,
}

impl Document<'_> {
    /// Fetches the document over a new connection.
    pub async fn fetch(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(HeaderMap, Bytes), FetchError> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The task ends with the sender; errors of the connection reach the request.
        tokio::spawn(async { _ = connection.await });
        let request = Request::get(self.path)
            .header(HOST, self.host)
            .header(ACCEPT, self.accept)
            .header(USER_AGENT, concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
            .body(Empty::<Bytes>::new())?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        if head.status != StatusCode::OK {
            return Err(FetchError::Status(head.status, self.what));
        }
        let body = Limited::new(body, self.bytes_max).collect().await;
        let body = body.map_err(|_| FetchError::Body(self.bytes_max >> 10))?;
        Ok((head.headers, body.to_bytes()))
    }
}

/// Encrypts a connection to the server `name`.
pub async fn encrypt(
    socket: TcpStream,
    tls: &BackendTls,
    name: &str,
) -> Result<TlsStream<TcpStream>, FetchError> {
    let server = client::name(&tls.client, name)?;
    let tls = BackendTls { protocol: BackendProtocol::Http1, ..tls.clone() };
    // Reading the authorities of the system takes a while.
    let config = tokio::task::spawn_blocking(move || client::backend(&tls));
    let config = config.await.map_err(std::io::Error::other)??;
    Ok(TlsConnector::from(config).connect(server, socket).await?)
}
