//! The view that the admin door and the snapshots have of every engine: limits with their buckets,
//! the heaviest clients, and the load of the backend, if there is one.
//!
//! Decisions are not part of it, because each kind of engine is asked in its own way.

pub mod overrides;
mod requests;
pub mod views;

use super::{AdmissionStats, HeavyClient};
use evenkeel_core::limiter::Limiter;
use evenkeel_core::top::TopClient;
use evenkeel_core::units::{Cost, Nanos};
use overrides::{Override, OverridesFullError};
use std::sync::Arc;

/// An engine as seen by the admin door and the snapshots.
pub trait EngineView: Send + Sync {
    /// The current limits with their buckets. The buckets outlive a reload in the meantime.
    fn held(&self) -> Arc<Limiter>;

    /// The heaviest clients of the limit at `index`, the heaviest first, with their levels.
    fn top(&self, index: usize) -> Vec<HeavyClient>;

    /// The number of clients of the limit at `index`, seen within the last minute, with an average
    /// wait above `above`; `None` if the engine delays no requests.
    fn clients_held(&self, index: usize, above: Nanos) -> Option<usize>;

    /// The load of the backend; `None` if the engine has no backend.
    fn work(&self) -> Option<BackendLoad>;

    /// The `max` heaviest clients of the limit at `index`: the first entries of `top`.
    fn heaviest(&self, index: usize, max: usize) -> Vec<HeavyClient> {
        let mut top = self.top(index);
        top.truncate(max);
        top
    }

    /// Whether the limit at `index` is in shadow: decided and counted, but not enforced.
    fn shadows(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// The `max` heaviest entries of each list that no limit counts by, with the list's name. These
    /// entries have no level.
    fn views(&self, max: usize) -> Vec<(&'static str, Vec<TopClient>)> {
        let _ = max;
        Vec::new()
    }

    /// The overrides that operators have set; `None` if the engine supports none.
    fn overrides(&self) -> Option<Vec<Override>> {
        None
    }

    /// Sets an override for a client.
    ///
    /// # Errors
    /// The list is full. It is left unchanged.
    fn set_override(&self, said: Override) -> Result<Override, OverridesFullError> {
        let _ = said;
        Err(OverridesFullError)
    }

    /// Removes the override with this id and returns it.
    fn remove_override(&self, id: u64) -> Option<Override> {
        let _ = id;
        None
    }

    /// Removes the overrides that have expired and returns them.
    fn end_overrides(&self) -> Vec<Override> {
        Vec::new()
    }

    /// Lists of the heaviest keys that belong to no single limit, each with its name.
    fn lists(&self) -> Vec<(&'static str, Vec<HeavyClient>)> {
        Vec::new()
    }
}

/// The load of a backend.
pub struct BackendLoad {
    /// The number of requests that the backend works on now.
    pub working: u32,
    /// The cost of all its work since the start.
    pub busy: Cost,
    /// CPU time used while no request ran. Known only with `cost: cgroup`.
    pub unpaid: Cost,
    /// The capacity that limits share out, in CPU-seconds per second.
    pub cpus: f64,
    /// The state of the admission queue; `None` if requests never queue.
    pub crowd: Option<AdmissionStats>,
    /// The cost source in the words of the configuration.
    pub measured: String,
}
