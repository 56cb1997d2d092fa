//! What every engine can show and have kept, whatever its door asks: limits with their buckets,
//! the heaviest clients, and what the backend does, where there is one.
//!
//! This is how the admin door and the snapshots see engines. Deciding is not here: each kind of
//! engine has questions of its own.

use super::{Crowd, Standing};
use std::sync::Arc;
use tollgate_core::limiter::Limiter;
use tollgate_core::units::{Cost, Nanos};

/// An engine as it is looked at.
pub trait Counted: Send + Sync {
    /// The limits of this moment with their buckets, which live on whatever is reloaded meanwhile.
    fn held(&self) -> Arc<Limiter>;

    /// The heaviest clients of the limit at `index`, heaviest first, with their levels.
    fn top(&self, index: usize) -> Vec<Standing>;

    /// How many clients of the limit at `index`, of those seen within the last minute, have
    /// requests that wait for longer than `above` on average; `None` where nobody waits.
    fn clients_held(&self, index: usize, above: Nanos) -> Option<usize>;

    /// What the backend does; `None` where none is.
    fn work(&self) -> Option<Work>;

    /// Lists of the heaviest that are of no one limit: the name of each, and who is on it.
    fn lists(&self) -> Vec<(&'static str, Vec<Standing>)> {
        Vec::new()
    }
}

/// What a backend does.
pub struct Work {
    /// How many requests it works on now.
    pub working: u32,
    /// All it has worked so far.
    pub busy: Cost,
    /// CPU time that was used while no request ran; known by `cost: cgroup` alone.
    pub unpaid: Cost,
    /// CPU-seconds per second that are shared out.
    pub cpus: f64,
    /// Who waits for room, and who has it; `None` if nobody has to.
    pub crowd: Option<Crowd>,
}
