//! OpenTelemetry's protocol: what is seen here, told to a collector.
//!
//! `client` brings a message to a collector, over HTTP or gRPC; `trace` makes spans, and `spans`
//! sends them in batches. The crates of OpenTelemetry are not used: they bring a transport and a
//! runtime of their own and change together every few months, and what is needed of the protocol
//! is small. Nothing that is seen waits for a collector: queues are bounded, and what does not
//! fit is dropped and counted.

pub mod client;
pub mod figures;
pub mod spans;
pub mod trace;
pub mod wire;
