//! The state of a swarm at a door, as `/api/top` returns it and `top` and `doctor` print it.
//!
//! The values come from the engine (`engine::VisitorStats`). What they mean:
//! `evenkeel_core::queue::standing`.

use super::length::length;
use super::units::LoadUnit;
use serde::{Deserialize, Serialize};

/// A group of strangers that waits behind all others, because few returning clients are like it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BurningGroupRow {
    /// By what an order to `/api/overrides` names the group.
    #[serde(default)]
    pub id: String,
    /// What its requests have in common, in words.
    pub name: String,
    /// The same as a condition of the configuration; empty from older servers.
    #[serde(default)]
    pub when: String,
    /// Its part of what strangers have asked for in the last half minute, in percent.
    pub percent_of_strangers: f64,
    /// The largest part of returning clients that may be like it, in percent.
    pub percent_of_clients: f64,
    /// For how long it has waited behind the others, in seconds.
    pub seconds: f64,
}

/// The state of strangers and visitors at the queue of a backend, while there is pressure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwarmLoad {
    /// The beginning of the pressure, in seconds since the Unix epoch.
    pub since: f64,
    /// How long the pressure has lasted, in seconds.
    pub seconds: f64,
    /// Requests of strangers that wait in the queue.
    pub strangers: usize,
    /// The cost of requests of strangers since then, in the unit of the load.
    pub strangers_cost: f64,
    /// Requests that wait in the queue, of visitors that have waited or were served since then.
    pub visitors: usize,
    /// Visitors with their first waiting page. Programs that will not come back are among them.
    pub waiting_room_new: u32,
    /// Visitors with a waiting page that have come back before.
    pub waiting_room_returned: u32,
    /// Seconds from the first request of newcomers to their turn, a mean over the last ones; `null`
    /// if there was none.
    pub newcomer_wait: Option<f64>,
    /// The groups of strangers that wait behind all others, the largest one first.
    #[serde(default)]
    pub groups: Vec<BurningGroupRow>,
}

impl SwarmLoad {
    /// The line of an instance that does not own the queue: `swarm for 5 min: a:8080 owns the
    /// queue and has the figures`.
    pub(super) fn line_of_member(&self, owner: &str) -> String {
        format!("swarm for {}: {owner} owns the queue and has the figures", length(self.seconds))
    }

    /// One line for people: `swarm for 5 min (80.5 CPU-s): 12 strangers wait, 40 in the waiting
    /// room, newcomers wait 3.2 s`.
    pub(super) fn line(&self, unit: LoadUnit) -> String {
        let (time, cost) = (length(self.seconds), unit.work(self.strangers_cost));
        let room = self.waiting_room_new.saturating_add(self.waiting_room_returned);
        let strangers = self.strangers;
        let line = format!(
            "swarm for {time} ({cost}): {strangers} strangers wait, {room} in the waiting room"
        );
        match self.newcomer_wait {
            Some(wait) => format!("{line}, newcomers wait {wait:.1} s"),
            None => line,
        }
    }
}

/// One line for people: `last in line: User-Agent 'swarm/1' (97 % of strangers)`.
impl std::fmt::Display for BurningGroupRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BurningGroupRow { name, percent_of_strangers: percent, .. } = self;
        write!(f, "last in line: {name} ({percent:.0} % of strangers)")
    }
}
