//! A small client of the admin door of a running server.
//!
//! Each request has its own connection, a time limit and a size limit; nothing is kept between
//! requests. `clients`, `doctor` and `top` decide what to ask for and how to show it.

use bytes::Bytes;
use evenkeel_telemetry::printable::printable;
use evenkeel_telemetry::snapshot::setup::SetupSnapshot;
use evenkeel_telemetry::snapshot::{ClientRow, LimitTable, TopQuery, TopSnapshot};
use http::StatusCode;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// The admin address of a server whose configuration names no other one.
pub const DEFAULT_ADMIN: &str = "127.0.0.1:9970";
/// The time limit of a request, from connecting to the end of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct AdminClient<'a> {
    /// The address of the door, as host:port.
    pub address: &'a str,
    /// The bearer token, which the door requires of clients that are not on loopback.
    pub token: Option<&'a str>,
}

#[derive(Debug, thiserror::Error)]
pub enum AdminClientError {
    #[error(
        "no server answers at {address}: {why}; check that the server runs and that its admin \
         door is open there (`--admin ADDR` names another address)"
    )]
    Unreachable { address: String, why: io::Error },
    #[error("{address} did not answer within {} seconds", REQUEST_TIMEOUT.as_secs())]
    Late { address: String },
    #[error("{address} responds with {status}: {text}")]
    Refused {
        address: String,
        status: StatusCode,
        /// The beginning of the body of the answer.
        text: String,
    },
    /// The answer is not HTTP, or not what an admin door answers.
    #[error("the server at {address} is not an admin door of evenkeel: {why}")]
    Stranger { address: String, why: String },
    #[error("cannot start: {0}")]
    Runtime(io::Error),
}

impl AdminClient<'_> {
    /// Fetches the busiest clients: the text of the answer, and its parsed form.
    pub async fn snapshot(
        &self,
        query: &TopQuery,
    ) -> Result<(String, TopSnapshot), AdminClientError> {
        let text = self.get(&format!("/api/top?{}", query.encoded())).await?;
        let snapshot = serde_json::from_str(&text).map_err(|why| self.stranger(why))?;
        Ok((text, snapshot))
    }

    /// The facts about the set-up of the server.
    pub async fn setup(&self) -> Result<SetupSnapshot, AdminClientError> {
        let text = self.get("/api/setup").await?;
        serde_json::from_str(&text).map_err(|why| self.stranger(why))
    }

    /// The last seconds of all doors, as columns.
    pub async fn history(&self, seconds: u64) -> Result<serde_json::Value, AdminClientError> {
        let text = self.get(&format!("/api/history?seconds={seconds}")).await?;
        serde_json::from_str(&text).map_err(|why| self.stranger(why))
    }

    /// The last hour of a client of the limit `table`, as columns.
    pub async fn client_history(
        &self,
        table: &LimitTable,
        row: &ClientRow,
    ) -> Result<serde_json::Value, AdminClientError> {
        let query = TopQuery { limit: Some(table.name.clone()), rows: 1 }.encoded();
        let (door, id) = (&table.door, &row.id);
        let text = self.get(&format!("/api/client?door={door}&id={id}&{query}")).await?;
        serde_json::from_str(&text).map_err(|why| self.stranger(why))
    }

    /// The configuration in force, as YAML.
    pub async fn config(&self) -> Result<String, AdminClientError> {
        self.get("/api/config").await
    }

    /// The page with the metrics, in Prometheus' format.
    pub async fn metrics(&self) -> Result<String, AdminClientError> {
        self.get("/metrics").await
    }

    /// The body of the answer to a GET of `path`.
    async fn get(&self, path: &str) -> Result<String, AdminClientError> {
        let late = |_| AdminClientError::Late { address: self.address.to_owned() };
        tokio::time::timeout(REQUEST_TIMEOUT, self.fetch(path)).await.map_err(late)?
    }

    async fn fetch(&self, path: &str) -> Result<String, AdminClientError> {
        let unreachable =
            |why| AdminClientError::Unreachable { address: self.address.to_owned(), why };
        let stream = TcpStream::connect(self.address).await.map_err(unreachable)?;
        // The address, not the name: the door refuses host names that it does not know.
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
        if status == StatusCode::NOT_FOUND {
            return Err(self.stranger(format_args!("it has no {path}")));
        }
        if status != StatusCode::OK {
            let text: String = text.trim().chars().take(200).collect();
            let (address, text) = (self.address.to_owned(), printable(&text).into_owned());
            return Err(AdminClientError::Refused { address, status, text });
        }
        Ok(text.into_owned())
    }

    fn stranger(&self, why: impl std::fmt::Display) -> AdminClientError {
        let why = printable(&why.to_string()).into_owned();
        AdminClientError::Stranger { address: self.address.to_owned(), why }
    }
}
