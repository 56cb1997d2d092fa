//! Sends the requests to the authority, each on a connection of its own: there are a dozen for a
//! certificate.
//!
//! The certificate of the authority is verified as that of any other server. The size of an answer
//! is bounded; `order` bounds the time.

use bytes::Bytes;
use evenkeel_config::settings::tls::ClientTls;
use evenkeel_tls::client;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use std::path::PathBuf;
use std::pin::Pin;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const HTTPS_PORT: u16 = 443;

/// Connects to authorities.
pub struct AuthorityClient {
    /// The authorities that may have signed the certificate of the server; those of the system if
    /// there are none.
    pub ca: Option<PathBuf>,
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let tls = ClientTls { ca: self.ca.clone(), ..ClientTls::default() };
        Box::pin(send(request, tls))
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Other(Box::new(error))
}

async fn send(
    mut request: Request<BodyWrapper<Bytes>>,
    tls: ClientTls,
) -> Result<BytesResponse, Error> {
    let authority = request.uri().authority().cloned();
    let authority = authority.ok_or(Error::Str("the host of the authority"))?;
    let host = authority.host().to_owned();
    let port = authority.port_u16().unwrap_or(HTTPS_PORT);
    let name = client::name(&tls, &host).map_err(other)?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let socket = TcpStream::connect((bare, port)).await.map_err(|why| {
        other(std::io::Error::new(why.kind(), format!("cannot connect to {authority}: {why}")))
    })?;
    // Reading the authorities of the system takes a while.
    let config = tokio::task::spawn_blocking(move || client::config(&tls, &[b"http/1.1"]));
    let config = config.await.map_err(other)?.map_err(other)?;
    let stream = TlsConnector::from(config).connect(name, socket).await.map_err(other)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(other)?;
    // The task ends with the sender; errors of the connection reach the request.
    tokio::spawn(async { _ = connection.await });
    let value = HeaderValue::from_str(authority.as_str()).map_err(other)?;
    request.headers_mut().insert(HOST, value);
    let slash = PathAndQuery::from_static("/");
    *request.uri_mut() = Uri::from(request.uri().path_and_query().cloned().unwrap_or(slash));
    let (parts, body) = sender.send_request(request).await.map_err(other)?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(Error::Other)?;
    Ok(BytesResponse { parts, body: Box::new(body.to_bytes()) })
}
