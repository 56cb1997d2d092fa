//! The Envoy rate limit service: rules from files, counters in memory, gRPC and JSON.
//!
//! A drop-in for envoyproxy/ratelimit that needs no Redis, and for lyft's and Fencer's clients.
//! One thread per core serves gRPC (`grpc`); one more has the other ports (`http`),
//! looks at the rule files (`loader`) and sends figures (`figures`). A request's way: `wire`,
//! `decide`, `rules`, and the counters of `evenkeel_core::windows`. Envoys that decide themselves
//! are given their parts by `quota`.

pub mod decide;
pub mod figures;
mod grpc;
mod http;
pub mod json;
pub mod loader;
pub mod quota;
pub mod rules;
mod serve;
mod shown;
pub mod tally;
pub mod wire;

pub use serve::{Running, StartError, start, start_on};
use shown::Shown;
