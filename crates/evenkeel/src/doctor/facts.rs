//! The facts that checks are made from, and nothing else: plain data, so that tests can write them
//! down.
//!
//! Where they come from: `gather`, `probe`.

use evenkeel_config::host::HostFacts;
use evenkeel_config::settings::{ProxySettings, Settings};
use evenkeel_telemetry::snapshot::TopSnapshot;
use evenkeel_telemetry::snapshot::setup::SetupSnapshot;
use std::net::SocketAddr;
use std::time::Duration;

/// Everything that is known about the set-up.
#[derive(Clone, Debug)]
pub struct SetupFacts {
    pub file: FileFacts,
    /// The running server, or why nothing is known about it.
    pub server: Result<ServerFacts, String>,
    /// The admin address that was asked.
    pub admin: String,
    /// The settings in effect: those of the server, or of the file if there is no server.
    pub settings: Option<Settings>,
    /// The machine: as the server sees it, or as this command does.
    pub host: HostFacts,
    pub backends: Vec<BackendFacts>,
    /// Whether other users of this machine may read the admin token.
    pub token_readable: Option<bool>,
}

/// The configuration file.
#[derive(Clone, Debug, Default)]
pub struct FileFacts {
    /// Its path; `None`: there is none.
    pub path: Option<String>,
    /// Its errors, or its warnings.
    pub checked: Option<Result<Vec<String>, Vec<String>>>,
    /// Lines that differ from the configuration of the server; `None`: not compared.
    pub differences: Option<Vec<String>>,
    /// Whether it says how many CPUs there are.
    pub names_cpus: bool,
}

/// The running server.
#[derive(Clone, Debug)]
pub struct ServerFacts {
    pub setup: SetupSnapshot,
    pub top: TopSnapshot,
    pub metrics: MetricSeries,
    pub recent: RecentLoad,
    /// The client in debt for longest without a pause: its name, and for how many seconds.
    pub longest_debt: Option<(String, f64)>,
}

/// The load of the last minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecentLoad {
    /// The seconds that are known.
    pub seconds: f64,
    /// Requests that ended.
    pub requests: f64,
    /// Requests that the backend failed.
    pub failed: f64,
    /// The part of the capacity that was used, from 0 to 1; NaN if it is not known.
    pub used: f64,
}

/// A backend of the proxy.
#[derive(Clone, Debug)]
pub struct BackendFacts {
    /// Its URL.
    pub name: String,
    /// Whether it runs on this machine, as far as its address tells.
    pub is_local: bool,
    /// Whether it is a TCP server, which needs a port here for each connection.
    pub is_tcp: bool,
    /// The address of the proxy itself that this backend leads to.
    pub loops_to: Option<SocketAddr>,
    /// The quota of its cgroup, in processors.
    pub quota: Option<f64>,
    /// Its answer to a request; `None`: it was not asked.
    pub answer: Option<Result<BackendAnswer, String>>,
}

/// How a backend answered `HEAD /`.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendAnswer {
    /// The time to connect, TLS included.
    pub connect: Duration,
    /// The time from the request to the head of the answer.
    pub took: Duration,
    /// The version of HTTP: `HTTP/1.1`, `HTTP/2.0`.
    pub version: String,
    pub status: u16,
    /// Whether it keeps the connection open after the answer.
    pub keeps_alive: bool,
    /// How many seconds its clock is ahead of this machine's, by its header `Date`.
    pub clock_ahead: Option<f64>,
}

/// The labels of a series, and their values.
type SeriesLabels = Vec<(String, String)>;

/// The series of `/metrics`: name, labels, value.
#[derive(Clone, Debug, Default)]
pub struct MetricSeries(Vec<(String, SeriesLabels, f64)>);

impl MetricSeries {
    /// Reads the text format of Prometheus, as far as Evenkeel writes it. Other lines are skipped.
    pub fn parse(text: &str) -> MetricSeries {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        MetricSeries(lines.filter_map(series).collect())
    }

    /// The values of all series of a metric with a label of this value.
    pub fn with<'a>(
        &'a self,
        name: &'a str,
        label: &'a str,
        value: &'a str,
    ) -> impl Iterator<Item = f64> + 'a {
        let has = move |labels: &[(String, String)]| {
            labels.iter().any(|(key, of)| key == label && of == value)
        };
        self.of(name).filter(move |(labels, _)| has(labels)).map(|(_, value)| value)
    }

    /// The sum of all series of a metric.
    pub fn sum(&self, name: &str) -> f64 {
        // An empty sum would be minus zero.
        self.of(name).fold(0.0, |sum, (_, value)| sum + value)
    }

    /// All series of a metric.
    pub fn of<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (&'a [(String, String)], f64)> + 'a {
        let found = self.0.iter().filter(move |(of, ..)| of == name);
        found.map(|(_, labels, value)| (&**labels, *value))
    }
}

/// The value of a label; empty if there is none.
pub fn label<'a>(labels: &'a [(String, String)], name: &str) -> &'a str {
    labels.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
}

fn series(line: &str) -> Option<(String, SeriesLabels, f64)> {
    let (head, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, rest)) = head.split_once('{') else {
        return Some((head.to_owned(), Vec::new(), value));
    };
    let mut labels = Vec::new();
    let mut rest = rest.strip_suffix('}')?;
    while let Some((key, after)) = rest.split_once("=\"") {
        let end = quoted_end(after)?;
        labels.push((key.to_owned(), after[..end].to_owned()));
        rest = after[end + 1..].trim_start_matches(',');
    }
    Some((name.to_owned(), labels, value))
}

/// The position of the quote that ends a label.
fn quoted_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at)
    })
}

impl SetupFacts {
    /// The proxy, if it listens.
    pub fn proxy(&self) -> Option<&ProxySettings> {
        self.settings.as_ref()?.proxy.as_ref().filter(|proxy| !proxy.listen.is_empty())
    }

    /// The server, if it is known.
    pub fn server(&self) -> Option<&ServerFacts> {
        self.server.as_ref().ok()
    }

    /// The path of the file, for commands to copy.
    pub fn file_name(&self) -> &str {
        self.file.path.as_deref().unwrap_or("FILE")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read() {
        let text =
            "# HELP a b\na 1\nb{x=\"1\",y=\"q\\\"}\"} 2.5\nb{x=\"2\"} 1\nnonsense\nc{x=\"} 3\n";
        let metrics = MetricSeries::parse(text);
        assert_eq!([metrics.sum("a"), metrics.sum("b"), metrics.sum("c")], [1.0, 3.5, 0.0]);
        assert_eq!(metrics.with("b", "x", "2").sum::<f64>(), 1.0);
        let (labels, _) = metrics.of("b").next().expect("a series");
        assert_eq!((label(labels, "y"), label(labels, "z")), ("q\\\"}", ""));
    }

    #[test]
    fn fuzz_whatever_metrics_say_nothing_breaks() {
        evenkeel_fuzz::fuzz().with_type::<String>().for_each(|text| {
            let _ = MetricSeries::parse(text);
            let _ = MetricSeries::parse(&format!("a{{b=\"{text}\"}} 1"));
        });
    }
}
