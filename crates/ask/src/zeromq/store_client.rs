//! Requests counted in a store for several masters: the reports of gatekeepers, and the resulting
//! waits.
//!
//! All reports read at once from a gatekeeper make one query to the store. Each master also records
//! its reports itself, and orders the later time of the two. So a master that is cut off from the
//! store continues with its own state, and a master that has just started gets the state of the
//! store. How the store is asked: `store::redis`.

use evenkeel_core::bucket::Algorithm;
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_engine::domains::MasterDomain;
use evenkeel_store::redis::{RedisStore, StoreAccount, StoreLane};
use std::rc::Rc;
use std::sync::Arc;

/// The effect of one report: the request, and the time until which the next one of its client has
/// to wait.
pub struct DelayOrder {
    pub domain: Arc<MasterDomain>,
    pub identifier: Box<[u8]>,
    pub at: Time,
    pub until: Option<Time>,
}

/// The orders that result from all messages read at once.
#[derive(Default)]
pub struct DelayOrders(pub Vec<DelayOrder>);

/// The thread's access to the store.
pub struct MasterStoreClient {
    lane: Rc<StoreLane>,
}

impl MasterStoreClient {
    /// Creates the access for this thread. Its tasks run on the thread's runtime.
    pub fn new(store: &Arc<RedisStore>) -> MasterStoreClient {
        MasterStoreClient { lane: StoreLane::open(store) }
    }

    /// Counts all reports in the store, and extends the waits if the store knows a later time.
    pub async fn ask(&self, mut orders: DelayOrders, now: Time) -> DelayOrders {
        let each = orders.0.iter().enumerate();
        let (places, mut accounts): (Vec<usize>, Vec<StoreAccount>) = each
            .flat_map(|(place, order)| {
                self.accounts(order, now).into_iter().map(move |account| (place, account))
            })
            .unzip();
        self.lane.decide(&mut accounts, false, now).await;
        for (place, account) in places.into_iter().zip(accounts) {
            let wait = wait(&account);
            if account.word.is_none() && account.owes {
                self.lane.store.report_charge(account);
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

    fn accounts(&self, order: &DelayOrder, now: Time) -> Vec<StoreAccount> {
        let DelayOrder { domain, identifier, at, .. } = order;
        let (home, buckets) = domain.buckets(identifier, *at, now);
        let account = |(key, at): (evenkeel_core::classify::LimitKey, Time)| {
            let limit = home.limits().get(usize::from(key.limit))?;
            let rule = format!("{}:{}", &domain.name, limit.name);
            let naming = &self.lane.store.naming;
            let name = naming.account("master", &limit.algorithm, &rule, identifier);
            let mut account = StoreAccount::new(name, &home, key, Cost::hits(1), now);
            (account.at, account.patience) = (at, None);
            Some(account)
        };
        buckets.into_iter().filter_map(account).collect()
    }
}

/// Returns how long the next request has to wait according to the store.
fn wait(account: &StoreAccount) -> Nanos {
    let Some(word) = account.word else { return Nanos::ZERO };
    match &account.algorithm {
        Algorithm::Debt(debt) => debt.wait(word.clock.plus(word.after), Cost::ZERO, word.clock),
        _ => word.after,
    }
}
