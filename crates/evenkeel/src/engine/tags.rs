//! The engine of doors that are asked about tags: limits by prefix, and what is seen of them.
//!
//! A question costs tens of nanoseconds, so what would cost more is done once for a batch of them:
//! the clock is read, the lists are locked, the counters are moved. The lists of the heaviest tags
//! see every question of a quiet moment and a fair sample of a busy one. Nothing here knows a
//! protocol, and there is no open account: a hit is known when it comes. For accounts of requests
//! see `engine`.

pub mod asked;
mod peers;

use crate::clock::Clock;
use crate::config::settings::Line;
use crate::config::settings::tags::{Counting, OWN_NUMBERS, SHARED, TagRule, TagRules, owed_time};
use crate::watch::Watch;
use crate::watch::decision::Decision;
use crate::watch::metrics::DECISIONS;
use crate::watch::registry::Counter;
use arc_swap::ArcSwap;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::Debt;
use evenkeel_core::classify::prefix::hash;
use evenkeel_core::classify::{Key, readable};
use evenkeel_core::key::Seed;
use evenkeel_core::limit::{Action, Limit};
use evenkeel_core::limiter::{Limiter, Policy, Reason};
use evenkeel_core::top::{Row, Top};
use evenkeel_core::units::{Cost, Nanos, Pace, Rate, SECOND, Time};
use parking_lot::{Mutex, MutexGuard};
use std::net::IpAddr;
use std::sync::Arc;

use super::Standing;
use super::counted::{Counted, Work};
use super::together::{Elsewhere, Marks, Spent};
use asked::By;

/// How many tags each limit remembers by name, per lane.
const TOP_KEYS: usize = 1_000;
/// Questions that the lists see in each millisecond; of more they see one in [`SAMPLE`].
const SEEN_PER_MILLI: u32 = 20;
/// One in so many, by chance, stands for as many.
const SAMPLE: u32 = 64;

/// Tags that are asked about side by side.
pub const GROUP: usize = 16;

/// What is decided by; replaced whole on reload.
struct Rules {
    limiter: Arc<Limiter>,
    tags: Arc<TagRules>,
    /// The place of [`SHARED`], where there are rules without a limit of their own.
    shared: Option<u8>,
    /// The place of [`OWN_NUMBERS`], where questions may bring their numbers.
    own: Option<u8>,
    /// How many were refused, for each limit.
    refused: Vec<Counter>,
    /// The limits as other instances know them.
    marks: Marks,
}

/// Limits by tag, shared by all threads of a door.
pub struct Tags {
    clock: Clock,
    rules: ArcSwap<Rules>,
    lanes: Vec<Arc<Mutex<Books>>>,
    watch: Arc<Watch>,
    /// What other instances tell of the heaviest.
    elsewhere: Elsewhere,
}

/// What each thread has for itself, behind a lock that only `reload` and people looking contend.
struct Books {
    rules: Arc<Rules>,
    /// The heaviest tags of each limit.
    tops: Vec<Top>,
    sampler: Sampler,
    /// In this second nobody is told of a refusal any more: enough have been.
    quiet: u64,
    /// What was charged, where others are to be told.
    spent: Option<Spent>,
}

impl Tags {
    /// An engine for `lanes` threads.
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

    /// Takes over a changed configuration; what tags owe stays owed.
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

    /// The handle of thread `index`.
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

    /// The cost of a tag is what was asked for, in hits, served or not.
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

/// Tags are served or refused; nothing is ever held.
const POLICY: Policy = Policy { action: Action::Reject, max_delay: Nanos::ZERO };

/// The limits of a door: the configured ones, and that of keys which bring their own numbers.
fn limits(line: &Line) -> Vec<Limit> {
    let mut limits = line.limits.clone();
    if !line.resp.is_empty() {
        // The first is for whatever no other names, so what it says the door says.
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
    /// What counts `tag`; `None`: nothing does.
    fn find(&self, tag: &[u8]) -> Option<Found> {
        let (limit, counting) = match self.tags.find(tag)? {
            TagRule::Exempt => return None,
            TagRule::Own(limit) => (limit, None),
            TagRule::Shared(counting) => (self.shared?, Some(counting)),
        };
        Some(Found { key: Key { limit, hash: hash(tag, self.limiter.seed()) }, counting })
    }

    /// How what was found is counted.
    fn algorithm(&self, found: Found) -> &Algorithm {
        let own = || &self.limiter.limits()[usize::from(found.key.limit)].algorithm;
        self.counting(found).map_or_else(own, |counting| &counting.algorithm)
    }

    fn counting(&self, found: Found) -> Option<&Counting> {
        self.tags.counting(found.counting?)
    }

    /// What so many hits are to other instances: where numbers differ, the time that they take.
    fn cost(&self, found: Found, hits: u64) -> Cost {
        match self.counting(found) {
            Some(counting) => Cost(counting.interval.0.saturating_mul(hits)),
            None => Cost::hits(hits),
        }
    }
}

/// The bucket of a tag, and its numbers if they are not those of its limit.
#[derive(Clone, Copy, Debug)]
struct Found {
    key: Key,
    counting: Option<u32>,
}

/// One thread's way to the engine.
pub struct TagLane {
    tags: Arc<Tags>,
    books: Arc<Mutex<Books>>,
}

impl TagLane {
    /// Begins a batch of questions from `client` (`None`: of this machine), for which time stands
    /// still. Only for work that never waits.
    #[must_use]
    pub fn batch(&self, client: Option<IpAddr>) -> Batch<'_> {
        self.batch_at(client, self.tags.clock.now())
    }

    /// The same at a moment that is known already.
    #[must_use]
    pub fn batch_at(&self, client: Option<IpAddr>, now: Time) -> Batch<'_> {
        self.batch_by(By::Here, client, now)
    }

    fn batch_by(&self, by: By, client: Option<IpAddr>, now: Time) -> Batch<'_> {
        let mut books = self.books.lock();
        books.sampler.turn(now);
        let watch = &self.tags.watch;
        Batch { watch, books, by, now, client, served: 0, refused: (0, 0), untold: 0 }
    }
}

/// Questions that are answered at one moment.
pub struct Batch<'a> {
    watch: &'a Watch,
    books: MutexGuard<'a, Books>,
    by: By,
    now: Time,
    client: Option<IpAddr>,
    served: u64,
    /// Refused in a row by one limit, and not counted yet.
    refused: (usize, u64),
    /// Refused without a line in the log.
    untold: u64,
}

/// The numbers that a question brings with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numbers {
    /// How long one hit takes to come in; above zero.
    pub interval: Nanos,
    /// The most that can be saved up, in hits; above zero.
    pub capacity: u64,
}

/// How a tag stands, as its client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether the hits were served.
    pub served: bool,
    /// The most that can be saved up, in hits.
    pub capacity: u64,
    /// What is left, in whole hits; zero in debt.
    pub left: u64,
    /// How long until these hits would be served; `None`: they were, or never will be.
    pub retry: Option<Nanos>,
    /// How long until nothing is owed any more.
    pub full: Nanos,
}

impl Batch<'_> {
    /// The moment of all its questions.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Whether a single hit of each tag is served, which charges it; what is no tag is served.
    /// At most [`GROUP`] at once: their buckets are fetched from memory side by side, which takes
    /// longer than all the rest.
    pub fn ask(&mut self, tags: &[Option<&[u8]>], mut answer: impl FnMut(bool)) {
        if self.by != By::Here {
            return tags.iter().for_each(|tag| answer(self.served_elsewhere(*tag)));
        }
        let mut all = [None; GROUP];
        for (found, tag) in all.iter_mut().zip(tags) {
            *found = tag.and_then(|tag| self.rules().find(tag));
        }
        // Not along with hashing: the processor looks some hundred steps ahead, no further.
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

    /// The same for `hits` of `tag` at once, all or none, with how it stands then.
    #[must_use]
    pub fn told(&mut self, tag: &[u8], hits: u64) -> Option<Told> {
        let rules = self.rules();
        let found = rules.find(tag)?;
        let (algorithm, cost) = (rules.algorithm(found).clone(), rules.cost(found, hits));
        Some(self.told_by(&algorithm, found.key, tag, hits, cost))
    }

    /// The same by the numbers of the question; `None` where none may bring any.
    #[must_use]
    pub fn told_by_own(&mut self, tag: &[u8], hits: u64, numbers: Numbers) -> Option<Told> {
        let limit = self.rules().own?;
        let key = Key { limit, hash: hash(tag, self.rules().limiter.seed()) };
        let rate = Rate::per(Cost::hits(1), numbers.interval)?;
        let algorithm = Algorithm::Debt(Debt::new(rate, Cost::hits(numbers.capacity)));
        // Such a key owes a time, which others need no numbers for.
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

    /// What it is decided by.
    fn rules(&self) -> &Rules {
        match &self.by {
            By::Told(asked) => asked.rules(),
            By::Here | By::Noted(_) => &self.books.rules,
        }
    }

    /// Whether whoever is over this limit is served all the same.
    fn shadows(&self, key: Key) -> bool {
        let limits = self.rules().limiter.limits();
        limits.get(usize::from(key.limit)).is_some_and(|limit| limit.shadow)
    }

    /// Notes what was charged, where others are to be told.
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

    /// Moves the counter of the limit that refused last.
    fn count_refused(&mut self) {
        let (index, count) = std::mem::take(&mut self.refused);
        if let Some(counter) = self.books.rules.refused.get(index).filter(|_| count > 0) {
            counter.increment(count);
        }
    }

    /// Logs a refusal, if there are not too many.
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

/// The numbers of a bucket that holds nothing.
fn nothing() -> Debt {
    Debt::new(Pace::ONE_PER_SECOND.rate(), Cost::ZERO)
}

/// How a bucket of this state is told of, whose hits have to wait for so long.
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

/// Which questions the lists see, so that a busy thread does not spend its time on them.
pub(super) struct Sampler {
    milli: u64,
    /// To be seen in this millisecond still.
    left: u32,
    /// Questions until the next one of a busy time is seen.
    skip: u32,
    chance: u64,
}

impl Sampler {
    pub(super) fn new(seed: &Seed, lane: usize) -> Sampler {
        let [a, b, c, d, ..] = seed.0;
        let chance = u64::from(u32::from_le_bytes([a, b, c, d])) << 16 | lane as u64 | 1 << 60;
        Sampler { milli: 0, left: 0, skip: SAMPLE, chance }
    }

    /// Another batch begins.
    pub(super) fn turn(&mut self, now: Time) {
        let milli = now.0 / 1_000_000;
        if milli != self.milli {
            self.milli = milli;
            self.left = SEEN_PER_MILLI;
        }
    }

    /// How many questions this one stands for; `None`: it is not looked at.
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
