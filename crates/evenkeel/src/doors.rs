//! Doors: each one converts a protocol into questions for the engine, and verdicts into bytes.
//!
//! Doors make no decisions and do not know each other.

pub mod admin;
pub mod check;
pub mod line;
pub mod proxy;
pub mod ratelimit;
pub mod zeromq;
