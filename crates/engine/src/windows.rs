//! The counters of the rate limit service, shared between instances.
//!
//! A counter is identified by its key and by its window, which travels with each amount. So an
//! instance can apply hits that others have admitted without having seen such a request itself.
//! Hits that are given back are not reported, and a window that has ended accepts no hits. Which
//! counters a request has is decided in the service's door.

mod top_descriptors;

use super::replicated::{PendingDeltas, Replicated};
use super::view::{EngineView, HeavyClient};
use evenkeel_core::key::{KeyHash, KeyHasher, KeySeed};
use evenkeel_core::limit::LimitAction;
use evenkeel_core::limiter::{self, Limiter};
use evenkeel_core::replica::ReplicatedLimit;
use evenkeel_core::units::{Cost, Nanos, SECOND, Time};
use evenkeel_core::windows::{CounterWindow, Hit, WindowAlgorithm, WindowCounters, WindowPolicy};
use evenkeel_runtime::clock::Clock;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use top_descriptors::TopDescriptors;
pub use top_descriptors::TopDescriptorsGuard;

/// How the key of a counter is made: of the domain, a number for the algorithm and the length, and
/// for each entry a pair of texts. Instances that make it otherwise do not count together, and a
/// snapshot with other keys restores none. To be changed with the keys.
pub const KEY_FORM: &str = "domain,window,pairs";

/// The number of maps, chosen by key, in which charges are noted. With several, threads rarely
/// contend for one lock.
const SPENT_MAPS: usize = 16;

/// Counters that instances may count together.
pub struct Counters {
    /// The table of counters.
    pub windows: Arc<WindowCounters>,
    clock: Clock,
    /// The charges to report to other instances; unset unless instances count together.
    spent: OnceLock<[Mutex<PendingDeltas>; SPENT_MAPS]>,
    seen: TopDescriptors,
    /// A limiter without limits, which the [`EngineView`] trait asks for. The real limits are in
    /// the rules.
    none: Arc<Limiter>,
}

impl Counters {
    /// Makes an empty table with room for `keys_max` counters.
    pub fn new(keys_max: usize, clock: Clock) -> Counters {
        let policy = limiter::LimiterPolicy { action: LimitAction::Reject, max_delay: Nanos::ZERO };
        Counters {
            windows: Arc::new(WindowCounters::new(keys_max)),
            clock,
            spent: OnceLock::new(),
            seen: TopDescriptors::default(),
            none: Arc::new(Limiter::new(policy, Vec::new(), KeySeed([0; 16]))),
        }
    }

    /// Counts as [`WindowCounters::count`] does, and notes the charges if instances count together.
    pub fn count(&self, hits: &mut [Hit], sets: &mut Vec<usize>, policy: WindowPolicy, now: Time) {
        self.windows.count(hits, sets, policy, now);
        self.spend(hits);
    }

    /// Reads each counter into [`Hit::before`] and [`Hit::after`] without counting.
    pub fn look_at(&self, hits: &mut [Hit], now: Time) {
        for hit in hits {
            let asked = std::mem::take(&mut hit.hits);
            let one = std::slice::from_mut(hit);
            self.windows.count(one, &mut Vec::new(), WindowPolicy::default(), now);
            hit.hits = asked;
        }
    }

    /// Sets a counter to the count that a store has answered, given in the hit's `before` and
    /// `after`.
    pub fn learn(&self, hit: &Hit, now: Time) {
        self.windows.learn(hit, now);
    }

    /// Locks the list of the most frequent descriptors for one request; `None` if it is in use.
    #[must_use]
    pub fn look(&self) -> Option<TopDescriptorsGuard<'_>> {
        self.seen.look(self.clock.now())
    }

    fn spend(&self, hits: &[Hit]) {
        let Some(books) = self.spent.get() else { return };
        for hit in hits {
            let charged = Cost::hits(hit.charged().into());
            let book = &books[hit.key.bits() as usize % SPENT_MAPS];
            book.lock().add(fingerprint(), context(hit), hit.key, charged);
        }
    }

    /// The current time of the system's clock, including steps since the start. Windows follow it.
    fn now(&self) -> Time {
        Time(self.clock.now().0.saturating_add_signed(self.clock.step()))
    }
}

impl EngineView for Counters {
    fn held(&self) -> Arc<Limiter> {
        Arc::clone(&self.none)
    }

    fn lists(&self) -> Vec<(&'static str, Vec<HeavyClient>)> {
        vec![(top_descriptors::LIST_NAME, self.seen.rows(self.clock.now()))]
    }
}

impl Replicated for Counters {
    fn start_sharing(&self) {
        self.spent.get_or_init(|| std::array::from_fn(|_| Mutex::default()));
    }

    fn shared(&self) -> Vec<ReplicatedLimit> {
        vec![ReplicatedLimit {
            fingerprint: fingerprint(),
            name: "ratelimit".into(),
            numbers: "the windows of its rules".into(),
            unit: SECOND,
            per_second: Cost::ZERO,
        }]
    }

    fn spent(&self, each: &mut dyn FnMut(u64, u128, KeyHash, Cost)) -> u64 {
        let books = self.spent.get().into_iter().flatten();
        books.map(|book| book.lock().take()).map(|spent| spent.show(each)).sum()
    }

    fn apply_delta(&self, _: u64, context: u128, key: KeyHash, amount: Cost, _: Nanos) {
        let hits = u32::try_from(amount.whole_hits()).unwrap_or(u32::MAX);
        if let Some(hit) = counter(context, key, hits) {
            self.windows.absorb(&hit, self.now());
        }
    }
}

/// The fingerprint of all windows together: they count as one limit, and their keys tell them
/// apart.
fn fingerprint() -> u64 {
    static ONCE: OnceLock<u64> = OnceLock::new();
    *ONCE.get_or_init(|| {
        let mut hasher = KeyHasher::new(&KeySeed([0; 16]));
        hasher.part(b"ratelimit");
        hasher.part(KEY_FORM.as_bytes());
        hasher.finish().bits()
    })
}

/// The properties of a counter beside its key, packed: the end of its window, the window's length,
/// for a bucket the limit, and the algorithm.
fn context(hit: &Hit) -> u128 {
    let bucket = hit.algorithm == WindowAlgorithm::Bucket;
    let (end, limit) = if bucket { (0, hit.limit) } else { (hit.window.end, 0) };
    let kind = match hit.algorithm {
        WindowAlgorithm::Fixed => 0,
        WindowAlgorithm::Sliding => 1,
        WindowAlgorithm::Bucket => 2,
    };
    u128::from(end) | u128::from(hit.window.seconds) << 32 | u128::from(limit) << 64 | kind << 96
}

/// The counter with this context and key; `None` if the context names an unknown algorithm.
fn counter(context: u128, key: KeyHash, hits: u32) -> Option<Hit> {
    let algorithm = match context >> 96 {
        0 => WindowAlgorithm::Fixed,
        1 => WindowAlgorithm::Sliding,
        2 => WindowAlgorithm::Bucket,
        _ => return None,
    };
    let window = CounterWindow { end: context as u32, seconds: (context >> 32) as u32 };
    let limit = (context >> 64) as u32;
    Some(Hit { algorithm, ..Hit::new(key, window, limit, hits) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(counters: &Counters, algorithm: WindowAlgorithm, hits: u32) -> Hit {
        let second = counters.now().second() as u32;
        let window = CounterWindow { end: second / 3_600 * 3_600 + 3_600, seconds: 3_600 };
        Hit { algorithm, ..Hit::new(KeyHash::from_bits(7), window, 10, hits) }
    }

    fn count(counters: &Counters, mut hit: Hit) -> Hit {
        let hits = std::slice::from_mut(&mut hit);
        counters.count(hits, &mut Vec::new(), WindowPolicy::default(), counters.now());
        hit
    }

    #[test]
    fn what_one_has_let_in_the_other_counts() {
        for algorithm in [WindowAlgorithm::Fixed, WindowAlgorithm::Sliding, WindowAlgorithm::Bucket]
        {
            let [a, b] = [(); 2].map(|()| Counters::new(10, Clock::start()));
            a.start_sharing();
            b.start_sharing();
            count(&a, hit(&a, algorithm, 4));
            count(&a, hit(&a, algorithm, 3));
            count(&a, Hit { give_back: true, ..hit(&a, algorithm, 1) });
            let mut told = 0;
            a.spent(&mut |mark, context, key, amount| {
                told += 1;
                assert_eq!(amount, Cost::hits(7));
                b.apply_delta(mark, context, key, amount, Nanos::ZERO);
            });
            assert_eq!((told, a.spent(&mut |_, _, _, _| panic!("told twice"))), (1, 0));
            assert_eq!(count(&b, hit(&b, algorithm, 1)).after, 8, "{algorithm:?}");
            assert!(count(&b, hit(&b, algorithm, 3)).is_over(), "{algorithm:?}");
        }
    }

    #[test]
    fn what_is_refused_without_being_counted_is_not_told() {
        let a = Counters::new(10, Clock::start());
        a.start_sharing();
        assert!(count(&a, hit(&a, WindowAlgorithm::Bucket, 11)).is_over());
        a.spent(&mut |_, _, _, _| panic!("nothing was charged"));
    }

    #[test]
    fn a_window_that_has_ended_and_a_context_that_cannot_be_change_nothing() {
        let counters = Counters::new(10, Clock::start());
        let mut late = hit(&counters, WindowAlgorithm::Fixed, 5);
        late.window.end -= 7_200;
        counters.apply_delta(0, context(&late), late.key, Cost::hits(5), Nanos::ZERO);
        counters.apply_delta(0, u128::MAX, late.key, Cost::hits(5), Nanos::ZERO);
        assert_eq!(count(&counters, hit(&counters, WindowAlgorithm::Fixed, 1)).after, 1);
    }
}
