//! Evenkeel touches the world here: doors, configuration, clocks, metrics.
//!
//! What is decided, and how, is `evenkeel-core`; this crate turns bytes into questions for it and
//! its verdicts into bytes. The binary is `main`; ARCHITECTURE.md has the tree and the journey of
//! one request.

pub mod ask;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod doors;
pub mod engine;
pub mod peers;
pub mod run;
pub mod store;
pub mod tls;
pub mod watch;
