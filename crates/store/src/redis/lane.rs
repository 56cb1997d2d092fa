//! The store handle of one thread, which asks for all counters of a request at once.
//!
//! How questions travel: `asking`. How calls are merged: `merge`. Buckets, which other doors ask
//! for: `accounts`. Hits without an answer are counted here, and reported later. Hits that were
//! sent and not answered in time may have been counted by the server and are not reported again. So
//! an outage costs at most the hits that were with the server when it began.

pub mod accounts;
pub mod asking;
mod merge;
pub mod shared;

use super::RedisStore;
use super::background::{explore, settle};
use super::link::{MissedAnswer, ServerLink};
use super::route::KeyRoute;
use super::script::{CounterAsk, ServerRefusal};
use accounts::ChargeOutbox;
use asking::{Answers, ScriptQuestion, ServerGroup};
use evenkeel_config::settings::store::StoreFail;
use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_core::windows::{Hit, WindowAlgorithm, WindowPolicy};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::counts::store::StoreCounts;
use merge::{CounterAnswer, MergedCall};
use redis::Value;
use shared::PendingTable;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The number of counters in one call that reports pending hits.
const REPORTS_PER_CALL_MAX: usize = 256;
/// The number of names to try for one that falls to a given server. In a cluster of a hundred nodes
/// each node has one among them.
const PROOFS_MAX: u32 = 1_000;

/// The time for which a server that was unreachable may lack hits that other instances have not
/// reported to it yet.
const RETURNED_DOUBT_TIME: Nanos = Nanos(60 * SECOND);

/// The store gave no answer, and the configuration forbids a decision by local counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store does not answer")]
pub struct StoreUnansweredError;

/// The store handle of one thread. It never leaves the thread.
pub struct StoreLane {
    store: Arc<RedisStore>,
    route: KeyRoute,
    /// The servers for counters of one second, if they are separate.
    per_second: Option<KeyRoute>,
    /// The charges of buckets to report.
    outbox: ChargeOutbox,
    /// The call that is sent next, which further requests may join.
    open: RefCell<Option<Rc<RefCell<MergedCall>>>>,
    /// When a server that was unreachable became usable again.
    returned: Cell<Option<Time>>,
}

impl StoreLane {
    /// Opens a lane and starts to connect. The caller does not wait for the connections.
    pub fn open(store: Arc<RedisStore>) -> Rc<StoreLane> {
        let route = KeyRoute::new(&store.settings.place);
        let per_second = store.settings.per_second.as_ref().map(KeyRoute::new);
        let outbox = store.outbox.clone();
        let (open, returned) = (RefCell::default(), Cell::default());
        let lane = Rc::new(StoreLane { store, route, per_second, outbox, open, returned });
        lane.keep();
        for second in [false, true] {
            if lane.routes().nth(usize::from(second)).is_some_and(KeyRoute::is_cluster) {
                tokio::task::spawn_local(explore(Rc::downgrade(&lane), second));
            }
        }
        tokio::task::spawn_local(settle(Rc::downgrade(&lane), lane.store.settings.period));
        lane
    }

    /// The routes of this lane: the main one, and that for counters of one second.
    pub fn routes(&self) -> impl Iterator<Item = &KeyRoute> {
        std::iter::once(&self.route).chain(&self.per_second)
    }

    /// Starts a task for each known server that has none, to keep it connected.
    pub fn keep(self: &Rc<StoreLane>) {
        for route in self.routes() {
            route.keep(|link| {
                let within = self.store.settings.connect;
                tokio::task::spawn_local(link.keep(Rc::downgrade(self), within)).abort_handle()
            });
        }
    }

    /// The metrics of the store.
    pub fn counts(&self) -> &Arc<StoreCounts> {
        &self.store.counts
    }

    /// The state that all lanes share.
    pub fn store(&self) -> &Arc<RedisStore> {
        &self.store
    }

    /// The clock of this process.
    pub fn clock(&self) -> Clock {
        self.store.clock
    }

    /// The current time by this process's clock.
    pub fn now(&self) -> Time {
        self.store.clock.now()
    }

    /// The number of counters with hits to report.
    pub fn pending_hits(&self) -> usize {
        self.store.owed.look(PendingTable::len)
    }

    /// Records that a server that was unreachable is usable again.
    pub fn note_server_returned(&self) {
        self.returned.set(Some(self.now()));
    }

    /// Whether a server may lack hits that are known here, because it was unreachable recently.
    fn is_doubted(&self, now: Time) -> bool {
        self.returned.get().is_some_and(|at| now.since(at) < RETURNED_DOUBT_TIME)
    }

    /// The timeout for background work on a server, which no request waits for.
    pub fn patience(&self) -> Duration {
        self.store.settings.connect
    }

    /// Counts all hits, and sets the result of each. Hits without an answer of the store are
    /// counted here. `now` is the time by this process's clock. Returns the time as of which the
    /// hits were counted.
    ///
    /// # Errors
    /// [`StoreUnansweredError`], if the configuration asks for it. Hits that the store has counted
    /// by then stay counted.
    pub async fn count(
        self: &Rc<StoreLane>,
        asks: &mut [CounterAsk],
        policy: WindowPolicy,
        now: Time,
    ) -> Result<Time, StoreUnansweredError> {
        if self.store.is_batched() {
            let all: Vec<usize> = (0..asks.len()).collect();
            self.count_here(asks, &all, policy, now);
            self.owe(asks, &all);
            return Ok(now);
        }
        let spared = self.look_here(asks, policy, now);
        let places = (0..asks.len()).filter(|place| !asks[*place].hit.spared);
        let groups = self.groups(asks, places);
        let deadline = Clock::deadline(self.store.settings.deadline);
        let began = self.now();
        let several = groups.len() > 1 || self.route.is_cluster();
        // Rare paths are boxed, because each stream of a connection reserves room for this whole
        // future.
        let mut answers = if policy.stop_when_over && (several || spared) {
            Box::pin(self.ask_twice(asks, &groups, spared, deadline)).await
        } else {
            match groups.as_slice() {
                [group] if !(policy.stop_when_over || self.route.is_cluster()) => {
                    self.ask_along(asks, group.places()).await
                }
                _ => {
                    let (asks, stop) = (Rc::from(&*asks), policy.stop_when_over);
                    Box::pin(self.ask_all(&asks, &groups, stop, deadline)).await
                }
            }
        };
        if !groups.is_empty() {
            self.counts().took.record(self.now().since(began).0);
        }
        answers.sort_unstable_by_key(|(place, _)| *place);
        self.take_answers(asks, answers, policy, now)
    }

    /// Looks up the local count of each counter, and marks the counters to spare that are known to
    /// be over their limits. Returns whether there are any.
    fn look_here(&self, asks: &mut [CounterAsk], policy: WindowPolicy, now: Time) -> bool {
        let mut spared = false;
        for ask in asks {
            self.look_up(ask, now);
            let over = ask.hit.before > ask.hit.limit && !ask.hit.give_back;
            ask.hit.spared = policy.spare_over && over;
            spared |= ask.hit.spared;
        }
        spared
    }

    /// Looks up the local count of a counter, and the part of it that the store has received.
    fn look_up(&self, ask: &mut CounterAsk, now: Time) {
        self.store.counters.look_at(std::slice::from_mut(&mut ask.hit), now);
        let unheard = self.store.owed.look(|owed| owed.unheard(&ask.name));
        ask.known = u32::try_from(i64::from(ask.hit.before) - unheard).unwrap_or(0);
        ask.returned = self.is_doubted(now);
    }

    /// Asks in two rounds, for requests with counters on several servers that depend on each other:
    /// the first round only reads all counts, and the second counts what these allow.
    async fn ask_twice(
        self: &Rc<StoreLane>,
        asks: &[CounterAsk],
        groups: &[ServerGroup],
        spared: bool,
        deadline: Instant,
    ) -> Answers<(u32, u32)> {
        let look = |ask: &CounterAsk| CounterAsk { hit: Hit { hits: 0, ..ask.hit }, ..ask.clone() };
        let looks: Rc<[CounterAsk]> = asks.iter().map(look).collect();
        let seen = self.ask_all(&looks, groups, false, deadline).await;
        let over = |place: usize, used: u32| {
            let Hit { hits, limit, give_back, .. } = asks[place].hit;
            !give_back && used.saturating_add(hits) > limit
        };
        let would = seen
            .iter()
            .any(|(place, answer)| matches!(answer, Ok(((_, used), _)) if over(*place, *used)));
        if !(spared || would) {
            return self.ask_all(&Rc::from(asks), groups, false, deadline).await;
        }
        let mut stopped = looks.to_vec();
        for (place, answer) in &seen {
            let counts = matches!(answer, Ok(((_, used), _)) if over(*place, *used)) && !spared;
            if counts || asks[*place].hit.give_back {
                stopped[*place].hit.hits = asks[*place].hit.hits;
            }
        }
        self.ask_all(&stopped.into(), groups, false, deadline).await
    }

    /// Uses an answer that came too late: the counts in it are learned. If the server refused,
    /// unconditional hits are queued for a report, because they were counted here alone.
    pub fn learn_late(&self, mut asks: Vec<CounterAsk>, value: &Value) {
        match CounterAsk::read(value, asks.len()) {
            Ok((now, pairs)) => {
                for (ask, (before, after)) in asks.iter_mut().zip(pairs) {
                    ask.answered(before, after, now);
                    self.learn(ask, now);
                }
            }
            Err(ServerRefusal::Wrong(_)) => {}
            Err(_) => {
                // By now it is unknown whether the other hits were admitted here.
                let counted =
                    |ask: &&CounterAsk| ask.force || ask.hit.algorithm == WindowAlgorithm::Fixed;
                for ask in asks.iter().filter(counted) {
                    let hits = i64::from(ask.hit.hits);
                    self.store.owe(ask, if ask.hit.give_back { -hits } else { hits });
                }
            }
        }
    }

    /// Sets the local count to the store's count plus the hits that are not reported yet.
    fn learn(&self, ask: &CounterAsk, now: Time) {
        let owed = self.store.owed.look(|owed| owed.of(&ask.name));
        let owed = u32::try_from(owed).unwrap_or(0);
        let after = ask.hit.after.saturating_add(owed);
        self.store.counters.learn(&Hit { after, ..ask.hit }, now);
    }

    fn take_answers(
        &self,
        asks: &mut [CounterAsk],
        answers: Answers<(u32, u32)>,
        policy: WindowPolicy,
        now: Time,
    ) -> Result<Time, StoreUnansweredError> {
        let counts = self.counts();
        let mut time = now;
        let (mut missed, mut owed) = (Vec::new(), Vec::new());
        counts.spared.increment(asks.iter().filter(|ask| ask.hit.spared).count() as u64);
        for (place, answer) in answers {
            match answer {
                Ok(((before, after), now)) => {
                    counts.answered.increment(1);
                    asks[place].answered(before, after, now);
                    self.learn(&asks[place], now);
                    time = now;
                    continue;
                }
                Err(MissedAnswer::Late) => counts.late.increment(1),
                Err(MissedAnswer::Away) => {
                    counts.away.increment(1);
                    owed.push(place);
                }
                Err(MissedAnswer::Unable(_)) => {
                    counts.refused.increment(1);
                    owed.push(place);
                }
                Err(MissedAnswer::Refused(why)) => {
                    counts.refused.increment(1);
                    tracing::debug!(target: "evenkeel::store", why, "a counter was refused");
                }
            }
            missed.push(place);
        }
        if missed.is_empty() {
            return Ok(time);
        }
        if self.store.settings.fail == StoreFail::Error {
            return Err(StoreUnansweredError);
        }
        self.count_here(asks, &missed, policy, now);
        self.owe(asks, &owed);
        Ok(time)
    }

    /// Counts the hits at these places in this process alone.
    fn count_here(
        &self,
        asks: &mut [CounterAsk],
        places: &[usize],
        policy: WindowPolicy,
        now: Time,
    ) {
        let mut hits: Vec<Hit> = places.iter().map(|place| asks[*place].hit).collect();
        self.store.counters.count(&mut hits, &mut Vec::new(), policy, now);
        for (place, hit) in places.iter().zip(hits) {
            asks[*place].hit = hit;
        }
    }

    /// Queues the hits at these places, which were counted here alone, for a report.
    fn owe(&self, asks: &[CounterAsk], places: &[usize]) {
        for ask in places.iter().map(|place| &asks[*place]) {
            let hits = match ask.hit.give_back {
                true => i64::from(ask.hit.after) - i64::from(ask.hit.before),
                false => i64::from(ask.hit.charged()),
            };
            self.store.owe(ask, hits);
        }
    }

    /// An unused key that falls to the server of `link`. Setting it only if it exists (`XX`) leaves
    /// no trace, and a server that cannot write answers with an error. For a node with unknown
    /// slots the key may belong to another node, and then the answer proves nothing.
    pub fn proof(&self, link: &Rc<ServerLink>) -> String {
        let name = |n: u32| format!("{}proof:{n}", self.store.settings.prefix);
        let is_its = |name: &String| {
            let mut links = self.routes().filter_map(|route| route.link(name));
            links.any(|to| Rc::ptr_eq(&to, link))
        };
        (0..PROOFS_MAX).map(name).find(is_its).unwrap_or_else(|| name(0))
    }

    /// At most `max` reports of pending hits for the server of `link`.
    pub fn take_reports_for(&self, link: &Rc<ServerLink>, max: usize) -> Vec<CounterAsk> {
        if self.pending_hits() == 0 {
            return Vec::new();
        }
        let (mut lost, now) = (0, self.now());
        let is_its = |ask: &CounterAsk| self.link_of(ask).is_some_and(|to| Rc::ptr_eq(&to, link));
        let mut asks = self.store.owed.change(|owed| owed.take(max, now, &mut lost, is_its));
        self.counts().lost.increment(lost);
        for ask in &mut asks {
            self.look_up(ask, now);
            if ask.hit.algorithm == WindowAlgorithm::Bucket && !ask.hit.give_back {
                // Hits that have been refilled since then need no report.
                ask.hit.hits = ask.hit.hits.min(ask.hit.before);
            }
        }
        asks
    }

    /// Handles the answer to a report. Returns whether the hits are still pending.
    pub fn told(
        &self,
        mut ask: CounterAsk,
        answer: Result<(CounterAnswer, Time), MissedAnswer>,
    ) -> bool {
        let kept = matches!(answer, Err(MissedAnswer::Away | MissedAnswer::Unable(_)));
        self.store.owed.change(|owed| match kept {
            true => owed.return_report(&ask.name),
            false => owed.finish_report(&ask.name),
        });
        match answer {
            Ok(((before, after), now)) => {
                self.counts().told.increment(1);
                ask.answered(before, after, now);
                self.learn(&ask, now);
            }
            // The hits may have been counted, or never will be.
            Err(_) if !kept => self.counts().lost.increment(1),
            Err(_) => {}
        }
        kept
    }

    /// Reports all pending hits to the server of `link`.
    pub async fn settle_with(self: &Rc<StoreLane>, link: &Rc<ServerLink>) {
        while link.is_good() {
            let owed: Rc<[CounterAsk]> = self.take_reports_for(link, REPORTS_PER_CALL_MAX).into();
            let groups = self.groups(&owed, 0..owed.len());
            let deadline = Clock::deadline(self.store.settings.connect);
            let answers = self.ask_all(&owed, &groups, false, deadline).await;
            let told = answers.into_iter().map(|(at, answer)| self.told(owed[at].clone(), answer));
            if told.filter(|kept| *kept).count() > 0 || owed.is_empty() {
                return;
            }
        }
    }
}
