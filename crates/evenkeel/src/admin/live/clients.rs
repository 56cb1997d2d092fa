//! The history of the heaviest clients in the last hour.
//!
//! A client among the heaviest of a limit gets a point every few seconds. A client that no longer
//! is keeps its points until another client needs the place. The number of clients and the points
//! of each are bounded.

use super::history::columns_json;
use super::shares::{StepLoad, short};
use evenkeel_core::key::KeyHash;
use evenkeel_core::units::{Cost, SECOND, Time};
use evenkeel_engine::HeavyClient;
use std::collections::{HashMap, VecDeque};

/// The interval between two points, in seconds.
pub const STEP_SECS: u64 = 5;
/// The maximum number of points of one client: an hour, at 28 bytes each.
pub const POINTS_MAX: usize = 3_600 / STEP_SECS as usize;
/// The maximum number of clients, of all limits together.
const CLIENTS_MAX: usize = 256;
/// The maximum time in seconds by which work is shown later than it was charged.
const DUE_SECS_MAX: f64 = 60.0;

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
#[derive(Debug, Default)]
pub struct ClientHistory {
    name: String,
    points: VecDeque<(Time, [f32; COLUMNS.len()])>,
    /// Its work so far, as of the last point.
    total: Cost,
    /// Work that is still to be shown: a request is charged when it ends, but has worked before.
    due: f64,
}

/// The names of the numbers of a point. `cost` is a recent mean; `used` is the work since the point
/// before, per second.
const COLUMNS: [&str; 5] = ["cost", "requests", "level", "wait", "used"];
const LEVEL: usize = 2;
const USED: usize = 4;

impl ClientHistories {
    /// Adds a point for each of these clients of a limit, at the end of a step with this load. If
    /// there are too many clients, those not seen for the longest time are removed.
    pub fn note(
        &mut self,
        door: &str,
        limit: &str,
        clients: Vec<HeavyClient>,
        (now, load): (Time, Option<StepLoad>),
    ) {
        let keys: Vec<_> =
            clients.iter().map(|one| ClientKey::new(door, limit, one.row.hash)).collect();
        let mut due = Vec::new();
        for (who, client) in keys.iter().zip(&clients) {
            self.make_room_for(who);
            let history = self.0.entry(who.clone()).or_default();
            due.push(load.map_or(0.0, |load| history.count_work(client, load)));
        }
        // Together they have not worked more than the backend.
        let all = due.iter().sum::<f64>();
        let part = load.map_or(0.0, |load| (load.busy / all).clamp(0.0, 1.0));
        for ((who, client), due) in keys.into_iter().zip(clients).zip(due) {
            let Some(history) = self.0.get_mut(&who) else { continue };
            let used = if due > 0.0 { due * part } else { 0.0 };
            history.push(now, client, (used, load));
        }
    }

    fn make_room_for(&mut self, who: &ClientKey) {
        if self.0.contains_key(who) || self.0.len() < CLIENTS_MAX {
            return;
        }
        let seen = |history: &ClientHistory| history.points.back().map(|(at, _)| *at);
        // One without points is being entered now.
        let old = self.0.iter().filter(|(_, history)| !history.points.is_empty());
        let gone = old.min_by_key(|(_, history)| seen(history)).map(|(who, _)| who.clone());
        if let Some(gone) = gone {
            self.0.remove(&gone);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ClientKey, &ClientHistory)> {
        self.0.iter()
    }

    pub fn knows(&self, who: &ClientKey) -> bool {
        self.0.contains_key(who)
    }

    /// Returns all points of a client as JSON: `t` and each column as a list.
    pub fn json(&self, who: &ClientKey) -> String {
        let points = self.0.get(who).into_iter().flat_map(|history| &history.points);
        let points = points.map(|(at, values)| (*at, values));
        columns_json(&format!("\"step\":{STEP_SECS},"), 1, &COLUMNS, points)
    }
}

impl ClientHistory {
    /// Returns the work per second that is to be shown for a step.
    fn count_work(&mut self, client: &HeavyClient, load: StepLoad) -> f64 {
        let row = &client.row;
        let has_last = self.points.back().is_some_and(|(at, _)| *at == load.since);
        let more = if has_last {
            row.total.minus(self.total).as_units()
        } else if row.first_seen > load.since {
            row.total.as_units()
        } else {
            // Its work since the step before is not known.
            row.cost_per_second * load.seconds()
        };
        self.due = if has_last { self.due + more } else { more };
        self.due / load.seconds()
    }

    fn push(&mut self, now: Time, client: HeavyClient, (used, load): (f64, Option<StepLoad>)) {
        let HeavyClient { row, level, .. } = client;
        let shown = load.map_or(0.0, |load| used * load.seconds());
        let most = load.map_or(0.0, |load| DUE_SECS_MAX * load.busy);
        self.due = (self.due - shown).clamp(0.0, most);
        self.total = row.total;
        if !row.name.is_empty() {
            self.name = row.name;
        }
        let level = level.map_or(f64::NAN, |level| level as f64 / SECOND as f64);
        let values = [
            row.cost_per_second as f32,
            row.requests_per_second as f32,
            level as f32,
            row.wait.as_secs_f64() as f32,
            used as f32,
        ];
        if self.points.len() >= POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back((now, values));
    }

    /// The client's name under its limit.
    pub fn name(&self) -> &str {
        if self.name.is_empty() { "?" } else { &self.name }
    }

    /// Returns the work and the level at these times; `None` where there is no point.
    pub fn shares_at(&self, times: &[Time]) -> (Vec<Option<f32>>, Vec<Option<f32>>) {
        let point = |at: &Time| {
            let place = self.points.binary_search_by_key(at, |(at, _)| *at).ok()?;
            self.points.get(place).map(|(_, values)| values)
        };
        let column = |column: usize| {
            times.iter().map(|at| point(at).and_then(|values| short(values[column]))).collect()
        };
        (column(USED), column(LEVEL))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use evenkeel_core::top::TopClient;
    use evenkeel_core::units::Nanos;
    use evenkeel_engine::view::ClientDetails;

    /// A client with this recent cost.
    pub fn standing(hash: u64, cost: f64) -> HeavyClient {
        let row = TopClient {
            hash: KeyHash::from_bits(hash),
            name: String::new(),
            cost_per_second: cost,
            error_per_second: 0.0,
            requests_per_second: 2.0,
            wait: Nanos::from_millis(250),
            first_seen: Time::ZERO,
            last_seen: Time::ZERO,
            total: Cost::ZERO,
            answered: None,
            usual: [None; 2],
        };
        let about = ClientDetails::default();
        HeavyClient { row, level: Some(-1_500_000_000), wait: Nanos::ZERO, about }
    }

    #[test]
    fn clients_and_their_points_are_bounded_and_the_longest_unseen_goes() {
        let mut clients = ClientHistories::default();
        let who = |hash| ClientKey::new("proxy", "ip", KeyHash::from_bits(hash));
        for hash in 1..=CLIENTS_MAX as u64 + 1 {
            clients.note("proxy", "ip", vec![standing(hash, 0.5)], (Time(hash), None));
        }
        assert_eq!(clients.0.len(), CLIENTS_MAX);
        let known = |hash| !clients.json(&who(hash)).contains("\"t\":[]");
        assert!(!known(1) && known(2));
        for at in 0..2 * POINTS_MAX as u64 {
            clients.note("proxy", "ip", vec![standing(2, 0.25)], (Time(1_000 + at), None));
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
