//! Decides what each client of a server is charged, and which requests have to wait.
//!
//! The core does no IO, reads no clock and starts no thread: time is an argument. State that
//! threads share is in atomics; the only lock is a spin lock for each set of the [`table`]
//! (`table/set.rs`), which is never held across anything that blocks. So everything here can be
//! simulated, and an embedder gets nothing that it did not ask for. Start at [`limiter`] for the
//! decision, [`bucket`] for the arithmetic, [`table`] for the storage of the counts;
//! ARCHITECTURE.md follows one request through the program.

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
