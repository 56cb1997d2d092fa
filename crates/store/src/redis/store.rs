//! The state of a store that all lanes share: the counts of this process, and the hits and charges
//! that still have to be reported.
//!
//! Answers are used here, whether they answer a request, answer a report or come too late. The
//! servers and the connections to them belong to the lanes (`servers`).

use super::account::StoreAccount;
use super::name::KeyNaming;
use super::pending::charges::PendingCharges;
use super::pending::hits::PendingHits;
use super::pending::{PendingTable, SharedPending};
use super::script::{CounterAsk, MissedAnswer, ScriptQuestion, ServerRefusal, TimedAnswer};
use evenkeel_config::settings::store::{StoreMode, StoreSettings as Settings};
use evenkeel_core::limiter::remote::StoreBucketState;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_core::windows::{Hit, WindowAlgorithm};
use evenkeel_engine::windows::Counters;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::store::StoreCounts;
use redis::Value;
use std::sync::Arc;

/// The state of a store that all lanes share. Its locks (`hits`, `charges`) are held only for the
/// time of one change, never across an `await` and never both at once.
pub struct RedisStore {
    /// How the store is used.
    pub settings: Settings,
    /// The metrics of the store.
    pub counts: Arc<StoreCounts>,
    /// The rules by which keys in the store are named.
    pub naming: KeyNaming,
    /// The clock of this process.
    pub clock: Clock,
    /// The counts of this process, and the latest known counts of the store.
    pub(super) counters: Arc<Counters>,
    /// The hits of counters that are not reported to the store yet.
    pub(super) hits: SharedPending<PendingHits>,
    /// The charges of buckets that are not reported to the store yet. Any thread may add charges
    /// and any may report them, because the local state of a bucket includes the charges of all
    /// threads.
    pub(super) charges: SharedPending<PendingCharges>,
}

impl RedisStore {
    /// Makes a store without connections. Hits that this process counts itself go into `counters`.
    #[must_use]
    pub fn new(
        settings: &Settings,
        counters: Arc<Counters>,
        clock: Clock,
        watch: &Watch,
    ) -> Arc<RedisStore> {
        let counts = Arc::new(StoreCounts::new(watch.registry()));
        watch.store.describe(
            settings.place.layout.word(),
            settings.mode.to_string(),
            settings.place.servers.iter().map(|server| server.end.to_string()).collect(),
            &counts,
        );
        let prefix = settings.prefix.clone();
        Arc::new(RedisStore {
            settings: settings.clone(),
            counts,
            naming: KeyNaming { prefix, compatible: settings.compatible_keys },
            clock,
            counters,
            hits: SharedPending::default(),
            charges: SharedPending::default(),
        })
    }

    /// Whether instances decide by their own counts and only report to the store.
    pub(super) fn is_batched(&self) -> bool {
        self.settings.mode == StoreMode::Batched
    }

    /// Queues hits that have happened and were counted here; a negative number gives hits back. The
    /// next lane that can reports them to the store. Hits that find no room are lost to the store,
    /// and counted.
    pub fn report_hits(&self, ask: &CounterAsk, hits: i64) {
        if hits != 0 && !self.hits.change(|owed| owed.add(ask, hits, self.settings.owed_max)) {
            self.counts.lost.increment(1);
        }
    }

    /// Queues a charge that has happened, as [`RedisStore::report_hits`] does with hits.
    pub fn report_charge(&self, account: StoreAccount) {
        if !self.charges.change(|owed| owed.add(account, self.settings.owed_max)) {
            self.counts.lost.increment(1);
        }
    }

    /// The number of counters with hits to report.
    #[must_use]
    pub fn pending_hits(&self) -> usize {
        self.hits.look(PendingTable::len)
    }

    /// The number of buckets with charges to report.
    pub(super) fn pending_charges(&self) -> usize {
        self.charges.look(PendingTable::len)
    }

    /// Counts and uses the answer to a question of a request. Returns its time.
    pub(super) fn take_answer<Q: StoreQuestion>(
        &self,
        ask: &mut Q,
        answer: TimedAnswer<Q::Answer>,
    ) -> Result<Time, MissedAnswer> {
        let counts = &self.counts;
        match &answer {
            Ok(_) => counts.answered.increment(1),
            Err(MissedAnswer::Late) => counts.late.increment(1),
            Err(MissedAnswer::Away) => counts.away.increment(1),
            Err(MissedAnswer::Unable(_)) => counts.refused.increment(1),
            Err(MissedAnswer::Refused(why)) => {
                counts.refused.increment(1);
                tracing::debug!(target: "evenkeel::store", why, "a {} was refused", Q::KIND);
            }
        }
        let (answer, clock) = answer?;
        ask.learn(answer, clock, self);
        Ok(clock)
    }

    /// Counts and uses the answer to a report. Returns whether the report is still pending.
    pub(super) fn take_report<Q: StoreQuestion>(
        &self,
        mut ask: Q,
        answer: TimedAnswer<Q::Answer>,
    ) -> bool {
        let kept = answer.as_ref().is_err_and(MissedAnswer::may_be_repeated);
        ask.end_report(kept, self);
        match answer {
            Ok((answer, clock)) => {
                self.counts.told.increment(1);
                ask.learn(answer, clock, self);
            }
            // The report may have had its effect, or never will.
            Err(_) if !kept => self.counts.lost.increment(1),
            Err(_) => {}
        }
        kept
    }

    /// Uses an answer that came after the deadline. If the server refused, what has certainly been
    /// counted here is queued for a report.
    pub(super) fn take_late<Q: StoreQuestion>(&self, asks: Vec<Q>, value: &Value) {
        match Q::read(value, asks.len()) {
            Ok((clock, answers)) => {
                let asks = asks.into_iter().zip(answers);
                asks.for_each(|(mut ask, answer)| ask.learn(answer, clock, self));
            }
            Err(ServerRefusal::Wrong(_)) => {}
            Err(_) => asks.into_iter().for_each(|ask| ask.report_again(self)),
        }
    }
}

/// A question with a count in this process too, which the answer updates.
pub trait StoreQuestion: ScriptQuestion {
    /// The word for what the question is about.
    const KIND: &'static str;

    /// Uses the answer, here and in the question. `clock` is the server's time.
    fn learn(&mut self, answer: Self::Answer, clock: Time, store: &RedisStore);

    /// Ends a report. It is pending again if it is `kept`.
    fn end_report(&self, kept: bool, store: &RedisStore);

    /// Queues a question without effect for a report, unless it is unknown whether this process has
    /// decided that it has happened.
    fn report_again(self, store: &RedisStore);
}

impl StoreQuestion for CounterAsk {
    const KIND: &'static str = "counter";

    /// Sets the local count to the store's count plus the hits that are not reported yet.
    fn learn(&mut self, answer: (u32, u32), clock: Time, store: &RedisStore) {
        self.apply(answer, clock);
        let owed = store.hits.look(|owed| owed.of(&self.name));
        let after = self.hit.after.saturating_add(u32::try_from(owed).unwrap_or(0));
        store.counters.learn(&Hit { after, ..self.hit }, clock);
    }

    fn end_report(&self, kept: bool, store: &RedisStore) {
        store.hits.change(|owed| owed.end_report(&self.name, kept));
    }

    fn report_again(self, store: &RedisStore) {
        if self.force || self.hit.algorithm == WindowAlgorithm::Fixed {
            let hits = i64::from(self.hit.hits);
            store.report_hits(&self, if self.hit.give_back { -hits } else { hits });
        }
    }
}

impl StoreQuestion for StoreAccount {
    const KIND: &'static str = "bucket";

    fn learn(
        &mut self,
        (before, after, charged): (Nanos, Nanos, bool),
        clock: Time,
        store: &RedisStore,
    ) {
        let owed = store.charges.look(|owed| owed.of(&self.name));
        self.home.raise(self.key, after.plus(owed), store.clock.now());
        self.word = Some(StoreBucketState { before, after, charged, clock });
    }

    fn end_report(&self, kept: bool, store: &RedisStore) {
        store.charges.change(|owed| owed.end_report(self, kept));
    }

    fn report_again(self, store: &RedisStore) {
        if self.patience.is_none() {
            store.report_charge(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_config::settings::store::{StoreFail, StoreLayout, StoreServers};
    use evenkeel_core::classify::LimitKey;
    use evenkeel_core::key::{KeyHash, KeySeed};
    use evenkeel_core::limit::LimitAction;
    use evenkeel_core::limiter::{Limiter, LimiterPolicy};
    use evenkeel_core::units::Cost;
    use evenkeel_core::windows::WindowLength;
    use std::time::Duration;

    fn store(owed_max: usize) -> Arc<RedisStore> {
        let place = StoreServers {
            servers: Vec::new(),
            layout: StoreLayout::Single,
            login: None,
            credentials_file: None,
            tls: Default::default(),
        };
        let settings = Settings {
            place,
            per_second: None,
            deadline: Duration::ZERO,
            connect: Duration::ZERO,
            mode: StoreMode::Exact,
            period: Duration::ZERO,
            fail: StoreFail::Local,
            prefix: String::new(),
            compatible_keys: false,
            jitter: Duration::ZERO,
            owed_max,
        };
        let clock = Clock::start();
        let counters = Arc::new(Counters::new(1, clock));
        RedisStore::new(&settings, counters, clock, &Watch::new(clock.now()))
    }

    #[test]
    fn what_finds_no_room_is_counted_as_lost() {
        let store = store(1);
        let policy = LimiterPolicy { action: LimitAction::Reject, max_delay: Nanos::ZERO };
        let home = Arc::new(Limiter::new(policy, Vec::new(), KeySeed([0; 16])));
        let key = LimitKey { limit: 0, hash: KeyHash::from_bits(1) };
        for name in ["a", "b", "a"] {
            let cost = Cost::hits(1);
            let charge = StoreAccount::new(name.to_owned(), &home, key, cost, Time::ZERO);
            store.report_charge(charge);
        }
        assert_eq!((store.pending_charges(), store.counts.lost.get()), (1, 1));
        let length = WindowLength::Seconds(1);
        for name in ["a", "b", "a"] {
            let ask = CounterAsk {
                name: name.to_owned(),
                hit: Hit::new(key.hash, length.window(Time::ZERO), 1, 1),
                length,
                compatible: None,
                per_second: false,
                known: 0,
                force: false,
                returned: false,
            };
            store.report_hits(&ask, 1);
        }
        assert_eq!((store.pending_hits(), store.counts.lost.get()), (1, 2));
    }
}
