//! What can be seen of the store: handles of what is counted, and how it stands.
//!
//! What each metric means: `watch::metrics`. Connections say when they are good and when not;
//! whoever asks is told the sum. One line is logged when the first of them fails, and one when all
//! are good again.

use crate::watch::metrics::{
    STORE_ANSWERS, STORE_CONNECTIONS, STORE_LOST, STORE_MOVED, STORE_OWED, STORE_TOLD, STORE_TOOK,
};
use crate::watch::registry::{Counter, Gauge, Histogram, Registry};
use parking_lot::Mutex;
use serde::Serialize;
use std::sync::{Arc, OnceLock};

/// The most that is kept and logged of why a connection failed, in bytes: they may be the words of
/// whoever poses as the store.
const WHY_BYTES_MAX: usize = 512;

fn begin(text: &str) -> &str {
    &text[..text.floor_char_boundary(WHY_BYTES_MAX)]
}

/// Everything that is counted about the store.
#[derive(Debug)]
pub struct StoreCounts {
    /// Counters that the store answered for.
    pub answered: Counter,
    /// Counters that it did not answer for in time.
    pub late: Counter,
    /// Counters that it was not asked for, as it was known to be away.
    pub away: Counter,
    /// Counters that it refused.
    pub refused: Counter,
    /// Counters that were known here to be over their limit.
    pub spared: Counter,
    /// How long it took.
    pub took: Histogram,
    /// Connections that are good, and those that are not.
    pub connections: [Gauge; 2],
    /// Counters that it has to be told of.
    pub owed: Gauge,
    /// Counters that it was told of.
    pub told: Counter,
    /// Counters that it will never be told of.
    pub lost: Counter,
    /// Redirections to other nodes of a cluster.
    pub moved: Counter,
    standing: Mutex<Standing>,
}

/// How the connections stand.
#[derive(Debug, Default)]
struct Standing {
    good: usize,
    failed: usize,
    why: String,
}

/// How the store stands, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// `single`, `sentinel`, `cluster` or `ring`.
    pub layout: &'static str,
    /// `exact` or `batched`.
    pub mode: String,
    /// Its addresses, without passwords.
    pub servers: Vec<String>,
    /// Connections that are good.
    pub good: usize,
    /// Connections that are not.
    pub failed: usize,
    /// What went wrong last; empty if nothing did since all were good.
    pub why: String,
    /// Counters that it has to be told of.
    pub owed: i64,
    /// Counters that it answered for.
    pub answered: u64,
    /// Counters that were decided by what is known here.
    pub local: u64,
}

impl StoreCounts {
    /// The handles; made where there is a store.
    #[must_use]
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

    /// A connection has become good. Whether it had `failed` before.
    pub fn good(&self, failed: bool) {
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

    /// A connection has failed. Whether it `was_good`, or has never been.
    pub fn failed(&self, was_good: bool, at: &str, why: &str) {
        let (at, why) = (begin(at), begin(why));
        let mut standing = self.standing.lock();
        standing.good -= usize::from(was_good).min(standing.good);
        standing.failed += 1;
        if standing.failed == 1 {
            tracing::warn!(
                target: "evenkeel::store", at, why,
                "the store is away: what is known here decides until it answers"
            );
        }
        why.clone_into(&mut standing.why);
        self.show(&standing);
    }

    /// What is wrong with a connection that failed already.
    pub fn still(&self, why: &str) {
        begin(why).clone_into(&mut self.standing.lock().why);
    }

    /// A connection is not wanted any more.
    pub fn gone(&self, was_good: bool) {
        let mut standing = self.standing.lock();
        let of = if was_good { &mut standing.good } else { &mut standing.failed };
        *of = of.saturating_sub(1);
        self.show(&standing);
    }

    fn show(&self, standing: &Standing) {
        self.connections[0].set(standing.good as i64);
        self.connections[1].set(standing.failed as i64);
    }

    /// Whether any connection is good.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.standing.lock().good > 0
    }

    fn report(&self, what: &What) -> Report {
        let standing = self.standing.lock();
        Report {
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

/// What there is to be seen of the store, if there is one.
#[derive(Debug, Default)]
pub struct StoreBoard(OnceLock<(What, Arc<StoreCounts>)>);

#[derive(Debug)]
struct What {
    layout: &'static str,
    mode: String,
    servers: Vec<String>,
}

impl StoreBoard {
    /// There is a store.
    pub fn describe(
        &self,
        layout: &'static str,
        mode: String,
        servers: Vec<String>,
        counts: &Arc<StoreCounts>,
    ) {
        self.0.get_or_init(|| (What { layout, mode, servers }, Arc::clone(counts)));
    }

    /// How it stands; `None` where there is none.
    #[must_use]
    pub fn read(&self) -> Option<Report> {
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
        counts.failed(false, "a", &long);
        assert_eq!(why(), &long[..WHY_BYTES_MAX]);
        counts.still(&format!("x{long}"));
        assert_eq!(why(), format!("x{}", &long[..WHY_BYTES_MAX - 2]), "no letter is cut");
        counts.still("short");
        assert_eq!(why(), "short");
    }
}
