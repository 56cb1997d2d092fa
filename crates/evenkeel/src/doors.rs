//! Doors: each turns one protocol into questions for the engine and verdicts into bytes.
//!
//! No door decides anything, and no door knows another.

pub mod admin;
pub mod check;
pub mod line;
pub mod proxy;
pub mod ratelimit;
pub mod zeromq;
