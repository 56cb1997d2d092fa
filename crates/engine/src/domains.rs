//! The engine of the master: domains of identifiers, each with its rules.
//!
//! It receives reports of requests that have run or have been delayed, and answers until when the
//! next request with that identifier must wait: the latest time that any rule gives. It never
//! refuses a request and knows no protocol. The door chooses which gatekeepers get the order.
//! Orders in force are also kept by name, within a bound, for gatekeepers that subscribe later.
//! Rules: docs/guide/master.md. Algorithms: `evenkeel_core::bucket`. The other half, which delays
//! requests by these orders: `gatekeeper`.

pub mod gatekeeper;
pub mod outbox;

use super::shards::carry_tops;
use super::tags::QuestionSampler;
use super::view::{EngineView, HeavyClient, with_levels};
use arc_swap::ArcSwap;
use evenkeel_config::settings::master::{self, MasterSettings};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::{LimitKey, readable};
use evenkeel_core::key::{KeyHasher, KeySeed};
use evenkeel_core::limit::{Limit, LimitAction};
use evenkeel_core::limiter::{Limiter, LimiterPolicy};
use evenkeel_core::top::TopClients;
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_runtime::clock::Clock;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The number of identifiers that each rule remembers by name.
const TOP_KEYS: usize = 1_000;
/// The most bytes of names kept for new subscribers, in all domains together.
const NAMES_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The interval at which names are removed after their wait has ended.
const SWEEP_INTERVAL: Nanos = Nanos::from_secs(10);
/// A report that arrives later than this was kept somewhere while the master was unreachable. A
/// bucket that refills evenly does not count it. The value is longer than any network delay and
/// shorter than a restart.
const STALE_AFTER: Nanos = Nanos::from_secs(5);
/// A master only delays. Refusals are up to the gatekeepers.
const POLICY: LimiterPolicy =
    LimiterPolicy { action: LimitAction::Delay, max_delay: Nanos(u64::MAX) };

/// The result of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// The next request may run at once.
    Free,
    /// The next request must wait until this time.
    Until(Time),
    /// The request ran too long ago to be counted.
    Stale,
}

/// All domains of a master.
pub struct MasterDomains {
    by_name: HashMap<Box<[u8]>, Arc<MasterDomain>, RandomState>,
    /// All domains, in the order of the configuration.
    pub in_order: Vec<Arc<MasterDomain>>,
}

impl MasterDomains {
    /// Makes the configured domains with empty buckets.
    pub fn new(settings: &MasterSettings, seed: KeySeed, clock: Clock) -> MasterDomains {
        let all = Arc::default();
        let domain = |domain: &master::DomainSettings| {
            Arc::new(MasterDomain::new(domain, settings, Arc::clone(&all), seed, clock))
        };
        let in_order: Vec<_> = settings.domains.iter().map(domain).collect();
        let by_name = in_order.iter();
        let by_name = by_name.map(|domain| (domain.name.as_bytes().into(), Arc::clone(domain)));
        MasterDomains { by_name: by_name.collect(), in_order }
    }

    /// Applies changed rules to the existing domains. Returns whether the configuration adds or
    /// removes a domain, which is not applied.
    pub fn reload(&self, settings: &MasterSettings) -> bool {
        for changed in &settings.domains {
            if let Some(domain) = self.by_name.get(changed.name.as_bytes()) {
                domain.reload(&changed.rules);
            }
        }
        let same =
            |domain: &Arc<MasterDomain>| settings.domains.iter().any(|d| d.name == domain.name);
        settings.domains.len() != self.in_order.len() || !self.in_order.iter().all(same)
    }

    /// The domain with this name.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<MasterDomain>> {
        self.by_name.get(name)
    }
}

/// A domain: its rules, their buckets and the orders in force.
pub struct MasterDomain {
    /// The name by which gatekeepers address the domain.
    pub name: String,
    clock: Clock,
    ahead_max: Nanos,
    told_max: usize,
    limiter: ArcSwap<Limiter>,
    books: Mutex<DomainLists>,
}

/// The lists that have names in them, behind the lock of the domain. While it is held, only bucket
/// spin bits and, in `in_force`, the locks of the caller's closure are taken.
struct DomainLists {
    tops: Vec<TopClients>,
    /// Samples a flood: the lists are for display, and a message costs little else.
    sampler: QuestionSampler,
    live: LiveOrders,
}

impl MasterDomain {
    fn new(
        domain: &master::DomainSettings,
        settings: &MasterSettings,
        all: Arc<AtomicUsize>,
        seed: KeySeed,
        clock: Clock,
    ) -> MasterDomain {
        let limiter = Limiter::new(POLICY, domain.rules.clone(), seed);
        let tops = limiter.limits().iter().map(|_| TopClients::new(TOP_KEYS)).collect();
        let (until, sweep_at) = (HashMap::new(), Time::ZERO);
        let live = LiveOrders { until, bytes: 0, all, sweep_at };
        MasterDomain {
            name: domain.name.clone(),
            clock,
            ahead_max: settings.ahead_max,
            told_max: settings.told_max,
            books: Mutex::new(DomainLists { tops, sampler: QuestionSampler::new(&seed, 0), live }),
            limiter: ArcSwap::from_pointee(limiter),
        }
    }

    fn reload(&self, rules: &[Limit]) {
        let old = self.limiter.load();
        let next = old.reconfigured(POLICY, rules.to_vec(), self.clock.now());
        let mut books = self.books.lock();
        books.tops = carry_tops(std::mem::take(&mut books.tops), &old, &next, TOP_KEYS);
        self.limiter.store(Arc::new(next));
    }

    /// Records a request of `identifier` that ran, or will run, at `at`. Returns until when the
    /// next request must wait.
    pub fn record_request(&self, identifier: &[u8], at: Time, now: Time) -> RecordOutcome {
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
            let wait = limiter.record(LimitKey { limit: index as u8, hash }, at, now);
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
            return RecordOutcome::Until(until);
        }
        if counted || limiter.limits().is_empty() {
            RecordOutcome::Free
        } else {
            RecordOutcome::Stale
        }
    }

    /// The buckets that count a request of `identifier` that ran at `at`, each with the time as of
    /// which it is charged. For a store that counts for several masters.
    pub fn buckets(
        &self,
        identifier: &[u8],
        at: Time,
        now: Time,
    ) -> (Arc<Limiter>, Vec<(LimitKey, Time)>) {
        let limiter = self.limiter.load_full();
        let mut hasher = KeyHasher::new(limiter.seed());
        hasher.part(identifier);
        let (hash, at) = (hasher.finish(), at.min(now.plus(self.ahead_max)));
        let limits = limiter.limits().iter().enumerate();
        let buckets = limits.filter_map(|(index, limit)| {
            let at = as_of(&limit.algorithm, at, now)?;
            Some((LimitKey { limit: index as u8, hash }, at))
        });
        let buckets = buckets.collect();
        (limiter, buckets)
    }

    /// Takes over from a store that the identifier must wait until `until`.
    pub fn learn(&self, identifier: &[u8], until: Time, now: Time) {
        self.books.lock().live.put(identifier, until, now, self.told_max);
    }

    /// Calls `tell` with each identifier that must wait and the end of its wait, until `tell`
    /// returns false. The domain's lock is held during the calls, so `tell` must not call the
    /// domain.
    pub fn in_force(&self, now: Time, mut tell: impl FnMut(&[u8], Time) -> bool) {
        for (identifier, until) in &self.books.lock().live.until {
            if *until > now && !tell(identifier, *until) {
                return;
            }
        }
    }
}

/// The time as of which a request is charged; `None` if it is not counted. A history counts it
/// unless it is older than the history's window. A bucket that refills evenly is charged as of now,
/// because the refill since then cannot be reconstructed, and does not count requests older than
/// [`STALE_AFTER`].
fn as_of(algorithm: &Algorithm, at: Time, now: Time) -> Option<Time> {
    match algorithm {
        Algorithm::History(history) => (now.since(at) <= history.window()).then_some(at),
        _ => (now.since(at) <= STALE_AFTER).then_some(at.max(now)),
    }
}

/// The orders in force, by the name of the identifier.
struct LiveOrders {
    until: HashMap<Box<[u8]>, Time>,
    bytes: usize,
    /// The bytes of names in all domains together.
    all: Arc<AtomicUsize>,
    sweep_at: Time,
}

impl LiveOrders {
    /// Remembers an order, if there is room.
    fn put(&mut self, identifier: &[u8], until: Time, now: Time, most: usize) {
        if now >= self.sweep_at {
            self.sweep(now);
        }
        if let Some(there) = self.until.get_mut(identifier) {
            *there = until.max(*there);
            return;
        }
        let all = self.all.load(Relaxed) + identifier.len();
        if self.until.len() < most && all <= NAMES_BYTES_MAX {
            self.bytes += identifier.len();
            self.all.fetch_add(identifier.len(), Relaxed);
            self.until.insert(identifier.into(), until);
        }
    }

    /// Removes the orders that have ended.
    fn sweep(&mut self, now: Time) {
        self.sweep_at = now.plus(SWEEP_INTERVAL);
        self.until.retain(|_, until| *until > now);
        self.until.shrink_to(2 * self.until.len());
        let bytes = self.until.keys().map(|name| name.len()).sum();
        self.all.fetch_sub(self.bytes, Relaxed);
        self.all.fetch_add(bytes, Relaxed);
        self.bytes = bytes;
    }
}

impl EngineView for MasterDomain {
    fn held(&self) -> Arc<Limiter> {
        self.limiter.load_full()
    }

    fn top(&self, index: usize) -> Vec<HeavyClient> {
        let now = self.clock.now();
        let rows = self.books.lock().tops.get(index).map(|top| top.rows(now)).unwrap_or_default();
        with_levels(&self.limiter.load(), index, rows, now)
    }
}

#[cfg(test)]
mod tests;
