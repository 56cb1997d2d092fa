//! The store handle of one thread, which asks for all counters of a request at once.
//!
//! How questions travel: `servers`. How calls are merged: `merge`. Buckets, which other doors ask
//! for: `accounts`. The tasks of a lane: `background`. Hits without an answer are counted here, and
//! reported later. Hits that were sent and not answered in time may have been counted by the server
//! and are not reported again. So an outage costs at most the hits that were with the server when
//! it began.

mod accounts;
mod background;
mod merge;

use super::script::{CounterAsk, TimedAnswer};
use super::servers::{LaneServers, ServerGroup};
use super::store::RedisStore;
use evenkeel_config::settings::store::StoreFail;
use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_core::windows::{Hit, WindowPolicy};
use evenkeel_runtime::clock::Clock;
use merge::{CallMerger, CounterAnswers};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::Instant;

/// The time for which a server that was unreachable may lack hits that other instances have not
/// reported to it yet.
const RETURNED_DOUBT_TIME: Nanos = Nanos(60 * SECOND);

/// The store gave no answer, and the configuration forbids a decision by local counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store does not answer")]
pub struct StoreUnansweredError;

/// The store handle of one thread. It never leaves the thread.
pub struct StoreLane {
    /// The state that all lanes share.
    pub store: Arc<RedisStore>,
    /// The servers, with the connections of this thread.
    pub servers: Rc<LaneServers>,
    merger: CallMerger,
    /// When a server that was unreachable became usable again.
    returned: Cell<Option<Time>>,
}

impl StoreLane {
    /// Counts all hits, and sets the result of each. Hits without an answer of the store are
    /// counted here. `now` is the time by this process's clock. Returns the time as of which the
    /// hits were counted.
    ///
    /// # Errors
    /// [`StoreUnansweredError`], if the configuration asks for it. Hits that the store has counted
    /// by then stay counted.
    pub async fn count(
        &self,
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
        let groups = self.servers.groups(asks, places);
        let split = self.servers.is_split(&groups);
        let deadline = Clock::deadline(self.store.settings.deadline);
        let began = self.store.clock.now();
        // Rare paths are boxed, because each stream of a connection reserves room for this whole
        // future.
        let mut answers = match groups.as_slice() {
            groups if policy.stop_when_over && (split || spared) => {
                Box::pin(self.ask_twice(asks, groups, spared, deadline)).await
            }
            [group] if !(policy.stop_when_over || split) => {
                self.merger.ask(&self.servers, asks, &group.places).await
            }
            groups => {
                let (asks, stop) = (Rc::from(&*asks), policy.stop_when_over);
                Box::pin(self.servers.ask_all(&asks, groups, stop, deadline)).await
            }
        };
        if !groups.is_empty() {
            self.store.counts.took.record(self.store.clock.now().since(began).0);
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
        let unheard = self.store.hits.look(|owed| owed.unheard(&ask.name));
        ask.known = u32::try_from(i64::from(ask.hit.before) - unheard).unwrap_or(0);
        let returned = self.returned.get();
        ask.returned = returned.is_some_and(|at| now.since(at) < RETURNED_DOUBT_TIME);
    }

    /// Asks in two rounds, for requests with counters on several servers that depend on each other:
    /// the first round only reads all counts, and the second counts what these allow.
    async fn ask_twice(
        &self,
        asks: &[CounterAsk],
        groups: &[ServerGroup],
        spared: bool,
        deadline: Instant,
    ) -> CounterAnswers {
        let look = |ask: &CounterAsk| CounterAsk { hit: Hit { hits: 0, ..ask.hit }, ..ask.clone() };
        let looks: Rc<[CounterAsk]> = asks.iter().map(look).collect();
        let seen = self.servers.ask_all(&looks, groups, false, deadline).await;
        let is_over = |(place, answer): &(usize, TimedAnswer<(u32, u32)>)| {
            let Hit { hits, limit, give_back, .. } = asks[*place].hit;
            let over = |used: u32| !give_back && used.saturating_add(hits) > limit;
            matches!(answer, Ok(((_, used), _)) if over(*used))
        };
        if !(spared || seen.iter().any(is_over)) {
            return self.servers.ask_all(&Rc::from(asks), groups, false, deadline).await;
        }
        let mut stopped = looks.to_vec();
        for one in &seen {
            let hit = &asks[one.0].hit;
            if hit.give_back || !spared && is_over(one) {
                stopped[one.0].hit.hits = hit.hits;
            }
        }
        self.servers.ask_all(&stopped.into(), groups, false, deadline).await
    }

    fn take_answers(
        &self,
        asks: &mut [CounterAsk],
        answers: CounterAnswers,
        policy: WindowPolicy,
        now: Time,
    ) -> Result<Time, StoreUnansweredError> {
        let spared = asks.iter().filter(|ask| ask.hit.spared).count();
        self.store.counts.spared.increment(spared as u64);
        let mut time = now;
        let (mut missed, mut owed) = (Vec::new(), Vec::new());
        for (place, answer) in answers {
            match self.store.take_answer(&mut asks[place], answer) {
                Ok(now) => time = now,
                Err(why) => {
                    missed.push(place);
                    if why.may_be_repeated() {
                        owed.push(place);
                    }
                }
            }
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
            self.store.report_hits(ask, hits);
        }
    }
}
