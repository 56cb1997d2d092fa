//! A running server, looked at from outside: a small client of its admin door.
//!
//! One question, one connection, one answer, all within bounds of time and size; nothing is kept.
//! What is asked for and how it is shown: `doctor`, `top`.

use crate::watch::printable::printable;
use crate::watch::snapshot::{Query, Snapshot};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// For a whole question and its answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// More than this is no answer.
const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The admin door of a server.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'a> {
    /// Where it is, as host:port.
    pub address: &'a str,
    /// Shown to the door as a bearer's. It needs one from beyond loopback.
    pub token: Option<&'a str>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens there.
    #[error(
        "nothing answers at {address}: {why}; is the server running with its admin door open \
         there? (`--admin ADDR` names another address)"
    )]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// What the system says.
        why: io::Error,
    },
    /// It did not answer in time.
    #[error("{address} did not answer within {} seconds", TIMEOUT.as_secs())]
    Late {
        /// Where it was looked for.
        address: String,
    },
    /// It answered, but not with what was asked for.
    #[error("{address} answers {status}: {text}")]
    Refused {
        /// Where it was looked for.
        address: String,
        /// The status of its answer.
        status: StatusCode,
        /// What it said, in short.
        text: String,
    },
    /// What it answered makes no sense.
    #[error("what answers at {address} is not an admin door of evenkeel: {why}")]
    Stranger {
        /// Where it was looked for.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// No runtime was to be had.
    #[error("cannot start: {0}")]
    Runtime(io::Error),
}

impl Remote<'_> {
    /// The busiest clients, as text and read.
    ///
    /// # Errors
    /// [`Error`] when there is no snapshot to be had.
    pub async fn snapshot(&self, query: &Query) -> Result<(String, Snapshot), Error> {
        let text = self.get(&format!("/api/top?{}", query.encoded())).await?;
        let snapshot = serde_json::from_str(&text).map_err(|why| self.stranger(why))?;
        Ok((text, snapshot))
    }

    /// The body of the answer to a GET of `path`.
    ///
    /// # Errors
    /// [`Error`] when there is none, or it is no success.
    pub async fn get(&self, path: &str) -> Result<String, Error> {
        let late = |_| Error::Late { address: self.address.to_owned() };
        tokio::time::timeout(TIMEOUT, self.fetch(path)).await.map_err(late)?
    }

    async fn fetch(&self, path: &str) -> Result<String, Error> {
        let unreachable = |why| Error::Unreachable { address: self.address.to_owned(), why };
        let stream = TcpStream::connect(self.address).await.map_err(unreachable)?;
        // By address: the door refuses hosts by names that it does not know.
        let host = stream.peer_addr().map_err(unreachable)?.to_string();
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|why| self.stranger(why))?;
        let connection = tokio::spawn(connection);
        let mut request = hyper::Request::get(path).header(hyper::header::HOST, host);
        if let Some(token) = self.token {
            request = request.header(hyper::header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|why| self.stranger(why))?;
        let answer = sender.send_request(request).await.map_err(|why| self.stranger(why))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|why| self.stranger(why))?.to_bytes();
        connection.abort();
        let text = String::from_utf8_lossy(&body);
        if status != StatusCode::OK {
            let text: String = text.trim().chars().take(200).collect();
            let (address, text) = (self.address.to_owned(), printable(&text).into_owned());
            return Err(Error::Refused { address, status, text });
        }
        Ok(text.into_owned())
    }

    fn stranger(&self, why: impl std::fmt::Display) -> Error {
        let why = printable(&why.to_string()).into_owned();
        Error::Stranger { address: self.address.to_owned(), why }
    }
}
