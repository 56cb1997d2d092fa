//! Decides what each client of a server is charged, and who waits.
//!
//! The core does no IO, reads no clock, starts no thread and takes no lock: time is an argument,
//! state is atomics. So everything here can be simulated, and an embedder gets nothing else.
//! Start at [`limiter`] for the decision, [`bucket`] for the arithmetic, [`table`] for where the
//! counts are kept; ARCHITECTURE.md has the journey of one request.

#![no_std]

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

pub mod bucket;
pub mod classify;
pub mod key;
pub mod limit;
pub mod limiter;
pub mod meter;
pub mod queue;
pub mod replica;
pub mod sim;
pub mod table;
pub mod top;
pub mod units;

pub use table::windows;
