//! The I/O side of Evenkeel: doors, configuration, clocks and metrics.
//!
//! All decisions are made in `evenkeel-core`; this crate converts bytes into questions for it and
//! its verdicts into bytes. The binary is `main`. ARCHITECTURE.md describes the source tree and the
//! path of a request.

mod admin;
pub mod cli;
mod doctor;
mod run;
