//! What an operator can see of the store: handles of its metrics, and its status.
//!
//! `telemetry::metrics` has the meaning of each metric. Every connection reports when it becomes
//! good and when it fails; the status is the sum of all. One line is logged when the first
//! connection fails, and one when all of them are good again.

use crate::metrics::{
    STORE_ANSWERS, STORE_CONNECTIONS, STORE_LOST, STORE_MOVED, STORE_OWED, STORE_TOLD, STORE_TOOK,
};
use crate::registry::{Counter, Gauge, Histogram, Registry};
use parking_lot::Mutex;
use serde::Serialize;
use std::sync::{Arc, OnceLock};

/// The maximum number of bytes that is kept and logged of the reason for a failure. The text may
/// come from a program that only poses as the store.
const WHY_BYTES_MAX: usize = 512;

fn begin(text: &str) -> &str {
    &text[..text.floor_char_boundary(WHY_BYTES_MAX)]
}

/// Everything that is counted about the store.
#[derive(Debug)]
pub struct StoreCounts {
    /// Counters for which the store answered.
    pub answered: Counter,
    /// Counters for which the store did not answer in time.
    pub late: Counter,
    /// Counters for which the store was not asked because it was known to be unreachable.
    pub away: Counter,
    /// Counters for which the store refused the command.
    pub refused: Counter,
    /// Counters for which the store was not asked because they are known to be over their limit.
    pub spared: Counter,
    /// How long the store took to answer a request.
    pub took: Histogram,
    /// Connections that are good, and connections that have failed.
    pub connections: [Gauge; 2],
    /// Counters with local hits that the store has yet to be sent.
    pub owed: Gauge,
    /// Counters with local hits that the store was sent later.
    pub told: Counter,
    /// Counters with local hits that the store will never be sent.
    pub lost: Counter,
    /// Redirections to other nodes of a cluster.
    pub moved: Counter,
    standing: Mutex<StoreConnectionStatus>,
}

/// The number of good and of failed connections, and the last reason for a failure.
#[derive(Debug, Default)]
struct StoreConnectionStatus {
    good: usize,
    failed: usize,
    why: String,
}

/// The status of the store, as `/api/store` shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoreStatus {
    /// The layout of the servers: `single`, `sentinel`, `cluster` or `ring`.
    pub layout: &'static str,
    /// How counters are decided: `exact` or `batched`.
    pub mode: String,
    /// The addresses of the store, without passwords.
    pub servers: Vec<String>,
    /// Connections that are good.
    pub good: usize,
    /// Connections that have failed.
    pub failed: usize,
    /// The last error; empty if there was none since all connections were good.
    pub why: String,
    /// Counters with local hits that the store has yet to be sent.
    pub owed: i64,
    /// Counters for which the store answered.
    pub answered: u64,
    /// Counters that were decided locally because the store was late, unreachable or refused them.
    pub local: u64,
}

impl StoreCounts {
    /// Makes the handles. Call it only if there is a store.
    pub fn new(registry: &Registry) -> StoreCounts {
        let answers = |result| registry.counter(&STORE_ANSWERS, &[result]);
        StoreCounts {
            answered: answers("ok"),
            late: answers("late"),
            away: answers("away"),
            refused: answers("refused"),
            spared: answers("known"),
            took: registry.histogram(&STORE_TOOK, &[]),
            connections: ["good", "failed"].map(|of| registry.gauge(&STORE_CONNECTIONS, &[of])),
            owed: registry.gauge(&STORE_OWED, &[]),
            told: registry.counter(&STORE_TOLD, &[]),
            lost: registry.counter(&STORE_LOST, &[]),
            moved: registry.counter(&STORE_MOVED, &[]),
            standing: Mutex::default(),
        }
    }

    /// Records that a connection has become good; `failed` says whether it had failed before.
    pub fn mark_good(&self, failed: bool) {
        let mut standing = self.standing.lock();
        standing.good += 1;
        if failed {
            standing.failed = standing.failed.saturating_sub(1);
            if standing.failed == 0 {
                standing.why.clear();
                tracing::info!(target: "evenkeel::store", "the store answers again");
            }
        }
        self.show(&standing);
    }

    /// Records that a connection has failed; `was_good` is false if it never was good.
    pub fn mark_failed(&self, was_good: bool, at: &str, why: &str) {
        let (at, why) = (begin(at), begin(why));
        let mut standing = self.standing.lock();
        standing.good -= usize::from(was_good).min(standing.good);
        standing.failed += 1;
        if standing.failed == 1 {
            tracing::warn!(
                target: "evenkeel::store", at, why,
                "the store is unreachable: until it answers, this instance decides by its own \
                 counts, or refuses calls with `fail: error`"
            );
        }
        why.clone_into(&mut standing.why);
        self.show(&standing);
    }

    /// Replaces the reason of a connection that has failed already.
    pub fn update_failure(&self, why: &str) {
        begin(why).clone_into(&mut self.standing.lock().why);
    }

    /// Records that a connection was closed because it is no longer needed.
    pub fn mark_closed(&self, was_good: bool) {
        let mut standing = self.standing.lock();
        let of = if was_good { &mut standing.good } else { &mut standing.failed };
        *of = of.saturating_sub(1);
        self.show(&standing);
    }

    fn show(&self, standing: &StoreConnectionStatus) {
        self.connections[0].set(standing.good as i64);
        self.connections[1].set(standing.failed as i64);
    }

    /// Whether any connection is good.
    pub fn is_good(&self) -> bool {
        self.standing.lock().good > 0
    }

    fn report(&self, what: &StoreDescription) -> StoreStatus {
        let standing = self.standing.lock();
        StoreStatus {
            layout: what.layout,
            mode: what.mode.clone(),
            servers: what.servers.clone(),
            good: standing.good,
            failed: standing.failed,
            why: standing.why.clone(),
            owed: self.owed.get(),
            answered: self.answered.get(),
            local: self.late.get() + self.away.get() + self.refused.get(),
        }
    }
}

/// The status of the store; empty if there is no store.
#[derive(Debug, Default)]
pub struct StoreStatusSource(OnceLock<(StoreDescription, Arc<StoreCounts>)>);

#[derive(Debug)]
struct StoreDescription {
    layout: &'static str,
    mode: String,
    servers: Vec<String>,
}

impl StoreStatusSource {
    /// Describes the store. Only the first call has an effect.
    pub fn describe(
        &self,
        layout: &'static str,
        mode: String,
        servers: Vec<String>,
        counts: &Arc<StoreCounts>,
    ) {
        self.0.get_or_init(|| (StoreDescription { layout, mode, servers }, Arc::clone(counts)));
    }

    /// The status of the store; `None` if there is no store.
    pub fn read(&self) -> Option<StoreStatus> {
        self.0.get().map(|(what, counts)| counts.report(what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_long_words_the_beginning_is_kept() {
        let counts = StoreCounts::new(&Registry::default());
        let long = "\u{e9}".repeat(500_000);
        let why = || counts.standing.lock().why.clone();
        counts.mark_failed(false, "a", &long);
        assert_eq!(why(), &long[..WHY_BYTES_MAX]);
        counts.update_failure(&format!("x{long}"));
        assert_eq!(why(), format!("x{}", &long[..WHY_BYTES_MAX - 2]), "no letter is cut");
        counts.update_failure("short");
        assert_eq!(why(), "short");
    }
}
