//! The history of the last hour, one point per second, for all doors together.
//!
//! It is a ring of points, each a row of numbers. Counters are stored as rates, and latencies as
//! percentiles over the last seconds, so that a quiet second leaves no gap. An unknown number is
//! `null`.

use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_engine::view::client_times::ClientTimes;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::models::TokenCounts;
use evenkeel_telemetry::counts::tiers::{Tier, TierCounts};
use evenkeel_telemetry::metrics::DECISIONS;
use evenkeel_telemetry::registry::BOUNDS_NS;
use evenkeel_telemetry::snapshot::LoadUnit;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::VecDeque;
use std::fmt::Write;

/// The maximum number of points: an hour of seconds, some 130 bytes each.
const POINTS_MAX: usize = 3_600;
/// The number of seconds over which percentiles are taken.
const SPREAD_SECS: usize = 10;
/// The verdicts that are counted, in the order of their columns.
const VERDICTS: [&str; 6] = ["allow", "queue", "hold", "delay", "reject", "deny"];
/// The names of the numbers of a point.
const COLUMNS: [&str; 31] = [
    "cpus",
    "busy",
    "debt",
    "working",
    "waiting",
    "slots",
    "allow",
    "queue",
    "hold",
    "delay",
    "reject",
    "deny",
    "would",
    "failed",
    "credit_p50",
    "credit_p95",
    "debt_p50",
    "debt_p95",
    "credit_n",
    "debt_n",
    "credit_first_p50",
    "credit_first_p95",
    "debt_first_p50",
    "debt_first_p95",
    "tokens_prompt",
    "tokens_cached",
    "tokens_output",
    "client_p50",
    "client_p95",
    "client_max",
    "client_debt_p50",
];

/// The number of values in each interval of a histogram.
type LatencyCounts = [u64; BOUNDS_NS.len() + 1];

/// The values read at one time. Counters are totals, not rates.
#[derive(Clone, Debug, Default)]
pub struct CounterReading {
    at: Time,
    /// The unit of the work.
    pub unit: LoadUnit,
    /// The capacity, in CPU-seconds (or thousands of weighted tokens) per second; NaN if it is not
    /// known.
    pub cpus: f64,
    /// The CPU-seconds (or thousands of weighted tokens) used so far.
    pub busy: f64,
    pub working: f64,
    pub waiting: f64,
    pub slots: f64,
    /// The CPU-seconds charged so far to clients in debt.
    debt: f64,
    verdicts: [f64; VERDICTS.len()],
    /// The number of decisions that were not enforced.
    would: f64,
    failed: f64,
    /// The durations of requests in credit and in debt, and after them the times to first bytes.
    spreads: [LatencyCounts; 4],
    /// The tokens of each kind so far.
    tokens: [u64; TokenCounts::KINDS.len()],
    /// Seconds within which half of the clients in credit get their answers, 95 % of them, and all;
    /// and half of the clients in debt. NaN without clients.
    client_times: [f64; 4],
}

impl CounterReading {
    /// Creates an empty set of values.
    pub fn at(now: Time) -> CounterReading {
        CounterReading { at: now, ..CounterReading::default() }
    }

    pub fn time(&mut self, times: &ClientTimes) {
        let ClientTimes { credit, debt } = times;
        let all = [(credit, 0.5), (credit, 0.95), (credit, 1.0), (debt, 0.5)];
        let seconds = |took: Option<Nanos>| took.map_or(f64::NAN, Nanos::as_secs_f64);
        self.client_times = all.map(|(tier, part)| seconds(tier.within(part)));
    }

    pub fn count(&mut self, watch: &Watch) {
        self.debt = watch.tiers.spent(Tier::Debt) as f64 / SECOND as f64;
        let [took, first] = [TierCounts::took, TierCounts::first_byte]
            .map(|of| Tier::ALL.map(|tier| of(&watch.tiers, tier).counts()));
        self.spreads = [took[0], took[1], first[0], first[1]];
        self.tokens = watch.models.tokens();
        self.failed = watch.proxy.failed_so_far() as f64;
        watch.registry().visit(&DECISIONS, |labels, count| {
            let [verdict, _, shadow] = labels else { return };
            if shadow == "true" {
                self.would += count as f64;
            } else if let Some(at) = VERDICTS.iter().position(|name| name == verdict) {
                self.verdicts[at] += count as f64;
            }
        });
    }
}

/// The values of one second, in the order of [`COLUMNS`]. Unknown values are NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryPoint {
    at: Time,
    values: [f32; COLUMNS.len()],
}

/// The maximum delay, in seconds, with which CPU time is shown that was charged when its request
/// ended.
const DUE_SECS_MAX: f64 = 10.0;

/// The ring of points.
#[derive(Debug, Default)]
pub struct HourHistory {
    points: VecDeque<HistoryPoint>,
    before: Option<CounterReading>,
    /// CPU-seconds of clients in debt that are still to be shown: a request is charged when it
    /// ends, but has used its time before.
    due: f64,
    /// The latency counts of the last seconds, the oldest first.
    spreads: VecDeque<[LatencyCounts; 4]>,
}

impl HourHistory {
    /// Stores the changes since the previous values. The first values have nothing to be compared
    /// with.
    pub fn note(&mut self, look: &CounterReading) {
        let Some(before) = self.before.replace(look.clone()) else {
            self.spreads.push_back(look.spreads);
            return;
        };
        let seconds = look.at.since(before.at).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let oldest = self.spreads.front().copied().unwrap_or(before.spreads);
        if self.spreads.len() >= SPREAD_SECS {
            self.spreads.pop_front();
        }
        self.spreads.push_back(look.spreads);
        let rate = |now: f64, then: f64| (now - then).max(0.0) / seconds;
        let mut values = [f32::NAN; COLUMNS.len()];
        let mut at = 0;
        let mut put = |value: f64| {
            values[at] = value as f32;
            at += 1;
        };
        put(look.cpus);
        let busy = rate(look.busy, before.busy);
        put(busy);
        let due = self.due + (look.debt - before.debt).max(0.0);
        let debt = (due / seconds).min(busy);
        put(debt);
        self.due = (due - debt * seconds).min(DUE_SECS_MAX * look.cpus);
        [look.working, look.waiting, look.slots].into_iter().for_each(&mut put);
        for (now, then) in look.verdicts.iter().zip(before.verdicts) {
            put(rate(*now, then));
        }
        put(rate(look.would, before.would));
        put(rate(look.failed, before.failed));
        let spreads = look.spreads.iter().zip(&oldest).map(|(now, then)| since(now, then));
        let percentiles: Vec<_> = spreads
            .flat_map(|spread| [percentile(&spread, 0.5), percentile(&spread, 0.95)])
            .collect();
        let (took, first) = percentiles.split_at(4);
        took.iter().copied().for_each(&mut put);
        for (now, then) in look.spreads.iter().zip(&before.spreads).take(2) {
            let come = since(now, then).iter().sum::<u64>();
            put(come as f64 / seconds);
        }
        first.iter().copied().for_each(&mut put);
        for (now, then) in look.tokens.iter().zip(before.tokens) {
            put(rate(*now as f64, then as f64));
        }
        look.client_times.into_iter().for_each(&mut put);
        if self.points.len() >= POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(HistoryPoint { at: look.at, values });
    }

    pub fn last(&self) -> Option<HistoryPoint> {
        self.points.back().copied()
    }

    /// Returns all points from `since` on as JSON: `t` and each column as a list.
    pub fn json(&self, since: Time) -> String {
        let points = self.points.iter().filter(|point| point.at >= since);
        let unit = self.before.as_ref().map_or(LoadUnit::Cpu, |look| look.unit);
        let head = format!("\"work_unit\":{},", serde_json::json!(unit));
        columns_json(&head, 2, &COLUMNS, points.map(|point| (point.at, &point.values)))
    }
}

/// Writes points as JSON: after `head` their times with `digits` decimals as the list `t`, and each
/// column as a list.
pub fn columns_json<'a, const N: usize>(
    head: &str,
    digits: usize,
    columns: &[&str; N],
    points: impl Iterator<Item = (Time, &'a [f32; N])> + Clone,
) -> String {
    let mut json = format!("{{{head}\"t\":[");
    // Writing to a String cannot fail, here and below.
    for (index, (at, _)) in points.clone().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(json, "{comma}{:.digits$}", at.0 as f64 / SECOND as f64);
    }
    json.push(']');
    for (column, name) in columns.iter().enumerate() {
        let _ = write!(json, ",\"{name}\":[");
        for (index, (_, values)) in points.clone().enumerate() {
            json.push_str(if index > 0 { "," } else { "" });
            push_number(&mut json, values[column]);
        }
        json.push(']');
    }
    json.push_str("}\n");
    json
}

/// Appends a number with four digits, or `null` if it is not finite.
fn push_number(json: &mut String, value: f32) {
    let value = rounded(value);
    let _ = if value.is_finite() { write!(json, "{value}") } else { write!(json, "null") };
}

/// Rounds to four digits, which is more than a chart shows.
pub fn rounded(value: f32) -> f32 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let unit = 10f32.powi(3 - value.abs().log10().floor() as i32);
    if unit.is_finite() { (value * unit).round() / unit } else { 0.0 }
}

impl Serialize for HistoryPoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(COLUMNS.len() + 1))?;
        map.serialize_entry("t", &(self.at.0 as f64 / SECOND as f64))?;
        for (name, value) in COLUMNS.iter().zip(self.values) {
            let value = rounded(value);
            map.serialize_entry(name, &value.is_finite().then_some(value))?;
        }
        map.end()
    }
}

fn since(now: &LatencyCounts, then: &LatencyCounts) -> LatencyCounts {
    std::array::from_fn(|at| now[at].saturating_sub(then[at]))
}

/// Returns the value in seconds below which `part` of all values lie. Values are taken to lie
/// evenly, on a logarithmic scale, between the bounds of their interval. NaN if there are none.
fn percentile(spread: &LatencyCounts, part: f64) -> f64 {
    let all: u64 = spread.iter().sum();
    if all == 0 {
        return f64::NAN;
    }
    let wanted = part * all as f64;
    let mut below = 0.0;
    for (at, count) in spread.iter().enumerate() {
        let count = *count as f64;
        if count > 0.0 && below + count >= wanted {
            let upper = BOUNDS_NS.get(at).copied().unwrap_or(2 * BOUNDS_NS[BOUNDS_NS.len() - 1]);
            let lower = if at == 0 { upper / 10 } else { BOUNDS_NS[at - 1] };
            let (lower, upper) = (Nanos(lower).as_secs_f64(), Nanos(upper).as_secs_f64());
            let within = ((wanted - below) / count).clamp(0.0, 1.0);
            return lower * (upper / lower).powf(within);
        }
        below += count;
    }
    f64::NAN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(second: u64) -> CounterReading {
        let at = Time::ZERO.plus(Nanos::from_secs(1_000 + second));
        let mut look = CounterReading {
            at,
            cpus: 2.0,
            busy: second as f64 * 1.5,
            ..CounterReading::default()
        };
        look.verdicts[1] = second as f64 * 7.0;
        look
    }

    fn value(history: &HourHistory, name: &str) -> f32 {
        let column = COLUMNS.iter().position(|column| *column == name).expect("a column");
        history.last().expect("a point").values[column]
    }

    #[test]
    fn what_grows_is_kept_as_a_rate_and_an_hour_is_all() {
        let mut history = HourHistory::default();
        history.note(&look(0));
        assert!(history.last().is_none(), "nothing to compare with");
        for second in 1..=POINTS_MAX as u64 + 50 {
            history.note(&look(second));
        }
        assert_eq!(history.points.len(), POINTS_MAX);
        assert_eq!((value(&history, "busy"), value(&history, "queue")), (1.5, 7.0));
        assert!(value(&history, "credit_p95").is_nan());
        let json: serde_json::Value =
            serde_json::from_str(&history.json(Time::ZERO)).expect("JSON");
        assert_eq!(json["t"].as_array().map(Vec::len), Some(POINTS_MAX));
        assert_eq!(json["credit_p95"][0], serde_json::Value::Null);
        let last = history.last().expect("a point").at;
        let json: serde_json::Value = serde_json::from_str(&history.json(last)).expect("JSON");
        assert_eq!(json["busy"], serde_json::json!([1.5]));
    }

    /// The total is never less than the part.
    #[test]
    fn what_is_charged_at_once_is_shown_as_it_was_used() {
        let mut history = HourHistory::default();
        history.note(&look(0));
        let shown = [1, 2, 3].map(|second| {
            history.note(&CounterReading { debt: 3.5, ..look(second) });
            value(&history, "debt")
        });
        assert_eq!(shown, [1.5, 1.5, 0.5]);
    }

    #[test]
    fn percentiles_lie_within_the_interval_of_their_values_and_fade_with_them() {
        let mut history = HourHistory::default();
        history.note(&look(0));
        let place = BOUNDS_NS.iter().position(|bound| *bound == 100_000_000).expect("a bound");
        let mut slow = look(1);
        slow.spreads[1][place] = 40;
        history.note(&slow);
        assert!((0.05..=0.1).contains(&value(&history, "debt_p95")));
        assert!(value(&history, "debt_p50") < value(&history, "debt_p95"));
        assert_eq!(value(&history, "debt_n"), 40.0);
        for second in 2..=SPREAD_SECS as u64 + 2 {
            let mut still = look(second);
            still.spreads = slow.spreads;
            history.note(&still);
        }
        assert!(value(&history, "debt_p95").is_nan(), "it is long ago");
    }

    #[test]
    fn a_clock_that_stands_still_and_counters_that_begin_anew_are_no_points_and_no_debts() {
        let mut history = HourHistory::default();
        history.note(&look(5));
        history.note(&look(5));
        assert!(history.last().is_none());
        history.note(&CounterReading { at: look(6).at, ..CounterReading::default() });
        assert_eq!(value(&history, "busy"), 0.0);
    }

    #[test]
    fn first_bytes_and_tokens_have_columns_of_their_own() {
        let mut history = HourHistory::default();
        history.note(&look(0));
        let mut next = CounterReading { unit: LoadUnit::Tokens, cpus: f64::NAN, ..look(1) };
        let place = BOUNDS_NS.iter().position(|bound| *bound == 100_000_000).expect("a bound");
        next.spreads[3][place] = 40;
        next.tokens = [60, 40, 50];
        history.note(&next);
        assert!((0.05..=0.1).contains(&value(&history, "debt_first_p95")));
        assert!(value(&history, "credit_first_p50").is_nan());
        assert!(value(&history, "debt_p95").is_nan() && value(&history, "cpus").is_nan());
        assert_eq!((value(&history, "debt_n"), value(&history, "busy")), (0.0, 1.5));
        let tokens = ["prompt", "cached", "output"];
        let tokens = tokens.map(|kind| value(&history, &format!("tokens_{kind}")));
        assert_eq!(tokens, [60.0, 40.0, 50.0]);
        let json: serde_json::Value =
            serde_json::from_str(&history.json(Time::ZERO)).expect("JSON");
        assert_eq!(json["work_unit"], "tokens");
    }

    #[test]
    fn numbers_have_four_digits() {
        let text = |value| {
            let mut json = String::new();
            push_number(&mut json, value);
            json
        };
        assert_eq!(text(0.123_456), "0.1235");
        assert_eq!(text(123_456.0), "123500");
        assert_eq!(text(0.0), "0");
        assert_eq!(text(f32::NAN), "null");
        assert_eq!(text(f32::INFINITY), "null");
        assert_eq!(text(f32::MIN_POSITIVE / 4.0), "0");
    }
}
