//! A snapshot of the busiest clients of a running server: the answer of `/api/top`, its query, and
//! the part that `doctor` reads.
//!
//! The server and the commands `top` and `doctor` use the same types, so the two sides cannot drift
//! apart. The admin door fills in the values.

mod clients;
mod length;
mod queue;
mod refused;
mod robots;
pub mod setup;
mod swarm;
mod units;
pub mod zeromq;

pub use clients::{ClientAbout, ClientTimesLoad, TierTimesRow};
pub use queue::{ApartPeer, QueueInstanceRow, SharedQueueLoad};
pub use refused::RefusedConfig;
pub use robots::RobotSnapshot;
pub use swarm::{BurningGroupRow, SwarmLoad};
pub use units::{LoadUnit, ShownUnit, UNIT_CPU, UNIT_HITS, UNIT_MONEY, UNIT_TOKENS};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use units::TOKENS;

/// What a query's value is encoded in: all but the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Rows of one limit, if the question does not say.
pub const ROWS_DEFAULT: usize = 50;
/// The maximum number of rows of one limit.
pub const ROWS_MAX: usize = 1_000;

/// The status of a server at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopSnapshot {
    /// The time of the snapshot, in seconds since the Unix epoch.
    pub now: f64,
    /// The load of the backend of each door.
    pub load: Vec<LoadSnapshot>,
    /// The names of all limits, including those that the query left out.
    pub known: Vec<String>,
    /// The limits that the query selected.
    pub limits: Vec<LimitTable>,
    /// The instances that count together; `null` if this one counts alone.
    #[serde(default)]
    pub peers: Option<PeersSummary>,
    /// The store that keeps one count for all instances; `null` if there is none.
    #[serde(default)]
    pub store: Option<StoreSummary>,
    /// The status of the master with its gatekeepers; `null` if this process is no master.
    #[serde(default)]
    pub master: Option<zeromq::MasterSnapshot>,
    /// The gatekeepers of this process, and how they reach their masters.
    #[serde(default)]
    pub gatekeepers: Vec<zeromq::GatekeeperSnapshot>,
    /// The robots of `proxy.robots`, with what their requests have proven.
    #[serde(default)]
    pub robots: Vec<RobotSnapshot>,
    /// The configuration on disk, if it is refused; `null` if it is in force.
    #[serde(default)]
    pub refused_config: Option<RefusedConfig>,
}

impl TopSnapshot {
    /// The unit of the figures of one of its tables.
    #[must_use]
    pub fn unit_of(&self, table: &LimitTable) -> ShownUnit {
        let load = self.load.iter().find(|load| load.door == table.door);
        ShownUnit::of(&table.unit, load.map(|load| load.work_unit).unwrap_or_default())
    }
}

/// A short status of the store; `/api/store` has the full one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSummary {
    /// Connections that are good.
    pub good: usize,
    /// Connections that have failed.
    pub failed: usize,
    /// Counters with local hits that the store has yet to be sent.
    pub owed: i64,
}

/// One line for people: `store: 3 of 3 connections good, 0 counters to send`.
impl std::fmt::Display for StoreSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StoreSummary { good, failed, owed } = self;
        let all = good + failed;
        write!(f, "store: {good} of {all} connections good, {owed} counters to send")
    }
}

/// A short status of the instances that count together; `/api/peers` has the full one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeersSummary {
    /// The number of live instances, this one included.
    pub live: usize,
    /// The number of known instances, live or silent, this one included.
    pub known: usize,
    /// How many seconds the oldest report has been waiting for the slowest instance.
    pub behind: f64,
    /// The live instances that do not share the queue of this one, although this one shares it.
    #[serde(default)]
    pub apart: Vec<ApartPeer>,
}

/// One line for people: `peers: 2 of 3 live, 0.2 s behind`.
impl std::fmt::Display for PeersSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "peers: {} of {} live, {:.1} s behind", self.live, self.known, self.behind)
    }
}

/// The load of the backend of one door.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadSnapshot {
    /// The name of the door.
    pub door: String,
    /// Requests that the backend works on now.
    pub working: u32,
    /// The unit of its work and costs: CPU-seconds, or thousands of weighted tokens.
    #[serde(default)]
    pub work_unit: LoadUnit,
    /// CPU-seconds (or thousands of weighted tokens) per second that are shared out.
    pub cpus: f64,
    /// Whether `cpus` follows `work_rate`. It is a guess until that is measured.
    #[serde(default)]
    pub measures_rate: bool,
    /// The measured capacity of the backend per second, in the unit of its work; `null`: not
    /// measured yet.
    #[serde(default)]
    pub work_rate: Option<f64>,
    /// CPU-seconds (or thousands of weighted tokens) that the backend has worked since the start.
    pub busy_seconds: f64,
    /// The admission queue of the backend; `null` if there is none.
    pub crowd: Option<QueueLoad>,
    /// The queue as all instances that share it have it; `null` if this one shares none.
    #[serde(default)]
    pub shared_queue: Option<SharedQueueLoad>,
    /// Strangers and visitors, while requests in credit ask for more than the backend can do;
    /// otherwise `null`.
    #[serde(default)]
    pub swarm: Option<SwarmLoad>,
    /// How long clients wait for their answers, each counted once.
    #[serde(default)]
    pub client_times: ClientTimesLoad,
    /// The report of each inference engine about its own queue; empty if there are none.
    #[serde(default)]
    pub engines: Vec<EngineLoadRow>,
    /// The requests that the backend has had for longest, oldest first; at most 20.
    #[serde(default)]
    pub running: Vec<OpenRequestRow>,
    /// The request that has waited for longest; `null` if none waits.
    #[serde(default)]
    pub oldest_waiting: Option<OpenRequestRow>,
}

/// The age in seconds from which on a request counts as long with the backend.
const LONG_SECS: f64 = 5.0;

impl LoadSnapshot {
    /// How much of the capacity is used: `1.50 of 2 CPUs`, `1500 of 4000 tokens/s`. `busy` is in
    /// the unit of the load, per second.
    #[must_use]
    pub fn use_line(&self, busy: Option<f64>) -> String {
        let figure = |digits: usize, factor: f64| {
            busy.map_or_else(|| "-".to_owned(), |busy| format!("{:.digits$}", busy * factor))
        };
        match (self.work_unit, self.capacity()) {
            (LoadUnit::Cpu, _) => format!("{} of {} CPUs", figure(2, 1.0), self.cpus),
            (LoadUnit::Slots, _) => format!("{} of {} slots", figure(2, 1.0), self.cpus),
            (LoadUnit::Tokens, Some(all)) => {
                format!("{} of {:.0} tokens/s", figure(0, TOKENS), all * TOKENS)
            }
            (LoadUnit::Tokens, None) => format!("{} tokens/s", figure(0, TOKENS)),
        }
    }

    /// The capacity per second, in the unit of the load; `None` if it has to be measured and is not
    /// known yet.
    #[must_use]
    pub fn capacity(&self) -> Option<f64> {
        if self.measures_rate { self.work_rate } else { Some(self.cpus) }
    }

    /// A sentence about the capacity in tokens; `None` if work is not counted in tokens.
    #[must_use]
    pub fn capacity_line(&self) -> Option<String> {
        if self.work_unit != LoadUnit::Tokens {
            return None;
        }
        let Some(all) = self.capacity() else {
            return Some("not measured yet: it is when requests wait for some seconds".to_owned());
        };
        let tokens = format!("{:.0} weighted tokens per second", all * TOKENS);
        Some(match self.work_rate {
            _ if self.measures_rate => format!("{tokens}, measured"),
            Some(rate) => format!("{tokens}, as configured; {:.0} measured", rate * TOKENS),
            None => format!("{tokens}, as configured"),
        })
    }

    /// The line about a swarm; `None` if there is none. If another instance owns the queue, that
    /// has the figures of strangers.
    #[must_use]
    pub fn swarm_line(&self) -> Option<String> {
        let swarm = self.swarm.as_ref()?;
        match self.shared_queue.as_ref().filter(|queue| !queue.owns) {
            Some(queue) => Some(swarm.line_of_member(&queue.owner)),
            None => Some(swarm.line(self.work_unit)),
        }
    }

    /// A sentence about requests that have been with the backend for long while others wait; `None`
    /// if there is none.
    #[must_use]
    pub fn long_running(&self) -> Option<String> {
        let waiting = self.crowd.map(|crowd| crowd.waiting).filter(|waiting| *waiting > 0)?;
        let long = self.running.iter().filter(|request| request.age >= LONG_SECS).count();
        let OpenRequestRow { route, age, stalled, .. } = self.running.first()?;
        let path = route.split_once(' ').map_or(&**route, |(_, path)| path);
        let stalled = if *stalled { " (the backend waits for its client)" } else { "" };
        let here = if self.shared_queue.is_some() { " here" } else { "" };
        let wait = if waiting == 1 { format!("waits{here}") } else { format!("wait{here}") };
        match long {
            0 => None,
            1 => Some(format!(
                "1 request to {path} has been with the backend for {age:.0} s{stalled} while \
                 {waiting} {wait}"
            )),
            _ => Some(format!(
                "{long} requests have been with the backend for {LONG_SECS} s and longer, the \
                 oldest, to {path}, for {age:.0} s{stalled}, while {waiting} {wait}"
            )),
        }
    }
}

/// The report of an inference engine about its own queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineLoadRow {
    /// The address of the backend.
    pub backend: String,
    /// Requests that it works on.
    pub running: usize,
    /// Requests that wait inside, in no fair order.
    pub waiting: usize,
    /// The used part of its KV cache, from 0 to 1; `null` if it does not say.
    pub cache_used: Option<f64>,
    /// The maximum number of requests to send to it at once, because others waited inside; `null`:
    /// no maximum.
    pub room: Option<usize>,
}

/// One line for people: `10.0.0.1:8000 runs 8, 3 wait inside, cache 45 % full; is sent at most 8`.
impl std::fmt::Display for EngineLoadRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let EngineLoadRow { backend, running, waiting, .. } = self;
        write!(f, "{backend} runs {running}, {waiting} wait inside")?;
        if let Some(used) = self.cache_used {
            write!(f, ", cache {:.0} % full", 100.0 * used)?;
        }
        self.room.map_or(Ok(()), |room| write!(f, "; is sent at most {room}"))
    }
}

/// A request that waits or is with the backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenRequestRow {
    /// The address of its client.
    pub client: String,
    /// The method and the path, with the parts that name single things left out.
    pub route: String,
    /// Seconds since it began to wait, or since the backend got it.
    pub age: f64,
    /// The backend waits for the client, which sends the request or reads the answer too slowly.
    pub stalled: bool,
}

/// The state of the admission queue of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLoad {
    /// Requests of this instance that wait in the queue.
    pub waiting: usize,
    /// Requests of this instance that were admitted from the queue and run now.
    pub running: usize,
    /// The maximum number of requests that the backend is sent at once, by all instances that share
    /// the queue.
    pub concurrency: usize,
}

/// The busiest clients of one limit, the heaviest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitTable {
    /// The door to which the limit belongs.
    pub door: String,
    /// The name of the limit.
    pub name: String,
    /// The unit of the levels: [`UNIT_CPU`] (CPU-seconds, or what the load of the door is counted
    /// in), [`UNIT_HITS`], [`UNIT_TOKENS`] or [`UNIT_MONEY`].
    pub unit: String,
    /// What happens to a client over the limit: `queue`, `hold`, `delay` or `reject`.
    pub action: String,
    /// Shadow mode: decisions are made and counted, but not enforced.
    #[serde(default)]
    pub shadow: bool,
    /// The number of decisions since the start that were not enforced because of shadow mode.
    #[serde(default)]
    pub would: u64,
    /// The clients of the limit.
    pub rows: Vec<ClientRow>,
}

/// One client of one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientRow {
    /// The name of the client's bucket.
    pub key: String,
    /// The identifier of the client in operator commands: the hash of its key, as 16 hexadecimal
    /// digits.
    #[serde(default)]
    pub id: String,
    /// The remaining budget in the unit of the limit; a negative number is debt. `null`: unknown.
    pub level: Option<f64>,
    /// Seconds until the client is within the limit again.
    pub wait: f64,
    /// CPU-seconds (or hits, by the unit of the limit) per second, recently.
    pub cpu_per_second: f64,
    /// Requests per second, recently.
    pub requests_per_second: f64,
    /// Seconds that its requests waited on average, recently.
    pub wait_average: f64,
    /// Seconds since its last request.
    pub last_seen: f64,
    /// CPU-seconds or hits since the client was added to the list.
    pub cpu_total: f64,
    /// What else is known of the client.
    #[serde(flatten)]
    pub about: ClientAbout,
}

impl ClientRow {
    /// Requests per second that a limit of hits does not count, because it or another limit refuses
    /// them.
    #[must_use]
    pub fn uncounted_per_second(&self) -> f64 {
        self.requests_per_second - self.cpu_per_second
    }
}

/// The query of `/api/top`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopQuery {
    /// Only this limit; `None` selects all.
    pub limit: Option<String>,
    /// The maximum number of rows of each limit, from 1 to [`ROWS_MAX`].
    pub rows: usize,
}

/// Why a query is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopQueryError {
    /// `n` is not a number from 1 to [`ROWS_MAX`].
    #[error("n must be a whole number from 1 to 1000")]
    Rows,
    /// A percent sign that does not begin an encoded byte, or bytes that are not UTF-8.
    #[error("the query is not valid percent-encoded UTF-8")]
    Encoding,
}

impl TopQuery {
    /// Parses `limit=NAME&n=N`. Both may be absent; other parameters are ignored.
    pub fn parse(text: &str) -> Result<TopQuery, TopQueryError> {
        let mut query = TopQuery { limit: None, rows: ROWS_DEFAULT };
        for (name, value) in pairs(text)? {
            match name {
                "limit" => query.limit = Some(value),
                "n" => query.rows = rows(&value)?,
                _ => {}
            }
        }
        Ok(query)
    }

    /// The query in its text form, which [`TopQuery::parse`] reads back.
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
/// Returns [`TopQueryError::Encoding`] if a value is not properly encoded.
pub fn pairs(text: &str) -> Result<Vec<(&str, String)>, TopQueryError> {
    let pairs = text.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(name, value)| Ok((name, decoded(value)?))).collect()
}

fn rows(value: &str) -> Result<usize, TopQueryError> {
    let rows = value.parse().map_err(|_| TopQueryError::Rows)?;
    if (1..=ROWS_MAX).contains(&rows) { Ok(rows) } else { Err(TopQueryError::Rows) }
}

/// Decodes percent-encoding; a plus sign is a space, as in HTML forms.
fn decoded(value: &str) -> Result<String, TopQueryError> {
    let hex = |code: &[u8]| code.iter().all(u8::is_ascii_hexdigit);
    let mut codes = value.split('%').skip(1).map(|after| after.as_bytes().get(..2));
    if !codes.all(|code| code.is_some_and(hex)) {
        return Err(TopQueryError::Encoding);
    }
    let plain = value.replace('+', " ");
    let text = percent_decode_str(&plain).decode_utf8().map_err(|_| TopQueryError::Encoding)?;
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_long_with_the_backend_is_told_while_others_wait() {
        let request = |age, stalled| OpenRequestRow {
            client: "192.0.2.1".to_owned(),
            route: "GET /x".to_owned(),
            age,
            stalled,
        };
        let load = |waiting, running| LoadSnapshot {
            door: "proxy".to_owned(),
            working: 1,
            work_unit: LoadUnit::Cpu,
            cpus: 1.0,
            measures_rate: false,
            work_rate: None,
            busy_seconds: 0.0,
            crowd: Some(QueueLoad { waiting, running: 1, concurrency: 1 }),
            shared_queue: None,
            swarm: None,
            client_times: ClientTimesLoad::default(),
            engines: Vec::new(),
            running,
            oldest_waiting: None,
        };
        let told = |waiting, running| load(waiting, running).long_running();
        let both = || vec![request(27.2, false), request(3.0, false)];
        let expected = "1 request to /x has been with the backend for 27 s while 14 wait";
        assert_eq!(told(14, both()).as_deref(), Some(expected));
        assert_eq!(told(0, both()), None);
        assert_eq!(told(1, vec![request(3.0, false)]), None);
        let expected = "2 requests have been with the backend for 5 s and longer, the oldest, to \
                        /x, for 30 s (the backend waits for its client), while 1 waits";
        let more = vec![request(30.0, true), request(5.0, false)];
        assert_eq!(told(1, more).as_deref(), Some(expected));
    }

    #[test]
    fn questions_are_read() {
        let query = |limit: Option<&str>, rows| TopQuery { limit: limit.map(String::from), rows };
        for (text, expected) in [
            ("", Ok(query(None, ROWS_DEFAULT))),
            ("n=3", Ok(query(None, 3))),
            ("limit=ip", Ok(query(Some("ip"), ROWS_DEFAULT))),
            ("limit=&n=1000&x", Ok(query(Some(""), 1_000))),
            ("limit=a%20b%C3%A4+c", Ok(query(Some("a bä c"), ROWS_DEFAULT))),
            ("n=0", Err(TopQueryError::Rows)),
            ("n=1001", Err(TopQueryError::Rows)),
            ("n=-1", Err(TopQueryError::Rows)),
            ("n", Err(TopQueryError::Rows)),
            ("limit=%", Err(TopQueryError::Encoding)),
            ("limit=%+1", Err(TopQueryError::Encoding)),
            ("limit=%4%31", Err(TopQueryError::Encoding)),
            ("limit=a%2", Err(TopQueryError::Encoding)),
            ("limit=%2B%25", Ok(query(Some("+%"), ROWS_DEFAULT))),
            ("limit=%ff", Err(TopQueryError::Encoding)),
        ] {
            assert_eq!(TopQuery::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn fuzz_any_query_is_read_or_refused_and_what_is_written_is_read_back() {
        evenkeel_fuzz::fuzz().with_type::<String>().for_each(|text| {
            if let Ok(query) = TopQuery::parse(text) {
                assert_eq!(TopQuery::parse(&query.encoded()), Ok(query));
            }
            let query = TopQuery { limit: Some(text.clone()), rows: 7 };
            assert_eq!(TopQuery::parse(&query.encoded()), Ok(query));
        });
    }
}
