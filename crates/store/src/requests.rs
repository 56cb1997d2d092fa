//! Requests with limits that a store counts for all instances. The store is asked before the engine
//! concludes, and gets a report of the cost once it is known.
//!
//! All buckets of a request make one question. A limit in hits follows the store's answer: the
//! store charges all of a request's limits in hits, or none. For a limit in CPU time the store
//! gives the usage of other instances, and the cost of requests that run here now is added. Without
//! an answer this process decides by its own counts and reports later. How the store is asked:
//! `redis`.

use super::redis::{StoreAccount, StoreLane};
use aws_lc_rs::digest;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::limit::UnitCosts;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::limiter::remote::StoreBucketState;
use evenkeel_core::units::{Cost, Time};
use evenkeel_engine::{AskOutcome, PendingRequest};
use std::fmt::Write;
use std::sync::Arc;

/// The length of the hash that replaces a secret, in bytes.
const VEIL_BYTES: usize = 16;

impl StoreLane {
    /// Decides on one request, as [`evenkeel_engine::EngineLane::ask`] does. Waits at most as long
    /// as the store may take. No lock is held during the wait.
    pub async fn ask(
        &self,
        lane: &evenkeel_engine::EngineLane,
        request: &impl RequestAttributes,
    ) -> AskOutcome {
        let begun = match lane.begin(request) {
            Ok(begun) => begun,
            Err(refusal) => return AskOutcome::Refused(refusal),
        };
        let now = self.store.clock.now();
        let mut accounts = self.accounts(&begun, request, now);
        self.decide(&mut accounts, true, now).await;
        let words: Vec<Option<StoreBucketState>> =
            accounts.iter().map(|account| account.word).collect();
        self.concluded(lane.conclude(begun, &words), accounts)
    }

    fn accounts(
        &self,
        begun: &PendingRequest,
        request: &impl RequestAttributes,
        now: Time,
    ) -> Vec<StoreAccount> {
        let limiter = begun.limiter();
        let identifiers = begun.identifiers(request, now, veil);
        let account = |(key, id): (&_, Vec<u8>)| -> Option<StoreAccount> {
            let key: &evenkeel_core::classify::LimitKey = key;
            let limit = limiter.limits().get(usize::from(key.limit))?;
            let naming = &self.store.naming;
            let name = naming.account("proxy", &limit.algorithm, &limit.name, &id);
            let mut account =
                StoreAccount::new(name, limiter, *key, Limiter::initial_charge(limit), now);
            account.patience = limiter.admitted_wait_max(limit);
            Some(account)
        };
        begun.keys().iter().zip(identifiers).filter_map(account).collect()
    }

    /// Queues the reports to the store that follow from the decision on a request.
    fn concluded(&self, asked: AskOutcome, accounts: Vec<StoreAccount>) -> AskOutcome {
        let store = &self.store;
        match asked {
            AskOutcome::Refused(refusal) => {
                // The reason is unknown to the store.
                let charged = accounts.iter().filter_map(StoreAccount::refund);
                charged.for_each(|refund| store.report_charge(refund));
                AskOutcome::Refused(refusal)
            }
            AskOutcome::Pass(mut charge) => {
                let (hits, costs): (Vec<_>, Vec<_>) =
                    accounts.into_iter().partition(|account| account.cost > Cost::ZERO);
                let here = |account: &StoreAccount| account.word.is_none() && account.owes;
                hits.into_iter().filter(here).for_each(|account| store.report_charge(account));
                let store = Arc::clone(store);
                let tell = move |spent: UnitCosts, asked, now| {
                    for account in costs {
                        // A window counts a cost as of the report, other buckets as of the start of
                        // the request.
                        let sums = matches!(account.algorithm, Algorithm::Sliding(_));
                        let at = if sums { now } else { asked };
                        let cost = spent.of(account.unit());
                        store.report_charge(StoreAccount { cost, at, ..account });
                    }
                };
                charge.tell(Box::new(tell));
                AskOutcome::Pass(charge)
            }
        }
    }
}

/// The text that replaces a value that may be secret in the name of a key.
fn veil(name: &str, value: &[u8]) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(name.as_bytes());
    context.update(b"\0");
    context.update(value);
    let mut veiled = String::from("#");
    // Writing to a String cannot fail.
    let hash = context.finish();
    hash.as_ref().iter().take(VEIL_BYTES).for_each(|byte| _ = write!(veiled, "{byte:02x}"));
    veiled
}
