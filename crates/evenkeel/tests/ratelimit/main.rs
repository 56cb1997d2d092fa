//! The rate limit service, case by case: `c12` is case 12 of docs/spec/ratelimit.md. The
//! differences from the reference server are in docs/guide/ratelimit.md.

mod ask;
mod envoy;
mod figures;
mod fuzz;
mod limits;
mod loading;
mod matching;
mod modes;
mod program;
mod quota;
mod server;
mod store;
