//! Requests that a store counts for several masters: what gatekeepers told, and what comes of it.
//!
//! All that was read at once from a gatekeeper is one question. Each master records what it hears
//! as well, and says the later of the two: so one that is cut off from the store goes on from what
//! it knows, and one that was just started knows what the store does. How it is asked:
//! `store::redis`.

use super::accounts::{Order, Orders};
use crate::store::redis::{Account, Lane, Naming, Outbox, Store};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::units::{Cost, Nanos, Time};
use std::rc::Rc;
use std::sync::Arc;

/// The thread's way to the store.
pub struct Elsewhere {
    lane: Rc<Lane>,
    naming: Naming,
    outbox: Outbox,
}

impl Elsewhere {
    /// For this thread, whose tasks run on its runtime.
    pub fn new(store: &Arc<Store>) -> Elsewhere {
        let lane = store.lane();
        Elsewhere { outbox: lane.outbox(), lane, naming: store.naming() }
    }

    /// Has all of it counted, and orders put off where others know of more.
    pub async fn ask(&self, mut orders: Orders, now: Time) -> Orders {
        let each = orders.0.iter().enumerate();
        let (places, mut accounts): (Vec<usize>, Vec<Account>) = each
            .flat_map(|(place, order)| {
                self.accounts(order, now).into_iter().map(move |account| (place, account))
            })
            .unzip();
        self.lane.decide(&mut accounts, false, now).await;
        for (place, account) in places.into_iter().zip(accounts) {
            let wait = wait(&account);
            if account.word.is_none() && account.owes {
                self.outbox.add(account);
            }
            let Some(order) = orders.0.get_mut(place).filter(|_| wait > Nanos::ZERO) else {
                continue;
            };
            let until = now.plus(wait);
            if order.until.is_none_or(|known| known < until) {
                order.until = Some(until);
                order.domain.learn(&order.identifier, until, now);
            }
        }
        orders
    }

    fn accounts(&self, order: &Order, now: Time) -> Vec<Account> {
        let Order { domain, identifier, at, .. } = order;
        let (home, buckets) = domain.buckets(identifier, *at, now);
        let account = |(key, at): (evenkeel_core::classify::Key, Time)| {
            let limit = home.limits().get(usize::from(key.limit))?;
            let rule = format!("{}:{}", domain.name(), limit.name);
            let name = self.naming.account("master", &limit.algorithm, &rule, identifier);
            let mut account = Account::new(name, &home, key, Cost::hits(1), now);
            (account.at, account.patience) = (at, None);
            Some(account)
        };
        buckets.into_iter().filter_map(account).collect()
    }
}

/// How long the next request has to wait, as the store says.
fn wait(account: &Account) -> Nanos {
    let Some(word) = account.word else { return Nanos::ZERO };
    match &account.algorithm {
        Algorithm::Debt(debt) => debt.wait(word.clock.plus(word.after), Cost::ZERO, word.clock),
        _ => word.after,
    }
}
