//! Export to an OpenTelemetry collector (OTLP).
//!
//! `client` delivers a message to a collector, over HTTP or gRPC. `trace` makes spans, and `spans`
//! sends them in batches; `figures` sends metrics. The crates of OpenTelemetry are not used: they
//! bring their own transport and runtime, their versions change together every few months, and
//! Evenkeel needs only a small part of the protocol. Requests never wait for a collector: queues
//! are bounded, and spans that do not fit are dropped and counted.

pub mod trace;
pub mod wire;
