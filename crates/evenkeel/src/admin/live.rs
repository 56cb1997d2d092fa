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
mod shares;

pub use clients::{ClientHistories, ClientKey};
pub use hub::{EventFeed, WatcherEnd};

#[cfg(test)]
pub use hub::WATCHERS_MAX;

use super::handlers::AdminShared;
use super::observe;
use super::sources::ReadinessStage;
use bytes::Bytes;
use evenkeel_core::limit::LimitUnit;
use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_engine::view::client_times::ClientTimes;
use evenkeel_telemetry::snapshot::LoadUnit;
use history::{CounterReading, HourHistory};
use hub::WatcherHub;
use page_event::{ListedClients, PageEvent};
use parking_lot::Mutex;
use shares::{DoorReading, DoorSteps, SharesChart};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The number of clients of each limit that watchers are sent.
const ROWS_PER_LIMIT: usize = 25;
/// The number of clients of each limit that are examined to count those in debt.
const CLIENTS_EXAMINED_MAX: usize = 250;
/// The interval between two points of a client's history.
const CLIENTS_INTERVAL: Nanos = Nanos::from_secs(clients::STEP_SECS);

/// The state for watchers. Lock order: `last` before `history`, `clients` before `steps`.
#[derive(Default)]
pub struct LiveFeed {
    history: Mutex<HourHistory>,
    clients: Mutex<ClientHistories>,
    /// The steps of each door that has a backend, in the order of the doors.
    steps: Mutex<Vec<DoorSteps>>,
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
        let mut times = ClientTimes::default();
        for door in &self.sources.engines {
            let Some(work) = door.engine.work() else { continue };
            times.join(door.engine.client_times());
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
        look.time(&times);
        look.count(&self.sources.watch);
        self.live.history.lock().note(&look);
    }

    /// Adds a step to the history of each door, and a point to that of each of its heaviest
    /// clients.
    fn note_clients(&self, now: Time) {
        let mut clients = self.live.clients.lock();
        let lists: usize =
            self.sources.engines.iter().map(|door| door.engine.held().limits().len()).sum();
        let each = clients::of_each(lists);
        let reloads = self.sources.watch.reloads.accepted();
        let mut steps = self.live.steps.lock();
        steps.resize_with(self.sources.engines.len(), DoorSteps::default);
        for (door, steps) in self.sources.engines.iter().zip(&mut *steps) {
            let load = door.engine.work().and_then(|work| {
                let (unit, busy) = (observe::unit(&work), work.busy.as_units());
                let capacity = work.capacity().unwrap_or(f64::NAN);
                let shadow = door.engine.shadows(0);
                steps.note(DoorReading { at: now, unit, busy, capacity, shadow, reloads })
            });
            let limiter = door.engine.held();
            for (index, limit) in limiter.limits().iter().enumerate() {
                let heaviest = door.engine.heaviest(index, each);
                clients.note(door.door, &limit.name, heaviest, (now, load));
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
                let mut standings = door.engine.heaviest(index, CLIENTS_EXAMINED_MAX);
                let shown = standings.len().min(ROWS_PER_LIMIT);
                door.engine.describe(&mut standings[..shown]);
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

    /// Returns the work of a backend over the last `seconds`, by clients of a limit: of the one
    /// with these names, or of the first one that counts work. `None` if there is none.
    pub fn shares(
        &self,
        door: Option<&str>,
        limit: Option<&str>,
        seconds: u64,
    ) -> Option<SharesChart> {
        let since = self.sources.clock.now().minus(Nanos::from_secs(seconds));
        let doors = self.sources.engines.iter().enumerate();
        let mut asked = doors.filter(|(_, one)| door.is_none_or(|name| name == one.door));
        let (at, door, limit) = asked.find_map(|(at, door)| {
            door.engine.work()?;
            let limiter = door.engine.held();
            let mut limits = limiter.limits().iter().filter(|limit| limit.unit == LimitUnit::Cpu);
            let found = limits.find(|one| limit.is_none_or(|name| name == &*one.name))?;
            Some((at, door.door, found.name.to_string()))
        })?;
        let clients = self.live.clients.lock();
        let steps = self.live.steps.lock();
        // Before the first step there is none to show.
        let none = DoorSteps::default();
        Some(steps.get(at).unwrap_or(&none).chart((door, &limit), &clients, since))
    }
}
