//! State that is kept outside of this process: snapshots on disk, and counts in Redis that several
//! instances share.
//!
//! `snapshot` preserves debts over a restart. `redis` gives several instances one count. The engine
//! knows neither: a snapshot reads the engine's tables, and a door asks Redis instead of the
//! engine, or before it (`requests`).

pub mod redis;
mod requests;
pub mod snapshot;
