//! Reports about finished requests: the query of a `POST /report`, or a line of an access log.
//!
//! A line may come from any program that writes `id=`, and `time=`, `ms=`, `upstream=` or `cost=`
//! (with or without quotes) anywhere in it, or one JSON object as Caddy does. So the header of a
//! syslog message is skipped without parsing. The last id counts, with the values behind it,
//! because a line may begin with text from a client. Times are in seconds, `ms` in milliseconds,
//! costs as a backend states them in a header. Which pass it is about, and whether that is still
//! open: `ledger`.

use evenkeel_core::meter::header_cost;
use evenkeel_core::units::{Cost, Nanos};
use evenkeel_engine::ServedReport;
use serde_json::Value;
use std::fmt;

/// The maximum position, in bytes, at which the JSON object of a line begins.
const JSON_START_MAX: usize = 256;
/// The maximum length of a value in bytes: the times of several servers, or a Server-Timing.
const VALUE_MAX: usize = 1_024;
/// The maximum length of an id in bytes, with some extra to detect that it is not one.
const ID_MAX: usize = 40;
/// The maximum time of a request in seconds. A larger number is invalid.
const SECONDS_MAX: f64 = 86_400.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassId {
    /// The number of the pass, in the order issued.
    pub number: u64,
    /// The random part, which cannot be guessed.
    pub secret: u64,
}

impl fmt::Display for PassId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:016x}", self.number, self.secret)
    }
}

impl PassId {
    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<PassId> {
        let (number, secret) = text.split_once('-')?;
        let hex = |text: &str| {
            let digits = (1..=16).contains(&text.len());
            let hex = digits && text.bytes().all(|b| b.is_ascii_hexdigit());
            hex.then(|| u64::from_str_radix(text, 16).ok()).flatten()
        };
        Some(PassId { number: hex(number)?, secret: hex(secret)? })
    }
}

/// Why a report is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportError {
    /// It contains no id: the front did not ask about that request.
    NoId,
    /// It contains neither a cost nor a time, or no plausible one.
    NoCost,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassReport {
    /// The pass that it is about.
    pub id: PassId,
    /// The cost of the request, or its time.
    pub told: ServedReport,
    /// The time covers the whole request until the end of its answer, which a client prolongs by
    /// reading slowly.
    pub whole: bool,
}

/// Parses the report in the query of a `POST /report`.
pub fn query(query: &str) -> Result<PassReport, ReportError> {
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let id = value("id").and_then(PassId::parse).ok_or(ReportError::NoId)?;
    told(value).map(|(told, whole)| PassReport { id, told, whole }).ok_or(ReportError::NoCost)
}

/// Parses the report in one line of an access log.
pub fn line(line: &[u8]) -> Result<PassReport, ReportError> {
    let line = String::from_utf8_lossy(line);
    let objects = line.match_indices('{').take_while(|(at, _)| *at < JSON_START_MAX);
    let mut reports = objects.filter_map(|(at, _)| json(&line[at..]));
    reports.next().unwrap_or_else(|| words_of(&line))
}

/// Parses the words of a line. The last id counts, with the values behind it. Values before it
/// count only if there are none behind it.
fn words_of(line: &str) -> Result<PassReport, ReportError> {
    let mut ids =
        places(line, "id").filter_map(|at| Some((at, PassId::parse(value(&line[at..], ID_MAX)?)?)));
    let (at, id) = ids.next().ok_or(ReportError::NoId)?;
    let (before, behind) = line.split_at(at);
    let tells = ["cost", "upstream", "time", "ms"].iter().any(|name| word(behind, name).is_some());
    let told = told(|name| word(if tells { behind } else { before }, name));
    told.map(|(told, whole)| PassReport { id, told, whole }).ok_or(ReportError::NoCost)
}

/// Returns what the request needed, and whether that is only its total time. A cost takes
/// precedence over a time, and the backend's time over that of the whole request, which includes
/// waiting for slow clients.
fn told<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<(ServedReport, bool)> {
    let stated = value("cost").and_then(cost).map(ServedReport::Cost);
    let upstream = || value("upstream").and_then(at_backend).map(ServedReport::Time);
    let whole = || Some((ServedReport::Time(value("time").and_then(seconds)?), true));
    let millis = || within(value("ms")?.parse::<f64>().ok()? / 1_000.0).map(ServedReport::Time);
    let known = stated.or_else(upstream).map(|told| (told, false));
    known.or_else(whole).or_else(|| millis().map(|told| (told, false)))
}

/// Returns the positions after each `name=` that begins a word, the last first.
fn places(line: &str, name: &str) -> impl Iterator<Item = usize> {
    line.rmatch_indices(name).filter_map(|(at, _)| {
        let begins =
            line[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let behind = at + name.len();
        (begins && line[behind..].starts_with('=')).then_some(behind + 1)
    })
}

/// Returns the value at the beginning of `text`; if it is quoted, up to the next quote. At most
/// `max` bytes.
fn value(text: &str, max: usize) -> Option<&str> {
    let begin = &text[..text.floor_char_boundary(max)];
    match begin.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => begin.split([' ', '\n', ',', ';']).next(),
    }
}

/// Returns the value after the last `name=`.
fn word<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    value(&line[places(line, name).next()?..], VALUE_MAX)
}

/// Parses Caddy's access log. The answer's headers contain the id, and the time until the backend
/// began to answer; without that, the duration of the whole request counts. `None` for other
/// objects.
fn json(text: &str) -> Option<Result<PassReport, ReportError>> {
    let line: Value = serde_json::from_str(text.trim_end()).ok()?;
    let lines = |name: &str| {
        let lines = line["resp_headers"][name].as_array().into_iter().flatten();
        lines.filter_map(Value::as_str)
    };
    let header = |name: &str| lines(name).next();
    let id = header("X-Evenkeel-Id").and_then(PassId::parse)?;
    let stated = ["X-Cost", "Server-Timing"].into_iter().flat_map(lines).find_map(cost);
    let stated = stated.map(ServedReport::Cost);
    let upstream = || header("X-Evenkeel-Time").map(|text| ServedReport::Time(latency(text)));
    let took = || Some((ServedReport::Time(line["duration"].as_f64().and_then(within)?), true));
    let known = stated.or_else(upstream).map(|told| (told, false)).or_else(took);
    Some(known.map(|(told, whole)| PassReport { id, told, whole }).ok_or(ReportError::NoCost))
}

/// Parses a cost as a backend's header may state it.
fn cost(text: &str) -> Option<Cost> {
    header_cost(text.as_bytes()).ok().flatten().map(Cost::cpu)
}

/// Parses the seconds at the backend. A hyphen means that no backend was asked, so zero.
fn at_backend(text: &str) -> Option<Nanos> {
    if text == "-" { Some(Nanos::ZERO) } else { seconds(text) }
}

/// Parses a duration as Go writes it: `1m2.5s`, `250.1ms`, `12.3µs`. An invalid text means that no
/// backend was asked, so zero.
fn latency(text: &str) -> Nanos {
    let (mut rest, mut seconds) = (text, 0.0);
    while let Some(end) = rest.find(|c: char| !c.is_ascii_digit() && c != '.') {
        let (number, unit) = rest.split_at(end);
        let length = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        let (unit, next) = unit.split_at(length);
        let unit = match unit {
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "µs" | "us" => 1e-6,
            "ns" => 1e-9,
            _ => return Nanos::ZERO,
        };
        seconds += number.parse().unwrap_or(0.0) * unit;
        rest = next;
    }
    within(seconds).unwrap_or(Nanos::ZERO)
}

/// Parses seconds as nginx writes them. The times of several servers that were tried are added.
fn seconds(text: &str) -> Option<Nanos> {
    let times: Vec<f64> = text.split([',', ':', ' ']).filter_map(|t| t.parse().ok()).collect();
    if times.is_empty() { None } else { within(times.iter().sum()) }
}

fn within(seconds: f64) -> Option<Nanos> {
    (0.0..=SECONDS_MAX).contains(&seconds).then(|| Nanos::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: PassId = PassId { number: 0x1f, secret: 0xdead_beef_0123_4567 };

    fn millis(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn ids_are_read_as_they_are_written() {
        assert_eq!(ID.to_string(), "1f-deadbeef01234567");
        assert_eq!(PassId::parse("1f-deadbeef01234567"), Some(ID));
        for wrong in ["", "-", "1f", "1f-", "-1", "+1-1", "1f-00000000000000000", "g-1", "1-1-1"] {
            assert_eq!(PassId::parse(wrong), None, "{wrong}");
        }
    }

    fn pair(report: PassReport) -> (PassId, ServedReport) {
        (report.id, report.told)
    }

    #[test]
    fn queries() {
        let took = |told| Ok((ID, told));
        let cost = |cost| took(ServedReport::Cost(Cost::cpu(cost)));
        for (text, report) in [
            ("id=1f-deadbeef01234567&cost=12ms", cost(millis(12))),
            ("cost=0.5&id=1f-deadbeef01234567", cost(millis(500))),
            ("id=1f-deadbeef01234567&time=0.25", took(ServedReport::Time(millis(250)))),
            ("id=1f-deadbeef01234567&time=1&cost=-1", took(ServedReport::Time(millis(1000)))),
            ("id=1f-deadbeef01234567&cost=nan", Err(ReportError::NoCost)),
            ("id=1f-deadbeef01234567", Err(ReportError::NoCost)),
            ("cost=12ms", Err(ReportError::NoId)),
            ("", Err(ReportError::NoId)),
        ] {
            assert_eq!(query(text).map(pair), report, "{text}");
        }
    }

    /// Lines as nginx 1.22, HAProxy 2.6 and Caddy 2.6 send them.
    #[test]
    fn golden_lines() {
        let nginx = |rest: &str| {
            format!("<190>Nov 21 01:02:03 www nginx: evenkeel id=1f-deadbeef01234567 {rest}")
        };
        let haproxy = "<134>1 2026-11-21T01:02:03.000000+00:00 www haproxy 77 - - evenkeel \
                       id=1f-deadbeef01234567 ms=125\n";
        let caddy = r#"{"level":"info","ts":1795222923.1,"logger":"http.log.access.log0",
            "msg":"handled request","request":{"method":"GET","uri":"/?id=2-2"},"user_id":"",
            "duration":0.03125,"size":7,"status":200,
            "resp_headers":{"X-Evenkeel-Id":["1f-deadbeef01234567"]}}"#;
        let timed = |latency: &str| {
            let more = format!(r#""resp_headers":{{"X-Evenkeel-Time":["{latency}"],"#);
            caddy.replace('\n', "").replace(r#""resp_headers":{"#, &more)
        };
        let time = |millis| Ok((ID, ServedReport::Time(Nanos::from_millis(millis))));
        for (text, report) in [
            (nginx(r#"time=0.150 upstream="0.100" cost="-""#), time(100)),
            (nginx(r#"time=0.150 upstream="0.100, 0.020 : 0.003" cost="-""#), time(123)),
            // nginx served a file: even for a slow client, no backend worked.
            (nginx(r#"time=6.150 upstream="-" cost="""#), time(0)),
            (
                nginx(r#"time=0.150 upstream="0.100" cost="12ms""#),
                Ok((ID, ServedReport::Cost(Cost::cpu(millis(12))))),
            ),
            (
                nginx(r#"time=0.150 upstream="0.100" cost="db, cpu;dur=7""#),
                Ok((ID, ServedReport::Cost(Cost::cpu(millis(7))))),
            ),
            (nginx("time=-"), Err(ReportError::NoCost)),
            (nginx(r#"time=0.150 upstream="" cost="-""#), time(150)),
            (
                "<190>Nov 21 01:02:03 www nginx: evenkeel id= time=0.1".into(),
                Err(ReportError::NoId),
            ),
            (
                "<190>Nov 21 01:02:03 www nginx: evenkeel id=- time=0.1".into(),
                Err(ReportError::NoId),
            ),
            (haproxy.to_owned(), time(125)),
            (haproxy.replace("ms=125", "ms=-1"), Err(ReportError::NoCost)),
            (caddy.replace('\n', ""), Ok((ID, ServedReport::Time(Nanos(31_250_000))))),
            (timed("1m2.5s"), time(62_500)),
            (timed("250.125ms"), Ok((ID, ServedReport::Time(Nanos(250_125_000))))),
            (timed("12.5µs"), Ok((ID, ServedReport::Time(Nanos(12_500))))),
            (timed("{http.reverse_proxy.upstream.latency}"), time(0)),
            ("{}".to_owned(), Err(ReportError::NoId)),
            ("{".to_owned(), Err(ReportError::NoId)),
            (String::new(), Err(ReportError::NoId)),
            ("grid=1f-deadbeef01234567 time=0.1".to_owned(), Err(ReportError::NoId)),
        ] {
            assert_eq!(line(text.as_bytes()).map(pair), report, "{text}");
        }
    }

    #[test]
    fn what_a_slow_client_makes_longer_is_known() {
        for (rest, whole) in [
            ("time=6.0", true),
            ("time=6.0 upstream=0.1", false),
            ("time=6.0 upstream=-", false),
            ("time=6.0 cost=7ms", false),
            ("ms=12", false),
        ] {
            let report = line(format!("id=1f-deadbeef01234567 {rest}").as_bytes());
            assert_eq!(report.map(|report| report.whole), Ok(whole), "{rest}");
        }
        let caddy = r#"{"duration":6,"resp_headers":{"X-Evenkeel-Id":["1-1"]}}"#;
        assert_eq!(line(caddy.as_bytes()).map(|report| report.whole), Ok(true));
        let timed = caddy.replace('[', r#"["1-1"],"X-Evenkeel-Time":["#);
        assert_eq!(line(timed.as_bytes()).map(|report| report.whole), Ok(false));
    }

    #[test]
    fn a_cost_may_be_in_any_line_of_server_timing() {
        let caddy = r#"{"duration":6,"resp_headers":{"X-Evenkeel-Id":["1f-deadbeef01234567"],
            "Server-Timing":["cache;desc=hit","db;dur=53, cpu;dur=7","cpu;dur=9"]}}"#;
        let stated = ServedReport::Cost(Cost::cpu(millis(7)));
        assert_eq!(line(caddy.replace('\n', "").as_bytes()).map(pair), Ok((ID, stated)));
    }

    /// Text that a client may have written before the front's own words.
    #[test]
    fn text_of_a_client_in_front_hides_nothing() {
        let took = Ok((ID, ServedReport::Time(millis(100))));
        let own = r#"id=1f-deadbeef01234567 time=0.150 upstream="0.100" cost="-""#;
        for client in [
            r#""GET /?id=2-2 HTTP/1.1""#,
            r#""GET /?id=2-2&cost=0 HTTP/1.1" "cost=0ms time=0.001""#,
            r#""{" "{""#,
            r#"{"resp_headers":{"X-Evenkeel-Id":["2-2"]},"duration":0}"#,
            r#"{"resp_headers":"#,
            r#"id=""#,
            "cost=0 upstream=0",
        ] {
            let told = line(format!("nginx: {client} {own}").as_bytes());
            assert_eq!(told.map(pair), took, "{client}");
        }
        // Values that a front writes before the id count if there are none behind it.
        let before = format!("\"GET /?time=9\" time=0.1 {} \"-\"", "id=1f-deadbeef01234567");
        assert_eq!(line(before.as_bytes()).map(pair), took);
        let unknown = "cost=0 id=1f-deadbeef01234567 time=-";
        assert_eq!(line(unknown.as_bytes()), Err(ReportError::NoCost));
        let empty = "id=1f-deadbeef01234567 time=0.1 {}";
        assert_eq!(line(empty.as_bytes()).map(pair), took);
    }

    /// A hostile line costs no more than an honest one of the same length.
    #[test]
    fn ids_without_end_are_read_in_one_pass() {
        let text = "id=".repeat(1 << 16);
        assert_eq!(line(text.as_bytes()), Err(ReportError::NoId));
    }

    fn sound(report: Result<PassReport, ReportError>) {
        match report.map(pair) {
            Ok((_, ServedReport::Time(took))) => assert!(took <= Nanos::from_secs(86_400)),
            Ok((_, ServedReport::Cost(cost))) => {
                assert!(cost <= Cost::cpu(Nanos::from_secs(3_600)))
            }
            Ok((_, ServedReport::Nothing(_))) => panic!("a report says something"),
            Err(_) => {}
        }
    }

    #[test]
    fn fuzz_lines_and_queries() {
        evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
            sound(line(bytes));
            sound(query(&String::from_utf8_lossy(bytes)));
        });
    }

    #[test]
    fn fuzz_lines_of_likely_pieces() {
        const PIECES: [&str; 16] = [
            "id=",
            "1-1",
            "time=",
            "upstream=",
            "cost=",
            "\"",
            "0.1",
            "9e99",
            "-",
            ",",
            " ",
            "{",
            "\"duration\":",
            "}",
            "12ms",
            "&",
        ];
        evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
            let text: String = bytes.iter().map(|b| PIECES[usize::from(*b) % 16]).collect();
            sound(line(text.as_bytes()));
            sound(query(&text));
        });
    }
}
