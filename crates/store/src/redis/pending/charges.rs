//! Charges of buckets that were made here and have to be reported to the store.
//!
//! All charges of one bucket are one entry: by the formula of a bucket, any number of charges add
//! up to a sum, and to the deficit that the bucket would have with only these charges. The number
//! of entries is bounded. Lanes add charges, and accounts that end on other threads.

use super::PendingTable;
use crate::redis::account::StoreAccount;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::units::{Cost, Nanos, Time};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The pending charges, by the name of their bucket.
#[derive(Default)]
pub struct PendingCharges {
    entries: HashMap<String, StoreAccount, foldhash::fast::RandomState>,
    /// Charges to take back, one entry each.
    backs: Vec<StoreAccount>,
    /// The known state of buckets that are being reported: `known` and `known_at` of their
    /// accounts.
    telling: HashMap<String, (Time, Time), foldhash::fast::RandomState>,
}

impl PendingTable for PendingCharges {
    fn len(&self) -> usize {
        self.entries.len() + self.backs.len() + self.telling.len()
    }
}

impl PendingCharges {
    /// The time at which a bucket was known to be full before its pending charges, and when that
    /// was determined; `None` if no charges are pending.
    pub fn known(&self, name: &str) -> Option<(Time, Time)> {
        let told = self.telling.get(name).copied();
        told.or_else(|| self.entries.get(name).map(|account| (account.known, account.known_at)))
    }

    /// Ends the report of a bucket. Its charges are pending again if they are `kept`.
    pub fn end_report(&mut self, account: &StoreAccount, kept: bool) {
        self.telling.remove(&account.name);
        if kept {
            self.add(account.clone(), usize::MAX);
        }
    }

    /// The pending charges of a bucket, as the time by which they move it.
    pub fn of(&self, name: &str) -> Nanos {
        let account = if self.entries.is_empty() { None } else { self.entries.get(name) };
        account.map_or(Nanos::ZERO, |account| match &account.algorithm {
            Algorithm::Debt(debt) => debt.rate().time_for(account.cost),
            Algorithm::Grid(grid) => {
                let zero = Time::ZERO;
                grid.charge(zero, account.cost.whole_hits(), zero).since(zero)
            }
            _ => Nanos::ZERO,
        })
    }

    /// Adds the charge of `account`. Returns false if it needs a new entry and there are `max`
    /// entries already.
    pub fn add(&mut self, account: StoreAccount, max: usize) -> bool {
        let full = self.len() >= max;
        let mut first = StoreAccount { patience: None, word: None, owes: false, ..account };
        if first.back.is_some() {
            if !full {
                self.backs.push(first);
            }
            return !full;
        }
        if first.cost == Cost::ZERO {
            return true;
        }
        match self.entries.entry(first.name.clone()) {
            Entry::Occupied(mut entry) => merge(entry.get_mut(), &first),
            Entry::Vacant(_) if full => return false,
            Entry::Vacant(entry) => {
                if first.least == Time::ZERO {
                    first.least = alone(&first);
                }
                entry.insert(first);
            }
        }
        true
    }

    /// Takes out at most `max` entries to report. Call [`PendingCharges::end_report`] for each when
    /// it is done.
    pub fn take(&mut self, max: usize) -> Vec<StoreAccount> {
        let mut taken: Vec<StoreAccount> = self.backs.drain(..max.min(self.backs.len())).collect();
        let rest = self.entries.extract_if(|_, _| true).take(max - taken.len());
        taken.extend(rest.map(|(_, account)| account));
        for one in taken.iter().filter(|one| one.back.is_none()) {
            self.telling.insert(one.name.clone(), (one.known, one.known_at));
        }
        taken
    }
}

/// The deficit of the bucket if it had only this charge.
fn alone(account: &StoreAccount) -> Time {
    match &account.algorithm {
        Algorithm::Debt(_) | Algorithm::Grid(_) => charged(account, Time::ZERO),
        _ => Time::ZERO,
    }
}

/// The state of the bucket after this charge, if it was `state` before.
fn charged(account: &StoreAccount, state: Time) -> Time {
    let mut state = [state.0];
    account.algorithm.charge(&mut state, account.cost, account.at, account.at);
    Time(state[0])
}

fn merge(owed: &mut StoreAccount, more: &StoreAccount) {
    // The earlier state is kept, because the later one may already include the pending charges.
    owed.known = owed.known.min(more.known);
    owed.known_at = owed.known_at.min(more.known_at);
    match &owed.algorithm {
        Algorithm::Debt(_) | Algorithm::Grid(_) => {
            owed.least = match more.least {
                Time::ZERO => charged(more, owed.least),
                // `more` is a merged entry itself, and the pending charges here were made after its
                // charges.
                least => owed.least.max(charged(owed, least)),
            };
            owed.cost = owed.cost.plus(more.cost);
            owed.at = owed.at.min(more.at);
        }
        Algorithm::Sliding(sliding) => {
            let gone = more.at.since(owed.at) > sliding.window();
            owed.cost = if gone { more.cost } else { owed.cost.plus(more.cost) };
            owed.at = if gone { more.at } else { owed.at };
        }
        Algorithm::History(history) => {
            if owed.times.is_empty() {
                owed.times.push(owed.at);
            }
            match more.times.as_slice() {
                [] => owed.times.push(more.at),
                times => owed.times.extend(times),
            }
            let over = owed.times.len().saturating_sub(history.burst());
            owed.times.sort_unstable();
            owed.times.drain(..over);
        }
        // No account has these.
        Algorithm::Quota(_) | Algorithm::Fixed(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::bucket::debt::DebtBucket;
    use evenkeel_core::classify::LimitKey;
    use evenkeel_core::condition::Condition;
    use evenkeel_core::key::{KeyHash, KeySeed};
    use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
    use evenkeel_core::limiter::{Limiter, LimiterPolicy};
    use evenkeel_core::sim::random::SimRandom;
    use evenkeel_core::units::{ExactRate, Weight};
    use std::sync::Arc;

    fn account(cost: u64, at: u64) -> StoreAccount {
        let policy = LimiterPolicy { action: LimitAction::Reject, max_delay: Nanos::ZERO };
        let limit = Limit {
            name: "l".into(),
            by: vec![KeyPart::All],
            when: Condition::default(),
            unit: LimitUnit::Hits,
            algorithm: Algorithm::Debt(DebtBucket::new(
                ExactRate::ONE_PER_SECOND.rate(),
                Cost::hits(1),
            )),
            action: None,
            weight: Weight::ONE,
            keys_max: 1,
            shadow: false,
        };
        let home = Arc::new(Limiter::new(policy, vec![limit], KeySeed([0; 16])));
        let key = LimitKey { limit: 0, hash: KeyHash::from_bits(1) };
        StoreAccount::new("n".to_owned(), &home, key, Cost(cost), Time(at))
    }

    /// From any state of a bucket, the report of the sum leaves it as the single charges would
    /// have.
    #[test]
    fn any_number_of_charges_are_one() {
        let mut random = SimRandom::new(5, 0);
        let mut below = |bound: u64| random.bits() % bound;
        for _ in 0..2_000 {
            let mut owed = PendingCharges::default();
            let begin = below(2_000);
            let (mut at, mut exact) = (1_000, begin);
            for _ in 0..1 + below(8) {
                at += below(300);
                let one = account(below(400), at);
                exact = if one.cost.0 > 0 { exact.max(at) + one.cost.0 } else { exact };
                owed.add(one, 10);
            }
            for told in owed.take(1) {
                let sum = (begin.max(told.at.0) + told.cost.0).max(told.least.0);
                assert_eq!(sum, exact);
                owed.end_report(&told, false);
            }
            assert_eq!(owed.len(), 0);
        }
    }

    #[test]
    fn what_is_given_back_is_not_mixed_with_what_is_charged() {
        let mut owed = PendingCharges::default();
        let back = || StoreAccount { back: Some((Nanos(5), Time(1))), ..account(0, 1) };
        owed.add(back(), 10);
        owed.add(account(7, 1), 10);
        owed.add(back(), 10);
        let taken = owed.take(10);
        let costs: Vec<_> = taken.iter().map(|one| (one.back.is_some(), one.cost.0)).collect();
        assert_eq!(costs, [(true, 0), (true, 0), (false, 7)]);
    }

    #[test]
    fn what_finds_no_room_is_lost() {
        let mut owed = PendingCharges::default();
        let named = |name: &str| StoreAccount { name: name.to_owned(), ..account(1, 1) };
        let kept = ["a", "b", "a", "c"].map(|name| owed.add(named(name), 2));
        assert_eq!(kept, [true, true, true, false]);
        assert_eq!((owed.len(), owed.of("a"), owed.of("c")), (2, Nanos(2), Nanos::ZERO));
    }
}
