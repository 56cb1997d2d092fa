//! Orders: who is to wait, and until when, because somebody else says so. A gatekeeper's table.
//!
//! A master counts requests and tells gatekeepers until when an identifier has to wait. What it
//! told is kept as a limit of its own that nothing is charged to: a debt bucket without a burst,
//! whose `full_at` is that time. So an order that is over equals one that never was, memory is
//! fixed, the order that ends first goes when there is no room, and whatever shows or keeps limits
//! shows and keeps these. Orders are only ever put off, never brought forward: messages that come
//! twice or in another order do no harm.
//!
//! Nothing is reserved here: requests that come while the time is fixed are all let go at that
//! time, and what the master hears of them spaces those that follow (docs/guide/gatekeeper.md).

use super::{Limiter, Policy};
use crate::bucket::Algorithm;
use crate::bucket::debt::Debt;
use crate::classify::Key;
use crate::key::{KeyHash, KeyHasher, Seed};
use crate::limit::{Action, Limit, Part, Unit, When};
use crate::units::{Cost, Nanos, Pace, Time, Weight};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

/// The orders of one domain.
pub struct Orders {
    limiter: Arc<Limiter>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It runs at once.
    Accepted,
    /// It runs then.
    Delayed(Time),
    /// It does not run; whoever comes then does.
    Rejected(Time),
}

impl Orders {
    /// No orders yet. `name` is that of the domain; `by` is what an identifier is made of, for
    /// whoever shows the limit. Room for `keys_max` identifiers that wait; those beyond pass.
    /// Who would wait longer than `max_delay` is rejected.
    #[must_use]
    pub fn new(
        name: Box<str>,
        by: Vec<Part>,
        keys_max: usize,
        max_delay: Nanos,
        seed: Seed,
    ) -> Orders {
        let limit = Limit {
            name,
            by,
            when: When::default(),
            unit: Unit::Hits,
            // An order in nanoseconds is as much in billionths of a hit.
            algorithm: Algorithm::Debt(Debt::new(Pace::ONE_PER_SECOND.rate(), Cost::ZERO)),
            action: None,
            weight: Weight::ONE,
            keys_max,
            shadow: false,
        };
        let policy = Policy { action: Action::Delay, max_delay };
        Orders { limiter: Arc::new(Limiter::new(policy, vec![limit], seed)) }
    }

    /// The orders as a limit.
    #[must_use]
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// Where an identifier is found.
    #[must_use]
    pub fn hash(&self, identifier: &[u8]) -> KeyHash {
        let mut hasher = KeyHasher::new(self.limiter.seed());
        hasher.part(identifier);
        hasher.finish()
    }

    /// The identifier is to wait until then, unless it has to wait for longer already.
    pub fn learn(&self, hash: KeyHash, until: Time, now: Time) {
        self.limiter.absorb_state(0, hash, Cost(until.since(now).0), now);
    }

    /// Until when the identifier has to wait; a time that is over if it has not. For the moment in
    /// which its place in the table is being moved it has not.
    #[must_use]
    pub fn until(&self, hash: KeyHash) -> Time {
        let table = self.limiter.tables().first();
        table.and_then(|table| table.peek(hash)).map_or(Time::ZERO, Time)
    }

    /// Decides on a request. Nothing is changed by it.
    #[must_use]
    pub fn decide(&self, hash: KeyHash, now: Time) -> Word {
        let until = self.until(hash);
        if until <= now {
            Word::Accepted
        } else if until.since(now) <= self.limiter.policy().max_delay {
            Word::Delayed(until)
        } else {
            Word::Rejected(until)
        }
    }

    /// How many identifiers have to wait.
    #[must_use]
    pub fn in_force(&self, now: Time) -> u64 {
        let mut count = 0;
        if let Some(table) = self.limiter.tables().first() {
            table.for_each(|_, state| count += u64::from(Time(state[0]) > now));
        }
        count
    }

    /// The key of an identifier, as the limiter shows it.
    #[must_use]
    pub fn key(hash: KeyHash) -> Key {
        Key { limit: 0, hash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(keys_max: usize) -> Orders {
        let max_delay = Nanos::from_secs(5);
        Orders::new("d".into(), vec![Part::Tag], keys_max, max_delay, Seed([7; 16]))
    }

    #[test]
    fn an_order_holds_until_it_is_over_and_is_only_put_off() {
        for keys_max in [100, 100_000] {
            let orders = orders(keys_max);
            let at = |ms| Time(1_790_000_000_000_000_000).plus(Nanos::from_millis(ms));
            let (c, other) = (orders.hash(b"c"), orders.hash(b"other"));
            assert_eq!(orders.decide(c, at(0)), Word::Accepted);
            orders.learn(c, at(5_000), at(0));
            assert_eq!(orders.decide(c, at(0)), Word::Delayed(at(5_000)));
            orders.learn(c, at(5_001), at(0));
            assert_eq!(orders.decide(c, at(0)), Word::Rejected(at(5_001)));
            assert_eq!(orders.decide(c, at(1)), Word::Delayed(at(5_001)));
            orders.learn(c, at(1_500), at(1));
            orders.learn(c, at(0), at(1));
            assert_eq!(orders.until(c), at(5_001));
            assert_eq!((orders.in_force(at(5_000)), orders.in_force(at(5_001))), (1, 0));
            assert_eq!(orders.decide(c, at(5_001)), Word::Accepted);
            assert_eq!(orders.decide(other, at(0)), Word::Accepted);
        }
    }

    #[test]
    fn what_is_over_takes_nobodys_place() {
        let orders = orders(2);
        let hash = |n: u64| orders.hash(&n.to_le_bytes());
        for n in 0..100 {
            // Each begins when the one before is over.
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
