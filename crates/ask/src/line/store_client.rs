//! Tags counted in a store for all instances: converts a batch of queries to the store's accounts,
//! and the answers back.
//!
//! All queries that a connection has sent go to the store at once, so a pipeline of any length
//! takes one round trip. If the store does not answer, the query is decided here and reported to
//! the store later. How the store is asked: `store::redis`.

use evenkeel_core::units::Time;
use evenkeel_engine::tags::questions::{TagQuestion, TagQuestions};
use evenkeel_store::redis::{RedisStore, StoreAccount, StoreLane};
use std::rc::Rc;
use std::sync::Arc;

/// The access of one thread to the store.
pub struct TagStoreClient {
    lane: Rc<StoreLane>,
}

impl TagStoreClient {
    /// Creates the access for this thread. Its tasks run on the thread's runtime.
    pub fn new(store: &Arc<RedisStore>) -> Rc<TagStoreClient> {
        Rc::new(TagStoreClient { lane: StoreLane::open(store) })
    }

    /// Asks the store about all queries of the batch and records its answers.
    pub async fn ask(self: Rc<TagStoreClient>, mut asked: TagQuestions) -> TagQuestions {
        let now = self.lane.store.clock.now();
        let questions = asked.questions.iter();
        let mut accounts: Vec<StoreAccount> =
            questions.map(|question| self.account(&asked, question, now)).collect();
        self.lane.decide(&mut accounts, false, now).await;
        for (question, account) in asked.questions.iter_mut().zip(accounts) {
            question.word = account.word;
            question.owes = account.owes;
            (question.known, question.known_at) = (account.known, account.known_at);
        }
        asked
    }

    /// Queues for the store the decisions that were made here.
    pub fn queue_unreported(&self, asked: &TagQuestions) {
        let now = self.lane.store.clock.now();
        let owed = asked.answered.iter().filter(|question| question.served_here && question.owes);
        let accounts = owed.map(|question| self.account(asked, question, now));
        accounts.for_each(|account| self.lane.store.report_charge(account));
    }

    fn account(&self, asked: &TagQuestions, question: &TagQuestion, now: Time) -> StoreAccount {
        let TagQuestion { key, algorithm, cost, .. } = question;
        let name = asked.home().limits().get(usize::from(key.limit)).map(|limit| &*limit.name);
        let name = name.unwrap_or_default();
        let name = self.lane.store.naming.account("line", algorithm, name, &question.tag);
        let mut account = StoreAccount::new(name, asked.home(), *key, *cost, now);
        account.algorithm = algorithm.clone();
        (account.known, account.known_at) = (question.known, question.known_at);
        account
    }
}
