//! Helpers that the tests of several crates share. No shipped crate depends on it.
//!
//! Programs that a test starts (`program`), and what they show (`admin`); free ports (`port`);
//! waiting (`wait`); certificates (`authority`); the files that the guide names (`examples`).

#![allow(clippy::unwrap_used)]

pub mod admin;
pub mod authority;
pub mod envoy;
pub mod examples;
pub mod port;
pub mod program;
pub mod wait;
