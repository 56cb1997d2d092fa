//! The decision over all limits of a request: ask, charge, settle.
//!
//! `ask` decides. If the request may run, it charges what is known already: hits and, for limits
//! that decide before the request runs, the estimate, so that a client cannot exceed its account by
//! many requests at once. `charge` updates limits that hold the response when its head arrives:
//! they know the actual cost before they decide, so they take no estimate. `settle` closes the
//! account.
//!
//! Invariant (lock order): the table sets of all keys of a request are taken together, in the order
//! of the limits, and released together. So if one limit refuses, none is charged; two requests
//! cannot both take what only one may have; and the fixed order prevents deadlocks.

mod absorb;
pub mod orders;
pub mod remote;
mod settlement;
mod single_key;
mod standing;
mod verdict;

use crate::bucket::{Algorithm, STATE_WORDS_MAX};
use crate::classify::inline_list::InlineList;
use crate::classify::{self, LimitKey, LimitKeys, RequestAttributes, RequestReading};
use crate::key::{KeyHash, KeySeed};
use crate::limit::{LIMITS_MAX, Limit, LimitAction, LimitUnit, UnitCosts};
use crate::table::{BucketTable, TableEntry};
use crate::units::{Cost, Nanos, Time};
use alloc::sync::Arc;
use alloc::vec::Vec;
use verdict::{LongestWaits, StoreBucketState, longer};

pub use verdict::{BlockStarted, Reason, ShadowEffect, Verdict};

/// Defaults of a door for limits that do not specify them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimiterPolicy {
    /// The action of limits in CPU time.
    pub action: LimitAction,
    /// A request that would wait longer is refused before it reaches the backend; a response is
    /// held no longer. Too low: bursts of real users are refused. Too high: clients give up first.
    pub max_delay: Nanos,
}

/// All limits of a door, with their buckets. `limits` and `tables` have the same order and length.
pub struct Limiter {
    policy: LimiterPolicy,
    limits: Vec<Limit>,
    tables: Vec<Arc<BucketTable>>,
    seed: KeySeed,
}

/// The account of one admitted request. It must be settled with `settle` of the same [`Limiter`].
#[derive(Clone, Debug)]
pub struct Ticket {
    keys: LimitKeys,
    /// How far the bucket of each key was moved for this request, in the order of `keys`.
    moved: InlineList<Nanos>,
    /// The charge or reservation at admission, for limits that take an estimate.
    estimate: UnitCosts,
    /// The part of the cost so far that was charged to these limits.
    so_far: UnitCosts,
    /// The charges so far, for limits that hold the response.
    charged: UnitCosts,
    /// When the request was admitted, and charged what was known then.
    asked: Time,
    /// When the request starts to run: later than `asked` if it is delayed.
    at: Time,
    /// The longest hold that a limit in hits asks for, if any.
    hold: Option<Reason>,
    /// The effect that limits in shadow mode would have had.
    shadowed: Option<ShadowEffect>,
    /// A bit for each index of `keys`: set if the limit does not count this request, because it is
    /// in shadow mode and would have refused it.
    uncounted_places: u64,
}

const _: () = assert!(LIMITS_MAX <= u64::BITS as usize, "a bit of Ticket for each limit");

impl Ticket {
    /// A ticket without charges.
    fn new(keys: &LimitKeys, estimate: UnitCosts, now: Time) -> Ticket {
        Ticket {
            keys: keys.clone(),
            moved: InlineList::filled(keys.as_slice().len(), Nanos::ZERO),
            estimate,
            so_far: UnitCosts::default(),
            charged: UnitCosts::default(),
            asked: now,
            at: now,
            hold: None,
            shadowed: None,
            uncounted_places: 0,
        }
    }

    /// When the request starts to run. Its charges count from this time.
    #[must_use]
    pub fn starts_at(&self) -> Time {
        self.at
    }

    /// When the request was admitted. From this time on its place is taken.
    #[must_use]
    pub fn asked_at(&self) -> Time {
        self.asked
    }

    /// The keys that the request is counted under.
    #[must_use]
    pub fn keys(&self) -> &LimitKeys {
        &self.keys
    }

    /// The keys that were charged at admission: all except for limits that are in shadow mode and
    /// would have refused the request.
    #[must_use]
    pub fn counted(&self) -> LimitKeys {
        let mut counted = LimitKeys::default();
        let keys = self.keys.as_slice().iter().enumerate();
        let those = keys.filter(|(place, _)| self.is_counted(*place));
        those.for_each(|(_, key)| counted.push(*key));
        counted
    }

    /// Excludes the request from all later charges. For requests that are admitted only because
    /// limits are not enforced: they would add to debts that cannot grow once limits are enforced.
    pub fn exclude_from_charges(&mut self) {
        self.uncounted_places = u64::MAX;
    }

    fn is_counted(&self, place: usize) -> bool {
        self.uncounted_places >> place & 1 == 0
    }

    /// The effect that limits in shadow mode would have had so far: the one with the longest wait.
    #[must_use]
    pub fn shadowed(&self) -> Option<ShadowEffect> {
        self.shadowed
    }
}

impl Limiter {
    /// A limiter with empty buckets. Limits beyond [`LIMITS_MAX`] are left out.
    #[must_use]
    pub fn new(policy: LimiterPolicy, mut limits: Vec<Limit>, seed: KeySeed) -> Limiter {
        limits.truncate(LIMITS_MAX);
        let tables = limits.iter().map(|limit| Arc::new(table_for(limit))).collect();
        Limiter { policy, limits, tables, seed }
    }

    /// The limiter for a changed configuration. A limit that still counts the same by the same key
    /// keeps its buckets, so debts remain, in cost, under the new parameters.
    #[must_use]
    pub fn reconfigured(&self, policy: LimiterPolicy, limits: Vec<Limit>, now: Time) -> Limiter {
        let mut next = Limiter::new(policy, limits, self.seed);
        let mut shared = None;
        for (limit, table) in next.limits.iter().zip(&mut next.tables) {
            let alike = self.limits.iter().position(|old| counts_alike(old, limit));
            let Some(index) = alike else { continue };
            let (old, buckets) = (&self.limits[index], &self.tables[index]);
            let same = limit.algorithm == old.algorithm && limit.keys_max == old.keys_max;
            // Requests under the old limits may still run. Shared tables must keep their order:
            // otherwise an old and a new request could each hold a set that the other one waits
            // for.
            if same && Some(index) > shared {
                shared = Some(index);
                *table = Arc::clone(buckets);
            } else {
                adopt(limit, table, &old.algorithm, buckets, now);
            }
        }
        next
    }

    /// Restores a bucket of the limit at `index` from a snapshot, in which it was counted under
    /// `old`. Returns false if the bucket is worth nothing any longer or does not fit the limit. A
    /// key is found again only under the seed that it was hashed with.
    pub fn restore(
        &self,
        index: usize,
        old: &Algorithm,
        hash: KeyHash,
        state: &[u64],
        now: Time,
    ) -> bool {
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return false;
        };
        let fits = limit.algorithm.can_continue(old) && state.len() == table.words();
        fits && adopt_one(limit, table, old, hash, state, now)
    }

    /// The limits, in the order that [`LimitKey::limit`] refers to.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The bucket tables of the limits, in the same order.
    #[must_use]
    pub fn tables(&self) -> &[Arc<BucketTable>] {
        &self.tables
    }

    /// The defaults of this door.
    #[must_use]
    pub fn policy(&self) -> LimiterPolicy {
        self.policy
    }

    /// The keys that a request is counted under.
    #[must_use]
    pub fn keys(&self, request: &impl RequestAttributes) -> LimitKeys {
        self.keys_of(&RequestReading::new(request))
    }

    /// The keys that a request is counted under, of which parts may have been read. Their buckets
    /// are loaded from memory while the caller does other work before `ask`.
    #[must_use]
    pub fn keys_of<R: RequestAttributes>(&self, seen: &RequestReading<'_, R>) -> LimitKeys {
        let keys = classify::keys(&self.limits, &self.seed, seen);
        keys.as_slice().iter().for_each(|key| self.prefetch(*key));
        keys
    }

    /// Decides, and charges hits and `estimate` if the request may run. A request that must wait is
    /// charged too, because its place is taken. A refused request is charged nothing.
    #[must_use]
    pub fn ask(
        &self,
        keys: &LimitKeys,
        estimate: impl Into<UnitCosts>,
        now: Time,
    ) -> (Verdict, Ticket) {
        self.ask_with_remote(keys, &[], estimate, now)
    }

    /// Like [`Limiter::ask`], after a store was asked. `words` are its reports in the order of the
    /// keys, `None` for a key without an answer, and empty if there is no answer at all. Hits that
    /// the store has charged are not charged again, and limits in hits are decided by its reports.
    /// For limits in CPU time the local state decides, because it includes the requests that run at
    /// present.
    #[must_use]
    pub fn ask_with_remote(
        &self,
        keys: &LimitKeys,
        words: &[Option<StoreBucketState>],
        estimate: impl Into<UnitCosts>,
        now: Time,
    ) -> (Verdict, Ticket) {
        // A ticket is large: it is built in the returned value, so that it is not copied.
        let mut answer = (Verdict::Allow, Ticket::new(keys, estimate.into(), now));
        // Space for all limits that a door may have is eight times what most doors need.
        answer.0 = match keys.as_slice().len() {
            0..=4 => self.decide::<4>(keys.as_slice(), words, &mut answer.1, now),
            _ => self.decide::<LIMITS_MAX>(keys.as_slice(), words, &mut answer.1, now),
        };
        answer
    }

    /// `ask_with_remote` for at most `N` keys.
    fn decide<const N: usize>(
        &self,
        keys: &[LimitKey],
        words: &[Option<StoreBucketState>],
        ticket: &mut Ticket,
        now: Time,
    ) -> Verdict {
        let mut standing = LongestWaits::default();
        let all_seen = self.peek_standing(keys, words, now, &mut standing);
        if let Some(deny) = self.refusal(&standing) {
            return deny;
        }
        if all_seen && keys.iter().all(|key| self.known(key, ticket.estimate) == Cost::ZERO) {
            return self.admitted(&standing, ticket, now);
        }
        let mut sets: [Option<TableEntry<'_>>; N] = [const { None }; N];
        for (place, key) in sets.iter_mut().zip(keys) {
            *place = Some(self.tables[usize::from(key.limit)].take(key.hash));
        }
        let standing = self.standing(keys, words, &sets, now);
        if let Some(deny) = self.refusal(&standing) {
            return deny;
        }
        let verdict = self.admitted(&standing, ticket, now);
        self.charge_all(keys, words, ticket, &mut sets, now);
        verdict
    }

    /// The refusal, if the state of the limits demands one.
    fn refusal(&self, standing: &LongestWaits) -> Option<Verdict> {
        if let Some(reason) = standing.refusing {
            let limit = &self.limits[usize::from(reason.key.limit)];
            let retry_after = limit.algorithm.retry_after(reason.wait);
            return Some(Verdict::Deny { reason, retry_after });
        }
        let longest = longer(standing.delaying, standing.holding)?;
        let too_long = longest.wait > self.policy.max_delay;
        let retry_after = longest.wait.minus(self.policy.max_delay);
        too_long.then_some(Verdict::Deny { reason: longest, retry_after })
    }

    /// Fills in the ticket of an admitted request: when it may run, and what holds its response.
    fn admitted(&self, standing: &LongestWaits, ticket: &mut Ticket, now: Time) -> Verdict {
        ticket.hold = standing.holding;
        ticket.shadowed = standing.shadowed.and_then(|shadowed| self.shadowed(shadowed));
        if let Some(ShadowEffect { action: LimitAction::Reject, reason }) = ticket.shadowed {
            let place = ticket.keys.as_slice().iter().position(|key| *key == reason.key);
            place.into_iter().for_each(|place| ticket.uncounted_places |= 1 << place);
        }
        match standing.delaying {
            Some(reason) => {
                ticket.at = now.plus(reason.wait);
                Verdict::Delay(reason)
            }
            None => Verdict::Allow,
        }
    }

    /// The seed that keys are hashed with.
    #[must_use]
    pub fn seed(&self) -> &KeySeed {
        &self.seed
    }

    /// Moves the charges of bucket `from` of the limit at `index` to bucket `to`, because both
    /// belong to one client. Later charges to `from` stay there.
    pub fn merge(&self, index: usize, from: KeyHash, to: KeyHash, now: Time) {
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return;
        };
        let worth = |state: &[u64]| limit.algorithm.worth(state, now);
        let mut words = [0; STATE_WORDS_MAX];
        let mut old = table.take(from);
        let state = old.with(|state| {
            words[..state.len()].copy_from_slice(state);
            &words[..state.len()]
        });
        if from == to || worth(state) == 0 {
            return;
        }
        old.change(|state| state.fill(0), worth);
        // Both may lie in the same set, which cannot be taken twice.
        drop(old);
        table.take(to).change(|into| limit.algorithm.absorb(into, state, now), worth);
    }

    /// Adds the state of the limits to `standing`, as far as it is visible without taking a set.
    /// Returns whether that is all of it. It is enough to refuse a client over a limit, so an
    /// attack on one bucket writes nothing and waits for no lock; and it is enough to admit a
    /// request that is not charged yet.
    #[inline]
    fn peek_standing(
        &self,
        keys: &[LimitKey],
        words: &[Option<StoreBucketState>],
        now: Time,
        standing: &mut LongestWaits,
    ) -> bool {
        let mut all_seen = true;
        for (place, key) in keys.iter().enumerate().filter(|(_, key)| self.restrains(key)) {
            if self.weigh_report(standing, key, words.get(place)) {
                continue;
            }
            match self.tables[usize::from(key.limit)].peek(key.hash) {
                Some(state) => self.weigh(standing, key, &[state], now),
                None => all_seen = false,
            }
        }
        all_seen
    }

    /// The longest wait of each kind over all limits. The sets of all keys must be held.
    #[inline]
    fn standing(
        &self,
        keys: &[LimitKey],
        words: &[Option<StoreBucketState>],
        sets: &[Option<TableEntry<'_>>],
        now: Time,
    ) -> LongestWaits {
        let mut standing = LongestWaits::default();
        let deciding = keys.iter().zip(sets.iter().flatten()).enumerate();
        for (place, (key, entry)) in deciding.filter(|(_, (key, _))| self.restrains(key)) {
            if !self.weigh_report(&mut standing, key, words.get(place)) {
                entry.with(|state| self.weigh(&mut standing, key, state, now));
            }
        }
        standing
    }

    /// Adds the wait for one limit to `standing`, by the state of its bucket.
    fn weigh(&self, standing: &mut LongestWaits, key: &LimitKey, state: &[u64], now: Time) {
        let limit = &self.limits[usize::from(key.limit)];
        let wait = limit.algorithm.wait(state, Limiter::initial_charge(limit), now);
        if wait > Nanos::ZERO {
            let level = limit.algorithm.level(state, now);
            self.note_wait(standing, Reason { key: *key, level, wait });
        }
    }

    /// Adds a wait to `standing`, under the action of its limit.
    #[inline]
    fn note_wait(&self, standing: &mut LongestWaits, reason: Reason) {
        let limit = &self.limits[usize::from(reason.key.limit)];
        let action = limit.action(self.policy.action);
        if limit.shadow {
            standing.note(ShadowEffect { action, reason });
        } else {
            standing.add(action, reason);
        }
    }

    /// Whether the limit of a key may delay, refuse or hold. A limit that queues leaves it to the
    /// queue.
    fn restrains(&self, key: &LimitKey) -> bool {
        self.limits[usize::from(key.limit)].action(self.policy.action) != LimitAction::Queue
    }

    /// Whether a limit lets requests run and holds their responses.
    fn holds(&self, limit: &Limit) -> bool {
        limit.action(self.policy.action) == LimitAction::Hold
    }

    /// The charge of a limit at admission, given the estimate.
    fn known(&self, key: &LimitKey, estimate: UnitCosts) -> Cost {
        let limit = &self.limits[usize::from(key.limit)];
        match (limit.unit, &limit.algorithm) {
            (LimitUnit::Hits, _) => Cost::hits(1),
            (unit, Algorithm::Debt(_)) if !self.holds(limit) => estimate.of(unit),
            (unit, Algorithm::Quota(_)) => estimate.of(unit),
            _ => Cost::ZERO,
        }
    }

    /// Charges what is known at admission, except what a store has charged. The sets of all keys
    /// must be held.
    #[inline]
    fn charge_all(
        &self,
        keys: &[LimitKey],
        words: &[Option<StoreBucketState>],
        ticket: &mut Ticket,
        sets: &mut [Option<TableEntry<'_>>],
        now: Time,
    ) {
        for (place, (key, entry)) in keys.iter().zip(sets.iter_mut().flatten()).enumerate() {
            match self.charged_remotely(*key, words.get(place)) {
                Some(moved) => ticket.moved.as_mut_slice()[place] = moved,
                None => self.charge_one(*key, ticket, place, entry, now),
            }
        }
    }

    /// The effect that a limit in shadow mode would have before the request runs. `None` if it
    /// would hold the response, because the cost is unknown at this time, or queue the request. A
    /// wait that is too long is a refusal.
    fn shadowed(&self, shadowed: ShadowEffect) -> Option<ShadowEffect> {
        let too_long = shadowed.reason.wait > self.policy.max_delay;
        match shadowed.action {
            LimitAction::Reject => Some(shadowed),
            _ if too_long => Some(ShadowEffect { action: LimitAction::Reject, ..shadowed }),
            LimitAction::Delay => Some(shadowed),
            LimitAction::Hold | LimitAction::Queue => None,
        }
    }

    /// Whether a limit in shadow mode would refuse the request, and so does not count it. Otherwise
    /// it would soon refuse everything, unlike the same limit when it is enforced.
    fn would_refuse(&self, key: &LimitKey, entry: &TableEntry<'_>, now: Time) -> bool {
        let limit = &self.limits[usize::from(key.limit)];
        let needed = Limiter::initial_charge(limit);
        limit.shadow
            && limit.action(self.policy.action) == LimitAction::Reject
            && entry.with(|state| limit.algorithm.wait(state, needed, now)) > Nanos::ZERO
    }

    fn charge_one(
        &self,
        key: LimitKey,
        ticket: &mut Ticket,
        place: usize,
        entry: &mut TableEntry<'_>,
        now: Time,
    ) {
        let limit = &self.limits[usize::from(key.limit)];
        let cost = self.known(&key, ticket.estimate);
        if cost > Cost::ZERO && self.would_refuse(&key, entry, now) {
            ticket.uncounted_places |= 1 << place;
        } else if cost > Cost::ZERO && ticket.is_counted(place) {
            // A history stores when requests run; a debt bucket, when their place was taken.
            let history = matches!(limit.algorithm, Algorithm::History(_));
            let at = if history { ticket.at } else { now };
            let worth = |state: &[u64]| limit.algorithm.worth(state, now);
            let charge = |state: &mut [u64]| match limit.unit {
                LimitUnit::Hits => limit.algorithm.charge(state, cost, at, now),
                _ => limit.algorithm.hold(state, cost, at, now),
            };
            ticket.moved.as_mut_slice()[place] = entry.change(charge, worth);
        }
    }
}

fn table_for(limit: &Limit) -> BucketTable {
    BucketTable::new(limit.keys_max, limit.algorithm.words())
}

/// Whether the buckets of `old` are valid under `new`.
fn counts_alike(old: &Limit, new: &Limit) -> bool {
    old.name == new.name
        && old.by == new.by
        && old.unit == new.unit
        && new.algorithm.can_continue(&old.algorithm)
}

/// Copies the debts under `old` to the buckets of `limit`.
fn adopt(limit: &Limit, table: &BucketTable, old: &Algorithm, buckets: &BucketTable, now: Time) {
    buckets.for_each(|hash, state| {
        adopt_one(limit, table, old, hash, state, now);
    });
}

/// Copies one bucket; false if it is worth nothing any longer.
fn adopt_one(
    limit: &Limit,
    table: &BucketTable,
    old: &Algorithm,
    hash: KeyHash,
    state: &[u64],
    now: Time,
) -> bool {
    let mut words = [0; STATE_WORDS_MAX];
    let words = &mut words[..state.len()];
    words.copy_from_slice(state);
    limit.algorithm.convert_state(old, words, now);
    let worthy = limit.algorithm.worth(words, now) > 0;
    if worthy {
        table.take(hash).put(words, |words| limit.algorithm.worth(words, now));
    }
    worthy
}
