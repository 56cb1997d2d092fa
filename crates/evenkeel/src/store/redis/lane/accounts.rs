//! Buckets of the store, as one thread asks for them: of a request all at once, or many tags each
//! by itself.
//!
//! What is charged behind an answer (what a request cost, once that is known) waits for nobody: it
//! is noted, and told soon after. Accounts that end on other threads note into a box of their own.

use super::asking::Group;
use super::shared::{Notes, Shared};
use super::{Lane, TOLD_AT_ONCE};
use crate::clock::Clock;
use crate::store::redis::account::owed::Owed;
use crate::store::redis::account::{Account, How};
use crate::store::redis::link::{Link, Missed};
use crate::store::redis::route::Route;
use evenkeel_core::limiter::told::Word;
use evenkeel_core::units::{Cost, Nanos, Time};
use std::rc::Rc;
use std::sync::Arc;

/// What the store is to be told, from whatever thread and by whichever: what one of them knows of a
/// bucket has in it what others have charged.
#[derive(Clone)]
pub struct Outbox {
    owed: Arc<Shared<Owed>>,
    max: usize,
}

impl Outbox {
    /// For at most so many buckets.
    pub(in crate::store::redis) fn new(max: usize) -> Outbox {
        Outbox { owed: Arc::default(), max }
    }

    /// The bucket was charged: that has happened, and is told.
    pub fn add(&self, account: Account) {
        self.owed.change(|owed| owed.add(account, self.max));
    }
}

impl Lane {
    /// Where accounts note what the store is to be told by this lane.
    pub fn outbox(&self) -> Outbox {
        self.outbox.clone()
    }

    /// Asks for all of them, and waits for no longer than the deadline. Where the store answers,
    /// the account has its word, and what is known here is up to date; where not, it is to be
    /// decided here, and told if it `owes`. With `all_or_none`, none is charged if one refuses.
    /// `now` is the present by our clock.
    pub async fn decide(self: &Rc<Lane>, accounts: &mut [Account], all_or_none: bool, now: Time) {
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
        let answers = self.ask_all(&asked, &groups, How { all_or_none, now }, deadline).await;
        self.counts().took.record(self.now().since(began).0);
        for (place, answer) in answers {
            let Some(account) = accounts.get_mut(place) else { continue };
            match answer {
                Ok((answer, clock)) => {
                    self.counts().answered.increment(1);
                    self.hear(account, answer, clock);
                }
                Err(missed) => account.owes = self.missed(&missed),
            }
        }
        if all_or_none && (groups.len() > 1 || self.route.is_cluster()) {
            self.agree(accounts);
        }
    }

    /// What is known here of a bucket that the store may have lost.
    fn prepare(&self, account: &mut Account, now: Time) {
        if account.cost == Cost::ZERO {
            return;
        }
        let before = self.outbox.owed.look(|owed| owed.known(&account.name));
        (account.known, account.known_at) =
            before.unwrap_or_else(|| (now.plus(account.home.ahead(account.key, now)), now));
    }

    /// Counts that there is no answer; whether the question was not put.
    fn missed(&self, missed: &Missed) -> bool {
        let counts = self.counts();
        match missed {
            Missed::Late => counts.late.increment(1),
            Missed::Away => counts.away.increment(1),
            Missed::Unable(_) => counts.refused.increment(1),
            Missed::Refused(why) => {
                counts.refused.increment(1);
                tracing::debug!(target: "evenkeel::store", why, "a bucket was refused");
            }
        }
        matches!(missed, Missed::Away | Missed::Unable(_))
    }

    /// Servers decide each for itself: if one of them refuses, what others have charged is given
    /// back behind the answer.
    fn agree(&self, accounts: &mut [Account]) {
        let words = || accounts.iter().filter_map(|account| account.word);
        if words().all(|word| word.charged) {
            return;
        }
        for account in accounts {
            let Some(word) = account.word else { continue };
            let moved = word.after.minus(word.before);
            if word.charged && moved > Nanos::ZERO {
                let back = Some((moved, word.clock));
                self.outbox.add(Account { back, cost: Cost::ZERO, ..account.clone() });
            }
            account.word = Some(Word { charged: false, ..word });
        }
    }

    /// The store has said how a bucket stands.
    pub fn hear(
        &self,
        account: &mut Account,
        (before, after, charged): (Nanos, Nanos, bool),
        clock: Time,
    ) {
        let owed = self.outbox.owed.look(|owed| owed.of(&account.name));
        account.home.raise(account.key, after.plus(owed), self.now());
        account.word = Some(Word { before, after, charged, clock });
    }

    /// How many buckets the store has to be told of.
    pub fn owes_accounts(&self) -> usize {
        let (lost, left) =
            self.outbox.owed.change(|owed| (std::mem::take(&mut owed.lost), owed.len()));
        self.counts().lost.increment(lost);
        left
    }

    /// Tells the store all it is owed of buckets, as far as it is there.
    pub async fn settle_accounts(self: &Rc<Lane>) {
        while self.routes().flat_map(Route::links).any(|link: Rc<Link>| link.is_good()) {
            let owed: Rc<[Account]> =
                self.outbox.owed.change(|owed| owed.take(TOLD_AT_ONCE)).into();
            if owed.is_empty() {
                return;
            }
            let groups: Vec<Group> = self.groups(&owed, 0..owed.len());
            let deadline = Clock::deadline(self.store.settings.connect);
            let how = How { all_or_none: false, now: self.now() };
            let answers = self.ask_all(&owed, &groups, how, deadline).await;
            let mut kept = false;
            for (place, answer) in answers {
                let mut account = owed[place].clone();
                let told = |owed: &mut Owed| owed.told(&account.name);
                match answer {
                    Ok((answer, clock)) => {
                        self.outbox.owed.change(told);
                        self.counts().told.increment(1);
                        self.hear(&mut account, answer, clock);
                    }
                    Err(Missed::Away | Missed::Unable(_)) => {
                        kept = true;
                        self.outbox.owed.change(|owed| {
                            owed.told(&account.name);
                            owed.add(account, usize::MAX);
                        });
                    }
                    // It may have been charged, or never will be.
                    Err(Missed::Late | Missed::Refused(_)) => {
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
