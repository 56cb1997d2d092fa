//! The background tasks of a lane: one for each server keeps it connected, one reports pending hits
//! and charges to the store, and one for each cluster keeps the map of its slots up to date.
//!
//! All run on the lane's thread and end with it. No request waits for them. Before a connection is
//! used, the server must know the scripts and must have received a part of the pending hits. When a
//! connection is made again: `link`.

use super::StoreLane;
use super::merge::CallMerger;
use crate::redis::account::AccountCallOptions;
use crate::redis::link::ServerLink;
use crate::redis::link::connect::{RedisConnectError, RedisConnection, in_time};
use crate::redis::route::KeyRoute;
use crate::redis::script::{self, CounterAsk, MissedAnswer, ScriptQuestion};
use crate::redis::servers::LaneServers;
use crate::redis::store::{RedisStore, StoreQuestion};
use evenkeel_core::windows::WindowAlgorithm;
use evenkeel_runtime::clock::Clock;
use futures_util::future::join_all;
use redis::Pipeline;
use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// The number of counters in one call that reports pending hits.
const REPORTS_PER_CALL_MAX: usize = 256;
/// The number of counters to report to a server before it is asked for any.
const PROOF_REPORTS_MAX: usize = 64;

impl StoreLane {
    /// Opens a lane for the current thread and starts to connect. Its tasks run on the thread's
    /// runtime. The caller does not wait for the connections.
    #[must_use]
    pub fn open(store: &Arc<RedisStore>) -> Rc<StoreLane> {
        let (merger, returned) = (CallMerger::default(), Cell::default());
        let servers = LaneServers::new(store);
        let lane = Rc::new(StoreLane { store: Arc::clone(store), servers, merger, returned });
        lane.keep();
        for (index, route) in lane.servers.routes().enumerate() {
            if route.is_cluster() {
                spawn_local(explore(Rc::downgrade(&lane), index));
            }
        }
        spawn_local(settle(Rc::downgrade(&lane), store.settings.period));
        lane
    }

    /// Starts a task for each known server that has none, to keep it connected.
    fn keep(self: &Rc<StoreLane>) {
        let RedisStore { clock, counts, .. } = &*self.store;
        for link in self.servers.links() {
            link.keeper.get_or_init(|| {
                let lane = Rc::downgrade(self);
                let open = async move |link: &Rc<ServerLink>| {
                    let lane = lane.upgrade()?;
                    Some(lane.connect(link).await)
                };
                let keep = Rc::clone(&link).keep(*clock, Arc::clone(counts), open);
                spawn_local(keep).abort_handle()
            });
        }
    }

    /// Makes a connection to the server of `link` and proves that it is usable.
    async fn connect(&self, link: &Rc<ServerLink>) -> Result<RedisConnection, RedisConnectError> {
        let within = self.store.settings.connect;
        let wire = link.connect(within).await?;
        let mut proof = self.servers.proof(link);
        script::load(&mut proof);
        let answers = in_time(within, wire.send(&proof)).await?;
        let (cannot, scripts) =
            (script::unable_to_write(&answers), script::unable(answers.iter().skip(1)));
        if let Some(why) = cannot.or(scripts) {
            return Err(RedisConnectError::Unable(why));
        }
        if link.has_failed() {
            self.returned.set(Some(self.store.clock.now()));
        }
        let owed = self.take_hits_for(link, PROOF_REPORTS_MAX);
        if owed.is_empty() {
            return Ok(wire);
        }
        let mut reports = Pipeline::new();
        (0..owed.len()).for_each(|at| CounterAsk::call(&mut reports, &owed, &[at], false));
        let answers = in_time(within, wire.send(&reports)).await;
        let mut each = answers.iter().flatten();
        for ask in owed {
            let answer = each.next().map_or(Err(MissedAnswer::Late), |value| {
                let (clock, pairs) = CounterAsk::read(value, 1)?;
                Ok((pairs[0], clock))
            });
            self.store.take_report(ask, answer);
        }
        script::unable(answers?.iter()).map_or(Ok(wire), |why| Err(RedisConnectError::Unable(why)))
    }

    /// Takes at most `max` reports of pending hits for the server of `link`.
    fn take_hits_for(&self, link: &Rc<ServerLink>, max: usize) -> Vec<CounterAsk> {
        if self.store.pending_hits() == 0 {
            return Vec::new();
        }
        let (mut lost, now) = (0, self.store.clock.now());
        let is_its =
            |ask: &CounterAsk| self.servers.link_of(ask).is_some_and(|to| Rc::ptr_eq(&to, link));
        let mut asks = self.store.hits.change(|owed| owed.take(max, now, &mut lost, is_its));
        self.store.counts.lost.increment(lost);
        for ask in &mut asks {
            self.look_up(ask, now);
            if ask.hit.algorithm == WindowAlgorithm::Bucket && !ask.hit.give_back {
                // Hits that have been refilled since then need no report.
                ask.hit.hits = ask.hit.hits.min(ask.hit.before);
            }
        }
        asks
    }

    /// Reports all pending hits to the server of `link`, as long as it is reachable.
    async fn report_hits(&self, link: &Rc<ServerLink>) {
        let take = || match link.is_good() {
            true => self.take_hits_for(link, REPORTS_PER_CALL_MAX),
            false => Vec::new(),
        };
        self.report(take, || false).await;
    }

    /// Reports all pending charges, as long as a server is reachable.
    async fn report_charges(&self) {
        let take = || match self.servers.links().any(|link| link.is_good()) {
            true => self.store.charges.change(|owed| owed.take(REPORTS_PER_CALL_MAX)),
            false => Vec::new(),
        };
        let how = || AccountCallOptions { all_or_none: false, now: self.store.clock.now() };
        self.report(take, how).await;
    }

    /// Makes the reports that `take` returns, until it returns none or one is still pending.
    async fn report<Q: StoreQuestion>(&self, take: impl Fn() -> Vec<Q>, how: impl Fn() -> Q::How) {
        let mut ended = false;
        while !ended {
            let owed: Rc<[Q]> = take().into();
            let groups = self.servers.groups(&owed, 0..owed.len());
            let deadline = Clock::deadline(self.store.settings.connect);
            let answers = self.servers.ask_all(&owed, &groups, how(), deadline).await;
            ended = owed.is_empty();
            for (place, answer) in answers {
                ended |= self.store.take_report(owed[place].clone(), answer);
            }
        }
    }
}

/// Reports pending hits and charges to the store, once every period.
async fn settle(lane: Weak<StoreLane>, period: Duration) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(lane) = lane.upgrade() else { return };
        let pending = || lane.store.pending_hits() + lane.store.pending_charges();
        if pending() > 0 {
            let links: Vec<_> = lane.servers.links().filter(|link| link.is_good()).collect();
            // Reports on a connection that has ended unnoticed would be lost.
            join_all(links.iter().map(|link| lane.servers.check(link))).await;
            join_all(links.iter().map(|link| lane.report_hits(link))).await;
            lane.report_charges().await;
        }
        lane.store.counts.owed.set(pending() as i64);
    }
}

/// Keeps the map of a cluster's slots up to date. `index` is that of its route.
async fn explore(lane: Weak<StoreLane>, index: usize) {
    let mut wait = Duration::from_millis(20);
    loop {
        let Some(lane) = lane.upgrade() else { return };
        let Some(route) = lane.servers.routes().nth(index) else { return };
        let learned = learn(&lane, route).await;
        lane.keep();
        let lost = route.links().iter().any(|link| !link.is_good());
        wait = match learned && !lost {
            true => Duration::from_secs(10),
            false => (wait * 2).min(Duration::from_millis(250)),
        };
        let _ = timeout(wait, route.stale.notified()).await;
    }
}

async fn learn(lane: &StoreLane, route: &KeyRoute) -> bool {
    let within = Clock::deadline(lane.store.settings.connect);
    for link in route.links().iter().filter(|link| link.is_good()) {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("CLUSTER").arg("SLOTS");
        let host = link.name();
        let host = host.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
        let Ok(answers) = link.ask(pipeline, within, |_| {}).await else { continue };
        if let Some(gone) = answers.first().and_then(|answer| route.learn(answer, host)) {
            gone.iter().for_each(|link| link.end(&lane.store.counts));
            return true;
        }
    }
    route.ask_seeds();
    false
}
