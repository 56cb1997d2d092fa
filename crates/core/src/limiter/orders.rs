//! The order table of a gatekeeper: until when each identifier has to wait, by order of a master.
//!
//! A master counts requests and sends gatekeepers the time until which an identifier has to wait.
//! The orders are stored as a limit that is never charged: a debt bucket without a burst, with that
//! time as its `full_at`. So an expired order equals one that never existed, memory is fixed, the
//! order that ends first is evicted when the table is full, and everything that shows or saves
//! limits works for orders too. An order is only ever extended, never shortened, so repeated or
//! reordered messages do no harm.
//!
//! Requests do not reserve a time: all that arrive before that time are released at that time. The
//! master hears of them and spaces the later ones (docs/guide/gatekeeper.md).

use super::{Limiter, LimiterPolicy};
use crate::bucket::Algorithm;
use crate::bucket::debt::DebtBucket;
use crate::classify::LimitKey;
use crate::condition::Condition;
use crate::key::{KeyHash, KeyHasher, KeySeed};
use crate::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use crate::units::{Cost, ExactRate, Nanos, Time, Weight};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

/// The orders of one domain.
pub struct GatekeeperOrders {
    limiter: Arc<Limiter>,
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderVerdict {
    /// The request runs at once.
    Accepted,
    /// The request runs at this time.
    Delayed(Time),
    /// The request is refused. One that arrives at this time is accepted.
    Rejected(Time),
}

impl GatekeeperOrders {
    /// An empty order table. `name` is the name of the domain; `by` are the parts of an identifier,
    /// for display. Has room for `keys_max` identifiers that wait; beyond that, the order that ends
    /// first is dropped. A request that would wait longer than `max_delay` is refused.
    #[must_use]
    pub fn new(
        name: Box<str>,
        by: Vec<KeyPart>,
        keys_max: usize,
        max_delay: Nanos,
        seed: KeySeed,
    ) -> GatekeeperOrders {
        let limit = Limit {
            name,
            by,
            when: Condition::default(),
            unit: LimitUnit::Hits,
            // At one hit per second, a wait in nanoseconds equals a cost in billionths of a hit.
            algorithm: Algorithm::Debt(DebtBucket::new(
                ExactRate::ONE_PER_SECOND.rate(),
                Cost::ZERO,
            )),
            action: None,
            weight: Weight::ONE,
            keys_max,
            shadow: false,
        };
        let policy = LimiterPolicy { action: LimitAction::Delay, max_delay };
        GatekeeperOrders { limiter: Arc::new(Limiter::new(policy, vec![limit], seed)) }
    }

    /// The orders as a limiter with one limit.
    #[must_use]
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// The hash of an identifier, its key in the table.
    #[must_use]
    pub fn hash(&self, identifier: &[u8]) -> KeyHash {
        let mut hasher = KeyHasher::new(self.limiter.seed());
        hasher.part(identifier);
        hasher.finish()
    }

    /// Makes the identifier wait until this time, unless it has to wait for longer already.
    pub fn learn(&self, hash: KeyHash, until: Time, now: Time) {
        self.limiter.raise_deficit(0, hash, Cost(until.since(now).0), now);
    }

    /// The time until which the identifier has to wait; a time in the past if it does not. For the
    /// moment in which its slot is being moved, it does not.
    #[must_use]
    pub fn until(&self, hash: KeyHash) -> Time {
        let table = self.limiter.tables().first();
        table.and_then(|table| table.peek(hash)).map_or(Time::ZERO, Time)
    }

    /// Decides on a request. Changes nothing.
    #[must_use]
    pub fn decide(&self, hash: KeyHash, now: Time) -> OrderVerdict {
        let until = self.until(hash);
        if until <= now {
            OrderVerdict::Accepted
        } else if until.since(now) <= self.limiter.policy().max_delay {
            OrderVerdict::Delayed(until)
        } else {
            OrderVerdict::Rejected(until)
        }
    }

    /// The number of identifiers that have to wait.
    #[must_use]
    pub fn in_force(&self, now: Time) -> u64 {
        let mut count = 0;
        if let Some(table) = self.limiter.tables().first() {
            table.for_each(|_, state| count += u64::from(Time(state[0]) > now));
        }
        count
    }

    /// The key of an identifier in the limiter.
    #[must_use]
    pub fn key(hash: KeyHash) -> LimitKey {
        LimitKey { limit: 0, hash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(keys_max: usize) -> GatekeeperOrders {
        let max_delay = Nanos::from_secs(5);
        GatekeeperOrders::new("d".into(), vec![KeyPart::Tag], keys_max, max_delay, KeySeed([7; 16]))
    }

    #[test]
    fn an_order_holds_until_it_is_over_and_is_only_put_off() {
        for keys_max in [100, 100_000] {
            let orders = orders(keys_max);
            let at = |ms| Time(1_790_000_000_000_000_000).plus(Nanos::from_millis(ms));
            let (c, other) = (orders.hash(b"c"), orders.hash(b"other"));
            assert_eq!(orders.decide(c, at(0)), OrderVerdict::Accepted);
            orders.learn(c, at(5_000), at(0));
            assert_eq!(orders.decide(c, at(0)), OrderVerdict::Delayed(at(5_000)));
            orders.learn(c, at(5_001), at(0));
            assert_eq!(orders.decide(c, at(0)), OrderVerdict::Rejected(at(5_001)));
            assert_eq!(orders.decide(c, at(1)), OrderVerdict::Delayed(at(5_001)));
            orders.learn(c, at(1_500), at(1));
            orders.learn(c, at(0), at(1));
            assert_eq!(orders.until(c), at(5_001));
            assert_eq!((orders.in_force(at(5_000)), orders.in_force(at(5_001))), (1, 0));
            assert_eq!(orders.decide(c, at(5_001)), OrderVerdict::Accepted);
            assert_eq!(orders.decide(other, at(0)), OrderVerdict::Accepted);
        }
    }

    #[test]
    fn what_is_over_takes_nobodys_place() {
        let orders = orders(2);
        let hash = |n: u64| orders.hash(&n.to_le_bytes());
        for n in 0..100 {
            // Each order begins when the one before has ended.
            orders.learn(hash(n), Time(100 * n + 100), Time(100 * n));
            assert_eq!(orders.in_force(Time(100 * n)), 1, "{n}");
        }
        assert_eq!(orders.limiter().tables()[0].dropped(), 0);
        let now = Time(10_000);
        (0..5).for_each(|n| orders.learn(hash(1_000 + n), now.plus(Nanos(50 - n)), now));
        assert_eq!(orders.in_force(now), 2);
        assert_eq!(orders.until(hash(1_000)), now.plus(Nanos(50)), "the longest stay");
    }
}
