//! The engine of the doors that are asked about tags: limits by prefix, and lists of the heaviest
//! tags.
//!
//! A question costs tens of nanoseconds, so the more expensive steps are done once for a batch:
//! reading the clock, locking the lists, updating the counters. The lists of the heaviest tags
//! count every question when there are few, and a fair sample when there are many. Nothing here
//! depends on a protocol. There are no open accounts: a hit is known in full when it arrives. For
//! accounts of requests see `engine`.

pub mod asked;
mod peers;

use arc_swap::ArcSwap;
use evenkeel_config::settings::Line;
use evenkeel_config::settings::tags::{
    Counting, OWN_NUMBERS, SHARED, TagRule, TagRules, owed_time,
};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::Debt;
use evenkeel_core::classify::prefix::hash;
use evenkeel_core::classify::{Key, readable};
use evenkeel_core::key::Seed;
use evenkeel_core::limit::{Action, Limit};
use evenkeel_core::limiter::{Limiter, Policy, Reason};
use evenkeel_core::top::{Row, Top};
use evenkeel_core::units::{Cost, Nanos, Pace, Rate, SECOND, Time};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::decision::Decision;
use evenkeel_telemetry::metrics::DECISIONS;
use evenkeel_telemetry::registry::Counter;
use parking_lot::{Mutex, MutexGuard};
use std::net::IpAddr;
use std::sync::Arc;

use super::Standing;
use super::counted::{Counted, Work};
use super::together::{Elsewhere, Marks, Spent};
use asked::By;

/// The number of tags that each limit remembers by name, per lane.
const TOP_KEYS: usize = 1_000;
/// The number of questions in each millisecond that the lists count in full. Of further ones they
/// count one in [`SAMPLE`].
const SEEN_PER_MILLI: u32 = 20;
/// The average distance between sampled questions, and the weight of each.
const SAMPLE: u32 = 64;

/// The number of tags to fetch the buckets of from memory at the same time.
pub const GROUP: usize = 16;

/// The limits and tag rules of a door. A reload replaces them as a whole.
struct Rules {
    limiter: Arc<Limiter>,
    tags: Arc<TagRules>,
    /// The index of the limit [`SHARED`], if there are rules without a limit of their own.
    shared: Option<u8>,
    /// The index of the limit [`OWN_NUMBERS`], if questions may bring their own numbers.
    own: Option<u8>,
    /// The counter of refused questions, for each limit.
    refused: Vec<Counter>,
    /// The fingerprints by which other instances know the limits.
    marks: Marks,
}

/// The limits by tag, shared by all threads of a door.
///
/// # Lock order
///
/// A [`Batch`] holds the `Books` of its lane until it is dropped. While they are held, only the
/// spin bits of buckets and the locks of the log (`watch`) are taken. `elsewhere` is never
/// held while another lock is taken, nor are the `Books` of two lanes locked at once.
pub struct Tags {
    clock: Clock,
    rules: ArcSwap<Rules>,
    lanes: Vec<Arc<Mutex<Books>>>,
    watch: Arc<Watch>,
    /// The heaviest tags as other instances report them.
    elsewhere: Elsewhere,
}

/// The state of one lane, behind a lock of its own. Only `reload`, the peers and the admin door
/// contend for it.
struct Books {
    rules: Arc<Rules>,
    /// The heaviest tags of each limit, in the order of the limits.
    tops: Vec<Top>,
    sampler: Sampler,
    /// The second in which no more refusals are logged, because the log has had enough of them.
    quiet: u64,
    /// The charges to report to other instances; `None` unless instances count together.
    spent: Option<Spent>,
}

impl Tags {
    /// Makes an engine for `lanes` threads.
    #[must_use]
    pub fn new(
        line: &Line,
        lanes: usize,
        seed: Seed,
        clock: Clock,
        watch: Arc<Watch>,
    ) -> Arc<Tags> {
        let limiter = Limiter::new(POLICY, limits(line), seed);
        let rules = Arc::new(rules(line, limiter, &watch));
        let books = |lane| Books {
            rules: Arc::clone(&rules),
            tops: rules.limiter.limits().iter().map(|_| Top::new(TOP_KEYS)).collect(),
            sampler: Sampler::new(&seed, lane),
            quiet: 0,
            spent: None,
        };
        Arc::new(Tags {
            clock,
            lanes: (0..lanes.max(1)).map(|lane| Arc::new(Mutex::new(books(lane)))).collect(),
            rules: ArcSwap::new(Arc::clone(&rules)),
            watch,
            elsewhere: Elsewhere::default(),
        })
    }

    /// Applies a changed configuration. Debts are kept. Locks the lanes one at a time.
    pub fn reload(&self, line: &Line) {
        let now = self.clock.now();
        let old = self.rules.load();
        let limiter = old.limiter.reconfigured(POLICY, limits(line), now);
        let kept = |new: &Limit| {
            old.limiter.limits().iter().position(|old| old.name == new.name && old.by == new.by)
        };
        let places: Vec<_> = limiter.limits().iter().map(kept).collect();
        let rules = Arc::new(rules(line, limiter, &self.watch));
        self.elsewhere.keep(&rules.marks);
        self.rules.store(Arc::clone(&rules));
        for lane in &self.lanes {
            let mut books = lane.lock();
            let mut before: Vec<Option<Top>> = books.tops.drain(..).map(Some).collect();
            let carried = places.iter().map(|place| {
                let carried = place.and_then(|at| before.get_mut(at)?.take());
                carried.unwrap_or_else(|| Top::new(TOP_KEYS))
            });
            books.tops = carried.collect();
            books.rules = Arc::clone(&rules);
        }
    }

    /// Returns the handle of thread `index`.
    #[must_use]
    pub fn lane(self: &Arc<Tags>, index: usize) -> TagLane {
        let books = Arc::clone(&self.lanes[index % self.lanes.len()]);
        TagLane { tags: Arc::clone(self), books }
    }
}

impl Counted for Tags {
    fn held(&self) -> Arc<Limiter> {
        Arc::clone(&self.rules.load().limiter)
    }

    fn clients_held(&self, _: usize, _: Nanos) -> Option<usize> {
        None
    }

    fn shadows(&self, index: usize) -> bool {
        self.rules.load().limiter.limits().get(index).is_some_and(|limit| limit.shadow)
    }

    fn work(&self) -> Option<Work> {
        None
    }

    /// The cost of a tag is the number of hits asked for, served or refused.
    fn top(&self, index: usize) -> Vec<Standing> {
        let now = self.clock.now();
        let rules = self.rules.load();
        let tops = self.lanes.iter().map(|lane| {
            let books = lane.lock();
            books.tops.get(index).map(|top| top.rows(now)).unwrap_or_default()
        });
        let elsewhere = self.elsewhere.rows(rules.marks.of(index), now);
        let rows = Top::merge(tops.chain([elsewhere]).collect());
        let standing = |row: Row| {
            let reason = rules.limiter.standing_of(index, row.hash, now);
            Standing { level: reason.level, wait: reason.wait, row }
        };
        rows.into_iter().map(standing).collect()
    }
}

/// Tags are served or refused, never delayed.
const POLICY: Policy = Policy { action: Action::Reject, max_delay: Nanos::ZERO };

/// The limits of a door: the configured ones, and the limit for keys that bring their own numbers.
fn limits(line: &Line) -> Vec<Limit> {
    let mut limits = line.limits.clone();
    if !line.resp.is_empty() {
        // The first limit is the one for tags that match no other. Its mode is that of the door.
        let shadow = line.limits.first().is_some_and(|limit| limit.shadow);
        limits.push(Limit { shadow, ..owed_time(OWN_NUMBERS, line.keys_max) });
    }
    limits
}

fn rules(line: &Line, limiter: Limiter, watch: &Watch) -> Rules {
    let limits = limiter.limits();
    let refused = limits
        .iter()
        .map(|limit| (limit, if limit.shadow { "true" } else { "false" }))
        .map(|(limit, shadow)| {
            watch.registry().counter(&DECISIONS, &["reject", &limit.name, shadow])
        });
    let place = |name: &str| (0..).zip(limits).find(|(_, l)| *l.name == *name).map(|(at, _)| at);
    Rules {
        tags: Arc::clone(&line.rules),
        shared: place(SHARED),
        own: place(OWN_NUMBERS),
        refused: refused.collect(),
        marks: Marks::new("line", limits),
        limiter: Arc::new(limiter),
    }
}

impl Rules {
    /// The bucket that counts `tag`; `None` if the tag is exempt or matches no rule.
    fn find(&self, tag: &[u8]) -> Option<Found> {
        let (limit, counting) = match self.tags.find(tag)? {
            TagRule::Exempt => return None,
            TagRule::Own(limit) => (limit, None),
            TagRule::Shared(counting) => (self.shared?, Some(counting)),
        };
        Some(Found { key: Key { limit, hash: hash(tag, self.limiter.seed()) }, counting })
    }

    /// The algorithm of a bucket: that of its rule, else that of its limit.
    fn algorithm(&self, found: Found) -> &Algorithm {
        let own = || &self.limiter.limits()[usize::from(found.key.limit)].algorithm;
        self.counting(found).map_or_else(own, |counting| &counting.algorithm)
    }

    fn counting(&self, found: Found) -> Option<&Counting> {
        self.tags.counting(found.counting?)
    }

    /// The amount to report to other instances for `hits`: the time that they take if the rule has
    /// its own numbers, else hits.
    fn cost(&self, found: Found, hits: u64) -> Cost {
        match self.counting(found) {
            Some(counting) => Cost(counting.interval.0.saturating_mul(hits)),
            None => Cost::hits(hits),
        }
    }
}

/// The bucket of a tag, with the number of its rule's counting if it differs from the limit's.
#[derive(Clone, Copy, Debug)]
struct Found {
    key: Key,
    counting: Option<u32>,
}

/// The engine handle of one thread.
pub struct TagLane {
    tags: Arc<Tags>,
    books: Arc<Mutex<Books>>,
}

impl TagLane {
    /// Begins a batch of questions from `client` (`None` for a client on this machine). All
    /// questions of the batch have the same time. Only for work that never waits, because the batch
    /// holds the lane's lock.
    #[must_use]
    pub fn batch(&self, client: Option<IpAddr>) -> Batch<'_> {
        self.batch_at(client, self.tags.clock.now())
    }

    /// Begins a batch as [`TagLane::batch`] does, at a time that the caller has read already.
    #[must_use]
    pub fn batch_at(&self, client: Option<IpAddr>, now: Time) -> Batch<'_> {
        self.batch_by(By::Here, client, now)
    }

    fn batch_by(&self, by: By, client: Option<IpAddr>, now: Time) -> Batch<'_> {
        // Locked until the batch is dropped.
        let mut books = self.books.lock();
        books.sampler.turn(now);
        let watch = &self.tags.watch;
        Batch { watch, books, by, now, client, served: 0, refused: (0, 0), untold: 0 }
    }
}

/// Questions that are answered as of one moment. Holds the lock of its lane, so it must not be kept
/// across an `await`, and a thread must not begin a second one.
pub struct Batch<'a> {
    watch: &'a Watch,
    books: MutexGuard<'a, Books>,
    by: By,
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
pub struct Numbers {
    /// The time in which one hit becomes available; above zero.
    pub interval: Nanos,
    /// The most hits that can be saved up; above zero.
    pub capacity: u64,
}

/// The state of a tag after a question, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
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

impl Batch<'_> {
    /// The time of all questions in this batch.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Asks for one hit of each tag, charges it if it is served, and calls `answer` with the
    /// result. A value that is no tag is served. The batch takes at most [`GROUP`] tags per call:
    /// their buckets are fetched from memory at the same time, because the fetch takes longer than
    /// all the rest.
    pub fn ask(&mut self, tags: &[Option<&[u8]>], mut answer: impl FnMut(bool)) {
        if self.by != By::Here {
            return tags.iter().for_each(|tag| answer(self.served_elsewhere(*tag)));
        }
        let mut all = [None; GROUP];
        for (found, tag) in all.iter_mut().zip(tags) {
            *found = tag.and_then(|tag| self.rules().find(tag));
        }
        // Not in the loop that hashes: the processor looks only some hundred steps ahead.
        for found in all.iter().flatten() {
            self.books.rules.limiter.touch(found.key);
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
    pub fn told(&mut self, tag: &[u8], hits: u64) -> Option<Told> {
        let rules = self.rules();
        let found = rules.find(tag)?;
        let (algorithm, cost) = (rules.algorithm(found).clone(), rules.cost(found, hits));
        Some(self.told_by(&algorithm, found.key, tag, hits, cost))
    }

    /// Asks as [`Batch::told`] does, by the numbers of the question; `None` if questions may not
    /// bring any, or if these make no rate.
    #[must_use]
    pub fn told_by_own(&mut self, tag: &[u8], hits: u64, numbers: Numbers) -> Option<Told> {
        let limit = self.rules().own?;
        let key = Key { limit, hash: hash(tag, self.rules().limiter.seed()) };
        let rate = Rate::per(Cost::hits(1), numbers.interval)?;
        let algorithm = Algorithm::Debt(Debt::new(rate, Cost::hits(numbers.capacity)));
        // The amount is reported as a time, because other instances do not know these numbers.
        let time = Cost(numbers.interval.0.saturating_mul(hits));
        Some(self.told_by(&algorithm, key, tag, hits, time))
    }

    fn told_by(
        &mut self,
        algorithm: &Algorithm,
        key: Key,
        tag: &[u8],
        hits: u64,
        cost: Cost,
    ) -> Told {
        if self.by != By::Here {
            return self.told_elsewhere(algorithm, key, tag, hits);
        }
        let limiter = &self.books.rules.limiter;
        let wait = limiter.hit_by(algorithm, key, hits, self.now);
        let state = limiter.tables()[usize::from(key.limit)].take(key.hash).get(0);
        self.spend(key, cost, wait);
        self.count(key, tag, hits, wait);
        let wait = if self.shadows(key) { Nanos::ZERO } else { wait };
        told(algorithm, state, wait, hits, self.now)
    }

    /// The rules by which this batch is decided.
    fn rules(&self) -> &Rules {
        match &self.by {
            By::Told(asked) => asked.rules(),
            By::Here | By::Noted(_) => &self.books.rules,
        }
    }

    /// Whether the limit of this key is in shadow, so that tags over it are served.
    fn shadows(&self, key: Key) -> bool {
        let limits = self.rules().limiter.limits();
        limits.get(usize::from(key.limit)).is_some_and(|limit| limit.shadow)
    }

    /// Notes the charge of served hits, if instances count together.
    fn spend(&mut self, key: Key, cost: Cost, wait: Nanos) {
        let books = &mut *self.books;
        if let Some(spent) = books.spent.as_mut().filter(|_| wait == Nanos::ZERO) {
            spent.add(books.rules.marks.of(usize::from(key.limit)), 0, key.hash, cost);
        }
    }

    /// Counts one question and its outcome.
    fn count(&mut self, key: Key, tag: &[u8], hits: u64, wait: Nanos) {
        let index = usize::from(key.limit);
        let books = &mut *self.books;
        if let Some(times) = books.sampler.weight()
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
    fn tell(&mut self, key: Key, tag: &[u8], wait: Nanos) {
        let second = self.now.second();
        if self.books.quiet == second {
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
            shadow: rules.limiter.limits()[usize::from(key.limit)].shadow,
        };
        if !self.watch.tell(&decision, self.now) {
            self.books.quiet = second;
        }
    }
}

/// The numbers of a bucket without capacity, for the placeholder answers of a noting batch.
fn nothing() -> Debt {
    Debt::new(Pace::ONE_PER_SECOND.rate(), Cost::ZERO)
}

/// The client's view of a bucket in this state, after a question with this wait.
fn told(algorithm: &Algorithm, state: u64, wait: Nanos, hits: u64, now: Time) -> Told {
    let served = wait == Nanos::ZERO;
    let level = algorithm.level(&[state], now).unwrap_or(0);
    let capacity = match algorithm {
        Algorithm::Debt(debt) => debt.burst().0 / SECOND,
        Algorithm::Grid(grid) => grid.burst(),
        _ => 0,
    };
    Told {
        served,
        capacity,
        left: u64::try_from(level).unwrap_or(0) / SECOND,
        retry: (!served && hits <= capacity).then_some(wait),
        full: Time(state).since(now),
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if self.served > 0 {
            self.watch.allowed.increment(self.served);
        }
        self.count_refused();
        if self.untold > 0 {
            self.watch.untold("reject", self.untold, self.now);
        }
    }
}

/// Chooses the questions that the lists count, so that a busy thread does not spend its time on the
/// lists.
pub(super) struct Sampler {
    milli: u64,
    /// The number of questions still to be counted in full in this millisecond.
    left: u32,
    /// The number of questions until the next sampled one.
    skip: u32,
    chance: u64,
}

impl Sampler {
    pub(super) fn new(seed: &Seed, lane: usize) -> Sampler {
        let [a, b, c, d, ..] = seed.0;
        let chance = u64::from(u32::from_le_bytes([a, b, c, d])) << 16 | lane as u64 | 1 << 60;
        Sampler { milli: 0, left: 0, skip: SAMPLE, chance }
    }

    /// Begins a batch at `now`.
    pub(super) fn turn(&mut self, now: Time) {
        let milli = now.0 / 1_000_000;
        if milli != self.milli {
            self.milli = milli;
            self.left = SEEN_PER_MILLI;
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
        self.skip = 1 + (self.chance >> 32) as u32 % (2 * SAMPLE - 1);
        Some(SAMPLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_quiet_time_are_seen_and_a_fair_part_of_a_busy_one() {
        let mut sampler = Sampler::new(&Seed([5; 16]), 1);
        for milli in 1..100 {
            sampler.turn(Time(milli * 1_000_000));
            assert!((0..SEEN_PER_MILLI).all(|_| sampler.weight() == Some(1)));
        }
        let seen: u32 = (0..1_000_000).filter_map(|_| sampler.weight()).sum();
        assert!((950_000..1_050_000).contains(&seen), "{seen} for a million");
    }
}
