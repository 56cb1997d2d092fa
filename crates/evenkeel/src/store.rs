//! What is kept outside of this process: snapshots on the disk, and one count for all in Redis.
//!
//! `snapshot` lets debts outlive the program; `redis` lets several instances have one count. The
//! engine knows neither: a snapshot is read off it, and a door asks Redis in its place, or first
//! (`requests`).

pub mod redis;
pub mod requests;
pub mod snapshot;
