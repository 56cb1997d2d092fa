//! The history of the heaviest clients in the last hour.
//!
//! A client among the heaviest of a limit gets a point every few seconds. A client that no longer
//! is keeps its points until another client needs the place. The number of clients and the points
//! of each are bounded.

use super::history::columns_json;
use evenkeel_core::key::KeyHash;
use evenkeel_core::units::{SECOND, Time};
use evenkeel_engine::HeavyClient;
use std::collections::{HashMap, VecDeque};

/// The interval between two points, in seconds.
pub const STEP_SECS: u64 = 5;
/// The maximum number of points of one client: an hour, at 24 bytes each.
const POINTS_MAX: usize = 3_600 / STEP_SECS as usize;
/// The maximum number of clients, of all limits together.
const CLIENTS_MAX: usize = 256;

/// A client, identified by its door, its limit and its hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientKey {
    pub door: String,
    pub limit: String,
    pub hash: KeyHash,
}

impl ClientKey {
    pub fn new(door: &str, limit: &str, hash: KeyHash) -> ClientKey {
        ClientKey { door: door.to_owned(), limit: limit.to_owned(), hash }
    }
}

/// Returns how many clients of each limit get points, if there are `limits` limits: all of them fit
/// in twice.
pub fn of_each(limits: usize) -> usize {
    (CLIENTS_MAX / (2 * limits.max(1))).clamp(1, 20)
}

#[derive(Debug, Default)]
pub struct ClientHistories(HashMap<ClientKey, ClientHistory>);

/// The points of one client, each with its time.
type ClientHistory = VecDeque<(Time, [f32; COLUMNS.len()])>;

/// The names of the numbers of a point.
const COLUMNS: [&str; 4] = ["cost", "requests", "level", "wait"];

impl ClientHistories {
    /// Adds a point for a client with this state at `now`. If there are too many clients, the one
    /// not seen for the longest time is removed.
    pub fn note(&mut self, who: ClientKey, standing: &HeavyClient, now: Time) {
        if !self.0.contains_key(&who) && self.0.len() >= CLIENTS_MAX {
            let seen = |points: &ClientHistory| points.back().map(|(at, _)| *at);
            let gone = self.0.iter().min_by_key(|(_, points)| seen(points));
            if let Some(gone) = gone.map(|(who, _)| who.clone()) {
                self.0.remove(&gone);
            }
        }
        let level = standing.level.map_or(f64::NAN, |level| level as f64 / SECOND as f64);
        let values = [
            standing.row.cost_per_second as f32,
            standing.row.requests_per_second as f32,
            level as f32,
            standing.row.wait.as_secs_f64() as f32,
        ];
        let points = self.0.entry(who).or_default();
        if points.len() >= POINTS_MAX {
            points.pop_front();
        }
        points.push_back((now, values));
    }

    pub fn knows(&self, who: &ClientKey) -> bool {
        self.0.contains_key(who)
    }

    /// Returns all points of a client as JSON: `t` and each column as a list.
    pub fn json(&self, who: &ClientKey) -> String {
        let points = self.0.get(who).into_iter().flatten().map(|(at, values)| (*at, values));
        columns_json(&format!("\"step\":{STEP_SECS},"), 1, &COLUMNS, points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::top::TopClient;
    use evenkeel_core::units::{Cost, Nanos};

    fn standing(hash: u64, cost: f64) -> HeavyClient {
        let row = TopClient {
            hash: KeyHash::from_bits(hash),
            name: String::new(),
            cost_per_second: cost,
            error_per_second: 0.0,
            requests_per_second: 2.0,
            wait: Nanos::from_millis(250),
            last_seen: Time::ZERO,
            total: Cost::ZERO,
        };
        HeavyClient { row, level: Some(-1_500_000_000), wait: Nanos::ZERO }
    }

    #[test]
    fn clients_and_their_points_are_bounded_and_the_longest_unseen_goes() {
        let mut clients = ClientHistories::default();
        let who = |hash| ClientKey::new("proxy", "ip", KeyHash::from_bits(hash));
        for hash in 1..=CLIENTS_MAX as u64 + 1 {
            clients.note(who(hash), &standing(hash, 0.5), Time(hash));
        }
        assert_eq!(clients.0.len(), CLIENTS_MAX);
        let known = |hash| !clients.json(&who(hash)).contains("\"t\":[]");
        assert!(!known(1) && known(2));
        for at in 0..2 * POINTS_MAX as u64 {
            clients.note(who(2), &standing(2, 0.25), Time(1_000 + at));
        }
        let json = clients.json(&who(2));
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["t"].as_array().map(Vec::len), Some(POINTS_MAX));
        assert_eq!((&json["cost"][0], &json["level"][0]), (&0.25.into(), &(-1.5).into()));
    }

    #[test]
    fn all_limits_find_room() {
        for limits in 0..40 {
            assert!(of_each(limits) >= 1 && limits * of_each(limits) <= CLIENTS_MAX);
        }
    }
}
