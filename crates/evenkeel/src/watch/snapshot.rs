//! The busiest clients of a running server as they go over the wire: what `/api/top` answers, how
//! it is asked, and what `doctor` reads.
//!
//! Both ends use these types, so they cannot drift apart. Where the figures come from: the admin
//! door.

pub mod zeromq;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

/// What a query's value is encoded in: all but the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Rows of one limit, if the question does not say.
pub const ROWS_DEFAULT: usize = 50;
/// The most rows of one limit.
pub const ROWS_MAX: usize = 1_000;
/// What levels in CPU-seconds are called,
pub const UNIT_CPU: &str = "cpu";
/// and those in requests or whatever is counted.
pub const UNIT_HITS: &str = "hits";

/// One look at a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When it was taken, in seconds since the Unix epoch.
    pub now: f64,
    /// What each door's backend does.
    pub load: Vec<Load>,
    /// The names of all limits, also of those not asked for.
    pub known: Vec<String>,
    /// The limits asked for.
    pub limits: Vec<Table>,
    /// The instances that count together; `null` where this one counts alone.
    #[serde(default)]
    pub peers: Option<Peers>,
    /// Where one count for all is kept; `null` where it is not.
    #[serde(default)]
    pub store: Option<Store>,
    /// Who has come to this master; `null` where this is none.
    #[serde(default)]
    pub master: Option<zeromq::Master>,
    /// How the gatekeepers that there are here reach their masters.
    #[serde(default)]
    pub gatekeepers: Vec<zeromq::Gatekeeper>,
}

/// How the store stands, in short; more of it: `/api/store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Connections that are good.
    pub good: usize,
    /// Connections that are not.
    pub failed: usize,
    /// Counters that it has to be told of.
    pub owed: i64,
}

/// For people: `store: 3 of 3 connections good, 0 counters to be told`.
impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Store { good, failed, owed } = self;
        let all = good + failed;
        write!(f, "store: {good} of {all} connections good, {owed} counters to be told")
    }
}

/// The instances that count together, in short; more of them: `/api/peers`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peers {
    /// How many live, this one included.
    pub live: usize,
    /// How many are known.
    pub known: usize,
    /// For how many seconds the slowest has not acknowledged a report.
    pub behind: f64,
}

/// For people: `peers: 2 of 3 live, 0.2 s behind`.
impl std::fmt::Display for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "peers: {} of {} live, {:.1} s behind", self.live, self.known, self.behind)
    }
}

/// What the backend of one door does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The door.
    pub door: String,
    /// Requests that the backend works on.
    pub working: u32,
    /// CPU-seconds per second that are shared out.
    pub cpus: f64,
    /// CPU-seconds that it has worked since the start.
    pub busy_seconds: f64,
    /// Who waits for room there; `null` where nobody has to.
    pub crowd: Option<Crowd>,
}

/// Who waits for room at a backend, and who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crowd {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that it works on for the queue.
    pub running: usize,
    /// How many it is given at once.
    pub concurrency: usize,
}

/// The busiest clients of one limit, the heaviest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The limit's door.
    pub door: String,
    /// The limit's name.
    pub name: String,
    /// What its levels are in: [`UNIT_CPU`] (seconds) or [`UNIT_HITS`].
    pub unit: String,
    /// What happens to who is over it: `queue`, `hold`, `delay` or `reject`.
    pub action: String,
    /// Whether that is only decided and counted, and nothing is enforced.
    #[serde(default)]
    pub shadow: bool,
    /// Its decisions since the start that shadow kept from being carried out.
    #[serde(default)]
    pub would: u64,
    /// Its clients.
    pub rows: Vec<Row>,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub key: String,
    /// What orders name it by: its key's hash, as 16 hexadecimal digits.
    #[serde(default)]
    pub id: String,
    /// What is left to it, in the limit's unit; below zero it is debt. `null`: not known.
    pub level: Option<f64>,
    /// Seconds until it is within the limit again.
    pub wait: f64,
    /// CPU-seconds (or hits, by the limit's unit) per second, of late.
    pub cpu_per_second: f64,
    /// Requests per second, of late.
    pub requests_per_second: f64,
    /// Seconds that its requests waited, on average, of late.
    pub wait_average: f64,
    /// Seconds since it was last seen.
    pub last_seen: f64,
    /// CPU-seconds or hits since it is listed.
    pub cpu_total: f64,
}

/// What is asked of `/api/top`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Only this limit.
    pub limit: Option<String>,
    /// At most so many rows of each limit, from 1 to [`ROWS_MAX`].
    pub rows: usize,
}

/// What is wrong with a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryFault {
    /// `n` is not a number from 1 to [`ROWS_MAX`].
    #[error("n must be a whole number from 1 to 1000")]
    Rows,
    /// A percent sign that does not begin an encoded byte, or bytes that are not UTF-8.
    #[error("the query is not properly percent-encoded UTF-8")]
    Encoding,
}

impl Query {
    /// Reads `limit=NAME&n=N`; both may be absent, other parameters are ignored.
    ///
    /// # Errors
    /// The first [`QueryFault`].
    pub fn parse(text: &str) -> Result<Query, QueryFault> {
        let mut query = Query { limit: None, rows: ROWS_DEFAULT };
        for (name, value) in pairs(text)? {
            match name {
                "limit" => query.limit = Some(value),
                "n" => query.rows = rows(&value)?,
                _ => {}
            }
        }
        Ok(query)
    }

    /// The same in its text form.
    #[must_use]
    pub fn encoded(&self) -> String {
        let mut text = format!("n={}", self.rows);
        if let Some(limit) = &self.limit {
            text.push_str("&limit=");
            text.extend(utf8_percent_encode(limit, ENCODED));
        }
        text
    }
}

/// The names and decoded values of a query.
///
/// # Errors
/// A value is not properly encoded.
pub fn pairs(text: &str) -> Result<Vec<(&str, String)>, QueryFault> {
    let pairs = text.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(name, value)| Ok((name, decoded(value)?))).collect()
}

fn rows(value: &str) -> Result<usize, QueryFault> {
    let rows = value.parse().map_err(|_| QueryFault::Rows)?;
    if (1..=ROWS_MAX).contains(&rows) { Ok(rows) } else { Err(QueryFault::Rows) }
}

/// Undoes percent-encoding; a plus is a space, as forms send it.
fn decoded(value: &str) -> Result<String, QueryFault> {
    let hex = |code: &[u8]| code.iter().all(u8::is_ascii_hexdigit);
    let mut codes = value.split('%').skip(1).map(|after| after.as_bytes().get(..2));
    if !codes.all(|code| code.is_some_and(hex)) {
        return Err(QueryFault::Encoding);
    }
    let plain = value.replace('+', " ");
    let text = percent_decode_str(&plain).decode_utf8().map_err(|_| QueryFault::Encoding)?;
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read() {
        let query = |limit: Option<&str>, rows| Query { limit: limit.map(String::from), rows };
        for (text, expected) in [
            ("", Ok(query(None, ROWS_DEFAULT))),
            ("n=3", Ok(query(None, 3))),
            ("limit=ip", Ok(query(Some("ip"), ROWS_DEFAULT))),
            ("limit=&n=1000&x", Ok(query(Some(""), 1_000))),
            ("limit=a%20b%C3%A4+c", Ok(query(Some("a bä c"), ROWS_DEFAULT))),
            ("n=0", Err(QueryFault::Rows)),
            ("n=1001", Err(QueryFault::Rows)),
            ("n=-1", Err(QueryFault::Rows)),
            ("n", Err(QueryFault::Rows)),
            ("limit=%", Err(QueryFault::Encoding)),
            ("limit=%+1", Err(QueryFault::Encoding)),
            ("limit=%4%31", Err(QueryFault::Encoding)),
            ("limit=a%2", Err(QueryFault::Encoding)),
            ("limit=%2B%25", Ok(query(Some("+%"), ROWS_DEFAULT))),
            ("limit=%ff", Err(QueryFault::Encoding)),
        ] {
            assert_eq!(Query::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn fuzz_any_query_is_read_or_refused_and_what_is_written_is_read_back() {
        bolero::check!().with_type::<String>().for_each(|text| {
            if let Ok(query) = Query::parse(text) {
                assert_eq!(Query::parse(&query.encoded()), Ok(query));
            }
            let query = Query { limit: Some(text.clone()), rows: 7 };
            assert_eq!(Query::parse(&query.encoded()), Ok(query));
        });
    }
}
