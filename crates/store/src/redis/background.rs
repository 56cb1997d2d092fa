//! The background tasks of a lane: one reports pending hits and charges to the store, one keeps the
//! map of a cluster's slots up to date.
//!
//! Both run on the lane's thread and end with it. No request waits for them.

use super::lane::StoreLane;
use super::link::ServerLink;
use super::route::KeyRoute;
use evenkeel_runtime::clock::Clock;
use futures_util::future::join_all;
use redis::Pipeline;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Reports pending hits and charges to the store, once every period.
pub async fn settle(lane: Weak<StoreLane>, period: Duration) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(lane) = lane.upgrade() else { return };
        if lane.pending_hits() + lane.pending_charges() > 0 {
            let links: Vec<Rc<ServerLink>> = lane.routes().flat_map(KeyRoute::links).collect();
            // Reports on a connection that has ended unnoticed would be lost.
            join_all(links.iter().map(|link| link.check(&lane))).await;
            let good = links.iter().filter(|link| link.is_good());
            join_all(good.map(|link| lane.settle_with(link))).await;
        }
        if lane.pending_charges() > 0 {
            lane.settle_accounts().await;
        }
        let owed = (lane.pending_hits() + lane.pending_charges()) as i64;
        lane.counts().owed.set(owed);
    }
}

/// Keeps the map of a cluster's slots up to date.
pub async fn explore(lane: Weak<StoreLane>, second: bool) {
    let mut wait = Duration::from_millis(20);
    loop {
        let Some(lane) = lane.upgrade() else { return };
        let Some(route) = lane.routes().nth(usize::from(second)) else { return };
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
    let within = Clock::deadline(lane.patience());
    for link in route.links().iter().filter(|link| link.is_good()) {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("CLUSTER").arg("SLOTS");
        let host = link.name();
        let host = host.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
        let Ok(answers) = link.ask(pipeline, within, |_| {}).await else { continue };
        if let Some(gone) = answers.first().and_then(|answer| route.learn(answer, host)) {
            gone.iter().for_each(|link| link.end(lane.counts()));
            return true;
        }
    }
    route.ask_seeds();
    false
}
