//! OpenTelemetry's protocol over gRPC or HTTP: metrics (`figures`) and spans (`spans`).
//!
//! The messages are those of `evenkeel_telemetry::otlp::wire`; `client` sends them.

pub mod client;
pub mod figures;
pub mod spans;
