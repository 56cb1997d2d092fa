//! What every engine can show and have kept, whatever its door asks: limits with their buckets,
//! the heaviest clients, and what the backend does, where there is one.
//!
//! This is how the admin door and the snapshots see engines. Deciding is not here: each kind of
//! engine has questions of its own.

pub mod overrides;
mod requests;
pub mod views;

use super::{Crowd, Standing};
use evenkeel_core::limiter::Limiter;
use evenkeel_core::top::Row;
use evenkeel_core::units::{Cost, Nanos};
use overrides::{Full, Override};
use std::sync::Arc;

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

    /// The `max` heaviest clients of the limit at `index`: the first of `top`.
    fn heaviest(&self, index: usize, max: usize) -> Vec<Standing> {
        let mut top = self.top(index);
        top.truncate(max);
        top
    }

    /// Whether the limit at `index` is only decided and counted, and enforces nothing.
    fn shadows(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// The `max` heaviest by other things than limits count by: the name of each list, and who is
    /// on it. Nobody has a level there.
    fn views(&self, max: usize) -> Vec<(&'static str, Vec<Row>)> {
        let _ = max;
        Vec::new()
    }

    /// What operators have said of single clients; `None` where nothing can be said.
    fn overrides(&self) -> Option<Vec<Override>> {
        None
    }

    /// Says something of a client.
    ///
    /// # Errors
    /// There is no room for it; nothing has changed then.
    fn say(&self, said: Override) -> Result<Override, Full> {
        let _ = said;
        Err(Full)
    }

    /// Takes back what was said under this id.
    fn undo(&self, id: u64) -> Option<Override> {
        let _ = id;
        None
    }

    /// Takes back what was said and has ended.
    fn end_overrides(&self) -> Vec<Override> {
        Vec::new()
    }

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
    /// How it is known what a request costs, as the configuration says it.
    pub measured: String,
}
