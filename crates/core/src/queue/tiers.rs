//! The two tiers: clients in credit, and buckets in debt with their clients.
//!
//! In credit the flow is the client. In debt it is the bucket that is latest, and within it the
//! clients take turns by the same rule: so one who shares a network with a crawler waits behind
//! one request of it, not behind all. Knows nothing of single requests: see `queue`.

use super::spread::Map;
use super::turns::{Head, Order, Tag, Turns, length};
use super::{Arrival, Place};
use crate::classify::Key;
use crate::key::KeyHash;
use crate::meter::estimate::RouteHash;
use crate::units::{Cost, Weight};
use alloc::collections::BTreeSet;

/// Clients and buckets that have gone, but are ahead of those that wait: so many are remembered.
const FLOWS_IDLE_MAX: usize = 4_096;
/// The same within one bucket.
const CLIENTS_IDLE_MAX: usize = 64;
/// Those in debt get one part in this many and one of what is sent to the backend, by cost, while
/// they wait. By number it could be nearly all, as theirs may be the costly ones.
const CREDIT_PARTS: u64 = 9;
/// When reserved slots have let pass so many requests of those in debt, they wait as well.
const OWED_MAX: u64 = 10;
/// How often what is in service is halved to say what is light beside it.
const HALVINGS: u32 = 1;
/// The same for the last reserved slot.
const HALVINGS_LAST: u32 = 3;
/// How many buckets are looked at for one that has a light client.
const LIGHT_MAX: usize = 8;

/// How often what is in service is halved to say what may go beside it, where so many reserved
/// slots are free.
fn halvings(free: usize) -> u32 {
    if free > 1 { HALVINGS } else { HALVINGS_LAST }
}

/// A request as far as taking turns needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub client: KeyHash,
    pub place: Place,
    pub estimate: Cost,
    pub is_guess: bool,
    pub route: Option<RouteHash>,
    pub weight: Weight,
    /// Its flow's finish tag, once it is in service.
    pub finish: Tag,
    /// In debt, that of its client among those of its bucket.
    pub inner: Tag,
    /// How many were with the backend once it was there.
    pub count: usize,
    /// Whether it had a reserved slot.
    pub beside: bool,
    /// Whether it asked for little beside what was there.
    pub is_light: bool,
}

impl Share {
    /// Of a request that comes, and belongs in this place.
    pub fn new(arrival: &Arrival, place: Place) -> Share {
        Share {
            client: arrival.client,
            place,
            estimate: arrival.estimate,
            is_guess: arrival.is_guess,
            route: arrival.route,
            weight: arrival.weight,
            finish: 0,
            inner: 0,
            count: 0,
            beside: false,
            is_light: false,
        }
    }

    /// What it adds to a tag.
    fn size(&self) -> Tag {
        length(self.estimate, self.weight)
    }
}

/// What is in service of a tier, or of a bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Service {
    count: usize,
    /// The largest finish tag; zero if there is nothing.
    last: Tag,
    /// The most that one of them adds to a tag.
    size: Tag,
}

impl Service {
    fn begin(&mut self, finish: Tag, size: Tag) {
        self.count += 1;
        self.raise(finish, size);
    }

    /// One of them has these now, which are no less than what it had.
    fn raise(&mut self, finish: Tag, size: Tag) {
        self.last = self.last.max(finish);
        self.size = self.size.max(size);
    }

    /// One with this tag and size is over; `others` are what is still in service.
    fn end(&mut self, finish: Tag, size: Tag, others: impl Iterator<Item = (Tag, Tag)>) {
        self.count = self.count.saturating_sub(1);
        if finish == self.last || size == self.size {
            (self.last, self.size) = (0, 0);
            others.for_each(|(finish, size)| self.raise(finish, size));
        }
    }
}

/// Buckets in debt, and the clients of each.
#[derive(Clone, Debug)]
struct Debtors {
    turns: Turns<Key>,
    buckets: Map<Key, Bucket>,
    /// Those in which a client waits that asks for less than one in service there, by how much.
    light: BTreeSet<(u32, Key)>,
}

/// The clients of one bucket in debt.
#[derive(Clone, Debug)]
struct Bucket {
    turns: Turns<KeyHash>,
    service: Service,
    /// As it stands in `Debtors::light`.
    lightness: Option<u32>,
}

impl Bucket {
    /// The client who may go beside what is in service.
    fn light(&self, halvings: u32) -> Option<KeyHash> {
        self.turns.fresh(self.service.last, self.service.size >> halvings).next()
    }

    /// How often what is in service can be halved until it is what such a client asks for.
    fn lightness_by_now(&self) -> Option<u32> {
        let size = self.turns.least_fresh(self.service.last)?;
        (self.service.size / size).checked_ilog2()
    }
}

impl Debtors {
    /// By finish tag among clients: these are of all sizes, and who asks for little now and then
    /// would wait for one request of each of the others.
    fn bucket(&mut self, key: Key) -> &mut Bucket {
        self.buckets.entry(key).or_insert_with(|| Bucket {
            turns: Turns::new(Order::Finish, CLIENTS_IDLE_MAX),
            service: Service::default(),
            lightness: None,
        })
    }

    /// Changes a bucket, or forgets it if it has nothing to do; its next request.
    fn edit(&mut self, key: Key, change: impl FnOnce(&mut Bucket)) -> Option<Head> {
        let bucket = self.bucket(key);
        change(bucket);
        let next = bucket.turns.next_head();
        let lightness = bucket.lightness_by_now();
        let before = core::mem::replace(&mut bucket.lightness, lightness);
        if bucket.turns.is_over() {
            self.buckets.remove(&key);
        }
        if before != lightness {
            before.map(|before| self.light.remove(&(before, key)));
            lightness.map(|lightness| self.light.insert((lightness, key)));
        }
        next
    }

    /// A bucket in which a client asks for so much less than one in service there, and which has
    /// not run ahead of others by more than `ahead`.
    fn with_light_client(&self, halvings: u32, ahead: Tag) -> Option<Key> {
        let light = self.light.iter().rev().take_while(|(lightness, _)| *lightness >= halvings);
        let mut near = light.take(LIGHT_MAX).filter(|(_, key)| self.turns.ahead(*key) <= ahead);
        near.next().map(|(_, key)| *key)
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
        Tiers {
            credit: Turns::new(Order::Start, FLOWS_IDLE_MAX),
            debt: Debtors {
                turns: Turns::new(Order::Start, FLOWS_IDLE_MAX),
                buckets: Map::default(),
                light: BTreeSet::new(),
            },
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

    /// Who may have a reserved slot, of which so many are free: those in credit with nothing in
    /// service there who would have gone before something that is, had they come in time, and ask
    /// for no more than half of it (an eighth, for the last of them). So these slots are for who
    /// uses little: a swarm that takes its turns one by one does not fill them, not even if some
    /// of its requests are larger than others. One who asks for much may be there as well while
    /// all the others are in debt. Nobody, while those in debt have been passed over for long.
    pub fn fresh(&self, free: usize) -> impl Iterator<Item = KeyHash> {
        let bound = match (self.owes(OWED_MAX), self.debtors.count == 0) {
            (true, _) => 0,
            (false, true) => self.credits.last,
            (false, false) => Tag::MAX,
        };
        let size = match free > 1 && self.credits.count == 0 && self.debtors.count > 0 {
            true => Tag::MAX,
            false => self.credits.size.max(self.debtors.size) >> halvings(free),
        };
        self.credit.fresh(bound, size)
    }

    /// The same among those in debt: for the bucket whose turn it is, or one with nothing in
    /// service. Or else for a client with nothing in service in its bucket, among the clients
    /// there, if that bucket is not far ahead of others.
    pub fn fresh_in_debt(&self, free: usize) -> Option<(KeyHash, Place)> {
        let (turns, last) = (&self.debt.turns, self.debtors.last);
        let halvings = halvings(free);
        let size = self.debtors.size >> halvings;
        let is_light = |head: Head| length(head.estimate, head.weight) <= size;
        let next = || {
            let light = turns.next_head().is_some_and(is_light) && turns.next_finish() < Some(last);
            turns.next().filter(|_| light)
        };
        if let Some(key) = next().or_else(|| turns.fresh(last, size).next()) {
            let client = self.debt.buckets.get(&key)?.turns.next()?;
            return Some((client, Place::Debt(key)));
        }
        let key = self.debt.with_light_client(halvings, self.debtors.size.saturating_mul(2))?;
        let client = self.debt.buckets.get(&key)?.light(halvings)?;
        Some((client, Place::Debt(key)))
    }

    /// Whether what a request asks for is little beside the largest in service.
    pub fn is_light(&self, share: &Share) -> bool {
        share.size() <= self.credits.size.max(self.debtors.size) >> HALVINGS_LAST
    }

    /// A client's next request goes into service; `next` is its one after that.
    pub fn serve(&mut self, share: &mut Share, next: Option<Head>) {
        let Share { client, place, estimate, weight, .. } = *share;
        let size = share.size();
        match place {
            Place::Credit => {
                self.owe(Cost(estimate.0.div_ceil(CREDIT_PARTS)));
                share.finish = self.credit.serve(client, estimate, weight, next);
                self.credits.begin(share.finish, size);
            }
            Place::Debt(bucket) => {
                self.owed = self.owed.minus(estimate);
                let next = self.debt.edit(bucket, |bucket| {
                    share.inner = bucket.turns.serve(client, estimate, weight, next);
                    bucket.service.begin(share.inner, size);
                });
                share.finish = self.debt.turns.serve(bucket, estimate, weight, next);
                self.debtors.begin(share.finish, size);
            }
        }
    }

    /// A request comes and goes into service at once, while nobody waits.
    pub fn pass(&mut self, share: &mut Share) {
        let Share { client, place, estimate, weight, .. } = *share;
        let size = share.size();
        match place {
            Place::Credit => {
                self.owed = Cost::ZERO;
                share.finish = self.credit.pass(client, estimate, weight);
                self.credits.begin(share.finish, size);
            }
            Place::Debt(bucket) => {
                self.owed = self.owed.minus(estimate);
                let Bucket { turns, service, .. } = self.debt.bucket(bucket);
                share.inner = turns.pass(client, estimate, weight);
                service.begin(share.inner, size);
                share.finish = self.debt.turns.pass(bucket, estimate, weight);
                self.debtors.begin(share.finish, size);
            }
        }
    }

    /// A request that is in service will cost `estimate`, which is more than was thought.
    pub fn raise(&mut self, share: &mut Share, estimate: Cost) {
        let (Share { client, place, .. }, before) = (*share, share.size());
        let thought = core::mem::replace(&mut share.estimate, estimate);
        let (size, more) = (share.size(), share.size().saturating_sub(before));
        share.finish = share.finish.saturating_add(more);
        match place {
            Place::Credit => {
                self.credit.raise(client, more);
                self.credits.raise(share.finish, size);
            }
            Place::Debt(key) => {
                share.inner = share.inner.saturating_add(more);
                let next = self.debt.edit(key, |bucket| {
                    bucket.turns.raise(client, more);
                    bucket.service.raise(share.inner, size);
                });
                self.debt.turns.raise(key, more);
                self.debt.turns.set_head(key, next);
                self.debtors.raise(share.finish, size);
            }
        }
        self.correct_owed(place, thought, estimate);
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
        let Share { client, place, estimate, weight, finish, inner, .. } = *share;
        let size = share.size();
        match place {
            Place::Credit => {
                let alike = others.filter(|other| other.place == Place::Credit);
                self.credits.end(finish, size, alike.map(|other| (other.finish, other.size())));
                self.credit.settle(client, estimate, weight, cost);
            }
            Place::Debt(key) => {
                let alike = others.clone().filter(|other| other.place != Place::Credit);
                self.debtors.end(finish, size, alike.map(|other| (other.finish, other.size())));
                let next = self.debt.edit(key, |bucket| {
                    let alike = others.filter(|other| other.place == place);
                    let alike = alike.map(|other| (other.inner, other.size()));
                    bucket.service.end(inner, size, alike);
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
