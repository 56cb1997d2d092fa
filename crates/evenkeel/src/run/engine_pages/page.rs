//! Fetches the page of one backend over HTTP/1.1, with or without TLS, or over a Unix socket.
//!
//! The time and the size of an answer are bounded, and redirects are not followed. Unless a path is
//! configured, only addresses in private networks are asked: a provider on the internet must not
//! get a request per second for a page that it does not have. When pages are fetched:
//! `engine_pages.rs`.

use super::series;
use bytes::Bytes;
use evenkeel_config::settings::{BackendAddress, BackendProtocol, BackendScheme, BackendTls};
use evenkeel_engine::{EngineReport, WatchedPages};
use evenkeel_tls::{client, pem};
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// Time for a fetch, from the lookup of the name to the end of the page.
const FETCH_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of a page, in bytes.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// Why there is no report of a backend.
#[derive(Debug, Error)]
pub enum PageError {
    #[error("not within 1 s")]
    Late,
    #[error("it is not in a private network; to ask it anyway, set engine_metrics to a path")]
    Public,
    #[error("it speaks HTTP/2 only")]
    Http2,
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    #[error("{0}")]
    Tls(#[from] pem::TlsFileError),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Request(#[from] http::Error),
    #[error("status {0} instead of a page of metrics")]
    Status(StatusCode),
    #[error("the page is longer than 4 MiB or broke off")]
    Body,
    #[error("the page does not say how many requests run and wait")]
    Unknown,
}

/// Fetches the pages of the backends.
pub struct PageClient {
    path: String,
    is_private_only: bool,
    tls: BackendTls,
}

impl PageClient {
    pub fn new(watched: &WatchedPages) -> PageClient {
        let tls = BackendTls { protocol: BackendProtocol::Http1, ..watched.tls.clone() };
        PageClient { path: watched.path.clone(), is_private_only: watched.is_private_only, tls }
    }

    /// Fetches and reads the page of a backend.
    pub async fn fetch(&self, at: &BackendAddress) -> Result<EngineReport, PageError> {
        let fetched = tokio::time::timeout(FETCH_TIMEOUT, self.attempt(at));
        fetched.await.unwrap_or(Err(PageError::Late))
    }

    async fn attempt(&self, at: &BackendAddress) -> Result<EngineReport, PageError> {
        let page = match at.scheme {
            BackendScheme::H2c | BackendScheme::UnixH2c => return Err(PageError::Http2),
            BackendScheme::Unix => self.read(at, UnixStream::connect(&at.place).await?).await?,
            BackendScheme::Http => self.read(at, self.connect(at).await?).await?,
            BackendScheme::Https => {
                let socket = self.connect(at).await?;
                let tls = self.tls.clone();
                // Reading the authorities of the system takes a while.
                let config = tokio::task::spawn_blocking(move || client::backend(&tls));
                let config = config.await.map_err(std::io::Error::other)??;
                let server = client::name(&self.tls.client, at.host())?;
                self.read(at, TlsConnector::from(config).connect(server, socket).await?).await?
            }
        };
        series::report(&page).ok_or(PageError::Unknown)
    }

    async fn connect(&self, at: &BackendAddress) -> Result<TcpStream, PageError> {
        let found = tokio::net::lookup_host(&at.place).await?;
        let may = |ip: IpAddr| !self.is_private_only || is_private(ip);
        let addresses: Vec<_> = found.filter(|address| may(address.ip())).collect();
        if addresses.is_empty() {
            return Err(PageError::Public);
        }
        Ok(TcpStream::connect(&addresses[..]).await?)
    }

    async fn read(
        &self,
        at: &BackendAddress,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Bytes, PageError> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The task ends with the sender; errors of the connection reach the request.
        tokio::spawn(async { _ = connection.await });
        let request = Request::get(&self.path)
            .header(HOST, at.host_header())
            .header(ACCEPT, "text/plain")
            .header(USER_AGENT, concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
            .body(Empty::<Bytes>::new())?;
        let answer = sender.send_request(request).await?;
        if answer.status() != StatusCode::OK {
            return Err(PageError::Status(answer.status()));
        }
        let body = Limited::new(answer.into_body(), PAGE_BYTES_MAX).collect().await;
        Ok(body.map_err(|_| PageError::Body)?.to_bytes())
    }
}

/// Whether an address is on this machine or in a private network: RFC 1918, RFC 6598 (shared by
/// carriers and overlay networks), RFC 4193, and link-local addresses.
fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            let is_shared = first == 100 && second & 0xc0 == 64;
            ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_shared
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_private_networks_are_told_from_public_ones() {
        let is = |text: &str| is_private(text.parse().expect("an address"));
        let private = [
            "127.0.0.1",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.1.1",
            "169.254.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "::1",
            "fd00::1",
            "fe80::1",
            "::ffff:10.0.0.1",
        ];
        let public = ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1", "::ffff:1.1.1.1"];
        assert!(private.into_iter().all(is));
        assert!(!public.into_iter().any(is));
    }
}
