//! Sends metrics and spans to other programs: StatsD, Graphite and OTLP.
//!
//! `push` is the thread that sends at each interval; `statsd`, `graphite` and `otlp` are the
//! formats. What is counted, and the page for Prometheus: `evenkeel_telemetry`.

pub mod graphite;
pub mod otlp;
pub mod push;
pub mod push_counts;
mod sample;
pub mod statsd;
