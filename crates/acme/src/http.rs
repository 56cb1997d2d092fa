//! Sends the requests to the authority, each on a connection of its own: there are a dozen for a
//! certificate.
//!
//! The certificate of the authority is verified as that of any other server. The size of an answer
//! is bounded; `order` bounds the time.

use bytes::Bytes;
use evenkeel_config::settings::tls::ClientTls;
use evenkeel_tls::client;
use http::header::{HOST, HeaderMap, RETRY_AFTER};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Uri};
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
/// The longest wait that an authority may ask for, in seconds. An order does not wait that long,
/// and the library cannot add a number of any size to the time.
const RETRY_AFTER_MAX: u64 = 86_400;

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
    // Only the directory of addresses is asked for in this way.
    let is_directory = request.method() == Method::GET;
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
    let (mut parts, body) = sender.send_request(request).await.map_err(other)?.into_parts();
    bound_retry_after(&mut parts.headers);
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(Error::Other)?;
    let body = body.to_bytes();
    if is_directory {
        check_directory(&body)?;
    }
    Ok(BytesResponse { parts, body: Box::new(body) })
}

/// Refuses a directory with something that is no address: the library would panic.
fn check_directory(body: &[u8]) -> Result<(), Error> {
    // Members such as `meta` are objects.
    let members: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(body)?;
    let mut addresses = members.values().filter_map(serde_json::Value::as_str);
    match addresses.all(|address| address.parse::<Uri>().is_ok()) {
        true => Ok(()),
        false => Err(Error::Str("its directory contains something that is not a URL")),
    }
}

/// Lowers a wait of more than [`RETRY_AFTER_MAX`].
fn bound_retry_after(headers: &mut HeaderMap) {
    let Some(wait) = headers.get_mut(RETRY_AFTER) else { return };
    let seconds = wait.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    if seconds.is_some_and(|seconds| seconds > RETRY_AFTER_MAX) {
        *wait = HeaderValue::from(RETRY_AFTER_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_of_any_length_is_bounded() {
        for (sent, kept) in [
            ("5", "5"),
            ("86401", "86400"),
            ("18446744073709551615", "86400"),
            (" 18446744073709551615 ", "86400"),
            ("99999999999999999999", "99999999999999999999"),
            ("Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            let value = HeaderValue::from_static(sent);
            let mut headers = HeaderMap::from_iter([(RETRY_AFTER, value)]);
            bound_retry_after(&mut headers);
            assert_eq!(headers[RETRY_AFTER], kept, "{sent}");
        }
    }

    #[test]
    fn a_directory_contains_only_addresses() {
        check_directory(b"{\"newNonce\": \"https://a.test/n\", \"meta\": {}}").expect("one");
        for broken in
            ["", "[]", "{\"newNonce\": \"file:///a\"}", "{\"newNonce\": \"\"}", "{\"a\":\"a b\"}"]
        {
            check_directory(broken.as_bytes()).expect_err(broken);
        }
    }
}
