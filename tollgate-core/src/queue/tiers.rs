//! The two tiers: clients in credit, and buckets in debt with their clients.
//!
//! In credit the flow is the client. In debt it is the bucket that is latest, and within it the
//! clients take turns by the same rule: so one who shares a network with a crawler waits behind
//! one request of it, not behind all. Knows nothing of single requests: see `queue`.

use super::Place;
use super::spread::Map;
use super::turns::{Head, Order, Tag, Turns};
use crate::classify::Key;
use crate::key::KeyHash;
use crate::units::{Cost, Weight};

/// Clients and buckets that have gone, but are ahead of those that wait: so many are remembered.
const FLOWS_IDLE_MAX: usize = 4_096;
/// The same within one bucket.
const CLIENTS_IDLE_MAX: usize = 64;
/// Those in debt get one part in this many and one of what is sent to the backend, by cost, while
/// they wait. By number it could be nearly all, as theirs may be the costly ones.
const CREDIT_PARTS: u64 = 9;
/// When reserved slots have let pass so many requests of those in debt, they wait as well.
const OWED_MAX: u64 = 10;

/// A request as far as taking turns needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub client: KeyHash,
    pub place: Place,
    pub estimate: Cost,
    pub weight: Weight,
    /// Its flow's finish tag, once it is in service.
    pub finish: Tag,
    /// In debt, that of its client among those of its bucket.
    pub inner: Tag,
}

/// What is in service of a tier, or of a bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Service {
    count: usize,
    /// The largest finish tag; zero if there is nothing.
    last: Tag,
}

impl Service {
    fn begin(&mut self, finish: Tag) {
        self.count += 1;
        self.last = self.last.max(finish);
    }

    /// Something with the tag `finish` is over; `others` is what is still in service.
    fn end(&mut self, finish: Tag, others: impl Iterator<Item = Tag>) {
        self.count = self.count.saturating_sub(1);
        if finish == self.last {
            self.last = others.max().unwrap_or(0);
        }
    }
}

/// Buckets in debt, and the clients of each.
#[derive(Clone, Debug)]
struct Debtors {
    turns: Turns<Key>,
    buckets: Map<Key, Bucket>,
}

/// The clients of one bucket in debt.
#[derive(Clone, Debug)]
struct Bucket {
    turns: Turns<KeyHash>,
    service: Service,
}

impl Debtors {
    /// By finish tag among clients: these are of all sizes, and who asks for little now and then
    /// would wait for one request of each of the others.
    fn bucket(&mut self, key: Key) -> &mut Bucket {
        self.buckets.entry(key).or_insert_with(|| Bucket {
            turns: Turns::new(Order::Finish, CLIENTS_IDLE_MAX),
            service: Service::default(),
        })
    }

    /// Changes a bucket, or forgets it if it has nothing to do; its next request.
    fn edit(&mut self, key: Key, change: impl FnOnce(&mut Bucket)) -> Option<Head> {
        let bucket = self.bucket(key);
        change(bucket);
        let next = bucket.turns.next_head();
        if bucket.turns.is_over() {
            self.buckets.remove(&key);
        }
        next
    }
}

/// Both tiers.
#[derive(Clone, Debug)]
pub(super) struct Tiers {
    credit: Turns<KeyHash>,
    debt: Debtors,
    /// What those in debt are to get for what went to those in credit while they waited.
    owed: Cost,
    /// What is in service of those in credit, and of those in debt.
    credits: Service,
    debtors: Service,
}

impl Tiers {
    pub fn new() -> Tiers {
        let debt =
            Debtors { turns: Turns::new(Order::Start, FLOWS_IDLE_MAX), buckets: Map::default() };
        Tiers {
            credit: Turns::new(Order::Start, FLOWS_IDLE_MAX),
            debt,
            owed: Cost::ZERO,
            credits: Service::default(),
            debtors: Service::default(),
        }
    }

    /// A client's next request; `None`: it does not wait there (any more).
    pub fn set_head(&mut self, client: KeyHash, place: Place, head: Option<Head>) {
        match place {
            Place::Credit => self.credit.set_head(client, head),
            Place::Debt(bucket) => {
                let next = self.debt.edit(bucket, |bucket| bucket.turns.set_head(client, head));
                self.debt.turns.set_head(bucket, next);
            }
        }
    }

    /// Whose turn it is: those in credit first, but for a tenth of the cost.
    pub fn next(&self) -> Option<(KeyHash, Place)> {
        let credit = || self.credit.next().map(|client| (client, Place::Credit));
        let debt = || {
            let bucket = self.debt.turns.next()?;
            let client = self.debt.buckets.get(&bucket)?.turns.next()?;
            Some((client, Place::Debt(bucket)))
        };
        if self.owes(1) { debt().or_else(credit) } else { credit().or_else(debt) }
    }

    /// Who may have a reserved slot: those in credit with nothing in service there who would have
    /// gone before something that is, had they come in time. So these slots are for those who use
    /// little, and a swarm that takes its turns one by one does not fill them. Nobody, while those
    /// in debt have been passed over for long.
    pub fn fresh(&self) -> impl Iterator<Item = KeyHash> {
        let bound = match (self.owes(OWED_MAX), self.debtors.count == 0) {
            (true, _) => 0,
            (false, true) => self.credits.last,
            (false, false) => Tag::MAX,
        };
        self.credit.fresh(bound)
    }

    /// The same among those in debt, for the bucket whose turn it is: a bucket may have several
    /// clients, so it may have something in service already. Or else for a client of that bucket
    /// with nothing in service, among the clients there.
    pub fn fresh_in_debt(&self) -> Option<(KeyHash, Place)> {
        let key = self.debt.turns.next()?;
        let bucket = self.debt.buckets.get(&key)?;
        let light = self.debt.turns.next_finish()? < self.debtors.last;
        let client = match light {
            true => bucket.turns.next(),
            false => bucket.turns.fresh(bucket.service.last).next(),
        };
        Some((client?, Place::Debt(key)))
    }

    /// A client's next request goes into service; `next` is its one after that.
    pub fn serve(&mut self, share: &mut Share, next: Option<Head>) {
        let Share { client, place, estimate, weight, .. } = *share;
        match place {
            Place::Credit => {
                self.owe(Cost(estimate.0.div_ceil(CREDIT_PARTS)));
                share.finish = self.credit.serve(client, estimate, weight, next);
                self.credits.begin(share.finish);
            }
            Place::Debt(bucket) => {
                self.owed = self.owed.minus(estimate);
                let next = self.debt.edit(bucket, |bucket| {
                    share.inner = bucket.turns.serve(client, estimate, weight, next);
                    bucket.service.begin(share.inner);
                });
                share.finish = self.debt.turns.serve(bucket, estimate, weight, next);
                self.debtors.begin(share.finish);
            }
        }
    }

    /// A request comes and goes into service at once, while nobody waits.
    pub fn pass(&mut self, share: &mut Share) {
        let Share { client, place, estimate, weight, .. } = *share;
        match place {
            Place::Credit => {
                self.owed = Cost::ZERO;
                share.finish = self.credit.pass(client, estimate, weight);
                self.credits.begin(share.finish);
            }
            Place::Debt(bucket) => {
                self.owed = self.owed.minus(estimate);
                let Bucket { turns, service } = self.debt.bucket(bucket);
                share.inner = turns.pass(client, estimate, weight);
                service.begin(share.inner);
                share.finish = self.debt.turns.pass(bucket, estimate, weight);
                self.debtors.begin(share.finish);
            }
        }
    }

    /// Whether so many requests in debt, as the next one, are owed.
    fn owes(&self, requests: u64) -> bool {
        let next = self.debt.turns.next_head();
        next.is_some_and(|next| self.owed.0 >= next.estimate.0.max(1).saturating_mul(requests))
    }

    /// Those in debt are owed more, if any wait.
    fn owe(&mut self, more: Cost) {
        let Some(next) = self.debt.turns.next_head() else {
            self.owed = Cost::ZERO;
            return;
        };
        let most = Cost(next.estimate.0.max(1).saturating_mul(OWED_MAX));
        self.owed = self.owed.plus(more).min(most);
    }

    /// A request that was in service is over, and has cost `cost`; `others` still are in service.
    pub fn settle<'a>(
        &mut self,
        share: &Share,
        cost: Cost,
        others: impl Iterator<Item = &'a Share> + Clone,
    ) {
        let Share { client, place, estimate, weight, finish, inner } = *share;
        match place {
            Place::Credit => {
                let alike = others.filter(|other| other.place == Place::Credit);
                self.credits.end(finish, alike.map(|other| other.finish));
                self.credit.settle(client, estimate, weight, cost);
            }
            Place::Debt(key) => {
                let alike = others.clone().filter(|other| other.place != Place::Credit);
                self.debtors.end(finish, alike.map(|other| other.finish));
                let next = self.debt.edit(key, |bucket| {
                    let alike = others.filter(|other| other.place == place);
                    bucket.service.end(inner, alike.map(|other| other.inner));
                    bucket.turns.settle(client, estimate, weight, cost);
                });
                self.debt.turns.settle(key, estimate, weight, cost);
                self.debt.turns.set_head(key, next);
            }
        }
        self.correct_owed(place, estimate, cost);
    }

    /// What was owed for an estimate is owed for the true cost.
    fn correct_owed(&mut self, place: Place, estimate: Cost, cost: Cost) {
        let (more, less) = (cost.minus(estimate), estimate.minus(cost));
        let (more, less) = match place {
            Place::Credit => (more.0.div_ceil(CREDIT_PARTS), less.0 / CREDIT_PARTS),
            Place::Debt(_) => (less.0, more.0),
        };
        self.owed = self.owed.minus(Cost(less));
        if more > 0 {
            self.owe(Cost(more));
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
        let clients: usize = self.debt.buckets.values().map(|bucket| bucket.turns.len()).sum();
        self.credit.len() + self.debt.turns.len() + clients
    }
}
