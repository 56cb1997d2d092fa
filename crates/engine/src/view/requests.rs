//! The engine of requests as the admin door sees it, with the overrides that operators set there.
//!
//! The lists of all lanes are merged here. None of this is on the path of a request. Lanes are
//! locked one at a time.

use super::overrides::{Override, OverrideIndex, OverridesFullError};
use super::views;
use super::{BackendLoad, EngineView};
use crate::{CLIENT_GONE_AFTER, Engine, HeavyClient};
use evenkeel_core::limiter::Limiter;
use evenkeel_core::top::{TopClient, TopClients};
use evenkeel_core::units::{Nanos, Time};
use std::sync::Arc;

/// The number of rows to read from each lane for each row of the merged list.
const LANE_ROWS: usize = 4;

impl Engine {
    /// The merged list of all lanes, with at most `max` rows and no more than one lane may have.
    fn rows(&self, index: usize, max: usize, now: Time) -> Vec<TopClient> {
        let rules = self.rules.load();
        // A client among the heaviest of all lanes together may be lower in the list of each lane.
        let of_each = max.saturating_mul(LANE_ROWS);
        let tops = self.lanes.iter().map(|lane| {
            let books = lane.lock();
            books.tops.get(index).map(|top| top.heaviest(of_each, now)).unwrap_or_default()
        });
        let elsewhere = self.elsewhere.rows(rules.marks.of(index), now);
        let mut rows = TopClients::merge(tops.chain([elsewhere]).collect());
        rows.truncate(rules.names_max.min(max));
        rows
    }

    /// Copies the overrides to all lanes. Lock order: `overrides` is locked.
    fn publish(&self, in_force: OverrideIndex) {
        self.lanes.iter().for_each(|lane| lane.lock().in_force.clone_from(&in_force));
    }
}

impl EngineView for Engine {
    fn held(&self) -> Arc<Limiter> {
        Arc::clone(&self.rules.load().limiter)
    }

    fn work(&self) -> Option<BackendLoad> {
        let (working, busy) = self.load();
        let unpaid = self.meter.lock().unpaid();
        let rules = self.rules.load();
        let (cpus, measured) = (rules.cpus, rules.cost.to_string());
        Some(BackendLoad { working, busy, unpaid, cpus, crowd: self.admission_stats(), measured })
    }

    fn top(&self, index: usize) -> Vec<HeavyClient> {
        self.heaviest(index, usize::MAX)
    }

    fn heaviest(&self, index: usize, max: usize) -> Vec<HeavyClient> {
        let now = self.clock.now();
        let rules = self.rules.load();
        let rows = self.rows(index, max, now);
        let standing = |row: TopClient| {
            let reason = rules.limiter.standing_of(index, row.hash, now);
            HeavyClient { level: reason.level, wait: reason.wait, row }
        };
        rows.into_iter().map(standing).collect()
    }

    fn clients_held(&self, index: usize, above: Nanos) -> Option<usize> {
        let now = self.clock.now();
        let held =
            |row: &TopClient| row.wait > above && now.since(row.last_seen) < CLIENT_GONE_AFTER;
        Some(self.rows(index, usize::MAX, now).iter().filter(|row| held(row)).count())
    }

    fn shadows(&self, index: usize) -> bool {
        let rules = self.rules.load();
        rules.shadow || rules.limiter.limits().get(index).is_some_and(|limit| limit.shadow)
    }

    fn views(&self, max: usize) -> Vec<(&'static str, Vec<TopClient>)> {
        let now = self.clock.now();
        let of_each = max.saturating_mul(LANE_ROWS);
        let view = |(place, name): (usize, &&'static str)| {
            let lanes = self.lanes.iter();
            let lists = lanes.map(|lane| lane.lock().views.heaviest(place, of_each, now)).collect();
            let mut rows = TopClients::merge(lists);
            rows.truncate(max);
            (*name, rows)
        };
        views::VIEW_NAMES.iter().enumerate().map(view).collect()
    }

    fn overrides(&self) -> Option<Vec<Override>> {
        Some(self.overrides.list())
    }

    fn set_override(&self, said: Override) -> Result<Override, OverridesFullError> {
        self.overrides.say(said, |in_force| self.publish(in_force))
    }

    fn remove_override(&self, id: u64) -> Option<Override> {
        self.overrides.undo(id, |in_force| self.publish(in_force))
    }

    fn end_overrides(&self) -> Vec<Override> {
        self.overrides.end(self.clock.now(), |in_force| self.publish(in_force))
    }
}
