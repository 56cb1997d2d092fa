//! The view that the admin door and the snapshots have of every engine: limits with their buckets,
//! the heaviest clients, and the load of the backend, if there is one.
//!
//! Decisions are not part of it, because each kind of engine is asked in its own way.

pub mod client_times;
pub mod overrides;
mod requests;
pub mod views;

use crate::admission::{AdmissionStats, VisitorStats};
use crate::backends::BackendReport;
use crate::open_requests::OpenRequestList;
use crate::swarm::BurningReport;
use client_times::ClientTimes;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::queue::shared::SharedQueueReport;
use evenkeel_core::queue::{ClientHistory, WorkUnit};
use evenkeel_core::top::TopClient;
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_identity::robots::RobotReport;
use overrides::{Override, OverridesFullError};
use std::sync::Arc;

/// The maximum number of requests with the backend that are shown.
const SHOWN_MAX: usize = 20;
/// A client that has sent no request for this long is left out of the client counts.
pub(crate) const CLIENT_GONE_AFTER: Nanos = Nanos::from_secs(60);

/// One of the heaviest clients, with the state of its bucket.
#[derive(Clone, Debug)]
pub struct HeavyClient {
    /// The client's name, cost and number of requests.
    pub row: TopClient,
    /// The rest in the client's bucket, in nano-units. A negative level is debt.
    pub level: Option<i64>,
    /// The time until the client is within the limit.
    pub wait: Nanos,
    /// Other facts about the client; empty until [`EngineView::describe`].
    pub about: ClientDetails,
}

impl HeavyClient {
    /// An entry of a list that no limit counts by.
    pub fn of_view(row: TopClient) -> HeavyClient {
        HeavyClient { row, level: None, wait: Nanos::ZERO, about: ClientDetails::default() }
    }
}

/// What is known of a client beside its figures, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientDetails {
    /// The route and the user agent of most of its requests, if they are among the heaviest.
    pub usual: [Option<String>; 2],
    /// The group that its verified host name makes it count as.
    pub group: Option<String>,
    /// The AS number and the country of its network.
    pub network: [Option<String>; 2],
}

/// The rows of the limit at `index` with the state of their buckets.
pub(crate) fn with_levels(
    limiter: &Limiter,
    index: usize,
    rows: Vec<TopClient>,
    now: Time,
) -> Vec<HeavyClient> {
    let standing = |row: TopClient| {
        let reason = limiter.standing_of(index, row.hash, now);
        let about = ClientDetails::default();
        HeavyClient { level: reason.level, wait: reason.wait, row, about }
    };
    rows.into_iter().map(standing).collect()
}

/// The number of clients in `rows`, seen lately, with an average wait above `above`.
pub(crate) fn count_held(rows: &[TopClient], above: Nanos, now: Time) -> usize {
    let held = |row: &&TopClient| row.wait > above && now.since(row.last_seen) < CLIENT_GONE_AFTER;
    rows.iter().filter(held).count()
}

/// An engine as seen by the admin door and the snapshots.
pub trait EngineView: Send + Sync {
    /// The current limits with their buckets. The buckets outlive a reload in the meantime.
    fn held(&self) -> Arc<Limiter>;

    /// The clients that the queue remembers; `None` if it does not distinguish them.
    fn client_history(&self) -> Option<ClientHistory> {
        None
    }

    /// The heaviest clients of the limit at `index`, the heaviest first, with their levels.
    fn top(&self, index: usize) -> Vec<HeavyClient> {
        let _ = index;
        Vec::new()
    }

    /// The number of clients of the limit at `index`, seen within the last minute, with an average
    /// wait above `above`; `None` if the engine delays no requests.
    fn clients_held(&self, index: usize, above: Nanos) -> Option<usize> {
        let _ = (index, above);
        None
    }

    /// The load of the backend; `None` if the engine has no backend.
    fn work(&self) -> Option<BackendLoad> {
        None
    }

    /// How long the requests of each client took that was seen lately; empty if the engine does not
    /// know.
    fn client_times(&self) -> ClientTimes {
        ClientTimes::default()
    }

    /// Adds to each of these clients what else is known of it.
    fn describe(&self, clients: &mut [HeavyClient]) {
        let _ = clients;
    }

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

    /// What is known of each robot; empty if there are none.
    fn robots(&self) -> Vec<RobotReport> {
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
    /// The unit of its work and costs.
    pub unit: WorkUnit,
    /// Whether `cpus` are the slots of turns, and costs the time for which they are held.
    pub is_slots: bool,
    /// The cost of all its work since the start.
    pub busy: Cost,
    /// CPU time used while no request ran. Known only with `cost: cgroup`.
    pub unpaid: Cost,
    /// The capacity that limits share out, in CPU-seconds or thousands of tokens per second.
    pub cpus: f64,
    /// Whether `cpus` follows `rate`, and is a guess until that is known.
    pub measures_rate: bool,
    /// The measured capacity per second of the backend, in the same unit.
    pub rate: Option<f64>,
    /// The state of the admission queue; `None` if requests never queue.
    pub crowd: Option<AdmissionStats>,
    /// The queue that several instances share; `None` if this one shares none.
    pub shared: Option<SharedQueueReport>,
    /// What is known of strangers and visitors; `None` if requests never queue.
    pub visitors: Option<VisitorStats>,
    /// The groups of strangers that wait behind all others.
    pub burning: Vec<BurningReport>,
    /// The oldest requests that are with the backend, and the one that has waited for longest.
    pub open: OpenRequestList,
    /// The reports of the backends about their own queues; empty if they are not asked.
    pub reports: Arc<Vec<BackendReport>>,
    /// The cost source in the words of the configuration.
    pub measured: String,
}

impl BackendLoad {
    /// The capacity per second of the backend, in the unit of `cpus`; `None` if it has to be
    /// measured and is not known yet.
    #[must_use]
    pub fn capacity(&self) -> Option<f64> {
        if self.measures_rate { self.rate } else { Some(self.cpus) }
    }
}
