//! The engine of the master: domains of identifiers, each with its rules.
//!
//! It is told of requests after they have run, or have been delayed, and says until when the next
//! of that identifier is to wait: the latest that any rule says. Nothing is refused here, and no
//! protocol is known; who is told is up to the door. What is in force is kept by name too, within a
//! bound, for those who come late. Rules: docs/guide/master.md; algorithms:
//! `evenkeel_core::bucket`. The other half, which holds requests as it is told: `gatekeeper`.

pub mod gatekeeper;
pub mod outbox;

use super::Standing;
use super::counted::{Counted, Work};
use super::tags::Sampler;
use crate::clock::Clock;
use crate::config::settings::master::{self, Master};
use arc_swap::ArcSwap;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::{Key, readable};
use evenkeel_core::key::{KeyHasher, Seed};
use evenkeel_core::limit::{Action, Limit};
use evenkeel_core::limiter::{Limiter, Policy};
use evenkeel_core::top::{Row, Top};
use evenkeel_core::units::{Cost, Nanos, Time};
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many identifiers each rule remembers by name.
const TOP_KEYS: usize = 1_000;
/// The most bytes of names that newcomers are told of, in all domains together.
const TOLD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How often names go whose wait is over.
const SWEEP: Nanos = Nanos::from_secs(10);
/// What reaches us later than this was kept somewhere while we were away; a bucket that refills
/// evenly does not count it. Longer than any network takes, shorter than a restart.
const STALE_AFTER: Nanos = Nanos::from_secs(5);
/// Requests are let in and delayed, never refused, by who asks.
const POLICY: Policy = Policy { action: Action::Delay, max_delay: Nanos(u64::MAX) };

/// What comes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The next request may come at once.
    Free,
    /// It is to wait until then.
    Until(Time),
    /// The request was so long ago that it changes nothing.
    Stale,
}

/// All domains.
pub struct Domains {
    by_name: HashMap<Box<[u8]>, Arc<Domain>, RandomState>,
    in_order: Vec<Arc<Domain>>,
}

impl Domains {
    /// With empty buckets.
    #[must_use]
    pub fn new(settings: &Master, seed: Seed, clock: Clock) -> Domains {
        let all = Arc::default();
        let domain = |domain: &master::Domain| {
            Arc::new(Domain::new(domain, settings, Arc::clone(&all), seed, clock))
        };
        let in_order: Vec<_> = settings.domains.iter().map(domain).collect();
        let by_name = in_order.iter();
        let by_name = by_name.map(|domain| (domain.name.as_bytes().into(), Arc::clone(domain)));
        Domains { by_name: by_name.collect(), in_order }
    }

    /// Takes over changed rules of the domains that there are; says whether others were meant too.
    pub fn reload(&self, settings: &Master) -> bool {
        for changed in &settings.domains {
            if let Some(domain) = self.by_name.get(changed.name.as_bytes()) {
                domain.reload(&changed.rules);
            }
        }
        let same = |domain: &Arc<Domain>| settings.domains.iter().any(|d| d.name == domain.name);
        settings.domains.len() != self.in_order.len() || !self.in_order.iter().all(same)
    }

    /// One by its name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&Arc<Domain>> {
        self.by_name.get(name)
    }

    /// All of them, in the order of the configuration.
    #[must_use]
    pub fn all(&self) -> &[Arc<Domain>] {
        &self.in_order
    }
}

/// One domain.
pub struct Domain {
    name: String,
    clock: Clock,
    ahead_max: Nanos,
    told_max: usize,
    limiter: ArcSwap<Limiter>,
    books: Mutex<Books>,
}

/// What is kept by name.
struct Books {
    tops: Vec<Top>,
    /// Of a flood the lists see a part: they are for people, and a message costs little else.
    sampler: Sampler,
    live: Live,
}

impl Domain {
    fn new(
        domain: &master::Domain,
        settings: &Master,
        all: Arc<AtomicUsize>,
        seed: Seed,
        clock: Clock,
    ) -> Domain {
        let limiter = Limiter::new(POLICY, domain.rules.clone(), seed);
        let tops = limiter.limits().iter().map(|_| Top::new(TOP_KEYS)).collect();
        let (until, sweep_at) = (HashMap::new(), Time::ZERO);
        let live = Live { until, bytes: 0, all, sweep_at };
        Domain {
            name: domain.name.clone(),
            clock,
            ahead_max: settings.ahead_max,
            told_max: settings.told_max,
            books: Mutex::new(Books { tops, sampler: Sampler::new(&seed, 0), live }),
            limiter: ArcSwap::from_pointee(limiter),
        }
    }

    fn reload(&self, rules: &[Limit]) {
        let next = self.limiter.load().reconfigured(POLICY, rules.to_vec(), self.clock.now());
        let mut books = self.books.lock();
        books.tops = next.limits().iter().map(|_| Top::new(TOP_KEYS)).collect();
        self.limiter.store(Arc::new(next));
    }

    /// What gatekeepers call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Records a request of `identifier` that ran, or is to run, at `at`, and says until when the
    /// next has to wait.
    pub fn hear(&self, identifier: &[u8], at: Time, now: Time) -> Heard {
        let limiter = self.limiter.load();
        let mut hasher = KeyHasher::new(limiter.seed());
        hasher.part(identifier);
        let hash = hasher.finish();
        let at = at.min(now.plus(self.ahead_max));
        let (mut longest, mut counted) = (Nanos::ZERO, false);
        let mut books = self.books.lock();
        books.sampler.turn(now);
        let seen = books.sampler.weight().map(u64::from);
        for (index, limit) in limiter.limits().iter().enumerate() {
            let Some(at) = as_of(&limit.algorithm, at, now) else { continue };
            counted = true;
            let wait = limiter.record(Key { limit: index as u8, hash }, at, now);
            longest = longest.max(wait);
            if let Some(times) = seen
                && let Some(top) = books.tops.get_mut(index)
            {
                top.count(hash, times, Cost::hits(times), now, || readable(identifier));
                top.add(hash, Cost::ZERO, wait, now);
            }
        }
        if longest > Nanos::ZERO {
            let until = now.plus(longest);
            books.live.put(identifier, until, now, self.told_max);
            return Heard::Until(until);
        }
        if counted || limiter.limits().is_empty() { Heard::Free } else { Heard::Stale }
    }

    /// The buckets that a request of `identifier` is counted in, which ran at `at`, and as of when
    /// that is in each: for whoever counts for several masters.
    #[must_use]
    pub fn buckets(
        &self,
        identifier: &[u8],
        at: Time,
        now: Time,
    ) -> (Arc<Limiter>, Vec<(Key, Time)>) {
        let limiter = self.limiter.load_full();
        let mut hasher = KeyHasher::new(limiter.seed());
        hasher.part(identifier);
        let (hash, at) = (hasher.finish(), at.min(now.plus(self.ahead_max)));
        let limits = limiter.limits().iter().enumerate();
        let buckets = limits.filter_map(|(index, limit)| {
            let at = as_of(&limit.algorithm, at, now)?;
            Some((Key { limit: index as u8, hash }, at))
        });
        let buckets = buckets.collect();
        (limiter, buckets)
    }

    /// Others say that the identifier has to wait until then.
    pub fn learn(&self, identifier: &[u8], until: Time, now: Time) {
        self.books.lock().live.put(identifier, until, now, self.told_max);
    }

    /// Tells every identifier that has to wait, and until when, as long as `tell` wants more.
    pub fn in_force(&self, now: Time, mut tell: impl FnMut(&[u8], Time) -> bool) {
        for (identifier, until) in &self.books.lock().live.until {
            if *until > now && !tell(identifier, *until) {
                return;
            }
        }
    }
}

/// The time that a request counts as of, if it counts at all: not if it is older than a history
/// remembers. A bucket that refills evenly is charged as of now, as what was refilled meanwhile
/// cannot be told; so what is too old for that is left out.
fn as_of(algorithm: &Algorithm, at: Time, now: Time) -> Option<Time> {
    match algorithm {
        Algorithm::History(history) => (now.since(at) <= history.window()).then_some(at),
        _ => (now.since(at) <= STALE_AFTER).then_some(at.max(now)),
    }
}

/// Until when identifiers have to wait, by name.
struct Live {
    until: HashMap<Box<[u8]>, Time>,
    bytes: usize,
    /// Those of all domains.
    all: Arc<AtomicUsize>,
    sweep_at: Time,
}

impl Live {
    /// Remembers one, if there is room.
    fn put(&mut self, identifier: &[u8], until: Time, now: Time, most: usize) {
        if now >= self.sweep_at {
            self.sweep(now);
        }
        if let Some(there) = self.until.get_mut(identifier) {
            *there = until.max(*there);
            return;
        }
        let all = self.all.load(Relaxed) + identifier.len();
        if self.until.len() < most && all <= TOLD_BYTES_MAX {
            self.bytes += identifier.len();
            self.all.fetch_add(identifier.len(), Relaxed);
            self.until.insert(identifier.into(), until);
        }
    }

    /// Forgets those whose wait is over.
    fn sweep(&mut self, now: Time) {
        self.sweep_at = now.plus(SWEEP);
        self.until.retain(|_, until| *until > now);
        self.until.shrink_to(2 * self.until.len());
        let bytes = self.until.keys().map(|name| name.len()).sum();
        self.all.fetch_sub(self.bytes, Relaxed);
        self.all.fetch_add(bytes, Relaxed);
        self.bytes = bytes;
    }
}

impl Counted for Domain {
    fn held(&self) -> Arc<Limiter> {
        self.limiter.load_full()
    }

    fn top(&self, index: usize) -> Vec<Standing> {
        let now = self.clock.now();
        let limiter = self.limiter.load();
        let rows = self.books.lock().tops.get(index).map(|top| top.rows(now)).unwrap_or_default();
        let standing = |row: Row| {
            let reason = limiter.standing_of(index, row.hash, now);
            Standing { level: reason.level, wait: reason.wait, row }
        };
        rows.into_iter().map(standing).collect()
    }

    fn clients_held(&self, _: usize, _: Nanos) -> Option<usize> {
        None
    }

    fn work(&self) -> Option<Work> {
        None
    }
}

#[cfg(test)]
mod tests;
