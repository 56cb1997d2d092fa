//! Tries the engine without the traffic of real clients.
//!
//! `replay` plays access logs before it and reports what it would have decided. `demo` runs a small
//! site, two visitors and the proxy in one process.

pub mod demo;
pub mod replay;
