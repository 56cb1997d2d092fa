//! Fetches the key directory of a robot over HTTPS (draft-ietf-webbotauth-httpsig).
//!
//! Only hosts that the operator has listed are asked, so no request of a stranger makes this
//! program connect anywhere. Time and size of an answer are bounded. When to fetch, and what
//! becomes of the keys: `schedule`.

use crate::run::fetch::{Document, FetchError, encrypt};
use evenkeel_config::settings::BackendTls;
use evenkeel_core::units::Nanos;
use evenkeel_identity::signature::{KEY_SET_BYTES_MAX, KeyFault, RobotKey};
use http::HeaderMap;
use http::header::CACHE_CONTROL;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpStream;

const PATH: &str = "/.well-known/http-message-signatures-directory";
const MEDIA_TYPE: &str = "application/http-message-signatures-directory+json";
/// Time for a fetch, from the lookup of the name to the end of the answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The shortest and the longest cache time, and the one of an answer that states none.
const FRESH_BOUNDS: (u64, u64) = (600, 86_400);
const FRESH_DEFAULT: u64 = 3_600;

/// Why a directory could not be fetched.
#[derive(Debug, Error)]
pub enum DirectoryError {
    #[error("not within 10 s")]
    Late,
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    #[error("{0}")]
    Fetch(#[from] FetchError),
    #[error("{0}")]
    Keys(#[from] KeyFault),
}

/// The keys of a directory, and how long they are fresh.
pub struct FetchedKeys {
    pub keys: Vec<RobotKey>,
    pub fresh: Nanos,
}

/// Fetches the directory of `host`, which may have a port.
pub async fn fetch(host: &str) -> Result<FetchedKeys, DirectoryError> {
    let fetched = tokio::time::timeout(FETCH_TIMEOUT, attempt(host));
    fetched.await.unwrap_or(Err(DirectoryError::Late))
}

async fn attempt(host: &str) -> Result<FetchedKeys, DirectoryError> {
    let (name, port) = host.split_once(':').unwrap_or((host, "443"));
    let socket = TcpStream::connect(format!("{name}:{port}")).await?;
    let stream = encrypt(socket, &BackendTls::default(), name).await?;
    let document = Document {
        what: "a directory",
        host,
        path: PATH,
        accept: MEDIA_TYPE,
        bytes_max: KEY_SET_BYTES_MAX,
    };
    let (headers, body) = document.fetch(stream).await?;
    Ok(FetchedKeys { keys: RobotKey::read_directory(&body)?, fresh: fresh(&headers) })
}

/// The cache time that an answer states, within bounds.
fn fresh(headers: &HeaderMap) -> Nanos {
    let lines = headers.get_all(CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
    let directives = lines.flat_map(|line| line.split(',')).map(str::trim);
    let mut fresh = FRESH_DEFAULT;
    for directive in directives {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        if name.eq_ignore_ascii_case("no-store") || name.eq_ignore_ascii_case("no-cache") {
            fresh = 0;
        } else if name.eq_ignore_ascii_case("max-age") {
            fresh = value.trim_matches('"').parse().unwrap_or(0);
        }
    }
    Nanos::from_secs(fresh.clamp(FRESH_BOUNDS.0, FRESH_BOUNDS.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn cache_times_are_within_bounds() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static(text));
            fresh(&headers).0 / 1_000_000_000
        };
        assert_eq!(fresh(&HeaderMap::new()), Nanos::from_secs(3_600));
        assert_eq!(of("public, max-age=7200"), 7_200);
        assert_eq!((of("max-age=1"), of("max-age=99999999"), of("no-store")), (600, 86_400, 600));
        assert_eq!((of("max-age=x"), of("private")), (600, 3_600));
    }
}
