//! OpenTelemetry's protocol over gRPC or HTTP: metrics (`metrics_export`) and spans (`spans`).
//!
//! The messages are those of `evenkeel_telemetry::otlp::wire`; `client` sends them.

pub mod client;
pub mod metrics_export;
pub mod spans;
