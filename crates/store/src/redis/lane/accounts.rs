//! Buckets of the store, as one thread asks for them: those of a request all at once, or those of
//! many tags each by itself.
//!
//! A charge that becomes known after the answer (the cost of a request) does not wait for the
//! store: it is queued and reported soon after. Accounts that end on other threads use the same
//! queue (`RedisStore::report_charge`).

use super::StoreLane;
use crate::redis::account::{AccountCallOptions, StoreAccount};
use evenkeel_core::units::{Cost, Time};
use evenkeel_runtime::clock::Clock;
use std::rc::Rc;

impl StoreLane {
    /// Asks for all accounts, and waits no longer than the deadline. If the store answers, an
    /// account has its `word`, and the local bucket is up to date. Otherwise the caller decides,
    /// and reports the result if the account `owes`. With `all_or_none`, no account is charged if
    /// one is refused. `now` is the current time by this process's clock.
    pub async fn decide(&self, accounts: &mut [StoreAccount], all_or_none: bool, now: Time) {
        if accounts.is_empty() {
            return;
        }
        accounts.iter_mut().for_each(|account| self.prepare(account, now));
        if self.store.is_batched() {
            accounts.iter_mut().for_each(|account| account.owes = true);
            return;
        }
        let groups = self.servers.groups(accounts, 0..accounts.len());
        let deadline = Clock::deadline(self.store.settings.deadline);
        let began = self.store.clock.now();
        let (asked, how) = (Rc::from(&*accounts), AccountCallOptions { all_or_none, now });
        let answers = self.servers.ask_all(&asked, &groups, how, deadline).await;
        self.store.counts.took.record(self.store.clock.now().since(began).0);
        for (place, answer) in answers {
            let account = &mut accounts[place];
            if let Err(missed) = self.store.take_answer(account, answer) {
                account.owes = missed.may_be_repeated();
            }
        }
        if all_or_none && self.servers.is_split(&groups) {
            self.agree(accounts);
        }
    }

    /// Adds the local state of a bucket, in case the store has lost it.
    fn prepare(&self, account: &mut StoreAccount, now: Time) {
        if account.cost == Cost::ZERO {
            return;
        }
        let before = self.store.charges.look(|owed| owed.known(&account.name));
        (account.known, account.known_at) =
            before.unwrap_or_else(|| (now.plus(account.home.ahead(account.key, now)), now));
    }

    /// Makes the answers of several servers consistent, because each decides by itself: if one of
    /// them refuses, the charges of the others are taken back after the answer.
    fn agree(&self, accounts: &mut [StoreAccount]) {
        if accounts.iter().filter_map(|account| account.word).all(|word| word.charged) {
            return;
        }
        for account in accounts {
            account.refund().into_iter().for_each(|back| self.store.report_charge(back));
            account.word.iter_mut().for_each(|word| word.charged = false);
        }
    }
}
