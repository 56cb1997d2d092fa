//! What the page's first chart shows: the work of a backend over time, by client.
//!
//! Every few seconds each door gets a step: how much its backend worked, how much it could, and
//! whether decisions were enforced. The clients' parts are points of `clients`. The steps of the
//! last hour are kept.

use super::clients::{ClientHistories, ClientKey, POINTS_MAX, STEP_SECS};
use evenkeel_core::units::{SECOND, Time};
use evenkeel_telemetry::snapshot::LoadUnit;
use serde::Serialize;
use std::collections::VecDeque;

/// The number of clients that the chart shows by name.
const CLIENTS_SHOWN: usize = 5;

/// The state of a door at the end of a step.
#[derive(Clone, Copy, Debug)]
pub struct DoorReading {
    pub at: Time,
    pub unit: LoadUnit,
    /// The work of the backend so far.
    pub busy: f64,
    /// What the backend can do in a second; NaN if it is not known.
    pub capacity: f64,
    /// Whether decisions about the first limit are not enforced.
    pub shadow: bool,
    /// The number of reloads of the configuration so far.
    pub reloads: u64,
}

/// The steps of one door.
#[derive(Debug, Default)]
pub struct DoorSteps {
    last: Option<DoorReading>,
    steps: VecDeque<DoorStep>,
}

#[derive(Clone, Copy, Debug)]
struct DoorStep {
    at: Time,
    /// The work per second.
    busy: f32,
    capacity: f32,
    shadow: bool,
    has_reload: bool,
}

impl DoorSteps {
    /// Adds a step. Returns its length in seconds and the work per second in it; `None` for the
    /// first reading, which has nothing to be compared with.
    pub fn note(&mut self, reading: DoorReading) -> Option<StepLoad> {
        let before = self.last.replace(reading)?;
        let seconds = reading.at.since(before.at).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let busy = (reading.busy - before.busy).max(0.0) / seconds;
        if self.steps.len() >= POINTS_MAX {
            self.steps.pop_front();
        }
        self.steps.push_back(DoorStep {
            at: reading.at,
            busy: busy as f32,
            capacity: reading.capacity as f32,
            shadow: reading.shadow,
            has_reload: reading.reloads > before.reloads,
        });
        Some(StepLoad { since: before.at, at: reading.at, busy })
    }

    /// Returns the steps from `since` on, with the clients of a limit that used most in them.
    pub fn chart(
        &self,
        (door, limit): (&str, &str),
        clients: &ClientHistories,
        since: Time,
    ) -> SharesChart {
        let from = self.steps.partition_point(|step| step.at < since);
        let steps: Vec<DoorStep> = self.steps.range(from..).copied().collect();
        let times: Vec<Time> = steps.iter().map(|step| step.at).collect();
        let seconds = |at: Time| (at.0 as f64 / SECOND as f64 * 100.0).round() / 100.0;
        let marks = steps.windows(2).filter_map(|pair| {
            let text = match pair {
                [before, now] if before.shadow != now.shadow => {
                    if now.shadow {
                        "shadow mode"
                    } else {
                        "limits enforced"
                    }
                }
                [_, now] if now.has_reload => "reload",
                _ => return None,
            };
            Some(ChartMark { t: seconds(pair[1].at), text })
        });
        SharesChart {
            door: door.to_owned(),
            limit: limit.to_owned(),
            step: STEP_SECS,
            work_unit: self.last.map(|last| last.unit).unwrap_or_default(),
            marks: marks.collect(),
            clients: clients.heaviest((door, limit), &times, CLIENTS_SHOWN),
            t: times.into_iter().map(seconds).collect(),
            busy: steps.iter().map(|step| short(step.busy)).collect(),
            capacity: steps.iter().map(|step| short(step.capacity)).collect(),
        }
    }
}

/// The load of a door in one step.
#[derive(Clone, Copy, Debug)]
pub struct StepLoad {
    pub since: Time,
    pub at: Time,
    /// The work per second.
    pub busy: f64,
}

impl StepLoad {
    pub fn seconds(&self) -> f64 {
        self.at.since(self.since).as_secs_f64()
    }
}

/// The answer of `/api/clients`: columns, the oldest value first. Work is in CPU-seconds (or
/// thousands of weighted tokens) per second.
#[derive(Debug, Serialize)]
pub struct SharesChart {
    pub door: String,
    pub limit: String,
    /// Seconds from one step to the next.
    pub step: u64,
    pub work_unit: LoadUnit,
    /// The end of each step.
    pub t: Vec<f64>,
    /// The work of the backend.
    pub busy: Vec<Option<f32>>,
    /// What the backend could do; `null`: not known.
    pub capacity: Vec<Option<f32>>,
    /// What has happened, and when.
    pub marks: Vec<ChartMark>,
    pub clients: Vec<ClientShares>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct ChartMark {
    pub t: f64,
    pub text: &'static str,
}

/// The part of one client.
#[derive(Debug, PartialEq, Serialize)]
pub struct ClientShares {
    pub id: String,
    pub key: String,
    /// Its work; `null` where it was not among the heaviest.
    pub used: Vec<Option<f32>>,
    /// The rest in its bucket; negative is debt.
    pub level: Vec<Option<f32>>,
}

/// Returns a number with four digits, which is more than a chart shows; `None` if it is not finite.
pub fn short(value: f32) -> Option<f32> {
    let value = super::history::rounded(value);
    value.is_finite().then_some(value)
}

impl ClientHistories {
    /// Returns the clients of a limit with the most work at these times, the heaviest first.
    fn heaviest(
        &self,
        (door, limit): (&str, &str),
        times: &[Time],
        max: usize,
    ) -> Vec<ClientShares> {
        let of_limit = |who: &ClientKey| who.door == door && who.limit == limit;
        let mut found = Vec::new();
        for (who, history) in self.iter().filter(|(who, _)| of_limit(who)) {
            let (used, level) = history.shares_at(times);
            let sum: f32 = used.iter().flatten().sum();
            if sum > 0.0 {
                let id = crate::admin::observe::id(who.hash);
                found.push((sum, ClientShares { id, key: history.name().to_owned(), used, level }));
            }
        }
        found.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.id.cmp(&other.id)));
        found.into_iter().take(max).map(|(_, shares)| shares).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::live::clients::tests::standing;
    use evenkeel_core::units::{Cost, Nanos};

    fn at(step: u64) -> Time {
        Time::ZERO.plus(Nanos::from_secs(1_000 + step * STEP_SECS))
    }

    fn reading(step: u64) -> DoorReading {
        DoorReading {
            at: at(step),
            unit: LoadUnit::Cpu,
            busy: step as f64 * 7.5,
            capacity: 2.0,
            shadow: step < 3,
            reloads: u64::from(step >= 5),
        }
    }

    /// Steps of a door at which seven clients use CPU time, the seventh most.
    fn played(steps: u64) -> (DoorSteps, ClientHistories) {
        let (mut door, mut clients) = (DoorSteps::default(), ClientHistories::default());
        for step in 0..steps {
            let load = door.note(reading(step));
            let rows = (1..=7_u64).map(|client| {
                let mut standing = standing(client, 0.0);
                standing.row.name = format!("client {client}");
                standing.row.total = Cost::cpu(Nanos::from_millis(step * client * 250));
                standing
            });
            clients.note("proxy", "ip", rows.collect(), (at(step), load));
        }
        (door, clients)
    }

    #[test]
    fn the_five_heaviest_are_named_with_what_they_used_in_each_step() {
        let (door, clients) = played(8);
        let chart = door.chart(("proxy", "ip"), &clients, Time::ZERO);
        let names: Vec<_> = chart.clients.iter().map(|client| client.key.as_str()).collect();
        assert_eq!(names, ["client 7", "client 6", "client 5", "client 4", "client 3"]);
        assert_eq!(chart.busy, [Some(1.5); 7]);
        assert_eq!(chart.capacity, [Some(2.0); 7]);
        assert_eq!(chart.t.len(), 7);
        assert_eq!(chart.clients[0].used, [Some(0.35); 7]);
        assert!(door.chart(("proxy", "net24"), &clients, Time::ZERO).clients.is_empty());
        assert_eq!(door.chart(("proxy", "ip"), &clients, at(6)).t.len(), 2);
    }

    #[test]
    fn a_reload_and_a_change_of_the_mode_are_marked() {
        let (door, clients) = played(8);
        let marks = door.chart(("proxy", "ip"), &clients, Time::ZERO).marks;
        let marks: Vec<_> = marks.iter().map(|mark| (mark.t, mark.text)).collect();
        assert_eq!(marks, [(1_015.0, "limits enforced"), (1_025.0, "reload")]);
    }

    #[test]
    fn an_hour_is_all_and_a_clock_that_stands_still_is_no_step() {
        let mut door = DoorSteps::default();
        assert!(door.note(reading(0)).is_none());
        assert!(door.note(reading(0)).is_none());
        for step in 1..=POINTS_MAX as u64 + 9 {
            door.note(reading(step));
        }
        let chart = door.chart(("proxy", "ip"), &ClientHistories::default(), Time::ZERO);
        assert_eq!(chart.t.len(), POINTS_MAX);
    }

    #[test]
    fn clients_together_have_no_more_than_the_backend_has_worked() {
        let (mut door, mut clients) = (DoorSteps::default(), ClientHistories::default());
        for step in 0..6 {
            let load = door.note(reading(step));
            let mut heavy = standing(1, 0.0);
            // One request of 20 s is charged at once when it ends.
            heavy.row.total = Cost::cpu(Nanos::from_secs(if step < 2 { 1 } else { 21 }));
            clients.note("proxy", "ip", vec![heavy], (at(step), load));
        }
        let chart = door.chart(("proxy", "ip"), &clients, Time::ZERO);
        assert_eq!(chart.clients[0].used[1..], [Some(1.5), Some(1.5), Some(1.0), Some(0.0)]);
    }
}
