//! `tollgate doctor`: one snapshot of the busiest clients of a running server, as text.
//!
//! A small client of the admin door, for `watch -n 1` and scripts. Names come from strangers;
//! nothing they hold reaches the terminal but what can be seen.

use super::printable::printable;
use super::snapshot::{Query, ROWS_DEFAULT, ROWS_MAX, Row, Snapshot, Table};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use std::fmt::Write;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// For the whole question and its answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// More than this is no snapshot.
const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Why there is no snapshot.
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
    /// It answered, but not with a snapshot.
    #[error("{address} answers {status}: {text}")]
    Refused {
        /// Where it was looked for.
        address: String,
        /// The status of its answer.
        status: StatusCode,
        /// What it said, in short.
        text: String,
    },
    /// What it answered is no snapshot.
    #[error("what answers at {address} is not an admin door of tollgate: {why}")]
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

/// What is asked, and of whom.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The admin door, as host:port.
    pub admin: &'a str,
    /// Shown to the door as a bearer's. It needs one from beyond loopback.
    pub token: Option<&'a str>,
    /// Only this limit.
    pub limit: Option<&'a str>,
    /// In which form.
    pub form: Form,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A table of each limit.
    Tables,
    /// The same with the columns of Tempomat's doctor and no others, for its scripts.
    Buckets,
    /// The JSON as it comes.
    Json,
}

/// What is to be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// A table of each limit, or the JSON. The table of a limit that is not there is empty.
    pub text: String,
    /// Names the limits that there are, if there is none as was asked for.
    pub unknown: Option<String>,
}

/// Asks the admin door.
///
/// # Errors
/// [`Error`] when there is no snapshot to be had.
pub fn doctor(question: &Question<'_>) -> Result<Report, Error> {
    let Question { admin, token, limit, form } = *question;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::Runtime)?;
    // Tempomat's showed all there were: as many as `hashMaxLen`, a thousand.
    let rows = if form == Form::Buckets { ROWS_MAX } else { ROWS_DEFAULT };
    let query = Query { limit: limit.map(String::from), rows };
    let asked = async { tokio::time::timeout(TIMEOUT, fetch(admin, token, &query)).await };
    let late = |_| Error::Late { address: admin.to_owned() };
    let text = runtime.block_on(asked).map_err(late)??;
    let snapshot: Snapshot = serde_json::from_str(&text).map_err(|why| stranger(admin, why))?;
    let missing = limit.filter(|limit| !snapshot.known.iter().any(|name| name == limit));
    let unknown = missing.map(|limit| unknown(limit, &snapshot.known));
    let text = match form {
        Form::Json => format!("{}\n", printable(text.trim_end())),
        Form::Tables => table(&snapshot, limit, true),
        Form::Buckets => table(&snapshot, limit, false),
    };
    Ok(Report { text, unknown })
}

/// What is said when no limit is called `limit`.
fn unknown(limit: &str, known: &[String]) -> String {
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    format!("no limit is called {}; there are: {}", printable(limit), printable(&known))
}

async fn fetch(admin: &str, token: Option<&str>, query: &Query) -> Result<String, Error> {
    let unreachable = |why| Error::Unreachable { address: admin.to_owned(), why };
    let stream = TcpStream::connect(admin).await.map_err(unreachable)?;
    // By address: the door refuses hosts by names that it does not know.
    let host = stream.peer_addr().map_err(unreachable)?.to_string();
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|why| stranger(admin, why))?;
    let connection = tokio::spawn(connection);
    let mut request = hyper::Request::get(format!("/api/top?{}", query.encoded()));
    request = request.header(hyper::header::HOST, host);
    if let Some(token) = token {
        request = request.header(hyper::header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|why| stranger(admin, why))?;
    let answer = sender.send_request(request).await.map_err(|why| stranger(admin, why))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|why| stranger(admin, why))?.to_bytes();
    connection.abort();
    let text = String::from_utf8_lossy(&body);
    if status != StatusCode::OK {
        let text: String = text.trim().chars().take(200).collect();
        let (address, text) = (admin.to_owned(), printable(&text).into_owned());
        return Err(Error::Refused { address, status, text });
    }
    Ok(text.into_owned())
}

fn stranger(admin: &str, why: impl std::fmt::Display) -> Error {
    let why = printable(&why.to_string()).into_owned();
    Error::Stranger { address: admin.to_owned(), why }
}

/// The tables of a snapshot, with or without how clients stand. A limit that was asked for has one
/// even if it is not there.
fn table(snapshot: &Snapshot, limit: Option<&str>, levels: bool) -> String {
    let mut text = String::new();
    for limit in &snapshot.limits {
        push_limit(&mut text, &limit.name, &sorted(limit), levels);
    }
    if let (Some(name), true) = (limit, snapshot.limits.is_empty()) {
        push_limit(&mut text, name, &[], levels);
    }
    text
}

/// The heaviest first; of equals the one seen last.
fn sorted(limit: &Table) -> Vec<&Row> {
    let mut rows: Vec<&Row> = limit.rows.iter().collect();
    rows.sort_by(|a, b| {
        let heavier = b.cpu_per_second.total_cmp(&a.cpu_per_second);
        heavier.then(a.last_seen.total_cmp(&b.last_seen))
    });
    rows
}

fn push_limit(text: &mut String, name: &str, rows: &[&Row], levels: bool) {
    if !text.is_empty() {
        text.push('\n');
    }
    let (kind, head) = if levels { ("Limit", "      Level") } else { ("Bucket", "") };
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(text, "{kind}: {}", printable(name));
    let _ = writeln!(
        text,
        "{:>9} {:>9} {:>9} {:>8}{head}  Title",
        "Wait[s]", "Cpu[s]", "Req/s", "Last[s]"
    );
    for row in rows {
        let _ = write!(
            text,
            "{:>9.2} {:>9.2} {:>9.2} {:>8.0}",
            row.wait_average, row.cpu_per_second, row.requests_per_second, row.last_seen
        );
        if levels {
            let level = row.level.map_or_else(|| "-".to_owned(), |level| format!("{level:.2}"));
            let _ = write!(text, " {level:>10}");
        }
        let _ = writeln!(text, "  {}", printable(&row.key));
    }
}

#[cfg(test)]
mod tests;
