//! The engine of the doors that are asked about tags: limits by prefix, and lists of the heaviest
//! tags.
//!
//! A question costs tens of nanoseconds, so the more expensive steps are done once for a batch:
//! reading the clock, locking the lists, updating the counters. The lists of the heaviest tags
//! count every question when there are few, and a fair sample when there are many. This module does
//! not depend on a protocol. There are no open accounts: a hit is known in full when it arrives.
//! For accounts of requests see `engine`.

mod peers;
pub mod questions;

use evenkeel_config::settings::LineSettings;
use evenkeel_config::settings::tags::{
    OWN_NUMBERS_LIMIT_NAME, SHARED_LIMIT_NAME, SharedTagRule, TagRule, TagRules, owed_time,
};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::classify::prefix::hash;
use evenkeel_core::classify::{LimitKey, readable};
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::{Limit, LimitAction};
use evenkeel_core::limiter::{Limiter, LimiterPolicy, Reason};
use evenkeel_core::units::{Cost, ExactRate, Nanos, Rate, SECOND, Time};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::decision::Decision;
use evenkeel_telemetry::metrics::DECISIONS;
use evenkeel_telemetry::registry::Counter;
use parking_lot::{Mutex, MutexGuard};
use std::net::IpAddr;
use std::sync::Arc;

use super::replicated::LimitIds;
use super::shards::{LaneState, LimitRules, Shards};
use super::view::{EngineView, HeavyClient, with_levels};
use questions::DecidedBy;

/// The number of tags that each limit remembers by name, per lane.
const TOP_KEYS: usize = 1_000;
/// The number of questions in each millisecond that the lists count in full. Of further ones they
/// count one in [`SAMPLE_ONE_IN`].
const COUNTED_PER_MILLI: u32 = 20;
/// The average distance between sampled questions, and the weight of each.
const SAMPLE_ONE_IN: u32 = 64;

/// The number of tags to fetch the buckets of from memory at the same time.
pub const TAG_GROUP_MAX: usize = 16;

/// The limits and tag rules of a door. A reload replaces them as a whole.
pub struct TagEngineRules {
    limiter: Arc<Limiter>,
    tags: Arc<TagRules>,
    /// The index of the limit [`SHARED_LIMIT_NAME`], if there are rules without a limit of their
    /// own.
    shared: Option<u8>,
    /// The index of the limit [`OWN_NUMBERS_LIMIT_NAME`], if questions may bring their own numbers.
    own: Option<u8>,
    /// The counter of refused questions, for each limit.
    refused: Vec<Counter>,
    /// The fingerprints by which other instances know the limits.
    marks: LimitIds,
}

/// The limits by tag, shared by all threads of a door.
///
/// # Lock order
///
/// A [`TagBatch`] holds the state of its lane until it is dropped. While it is held,
/// only the spin bits of buckets and the locks of the log (`watch`) are taken. `elsewhere` is never
/// held while another lock is taken, nor are the `TagLaneState` of two lanes locked at once.
pub struct TagEngine {
    shards: Shards<TagEngineRules, TagSampling>,
    watch: Arc<Watch>,
}

/// The state of a lane of this engine beside the lists of its limits.
pub struct TagSampling {
    sampler: QuestionSampler,
    /// The second in which no more refusals are logged, because the log has had enough of them.
    quiet: u64,
}

type TagLaneState = LaneState<TagEngineRules, TagSampling>;

impl TagEngine {
    /// Makes an engine for `lanes` threads.
    pub fn new(
        line: &LineSettings,
        lanes: usize,
        seed: KeySeed,
        clock: Clock,
        watch: Arc<Watch>,
    ) -> Arc<TagEngine> {
        let limiter = Limiter::new(POLICY, limits(line), seed);
        let rules = rules(line, limiter, &watch);
        let own = |lane| TagSampling { sampler: QuestionSampler::new(&seed, lane), quiet: 0 };
        Arc::new(TagEngine { shards: Shards::new(rules, lanes, clock, own), watch })
    }

    /// Applies a changed configuration. Debts are kept. Locks the lanes one at a time.
    pub fn reload(&self, line: &LineSettings) {
        let (old, now) = (self.shards.rules(), self.shards.clock.now());
        let limiter = old.limiter.reconfigured(POLICY, limits(line), now);
        self.shards.replace(rules(line, limiter, &self.watch));
    }

    /// Returns the handle of thread `index`.
    pub fn lane(self: &Arc<TagEngine>, index: usize) -> TagLane {
        TagLane { tags: Arc::clone(self), books: self.shards.lane(index) }
    }
}

impl EngineView for TagEngine {
    fn held(&self) -> Arc<Limiter> {
        Arc::clone(&self.shards.rules().limiter)
    }

    fn shadows(&self, index: usize) -> bool {
        self.shards.rules().limiter.limits().get(index).is_some_and(|limit| limit.shadow)
    }

    /// The cost of a tag is the number of hits asked for, served or refused.
    fn top(&self, index: usize) -> Vec<HeavyClient> {
        let rows = self.shards.rows(index, usize::MAX);
        with_levels(&self.shards.rules().limiter, index, rows, self.shards.clock.now())
    }
}

impl LimitRules for TagEngineRules {
    fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    fn marks(&self) -> &LimitIds {
        &self.marks
    }

    fn names_max(&self) -> usize {
        TOP_KEYS
    }
}

/// Tags are served or refused, never delayed.
const POLICY: LimiterPolicy = LimiterPolicy { action: LimitAction::Reject, max_delay: Nanos::ZERO };

/// The limits of a door: the configured ones, and the limit for keys that bring their own numbers.
fn limits(line: &LineSettings) -> Vec<Limit> {
    let mut limits = line.limits.clone();
    if !line.resp.is_empty() {
        // The first limit is the one for tags that match no other. Its mode is that of the door.
        let shadow = line.limits.first().is_some_and(|limit| limit.shadow);
        limits.push(Limit { shadow, ..owed_time(OWN_NUMBERS_LIMIT_NAME, line.keys_max) });
    }
    limits
}

fn rules(line: &LineSettings, limiter: Limiter, watch: &Watch) -> TagEngineRules {
    let limits = limiter.limits();
    let refused = limits
        .iter()
        .map(|limit| (limit, if limit.shadow { "true" } else { "false" }))
        .map(|(limit, shadow)| {
            watch.registry().counter(&DECISIONS, &["reject", &limit.name, shadow])
        });
    let place = |name: &str| (0..).zip(limits).find(|(_, l)| *l.name == *name).map(|(at, _)| at);
    TagEngineRules {
        tags: Arc::clone(&line.rules),
        shared: place(SHARED_LIMIT_NAME),
        own: place(OWN_NUMBERS_LIMIT_NAME),
        refused: refused.collect(),
        marks: LimitIds::new("line", limits),
        limiter: Arc::new(limiter),
    }
}

impl TagEngineRules {
    /// The bucket that counts `tag`; `None` if the tag is exempt or matches no rule.
    fn find(&self, tag: &[u8]) -> Option<TagBucket> {
        let (limit, counting) = match self.tags.find(tag)? {
            TagRule::Exempt => return None,
            TagRule::Own(limit) => (limit, None),
            TagRule::Shared(counting) => (self.shared?, Some(counting)),
        };
        Some(TagBucket { key: LimitKey { limit, hash: hash(tag, self.limiter.seed()) }, counting })
    }

    /// The algorithm of a bucket: that of its rule, else that of its limit.
    fn algorithm(&self, found: TagBucket) -> &Algorithm {
        let own = || &self.limiter.limits()[usize::from(found.key.limit)].algorithm;
        self.counting(found).map_or_else(own, |counting| &counting.algorithm)
    }

    fn counting(&self, found: TagBucket) -> Option<&SharedTagRule> {
        self.tags.counting(found.counting?)
    }

    /// The amount to report to other instances for `hits`: the time that they take if the rule has
    /// its own numbers, else hits.
    fn cost(&self, found: TagBucket, hits: u64) -> Cost {
        match self.counting(found) {
            Some(counting) => Cost(counting.interval.0.saturating_mul(hits)),
            None => Cost::hits(hits),
        }
    }
}

/// The bucket of a tag, with the number of its rule's counting if it differs from the limit's.
#[derive(Clone, Copy, Debug)]
struct TagBucket {
    key: LimitKey,
    counting: Option<u32>,
}

/// The engine handle of one thread.
pub struct TagLane {
    tags: Arc<TagEngine>,
    books: Arc<Mutex<TagLaneState>>,
}

impl TagLane {
    /// Begins a batch of questions from `client` (`None` for a client on this machine). All
    /// questions of the batch have the same time. Only for work that never waits, because the batch
    /// holds the lane's lock.
    pub fn batch(&self, client: Option<IpAddr>) -> TagBatch<'_> {
        self.batch_at(client, self.tags.shards.clock.now())
    }

    /// Begins a batch as [`TagLane::batch`] does, at a time that the caller has read already.
    pub fn batch_at(&self, client: Option<IpAddr>, now: Time) -> TagBatch<'_> {
        self.batch_by(DecidedBy::Here, client, now)
    }

    fn batch_by(&self, by: DecidedBy, client: Option<IpAddr>, now: Time) -> TagBatch<'_> {
        // Locked until the batch is dropped.
        let mut books = self.books.lock();
        books.own.sampler.turn(now);
        let watch = &self.tags.watch;
        TagBatch { watch, books, by, now, client, served: 0, refused: (0, 0), untold: 0 }
    }
}

/// Questions that are answered as of one moment. Holds the lock of its lane, so it must not be kept
/// across an `await`, and a thread must not begin a second one.
pub struct TagBatch<'a> {
    watch: &'a Watch,
    books: MutexGuard<'a, TagLaneState>,
    by: DecidedBy,
    now: Time,
    client: Option<IpAddr>,
    served: u64,
    /// The limit that has refused last, and the number of its latest refusals that are not counted
    /// yet.
    refused: (usize, u64),
    /// The number of refusals without a line in the log.
    untold: u64,
}

/// The rate and the capacity that a question brings with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuestionNumbers {
    /// The time in which one hit becomes available; above zero.
    pub interval: Nanos,
    /// The most hits that can be saved up; above zero.
    pub capacity: u64,
}

/// The state of a tag after a question, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagAnswer {
    /// Whether the hits were served.
    pub served: bool,
    /// The most hits that can be saved up.
    pub capacity: u64,
    /// The number of whole hits left; zero in debt.
    pub left: u64,
    /// The time until these hits would be served; `None` if they were served or never will be.
    pub retry: Option<Nanos>,
    /// The time until the bucket is full.
    pub full: Nanos,
}

impl TagBatch<'_> {
    /// The time of all questions in this batch.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Asks for one hit of each tag, charges it if it is served, and calls `answer` with the
    /// result. A value that is no tag is served. The batch takes at most [`TAG_GROUP_MAX`] tags per
    /// call: their buckets are fetched from memory at the same time, because the fetch takes longer
    /// than all the rest.
    pub fn ask(&mut self, tags: &[Option<&[u8]>], mut answer: impl FnMut(bool)) {
        if self.by != DecidedBy::Here {
            return tags.iter().for_each(|tag| answer(self.served_elsewhere(*tag)));
        }
        let mut all = [None; TAG_GROUP_MAX];
        for (found, tag) in all.iter_mut().zip(tags) {
            *found = tag.and_then(|tag| self.rules().find(tag));
            found.iter().for_each(|found| self.books.rules.limiter.prefetch(found.key));
        }
        for (found, tag) in all.iter().zip(tags) {
            let (Some(found), Some(tag)) = (*found, tag) else {
                answer(true);
                continue;
            };
            let rules = &self.books.rules;
            let wait = rules.limiter.hit_by(rules.algorithm(found), found.key, 1, self.now);
            self.spend(found.key, rules.cost(found, 1), wait);
            self.count(found.key, tag, 1, wait);
            answer(wait == Nanos::ZERO || self.shadows(found.key));
        }
    }

    /// Asks for `hits` of `tag`, all or none, and returns the state of the tag. `None` if no rule
    /// counts the tag.
    #[must_use]
    pub fn ask_state(&mut self, tag: &[u8], hits: u64) -> Option<TagAnswer> {
        let rules = self.rules();
        let found = rules.find(tag)?;
        let (algorithm, cost) = (rules.algorithm(found).clone(), rules.cost(found, hits));
        Some(self.told_by(&algorithm, found.key, tag, hits, cost))
    }

    /// Asks as [`TagBatch::ask_state`] does, by the numbers of the question; `None` if questions
    /// may not bring any, or if these make no rate.
    #[must_use]
    pub fn ask_by_own_numbers(
        &mut self,
        tag: &[u8],
        hits: u64,
        numbers: QuestionNumbers,
    ) -> Option<TagAnswer> {
        let limit = self.rules().own?;
        let key = LimitKey { limit, hash: hash(tag, self.rules().limiter.seed()) };
        let rate = Rate::per(Cost::hits(1), numbers.interval)?;
        let algorithm = Algorithm::Debt(DebtBucket::new(rate, Cost::hits(numbers.capacity)));
        // The amount is reported as a time, because other instances do not know these numbers.
        let time = Cost(numbers.interval.0.saturating_mul(hits));
        Some(self.told_by(&algorithm, key, tag, hits, time))
    }

    fn told_by(
        &mut self,
        algorithm: &Algorithm,
        key: LimitKey,
        tag: &[u8],
        hits: u64,
        cost: Cost,
    ) -> TagAnswer {
        if self.by != DecidedBy::Here {
            return self.told_elsewhere(algorithm, key, tag, hits);
        }
        let limiter = &self.books.rules.limiter;
        let wait = limiter.hit_by(algorithm, key, hits, self.now);
        let state = limiter.tables()[usize::from(key.limit)].take(key.hash).get(0);
        self.spend(key, cost, wait);
        self.count(key, tag, hits, wait);
        let wait = if self.shadows(key) { Nanos::ZERO } else { wait };
        ask_state(algorithm, state, wait, hits, self.now)
    }

    /// The rules by which this batch is decided.
    fn rules(&self) -> &TagEngineRules {
        match &self.by {
            DecidedBy::Told(asked) => asked.rules(),
            DecidedBy::Here | DecidedBy::Noted(_) => &self.books.rules,
        }
    }

    /// Whether the limit of this key is in shadow, so that tags over it are served.
    fn shadows(&self, key: LimitKey) -> bool {
        let limits = self.rules().limiter.limits();
        limits.get(usize::from(key.limit)).is_some_and(|limit| limit.shadow)
    }

    /// Notes the charge of served hits, if instances count together.
    fn spend(&mut self, key: LimitKey, cost: Cost, wait: Nanos) {
        let books = &mut *self.books;
        if let Some(spent) = books.spent.as_mut().filter(|_| wait == Nanos::ZERO) {
            spent.add(books.rules.marks.of(usize::from(key.limit)), 0, key.hash, cost);
        }
    }

    /// Counts one question and its outcome.
    fn count(&mut self, key: LimitKey, tag: &[u8], hits: u64, wait: Nanos) {
        let index = usize::from(key.limit);
        let books = &mut *self.books;
        if let Some(times) = books.own.sampler.weight()
            && let Some(top) = books.tops.get_mut(index)
        {
            let asked = Cost::hits(hits.saturating_mul(times.into()));
            top.count(key.hash, times.into(), asked, self.now, || readable(tag));
        }
        if wait == Nanos::ZERO {
            self.served += 1;
        } else {
            if self.refused.0 != index {
                self.count_refused();
                self.refused.0 = index;
            }
            self.refused.1 += 1;
            self.tell(key, tag, wait);
        }
    }

    /// Adds the pending refusals to the counter of their limit.
    fn count_refused(&mut self) {
        let (index, count) = std::mem::take(&mut self.refused);
        if let Some(counter) = self.books.rules.refused.get(index).filter(|_| count > 0) {
            counter.increment(count);
        }
    }

    /// Logs a refusal, unless too many were logged in this second.
    fn tell(&mut self, key: LimitKey, tag: &[u8], wait: Nanos) {
        let second = self.now.second();
        if self.books.own.quiet == second {
            self.untold += 1;
            return;
        }
        let rules = Arc::clone(&self.books.rules);
        let Reason { level, .. } =
            rules.limiter.standing_of(usize::from(key.limit), key.hash, self.now);
        let decision = Decision {
            verdict: "reject",
            limit: &rules.limiter.limits()[usize::from(key.limit)].name,
            key: &readable(tag),
            client: self.client,
            level,
            wait,
            cost: None,
            refused: None,
            denied: None,
            shadow: rules.limiter.limits()[usize::from(key.limit)].shadow,
        };
        if !self.watch.log_decision(&decision, self.now) {
            self.books.own.quiet = second;
        }
    }
}

/// The numbers of a bucket without capacity, for the placeholder answers of a noting batch.
fn nothing() -> DebtBucket {
    DebtBucket::new(ExactRate::ONE_PER_SECOND.rate(), Cost::ZERO)
}

/// The client's view of a bucket in this state, after a question with this wait.
fn ask_state(algorithm: &Algorithm, state: u64, wait: Nanos, hits: u64, now: Time) -> TagAnswer {
    let served = wait == Nanos::ZERO;
    let level = algorithm.level(&[state], now).unwrap_or(0);
    let capacity = match algorithm {
        Algorithm::Debt(debt) => debt.burst().0 / SECOND,
        Algorithm::Grid(grid) => grid.burst(),
        _ => 0,
    };
    TagAnswer {
        served,
        capacity,
        left: u64::try_from(level).unwrap_or(0) / SECOND,
        retry: (!served && hits <= capacity).then_some(wait),
        full: Time(state).since(now),
    }
}

impl Drop for TagBatch<'_> {
    fn drop(&mut self) {
        if self.served > 0 {
            self.watch.allowed.increment(self.served);
        }
        self.count_refused();
        if self.untold > 0 {
            self.watch.skip_decisions("reject", self.untold, self.now);
        }
    }
}

/// Chooses the questions that the lists count, so that a busy thread does not spend its time on the
/// lists.
pub(super) struct QuestionSampler {
    milli: u64,
    /// The number of questions still to be counted in full in this millisecond.
    left: u32,
    /// The number of questions until the next sampled one.
    skip: u32,
    chance: u64,
}

impl QuestionSampler {
    pub(super) fn new(seed: &KeySeed, lane: usize) -> QuestionSampler {
        let [a, b, c, d, ..] = seed.0;
        let chance = u64::from(u32::from_le_bytes([a, b, c, d])) << 16 | lane as u64 | 1 << 60;
        QuestionSampler { milli: 0, left: 0, skip: SAMPLE_ONE_IN, chance }
    }

    /// Begins a batch at `now`.
    pub(super) fn turn(&mut self, now: Time) {
        let milli = now.0 / 1_000_000;
        if milli != self.milli {
            self.milli = milli;
            self.left = COUNTED_PER_MILLI;
        }
    }

    /// The number of questions that this one stands for; `None` if it is not sampled.
    pub(super) fn weight(&mut self) -> Option<u32> {
        if self.left > 0 {
            self.left -= 1;
            return Some(1);
        }
        self.skip -= 1;
        if self.skip > 0 {
            return None;
        }
        // xorshift64: from 1 to 127, on average 64.
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.skip = 1 + (self.chance >> 32) as u32 % (2 * SAMPLE_ONE_IN - 1);
        Some(SAMPLE_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_quiet_time_are_seen_and_a_fair_part_of_a_busy_one() {
        let mut sampler = QuestionSampler::new(&KeySeed([5; 16]), 1);
        for milli in 1..100 {
            sampler.turn(Time(milli * 1_000_000));
            assert!((0..COUNTED_PER_MILLI).all(|_| sampler.weight() == Some(1)));
        }
        let seen: u32 = (0..1_000_000).filter_map(|_| sampler.weight()).sum();
        assert!((950_000..1_050_000).contains(&seen), "{seen} for a million");
    }
}
