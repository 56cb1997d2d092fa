//! The rate limit service, case by case: `c12` is case 12 of the list that its behaviour was
//! written from (docs/guide/ratelimit.md has what differs from the reference).

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
