//! Buckets of the store, as one thread asks for them: those of a request all at once, or those of
//! many tags each by itself.
//!
//! A charge that becomes known after the answer (the cost of a request) does not wait for the
//! store: it is queued and reported soon after. Accounts that end on other threads use the same
//! queue.

use super::asking::ServerGroup;
use super::shared::{PendingTable, SharedPending};
use super::{REPORTS_PER_CALL_MAX, StoreLane};
use crate::redis::account::pending_charges::PendingCharges;
use crate::redis::account::{AccountCallOptions, StoreAccount};
use crate::redis::link::{MissedAnswer, ServerLink};
use crate::redis::route::KeyRoute;
use evenkeel_core::limiter::remote::StoreBucketState;
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_runtime::clock::Clock;
use std::rc::Rc;
use std::sync::Arc;

/// The queue of charges to report to the store. Any thread may add charges and any may report them,
/// because the local state of a bucket includes the charges of all threads.
#[derive(Clone)]
pub struct ChargeOutbox {
    owed: Arc<SharedPending<PendingCharges>>,
    max: usize,
}

impl ChargeOutbox {
    /// Makes a queue for at most `max` buckets.
    pub(in crate::redis) fn new(max: usize) -> ChargeOutbox {
        ChargeOutbox { owed: Arc::default(), max }
    }

    /// Queues a charge that has happened.
    pub fn add(&self, account: StoreAccount) {
        self.owed.change(|owed| owed.add(account, self.max));
    }
}

impl StoreLane {
    /// The queue of charges to report.
    pub fn outbox(&self) -> ChargeOutbox {
        self.outbox.clone()
    }

    /// Asks for all accounts, and waits no longer than the deadline. If the store answers, an
    /// account has its `word`, and the local bucket is up to date. Otherwise the caller decides,
    /// and reports the result if the account `owes`. With `all_or_none`, no account is charged if
    /// one is refused. `now` is the current time by this process's clock.
    pub async fn decide(
        self: &Rc<StoreLane>,
        accounts: &mut [StoreAccount],
        all_or_none: bool,
        now: Time,
    ) {
        if accounts.is_empty() {
            return;
        }
        accounts.iter_mut().for_each(|account| self.prepare(account, now));
        if self.store.is_batched() {
            accounts.iter_mut().for_each(|account| account.owes = true);
            return;
        }
        let groups = self.groups(accounts, 0..accounts.len());
        let deadline = Clock::deadline(self.store.settings.deadline);
        let began = self.now();
        let asked = Rc::from(&*accounts);
        let answers =
            self.ask_all(&asked, &groups, AccountCallOptions { all_or_none, now }, deadline).await;
        self.counts().took.record(self.now().since(began).0);
        for (place, answer) in answers {
            let Some(account) = accounts.get_mut(place) else { continue };
            match answer {
                Ok((answer, clock)) => {
                    self.counts().answered.increment(1);
                    self.apply_answer(account, answer, clock);
                }
                Err(missed) => account.owes = self.missed(&missed),
            }
        }
        if all_or_none && (groups.len() > 1 || self.route.is_cluster()) {
            self.agree(accounts);
        }
    }

    /// Adds the local state of a bucket, in case the store has lost it.
    fn prepare(&self, account: &mut StoreAccount, now: Time) {
        if account.cost == Cost::ZERO {
            return;
        }
        let before = self.outbox.owed.look(|owed| owed.known(&account.name));
        (account.known, account.known_at) =
            before.unwrap_or_else(|| (now.plus(account.home.ahead(account.key, now)), now));
    }

    /// Counts a missing answer. Returns whether the question certainly had no effect.
    fn missed(&self, missed: &MissedAnswer) -> bool {
        let counts = self.counts();
        match missed {
            MissedAnswer::Late => counts.late.increment(1),
            MissedAnswer::Away => counts.away.increment(1),
            MissedAnswer::Unable(_) => counts.refused.increment(1),
            MissedAnswer::Refused(why) => {
                counts.refused.increment(1);
                tracing::debug!(target: "evenkeel::store", why, "a bucket was refused");
            }
        }
        matches!(missed, MissedAnswer::Away | MissedAnswer::Unable(_))
    }

    /// Makes the answers of several servers consistent, because each decides by itself: if one of
    /// them refuses, the charges of the others are taken back after the answer.
    fn agree(&self, accounts: &mut [StoreAccount]) {
        let words = || accounts.iter().filter_map(|account| account.word);
        if words().all(|word| word.charged) {
            return;
        }
        for account in accounts {
            let Some(word) = account.word else { continue };
            let moved = word.after.minus(word.before);
            if word.charged && moved > Nanos::ZERO {
                let back = Some((moved, word.clock));
                self.outbox.add(StoreAccount { back, cost: Cost::ZERO, ..account.clone() });
            }
            account.word = Some(StoreBucketState { charged: false, ..word });
        }
    }

    /// Applies the store's answer about a bucket, here and in the account.
    pub fn apply_answer(
        &self,
        account: &mut StoreAccount,
        (before, after, charged): (Nanos, Nanos, bool),
        clock: Time,
    ) {
        let owed = self.outbox.owed.look(|owed| owed.of(&account.name));
        account.home.raise(account.key, after.plus(owed), self.now());
        account.word = Some(StoreBucketState { before, after, charged, clock });
    }

    /// The number of buckets with charges to report. Also moves the count of lost ones to the
    /// metrics.
    pub fn pending_charges(&self) -> usize {
        let (lost, left) =
            self.outbox.owed.change(|owed| (std::mem::take(&mut owed.lost), owed.len()));
        self.counts().lost.increment(lost);
        left
    }

    /// Reports all pending charges to the store, as long as it is reachable.
    pub async fn settle_accounts(self: &Rc<StoreLane>) {
        while self.routes().flat_map(KeyRoute::links).any(|link: Rc<ServerLink>| link.is_good()) {
            let owed: Rc<[StoreAccount]> =
                self.outbox.owed.change(|owed| owed.take(REPORTS_PER_CALL_MAX)).into();
            if owed.is_empty() {
                return;
            }
            let groups: Vec<ServerGroup> = self.groups(&owed, 0..owed.len());
            let deadline = Clock::deadline(self.store.settings.connect);
            let how = AccountCallOptions { all_or_none: false, now: self.now() };
            let answers = self.ask_all(&owed, &groups, how, deadline).await;
            let mut kept = false;
            for (place, answer) in answers {
                let mut account = owed[place].clone();
                let told = |owed: &mut PendingCharges| owed.told(&account.name);
                match answer {
                    Ok((answer, clock)) => {
                        self.outbox.owed.change(told);
                        self.counts().told.increment(1);
                        self.apply_answer(&mut account, answer, clock);
                    }
                    Err(MissedAnswer::Away | MissedAnswer::Unable(_)) => {
                        kept = true;
                        self.outbox.owed.change(|owed| {
                            owed.told(&account.name);
                            owed.add(account, usize::MAX);
                        });
                    }
                    // The amount may have been charged, or never will be.
                    Err(MissedAnswer::Late | MissedAnswer::Refused(_)) => {
                        self.outbox.owed.change(told);
                        self.counts().lost.increment(1);
                    }
                }
            }
            if kept {
                return;
            }
        }
    }
}
