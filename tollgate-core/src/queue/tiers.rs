//! The two tiers: clients in credit, and buckets in debt with their clients.
//!
//! In credit the flow is the client. In debt it is the bucket that is latest, and within it the
//! clients take turns by the same rule: so one who shares a network with a crawler waits behind
//! one request of it, not behind all. Knows nothing of single requests: see `queue`.

use super::turns::{Head, Turns};
use super::{Place, Weight};
use crate::classify::Key;
use crate::key::KeyHash;
use crate::units::Cost;
use alloc::collections::BTreeMap;

/// Clients and buckets that have gone, but are ahead of those that wait: so many are remembered.
const FLOWS_IDLE_MAX: usize = 4_096;
/// The same within one bucket.
const CLIENTS_IDLE_MAX: usize = 64;
/// So many dispatches of those in credit are followed by one of those in debt, if any wait.
const CREDIT_RUN: u32 = 9;
/// When reserved slots have let pass so many more, these wait as well until the debt is paid.
const RESERVE_RUN: u32 = 90;

/// A request as far as taking turns needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub client: KeyHash,
    pub place: Place,
    pub estimate: Cost,
    pub weight: Weight,
}

/// Buckets in debt, and the clients of each.
#[derive(Clone, Debug)]
struct Debtors {
    turns: Turns<Key>,
    clients: BTreeMap<Key, Turns<KeyHash>>,
}

impl Debtors {
    /// Changes the clients of a bucket; gone are those of a bucket with nothing to do.
    fn edit(&mut self, bucket: Key, change: impl FnOnce(&mut Turns<KeyHash>)) -> Option<Head> {
        let new = || Turns::new(CLIENTS_IDLE_MAX);
        let clients = self.clients.entry(bucket).or_insert_with(new);
        change(clients);
        let next = clients.next_head();
        if clients.is_over() {
            self.clients.remove(&bucket);
        }
        next
    }
}

/// Both tiers.
#[derive(Clone, Debug)]
pub(super) struct Tiers {
    credit: Turns<KeyHash>,
    debt: Debtors,
    /// Dispatches in credit that those in debt have waited through, and not been paid for.
    owed: u32,
}

impl Tiers {
    pub fn new() -> Tiers {
        let debt = Debtors { turns: Turns::new(FLOWS_IDLE_MAX), clients: BTreeMap::new() };
        Tiers { credit: Turns::new(FLOWS_IDLE_MAX), debt, owed: 0 }
    }

    /// A client's next request; `None`: it does not wait there (any more).
    pub fn set_head(&mut self, client: KeyHash, place: Place, head: Option<Head>) {
        match place {
            Place::Credit => self.credit.set_head(client, head),
            Place::Debt(bucket) => {
                let next = self.debt.edit(bucket, |turns| turns.set_head(client, head));
                self.debt.turns.set_head(bucket, next);
            }
        }
    }

    /// Whose turn it is: those in credit first, but for a tenth.
    pub fn next(&self) -> Option<(KeyHash, Place)> {
        let credit = || self.credit.next().map(|client| (client, Place::Credit));
        let debt = || {
            let bucket = self.debt.turns.next()?;
            let client = self.debt.clients.get(&bucket)?.next()?;
            Some((client, Place::Debt(bucket)))
        };
        if self.owed >= CREDIT_RUN { debt().or_else(credit) } else { credit().or_else(debt) }
    }

    /// Who may have a reserved slot, in their order: those in credit with nothing in service
    /// there. Nobody, while those in debt have been passed over for long.
    pub fn fresh(&self) -> impl Iterator<Item = KeyHash> {
        let barred = self.owed >= RESERVE_RUN;
        self.credit.fresh().filter(move |_| !barred)
    }

    /// A client's next request goes into service; `next` is its one after that.
    pub fn serve(&mut self, share: &Share, next: Option<Head>) {
        let Share { client, place, estimate, weight } = *share;
        let debt_waits = self.debt.turns.waiting() > 0;
        match place {
            Place::Credit => {
                self.owed = if debt_waits { (self.owed + 1).min(RESERVE_RUN) } else { 0 };
                self.credit.serve(client, estimate, weight, next);
            }
            Place::Debt(bucket) => {
                self.owed = self.owed.saturating_sub(CREDIT_RUN);
                let serve = |turns: &mut Turns<_>| turns.serve(client, estimate, weight, next);
                let next = self.debt.edit(bucket, serve);
                self.debt.turns.serve(bucket, estimate, weight, next);
            }
        }
    }

    /// A request that was in service is over, and has cost `cost`.
    pub fn settle(&mut self, share: &Share, cost: Cost) {
        let Share { client, place, estimate, weight } = *share;
        match place {
            Place::Credit => self.credit.settle(client, estimate, weight, cost),
            Place::Debt(bucket) => {
                let settle = |turns: &mut Turns<_>| turns.settle(client, estimate, weight, cost);
                let next = self.debt.edit(bucket, settle);
                self.debt.turns.settle(bucket, estimate, weight, cost);
                self.debt.turns.set_head(bucket, next);
            }
        }
    }

    /// How many flows wait beside (and including) one of this place.
    pub fn waiting(&self, place: Place) -> usize {
        match place {
            Place::Credit => self.credit.waiting(),
            Place::Debt(_) => self.debt.turns.waiting(),
        }
    }

    /// How many flows and clients are remembered, of whatever kind.
    pub fn len(&self) -> usize {
        let clients: usize = self.debt.clients.values().map(Turns::len).sum();
        self.credit.len() + self.debt.turns.len() + clients
    }
}
