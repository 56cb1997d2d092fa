//! Live data for the page: the current state, and the history of the last hour.
//!
//! Once a second, all counters are read. They become a point of the history and, if anyone watches,
//! one event that is sent to all watchers. Every few seconds, the heaviest clients of each limit
//! get a point of their own history. Everything is bounded: points, clients, watchers, and how far
//! a watcher may fall behind. This module decides nothing.

mod clients;
mod history;
mod hub;
mod page_event;

pub use clients::{ClientHistories, ClientKey};
pub use hub::{EventFeed, WatcherEnd};

#[cfg(test)]
pub use hub::WATCHERS_MAX;

use super::handlers::AdminShared;
use super::observe;
use super::sources::ReadinessStage;
use bytes::Bytes;
use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_telemetry::snapshot::LoadUnit;
use history::{CounterReading, HourHistory};
use hub::WatcherHub;
use page_event::{ListedClients, PageEvent};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The number of clients of each limit that watchers are sent.
const ROWS_PER_LIMIT: usize = 25;
/// The number of clients of each limit that are examined to count those in debt.
const CLIENTS_EXAMINED_MAX: usize = 250;
/// The interval between two points of a client's history.
const CLIENTS_INTERVAL: Nanos = Nanos::from_secs(clients::STEP_SECS);

/// The state for watchers. Lock order: `last` before `history`.
#[derive(Default)]
pub struct LiveFeed {
    history: Mutex<HourHistory>,
    clients: Mutex<ClientHistories>,
    hub: Mutex<WatcherHub>,
    /// The last event, and the time at which it was made.
    last: Mutex<Option<(Time, Bytes)>>,
}

/// Updates the state once a second, as long as the door is open.
pub async fn run(desk: Arc<AdminShared>) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut clients_at = Time::ZERO;
    loop {
        seconds.tick().await;
        let now = desk.sources.clock.now();
        desk.look(now);
        if now >= clients_at {
            clients_at = now.plus(CLIENTS_INTERVAL);
            desk.note_clients(now);
        }
        desk.end_overrides();
        if desk.live.hub.lock().remove_disconnected() {
            let event = desk.event(now);
            desk.live.hub.lock().send(&event);
        }
    }
}

impl AdminShared {
    /// Adds a point to the history of all doors.
    fn look(&self, now: Time) {
        let mut look = CounterReading::at(now);
        for door in &self.sources.engines {
            let Some(work) = door.engine.work() else { continue };
            let unit = observe::unit(&work);
            if unit == LoadUnit::Tokens {
                look.unit = LoadUnit::Tokens;
            }
            // The time for which programs hold turns is not that of processors.
            if unit != LoadUnit::Slots {
                look.cpus += work.capacity().unwrap_or(f64::NAN);
                look.busy += work.busy.as_units();
            }
            look.working += f64::from(work.working);
            if let Some(crowd) = work.crowd {
                look.waiting += crowd.waiting as f64;
                look.slots += crowd.concurrency as f64;
            }
        }
        look.count(&self.sources.watch);
        self.live.history.lock().note(&look);
    }

    /// Adds a point to the history of each of the heaviest clients.
    fn note_clients(&self, now: Time) {
        let mut clients = self.live.clients.lock();
        let lists: usize =
            self.sources.engines.iter().map(|door| door.engine.held().limits().len()).sum();
        let each = clients::of_each(lists);
        for door in &self.sources.engines {
            let limiter = door.engine.held();
            for (index, limit) in limiter.limits().iter().enumerate() {
                for standing in door.engine.heaviest(index, each) {
                    let who = ClientKey::new(door.door, &limit.name, standing.row.hash);
                    clients.note(who, &standing, now);
                }
            }
        }
    }

    /// Logs the overrides that have ended.
    fn end_overrides(&self) {
        for door in &self.sources.engines {
            for ended in door.engine.end_overrides() {
                tracing::info!(
                    target: "evenkeel::admin", door = door.door, limit = ended.limit.as_deref(),
                    key = ended.key, override_id = ended.id, "an override has ended"
                );
            }
        }
    }

    /// Returns the event of this second, which is the same for all watchers.
    fn event(&self, now: Time) -> Bytes {
        let mut last = self.live.last.lock();
        if let Some((at, event)) = &*last
            && now.since(*at) < Nanos(SECOND / 2)
        {
            return event.clone();
        }
        let json = serde_json::to_string(&self.now(now)).unwrap_or_else(|_| "{}".to_owned());
        let event = Bytes::from(format!("event: now\ndata: {json}\n\n"));
        *last = Some((now, event.clone()));
        event
    }

    /// Adds a watcher. Returns `None` if there are already `WATCHERS_MAX`.
    pub fn watch(&self) -> Option<(EventFeed, WatcherEnd)> {
        let first = self.event(self.sources.clock.now());
        self.live.hub.lock().join(first)
    }

    /// Returns the history of the last `seconds` as JSON, at most an hour.
    pub fn history(&self, seconds: u64) -> String {
        let since = self.sources.clock.now().minus(Nanos::from_secs(seconds));
        self.live.history.lock().json(since)
    }

    /// Returns the current state of everything.
    fn now(&self, now: Time) -> PageEvent {
        let sources = &self.sources;
        let mut limits = Vec::new();
        for door in &sources.engines {
            let limiter = door.engine.held();
            for (index, limit) in limiter.limits().iter().enumerate() {
                let standings = door.engine.heaviest(index, CLIENTS_EXAMINED_MAX);
                let mut listed =
                    ListedClients::of_limit(door.door, &limiter, limit, standings, now);
                listed.shadow = door.engine.shadows(index);
                listed.open = door.engine.overrides().is_some();
                limits.push(listed);
            }
            let views = door.engine.views(ROWS_PER_LIMIT).into_iter();
            limits.extend(
                views.map(|(name, rows)| ListedClients::from_view(door.door, name, rows, now)),
            );
        }
        let stage = match *self.readiness.lock() {
            ReadinessStage::Starting => "starting",
            ReadinessStage::Ready => "ready",
            ReadinessStage::Draining => "draining",
        };
        let peers = sources.watch.peers.read();
        PageEvent {
            now: now.0 as f64 / SECOND as f64,
            version: env!("CARGO_PKG_VERSION"),
            host: self.guard.own_name().unwrap_or_default().to_owned(),
            stage,
            point: self.live.history.lock().last(),
            doors: page_event::doors(&sources.engines, peers.as_ref(), now),
            limits,
            overrides: self.overrides(),
            peers,
            store: sources.watch.store.read(),
            robots: observe::robots(&sources.engines, now)
                .iter()
                .map(ToString::to_string)
                .collect(),
            refused_config: sources.watch.refused_config(now),
        }
    }

    /// Whether a client was recently among the heaviest: its history still exists.
    pub fn remembers(&self, who: &ClientKey) -> bool {
        self.live.clients.lock().knows(who)
    }

    /// Returns the history of one client as JSON, without points if the client is unknown.
    pub fn client_history(&self, who: &ClientKey) -> String {
        self.live.clients.lock().json(who)
    }
}
