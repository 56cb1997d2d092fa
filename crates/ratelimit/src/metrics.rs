//! The reference server's metrics under its own names, for StatsD, DogStatsD and Prometheus.
//!
//! This module collects and names the metrics. How often StatsD gets them: `statsd`. How Prometheus
//! gets them: `http`. Paths that are made from requests are bounded where they are kept (`tally`).

pub mod rename;
pub mod statsd;
pub(crate) mod traces;

use super::decide::RatelimitDecider;
use super::tally::{RuleTallies, RuleTally};
use evenkeel_telemetry::registry::{BOUNDS_NS, Histogram};
use rename::{MetricRenamer, RenamedMetric};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

/// The reference server's name for the duration of calls.
const RESPONSE_TIME_NAME: &str = "ratelimit_server.ShouldRateLimit.response_time";

/// A path in a form that StatsD can carry: `:` and `|` become `_`, and so do the dots of IPv4
/// addresses.
pub fn escaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let mut at = 0;
    while let Some(next) = path[at..].chars().next() {
        let inside = path[..at].ends_with(|c: char| c.is_ascii_digit());
        match address(&path[at..]).filter(|_| !inside) {
            Some(length) => {
                text.extend(path[at..at + length].chars().map(|c| if c == '.' { '_' } else { c }));
                at += length;
            }
            None => {
                text.push(if next == ':' || next == '|' { '_' } else { next });
                at += next.len_utf8();
            }
        }
    }
    text
}

/// The length of the IPv4 address at the start of a text; `None` if there is no address. The value
/// of its parts is not checked.
fn address(text: &str) -> Option<usize> {
    let mut length = 0;
    for part in 0..4 {
        if part > 0 {
            text[length..].starts_with('.').then_some(())?;
            length += 1;
        }
        let digits = text[length..].bytes().take_while(u8::is_ascii_digit).count();
        (1..=3).contains(&digits).then_some(())?;
        length += digits;
    }
    Some(length)
}

/// Passes each metric with the reference server's name and its value to `show`. Each name occurs
/// once: paths that are escaped to the same text are added up. Values only grow.
pub fn for_each(decider: &RatelimitDecider, mut show: impl FnMut(&str, u64)) {
    for (path, figures) in sums(&decider.tallies, escaped) {
        for (name, figure) in figures {
            show(&format!("ratelimit.service.rate_limit.{path}.{name}"), figure);
        }
    }
    for (domain, [(_, hits), ..]) in sums(&decider.unknown_domains, escaped) {
        show(&format!("ratelimit.service.rate_limit.{domain}.domain_not_found"), hits);
    }
    for (name, figure) in events(decider) {
        show(name, figure);
    }
}

/// The metrics of all paths by the texts that `name` makes of them; paths with the same text are
/// added up.
fn sums(
    tallies: &RuleTallies,
    name: impl Fn(&str) -> String,
) -> BTreeMap<String, [(&'static str, u64); 7]> {
    let zero = RuleTally::default().figures();
    let mut all = BTreeMap::new();
    for (path, tally) in tallies.all() {
        let figures = all.entry(name(&path)).or_insert(zero);
        for ((_, sum), (_, figure)) in figures.iter_mut().zip(tally.figures()) {
            *sum += figure;
        }
    }
    all
}

fn events(decider: &RatelimitDecider) -> [(&'static str, u64); 5] {
    let events = &decider.events;
    let error = "ratelimit.service.call.should_rate_limit.service_error";
    [
        ("ratelimit.service.config_load_success", events.rule_loads.accepted()),
        ("ratelimit.service.config_load_error", events.rule_loads.failed()),
        ("ratelimit.service.global_shadow_mode", events.global_shadow_mode.load(Relaxed)),
        (error, events.errors.load(Relaxed)),
        ("ratelimit_server.ShouldRateLimit.total_requests", events.requests.get()),
    ]
}

/// All metrics as text for people, one on each line.
pub fn lines(decider: &RatelimitDecider) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail, here and below.
    for_each(decider, |name, figure| _ = writeln!(text, "{name}: {figure}"));
    text
}

/// All metrics in Prometheus' format, under the names that the reference server's mapping gives
/// them.
pub fn prometheus(decider: &RatelimitDecider) -> String {
    let mut text = String::new();
    let series = sums(&decider.tallies, |path| labels(&escaped(path)));
    for (index, (name, _)) in RuleTally::default().figures().into_iter().enumerate() {
        let family = format!("ratelimit_service_rate_limit_{name}");
        let _ = writeln!(text, "# TYPE {family} counter");
        for (labels, figures) in &series {
            let _ = writeln!(text, "{family}{{{labels}}} {}", figures[index].1);
        }
    }
    let family = "ratelimit_service_rate_limit_domain_not_found";
    let unknown = sums(&decider.unknown_domains, |domain| label(&escaped(domain)));
    let _ = writeln!(text, "# TYPE {family} counter");
    for (domain, [(_, hits), ..]) in unknown {
        let _ = writeln!(text, "{family}{{domain=\"{domain}\"}} {hits}");
    }
    for ((_, figure), (family, labels)) in events(decider).into_iter().zip(EVENT_FAMILIES) {
        let _ = writeln!(text, "# TYPE {family} counter\n{family}{labels} {figure}");
    }
    if let Some(took) = &decider.events.response_time {
        let family = "ratelimit_service_response_time_seconds";
        write_histogram(&mut text, family, "grpc_method=\"ShouldRateLimit\"", took);
    }
    text
}

/// Writes a histogram in Prometheus' format, in seconds.
fn write_histogram(text: &mut String, family: &str, labels: &str, histogram: &Histogram) {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let _ = writeln!(text, "# TYPE {family} histogram");
    let (mut sum, comma) = (0, if labels.is_empty() { "" } else { "," });
    let bounds = BOUNDS_NS.map(|bound| seconds(bound).to_string());
    let bounds = bounds.into_iter().chain(["+Inf".to_owned()]);
    for (count, bound) in histogram.counts().into_iter().zip(bounds) {
        sum += count;
        let _ = writeln!(text, "{family}_bucket{{{labels}{comma}le=\"{bound}\"}} {sum}");
    }
    let total = seconds(histogram.sum());
    let _ = writeln!(text, "{family}_sum{{{labels}}} {total}\n{family}_count{{{labels}}} {sum}");
}

/// All metrics in Prometheus' format, renamed by the operator's mapping file. Metrics that get the
/// same name and the same labels are added up.
pub fn prometheus_renamed(decider: &RatelimitDecider, renamed: &mut MetricRenamer) -> String {
    let mut families: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let labels = |named: &RenamedMetric| {
        let pair = |(key, value): &(String, String)| format!("{key}=\"{}\"", label(value));
        named.tags.iter().map(pair).collect::<Vec<_>>().join(",")
    };
    for_each(decider, |name, figure| {
        let Some(named) = renamed.name_for(name) else { return };
        let family = families.entry(metric_name(&named.name)).or_default();
        *family.entry(labels(named)).or_default() += figure;
    });
    let mut text = String::new();
    for (family, series) in families {
        let _ = writeln!(text, "# TYPE {family} counter");
        for (labels, figure) in series {
            let _ = writeln!(text, "{family}{{{labels}}} {figure}");
        }
    }
    let took = decider.events.response_time.as_ref().zip(renamed.name_for(RESPONSE_TIME_NAME));
    if let Some((took, named)) = took {
        write_histogram(&mut text, &metric_name(&named.name), &labels(named), took);
    }
    text
}

/// A valid metric name for Prometheus: every other character becomes `_`.
fn metric_name(name: &str) -> String {
    let sound = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let name: String = name.chars().map(|c| if sound(c) { c } else { '_' }).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

/// Prometheus' names and labels of the values from [`events`], in the same order.
const EVENT_FAMILIES: [(&str, &str); 5] = [
    ("ratelimit_service_config_load_success", ""),
    ("ratelimit_service_config_load_error", ""),
    ("ratelimit_service_global_shadow_mode", ""),
    ("ratelimit_service_should_rate_limit_error", "{err_type=\"service_error\"}"),
    ("ratelimit_service_total_requests", "{grpc_method=\"ShouldRateLimit\"}"),
];

/// The labels of a path: its first three parts between dots are the domain, the first and the
/// second key. As in the reference server's mapping, deeper levels are counted with the second key.
fn labels(path: &str) -> String {
    let parts = ["domain", "key1", "key2"].into_iter().zip(path.split('.'));
    let labels = parts.map(|(name, part)| format!("{name}=\"{}\"", label(part)));
    labels.collect::<Vec<_>>().join(",")
}

fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
