//! Tags that a store counts for all instances: from a batch of questions to its buckets, and back.
//!
//! All that a connection has sent is one question to the store, so a pipeline of any length takes
//! one round trip. What the store does not answer is decided here, and it is told later. How it is
//! asked: `store::redis`.

use crate::engine::tags::asked::{Asked, Question};
use crate::store::redis::{Account, Lane, Naming, Outbox, Store};
use evenkeel_core::units::Time;
use std::rc::Rc;
use std::sync::Arc;

/// One thread's way to the store.
pub struct Elsewhere {
    lane: Rc<Lane>,
    naming: Naming,
    outbox: Outbox,
}

impl Elsewhere {
    /// For this thread, whose tasks run on its runtime.
    pub fn new(store: &Arc<Store>) -> Rc<Elsewhere> {
        let lane = store.lane();
        Rc::new(Elsewhere { outbox: lane.outbox(), lane, naming: store.naming() })
    }

    /// Has all of it answered that can be.
    pub async fn ask(self: Rc<Elsewhere>, mut asked: Asked) -> Asked {
        let now = self.lane.now();
        let questions = asked.questions.iter();
        let mut accounts: Vec<Account> =
            questions.map(|question| self.account(&asked, question, now)).collect();
        self.lane.decide(&mut accounts, false, now).await;
        for (question, account) in asked.questions.iter_mut().zip(accounts) {
            question.word = account.word;
            question.owes = account.owes;
            (question.known, question.known_at) = (account.known, account.known_at);
        }
        asked
    }

    /// Notes what was decided here and the store is to be told.
    pub fn owe(&self, asked: &Asked) {
        let now = self.lane.now();
        let owed = asked.answered.iter().filter(|question| question.served_here && question.owes);
        owed.for_each(|question| self.outbox.add(self.account(asked, question, now)));
    }

    fn account(&self, asked: &Asked, question: &Question, now: Time) -> Account {
        let Question { key, algorithm, cost, .. } = question;
        let name = asked.home().limits().get(usize::from(key.limit)).map(|limit| &*limit.name);
        let name = name.unwrap_or_default();
        let name = self.naming.account("line", algorithm, name, &question.tag);
        let mut account = Account::new(name, asked.home(), *key, *cost, now);
        account.algorithm = algorithm.clone();
        (account.known, account.known_at) = (question.known, question.known_at);
        account
    }
}
