//! The Envoy rate limit service: rules, counters, gRPC and JSON.
//!
//! It is a drop-in replacement for envoyproxy/ratelimit that needs no Redis, and it also serves
//! lyft's and Fencer's clients. Rules come from files or from an xDS server.
//!
//! One thread per core serves gRPC (`grpc`). One more thread serves the other ports (`http`),
//! watches the rule files (`loader`) and sends metrics (`metrics`). A request passes through
//! `wire`, `decide`, `rules` and the counters of `evenkeel_core::windows`. Envoys that decide by
//! themselves get their shares from `quota`.

pub mod decide;
mod grpc;
mod http;
pub mod json;
pub mod loader;
pub mod metrics;
pub mod quota;
pub mod rules;
mod serve;
mod server_tls;
pub mod tally;
pub mod wire;

pub use serve::{RunningRatelimit, start};
