//! Fetches the page of one backend over HTTP/1.1, with or without TLS, or over a Unix socket.
//!
//! The time and the size of an answer are bounded, and redirects are not followed. Unless a path is
//! configured, only addresses in private networks are asked: a provider on the internet must not
//! get a request per second for a page that it does not have. When pages are fetched:
//! `engine_pages.rs`.

use super::series;
use crate::run::fetch::{Document, FetchError, encrypt};
use evenkeel_config::settings::{BackendAddress, BackendScheme};
use evenkeel_engine::{EngineReport, WatchedPages};
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpStream, UnixStream};

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
    Fetch(#[from] FetchError),
    #[error("the page does not say how many requests run and wait")]
    Unknown,
}

/// Fetches and reads the page of a backend.
pub async fn fetch(at: &BackendAddress, watched: &WatchedPages) -> Result<EngineReport, PageError> {
    let fetched = tokio::time::timeout(FETCH_TIMEOUT, attempt(at, watched));
    fetched.await.unwrap_or(Err(PageError::Late))
}

async fn attempt(at: &BackendAddress, watched: &WatchedPages) -> Result<EngineReport, PageError> {
    let page = Document {
        what: "a page of metrics",
        host: at.host_header(),
        path: &watched.path,
        accept: "text/plain",
        bytes_max: PAGE_BYTES_MAX,
    };
    let (_, page) = match at.scheme {
        BackendScheme::H2c | BackendScheme::UnixH2c => return Err(PageError::Http2),
        BackendScheme::Unix => page.fetch(UnixStream::connect(&at.place).await?).await?,
        BackendScheme::Http => page.fetch(connect(at, watched).await?).await?,
        BackendScheme::Https => {
            let socket = connect(at, watched).await?;
            page.fetch(encrypt(socket, &watched.tls, at.host()).await?).await?
        }
    };
    series::report(&page).ok_or(PageError::Unknown)
}

async fn connect(at: &BackendAddress, watched: &WatchedPages) -> Result<TcpStream, PageError> {
    let found = tokio::net::lookup_host(&at.place).await?;
    let may = |ip: IpAddr| !watched.is_private_only || is_private(ip);
    let addresses: Vec<_> = found.filter(|address| may(address.ip())).collect();
    if addresses.is_empty() {
        return Err(PageError::Public);
    }
    Ok(TcpStream::connect(&addresses[..]).await?)
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
