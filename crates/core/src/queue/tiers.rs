//! The tiers of the queue: clients in credit, and buckets in debt with their clients. Under
//! pressure, clients in credit that were not here before wait in `lines` between the two.
//!
//! In credit, the flow is the client. In debt, the flow is the bucket that is furthest in debt, and
//! the clients of a bucket take turns among themselves by the same rule. So a client that shares a
//! network with a crawler waits behind one request of the crawler, not behind all of them. This
//! module does not hold single requests: see `queue`.

use super::lines::Lines;
use super::place::{Line, Place};
use super::prehashed::Map;
use super::request::DebtFlow;
use super::share::QueuedShare;
use super::turns::{HeadRequest, Tag, TurnOrder, Turns, length};
use crate::key::KeyHash;
use crate::units::Cost;
use alloc::collections::BTreeSet;
use core::cmp::Ordering;

/// The number of flows of each tier that are remembered although they are idle, because their tags
/// are ahead of the virtual time.
const FLOWS_IDLE_MAX: usize = 4_096;
/// The number of idle clients that are remembered within one bucket.
const CLIENTS_IDLE_MAX: usize = 64;
/// The tier in debt gets one part of the cost for this many parts that go to the tier in credit,
/// while requests wait in it: a tenth. By the number of requests it could get nearly everything,
/// because the requests in debt may be the costly ones.
const CREDIT_PARTS_PER_DEBT_PART: u64 = 9;
/// The upper bound of what the tier in debt is owed, in units of its next request. At this bound
/// clients in credit may no longer use reserved slots.
const OWED_REQUESTS_MAX: u64 = 10;
/// A request is light if it is no larger than the largest in service, halved this many times.
const LIGHT_HALVINGS: u32 = 1;
/// The number of halvings if only the last reserved slot is free.
const LIGHT_HALVINGS_LAST_SLOT: u32 = 3;
/// The number of buckets that are examined in search of one with a light client.
const LIGHT_BUCKETS_EXAMINED_MAX: usize = 8;

const _: () = {
    assert!(CREDIT_PARTS_PER_DEBT_PART + 1 == 10, "its doc says a tenth");
    assert!(LIGHT_HALVINGS <= LIGHT_HALVINGS_LAST_SLOT, "the last slot is for lighter requests");
};

/// The number of halvings that defines a light request, if `free` reserved slots are free.
fn halvings(free: usize) -> u32 {
    if free > 1 { LIGHT_HALVINGS } else { LIGHT_HALVINGS_LAST_SLOT }
}

/// The requests in service of one tier, or of one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct InService {
    count: usize,
    /// The largest finish tag in service; zero if it serves no request.
    last: Largest,
    /// The largest length in service, as it is added to a tag.
    size: Largest,
}

/// The largest of some values, and how many of them have it, at least. While several do, the end of
/// one need not compare all others.
#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    value: Tag,
    count: usize,
}

impl Largest {
    fn add(&mut self, value: Tag) {
        match value.cmp(&self.value) {
            Ordering::Less => {}
            Ordering::Equal => self.count += 1,
            Ordering::Greater => *self = Largest { value, count: 1 },
        }
    }

    /// A value has grown to this one. If it was the largest before, it is counted already.
    fn raise(&mut self, value: Tag) {
        if value > self.value {
            *self = Largest { value, count: 1 };
        }
    }

    /// Removes a value. Returns whether the others have to be compared.
    fn remove(&mut self, value: Tag) -> bool {
        self.count = self.count.saturating_sub(usize::from(value == self.value));
        self.count == 0
    }
}

impl InService {
    fn begin(&mut self, finish: Tag, size: Tag) {
        self.count += 1;
        self.last.add(finish);
        self.size.add(size);
    }

    /// Notes that a request in service now has this tag and this size. Both must be no less than
    /// before.
    fn raise(&mut self, finish: Tag, size: Tag) {
        self.last.raise(finish);
        self.size.raise(size);
    }

    /// Notes that the request with this tag and size has ended; `others` are still in service.
    fn end(&mut self, finish: Tag, size: Tag, others: impl Iterator<Item = (Tag, Tag)>) {
        self.count = self.count.saturating_sub(1);
        if self.last.remove(finish) | self.size.remove(size) {
            (self.last, self.size) = (Largest::default(), Largest::default());
            others.for_each(|(finish, size)| {
                self.last.add(finish);
                self.size.add(size);
            });
        }
    }
}

/// The buckets in debt, and the clients of each.
///
/// Invariants: a bucket exists only while a request of it waits or runs. `light` has an entry for
/// exactly those buckets with a `lightness`, with that value.
#[derive(Clone, Debug)]
struct DebtTier {
    turns: Turns<DebtFlow>,
    buckets: Map<DebtFlow, DebtBucketTurns>,
    /// The buckets in which a waiting client asks for no more than the largest request in service
    /// there, with the number of halvings between the two.
    light: BTreeSet<(u32, DebtFlow)>,
}

/// One bucket in debt, with its clients.
#[derive(Clone, Debug)]
struct DebtBucketTurns {
    turns: Turns<KeyHash>,
    service: InService,
    /// Its entry in `DebtTier::light`, if there is one.
    lightness: Option<u32>,
}

impl DebtBucketTurns {
    /// The client that may go beside the requests in service of this bucket: the lightest one that
    /// has nothing in service.
    fn light(&self, halvings: u32) -> Option<KeyHash> {
        self.turns.fresh(self.service.last.value, self.service.size.value >> halvings).next()
    }

    /// How many times the largest size in service can be halved until it is that of the lightest
    /// client with nothing in service. `None`: no such client is waiting, or it asks for more.
    fn lightness_by_now(&self) -> Option<u32> {
        let size = self.turns.least_fresh(self.service.last.value)?;
        (self.service.size.value / size).checked_ilog2()
    }
}

impl DebtTier {
    /// The bucket of `key`, created if needed. Its clients are ordered by finish tag: their
    /// requests differ in size, and by start tag a client that asks for little now and then would
    /// wait for one request of each other client.
    fn bucket(&mut self, key: DebtFlow) -> &mut DebtBucketTurns {
        self.buckets.entry(key).or_insert_with(|| DebtBucketTurns {
            turns: Turns::new(TurnOrder::Finish, CLIENTS_IDLE_MAX),
            service: InService::default(),
            lightness: None,
        })
    }

    /// Changes a bucket and keeps `light` up to date. Forgets the bucket if no request of it waits
    /// or runs. Returns the bucket's next request.
    fn edit(
        &mut self,
        key: DebtFlow,
        change: impl FnOnce(&mut DebtBucketTurns),
    ) -> Option<HeadRequest> {
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

    /// A bucket with a client that is light by at least `halvings`, and which is not ahead of other
    /// buckets by more than `ahead`. Only the [`LIGHT_BUCKETS_EXAMINED_MAX`] lightest are examined.
    fn with_light_client(&self, halvings: u32, ahead: Tag) -> Option<DebtFlow> {
        let light = self.light.iter().rev().take_while(|(lightness, _)| *lightness >= halvings);
        let mut near = light
            .take(LIGHT_BUCKETS_EXAMINED_MAX)
            .filter(|(_, key)| self.turns.ahead(*key) <= ahead);
        near.next().map(|(_, key)| *key)
    }
}

/// The cost that a tier is still to get, for what went to those before it while it waited.
#[derive(Clone, Copy, Debug, Default)]
struct Owed(Cost);

impl Owed {
    /// Adds `more`, if a request waits in the tier; else it is owed nothing. `next`: the
    /// estimate of that request.
    fn add(&mut self, more: Cost, next: Option<Cost>) {
        let most = |next: Cost| Cost(next.0.max(1).saturating_mul(OWED_REQUESTS_MAX));
        self.0 = next.map_or(Cost::ZERO, |next| self.0.plus(more).min(most(next)));
    }

    fn take(&mut self, less: Cost) {
        self.0 = self.0.minus(less);
    }

    /// Whether it is owed the cost of this many requests like its next one.
    fn covers(self, requests: u64, next: Option<Cost>) -> bool {
        next.is_some_and(|next| self.0.0 >= next.0.max(1).saturating_mul(requests))
    }
}

/// The part of a cost that is owed to a tier behind.
fn owed_part(cost: Cost) -> Cost {
    Cost(cost.0.div_ceil(CREDIT_PARTS_PER_DEBT_PART))
}

/// The scheduler of all tiers.
#[derive(Clone, Debug)]
pub(super) struct Tiers {
    credit: Turns<KeyHash>,
    lines: Lines,
    debt: DebtTier,
    /// What the tier in debt is owed for what went to others, and the lines for what went to the
    /// tier in credit.
    owed: Owed,
    owed_to_lines: Owed,
    /// What is in service in the tier in credit, in the lines, and (`debtors`) in the tier in debt.
    credits: InService,
    visitors: InService,
    debtors: InService,
    /// The number of requests in service in the tier in credit whose clients were not here before
    /// the pressure began.
    strangers: usize,
}

impl Tiers {
    pub fn new() -> Tiers {
        Tiers {
            credit: Turns::new(TurnOrder::Start, FLOWS_IDLE_MAX),
            lines: Lines::default(),
            debt: DebtTier {
                turns: Turns::new(TurnOrder::Start, FLOWS_IDLE_MAX),
                buckets: Map::default(),
                light: BTreeSet::new(),
            },
            owed: Owed::default(),
            owed_to_lines: Owed::default(),
            credits: InService::default(),
            visitors: InService::default(),
            debtors: InService::default(),
            strangers: 0,
        }
    }

    /// Sets the next request of a client; `None`: the client does not wait in `place` (any longer).
    pub fn set_head(&mut self, client: KeyHash, place: Place, head: Option<HeadRequest>) {
        match place {
            Place::Credit => self.credit.set_head(client, head),
            Place::Line(line) => self.lines.set_head(client, line, head),
            Place::Debt(bucket) => {
                let next = self.debt.edit(bucket, |bucket| bucket.turns.set_head(client, head));
                self.debt.turns.set_head(bucket, next);
            }
        }
    }

    /// The client that is next: those in credit first, then the lines, except for a tenth of the
    /// cost each. While there are lines, they and the tier in debt have at most `slots` slots.
    pub fn next(&self, slots: usize) -> Option<(KeyHash, Place)> {
        let credit = || self.credit.next().map(|client| (client, Place::Credit));
        if !self.leaves_room(slots) {
            return credit();
        }
        let lines = || self.lines.next().map(|(client, line)| (client, Place::Line(line)));
        let debt = || {
            let bucket = self.debt.turns.next()?;
            let client = self.debt.buckets.get(&bucket)?.turns.next()?;
            Some((client, Place::Debt(bucket)))
        };
        if self.owed.covers(1, self.next_in_debt()) {
            return debt();
        }
        if self.owed_to_lines.covers(1, self.lines.next_estimate()) {
            return lines();
        }
        credit().or_else(lines).or_else(debt)
    }

    /// Whether a request may be sent that is not of a client in credit that was here before.
    pub fn leaves_room(&self, slots: usize) -> bool {
        let none = self.lines.is_empty() && self.visitors.count == 0;
        none || self.has_room_for_lines(slots)
    }

    /// Whether those that were not here before, and those in debt, have fewer than `slots` slots.
    fn has_room_for_lines(&self, slots: usize) -> bool {
        self.visitors.count + self.strangers + self.debtors.count < slots
    }

    /// Notes that a request in service in the tier in credit is of a client that was not here
    /// before the pressure began. Its end must be noted with [`Tiers::note_stranger_end`].
    pub fn note_stranger(&mut self) {
        self.strangers += 1;
    }

    /// Notes that such a request has ended.
    pub fn note_stranger_end(&mut self) {
        self.strangers = self.strangers.saturating_sub(1);
    }

    /// Whether a request in a line may be sent at once, while no other waits.
    pub fn passes(&self, place: Place, slots: usize) -> bool {
        !matches!(place, Place::Line(_)) || self.has_room_for_lines(slots)
    }

    /// The estimated cost of the first waiting request of each client in credit, and of these those
    /// in lines.
    pub fn work(&self) -> (Cost, Cost) {
        (self.credit.work().plus(self.lines.work()), self.lines.work())
    }

    /// The cost of what the lines will get until the turn of a visitor that was served and now
    /// begins to wait.
    pub fn work_until_later(&self) -> Cost {
        self.lines.work_until_later()
    }

    /// The clients in credit that may have a reserved slot, if `free` such slots are free. These
    /// clients have nothing in service; their turn would have come before that of a request in
    /// service, had they arrived in time; and they ask for no more than half of the largest request
    /// in service (an eighth, if it is the last slot). So these slots are for clients that use
    /// little: a swarm that takes its turns one by one does not fill them, not even if some of its
    /// requests are larger than others. A client that asks for much may have one too, except the
    /// last, if all requests in service are in debt or of clients that were not here before.
    /// Returns none if the tier in debt is owed [`OWED_REQUESTS_MAX`] requests.
    pub fn fresh(&self, free: usize) -> impl Iterator<Item = KeyHash> {
        let others = self.debtors.count + self.visitors.count;
        let bound = self.least_credit();
        let size = match free > 1 && self.credits.count == 0 && others > 0 {
            true => Tag::MAX,
            false => self.largest() >> halvings(free),
        };
        self.credit.fresh(bound, size)
    }

    /// The client in a line that may go beside the others or before them: its request is light
    /// compared with the largest one in service. `free`: the number of free slots; the lines have
    /// at most `slots`.
    pub fn fresh_in_lines(&self, free: usize, slots: usize) -> Option<(KeyHash, Place)> {
        let free = free.min(slots.saturating_sub(self.visitors.count));
        if free == 0 {
            return None;
        }
        let (client, line) = self.lines.smallest(self.largest() >> halvings(free))?;
        Some((client, Place::Line(line)))
    }

    /// The client in a line that is next, if the lines may have another of `slots` slots.
    pub fn next_in_lines(&self, slots: usize) -> Option<(KeyHash, Place)> {
        let (client, line) = self.lines.next().filter(|_| self.leaves_room(slots))?;
        Some((client, Place::Line(line)))
    }

    /// The largest length in service.
    fn largest(&self) -> Tag {
        self.credits.size.value.max(self.visitors.size.value).max(self.debtors.size.value)
    }

    /// Clients in credit that have used less than another one with requests in service, or are
    /// at most a few requests ahead, in the order of their turns. So a client that uses little need
    /// not wait if two of its requests come at once. Returns none if the tier in debt is owed
    /// [`OWED_REQUESTS_MAX`] requests.
    pub fn behind_others(&self) -> impl Iterator<Item = KeyHash> {
        let bound = Some(self.least_credit()).filter(|bound| *bound > 0);
        bound.into_iter().flat_map(|bound| self.credit.behind(bound))
    }

    /// Whether the same holds for the client of a request in service, which has it from a place in
    /// credit.
    pub fn is_behind_others(&self, share: &QueuedShare) -> bool {
        share.place == Place::Credit
            && self.credit.is_behind(share.client, share.size(), self.least_credit())
    }

    /// The finish tag below which a client in credit may go before others.
    fn least_credit(&self) -> Tag {
        let others = self.debtors.count + self.visitors.count + self.strangers;
        let owes = self.owed.covers(OWED_REQUESTS_MAX, self.next_in_debt());
        match (owes, others == 0) {
            (true, _) => 0,
            (false, true) => self.credits.last.value,
            (false, false) => Tag::MAX,
        }
    }

    fn next_in_debt(&self) -> Option<Cost> {
        self.debt.turns.next_head().map(|next| next.estimate)
    }

    /// The client in debt that may have a reserved slot, by the same rules: in the bucket that is
    /// next, or in a bucket with nothing in service. Otherwise a client with nothing in service,
    /// compared with the other clients of its bucket, if that bucket is not far ahead of others.
    pub fn fresh_in_debt(&self, free: usize) -> Option<(KeyHash, Place)> {
        let (turns, last) = (&self.debt.turns, self.debtors.last.value);
        let halvings = halvings(free);
        let size = self.debtors.size.value >> halvings;
        let is_light = |head: HeadRequest| length(head.estimate, head.weight) <= size;
        let next = || {
            let light = turns.next_head().is_some_and(is_light) && turns.next_finish() < Some(last);
            turns.next().filter(|_| light)
        };
        if let Some(key) = next().or_else(|| turns.fresh(last, size).next()) {
            let client = self.debt.buckets.get(&key)?.turns.next()?;
            return Some((client, Place::Debt(key)));
        }
        let key =
            self.debt.with_light_client(halvings, self.debtors.size.value.saturating_mul(2))?;
        let client = self.debt.buckets.get(&key)?.light(halvings)?;
        Some((client, Place::Debt(key)))
    }

    /// Whether a request is light compared with the largest one in service.
    pub fn is_light(&self, share: &QueuedShare) -> bool {
        share.size() <= self.largest() >> LIGHT_HALVINGS_LAST_SLOT
    }

    /// Puts a client's next request into service; `next` is the one after it.
    pub fn serve(&mut self, share: &mut QueuedShare, next: Option<HeadRequest>) {
        let QueuedShare { client, place, estimate, .. } = *share;
        let size = share.request_size();
        match place {
            Place::Credit => {
                self.owe(owed_part(estimate));
                self.owed_to_lines.add(owed_part(estimate), self.lines.next_estimate());
                share.finish = self.credit.serve(client, size, next);
                self.credits.begin(share.finish, size.length);
            }
            Place::Line(line) => {
                self.owe(owed_part(estimate));
                self.owed_to_lines.take(estimate);
                self.lines.set_head(client, line, next);
                self.lines.charge(line, estimate, Cost::ZERO);
                self.visitors.begin(0, size.length);
            }
            Place::Debt(bucket) => {
                self.owed.take(estimate);
                let next = self.debt.edit(bucket, |bucket| {
                    share.inner = bucket.turns.serve(client, size, next);
                    bucket.service.begin(share.inner, size.length);
                });
                share.finish = self.debt.turns.serve(bucket, size, next);
                self.debtors.begin(share.finish, size.length);
            }
        }
    }

    /// Puts a request into service that has just arrived, while no other waits.
    pub fn pass(&mut self, share: &mut QueuedShare) {
        let QueuedShare { client, place, estimate, .. } = *share;
        let size = share.request_size();
        match place {
            Place::Credit => {
                (self.owed, self.owed_to_lines) = (Owed::default(), Owed::default());
                share.finish = self.credit.pass(client, size);
                self.credits.begin(share.finish, size.length);
            }
            Place::Line(_) => {
                (self.owed, self.owed_to_lines) = (Owed::default(), Owed::default());
                self.visitors.begin(0, size.length);
            }
            Place::Debt(bucket) => {
                self.owed.take(estimate);
                let DebtBucketTurns { turns, service, .. } = self.debt.bucket(bucket);
                share.inner = turns.pass(client, size);
                service.begin(share.inner, size.length);
                share.finish = self.debt.turns.pass(bucket, size);
                self.debtors.begin(share.finish, size.length);
            }
        }
    }

    /// Raises the estimate of a request in service, which will cost more than expected.
    pub fn raise(&mut self, share: &mut QueuedShare, estimate: Cost) {
        let (QueuedShare { client, place, .. }, before) = (*share, share.size());
        let thought = core::mem::replace(&mut share.estimate, estimate);
        let more = share.size().saturating_sub(before);
        share.finish = share.finish.saturating_add(more);
        share.inner = share.inner.saturating_add(more);
        let ((finish, size), (inner, _)) = (share.in_service(), share.in_bucket());
        match place {
            Place::Credit => {
                self.credit.raise(client, more);
                self.credits.raise(finish, size);
            }
            Place::Line(_) => self.visitors.raise(finish, size),
            Place::Debt(key) => {
                let next = self.debt.edit(key, |bucket| {
                    bucket.turns.raise(client, more);
                    bucket.service.raise(inner, size);
                });
                self.debt.turns.raise(key, more);
                self.debt.turns.set_head(key, next);
                self.debtors.raise(finish, size);
            }
        }
        self.correct_owed(place, thought, estimate);
    }

    /// Notes that a request in service has cost more than estimated already. Its turn is settled
    /// when it ends.
    pub fn note_overrun(&mut self, share: &QueuedShare) {
        let (finish, size) = share.in_service();
        match share.place {
            Place::Credit => self.credits.raise(finish, size),
            Place::Line(_) => self.visitors.raise(finish, size),
            Place::Debt(key) => {
                let (inner, _) = share.in_bucket();
                let next = self.debt.edit(key, |bucket| bucket.service.raise(inner, size));
                self.debt.turns.set_head(key, next);
                self.debtors.raise(finish, size);
            }
        }
    }

    /// Adds to what the tier in debt is owed.
    fn owe(&mut self, more: Cost) {
        self.owed.add(more, self.next_in_debt());
    }

    /// Ends a request that was in service and has cost `cost`; `others` are still in service.
    pub fn settle<'a>(
        &mut self,
        share: &QueuedShare,
        cost: Cost,
        others: impl Iterator<Item = &'a QueuedShare> + Clone,
    ) {
        let QueuedShare { client, place, estimate, weight, .. } = *share;
        let (finish, size) = share.in_service();
        match place {
            Place::Credit => {
                let alike = others.filter(|other| other.place == Place::Credit);
                self.credits.end(finish, size, alike.map(QueuedShare::in_service));
                self.credit.settle(client, estimate, weight, cost);
            }
            Place::Line(_) => {
                let alike = others.filter(|other| matches!(other.place, Place::Line(_)));
                self.visitors.end(finish, size, alike.map(QueuedShare::in_service));
            }
            Place::Debt(key) => {
                let alike = others.clone().filter(|other| matches!(other.place, Place::Debt(_)));
                self.debtors.end(finish, size, alike.map(QueuedShare::in_service));
                let (inner, _) = share.in_bucket();
                let next = self.debt.edit(key, |bucket| {
                    let alike = others.filter(|other| other.place == place);
                    bucket.service.end(inner, size, alike.map(QueuedShare::in_bucket));
                    bucket.turns.settle(client, estimate, weight, cost);
                });
                self.debt.turns.settle(key, estimate, weight, cost);
                self.debt.turns.set_head(key, next);
            }
        }
        self.correct_owed(place, estimate, cost);
    }

    /// Corrects what the tiers are owed: an estimate was counted, and `cost` is right.
    fn correct_owed(&mut self, place: Place, estimate: Cost, cost: Cost) {
        let (more, less) = (cost.minus(estimate), estimate.minus(cost));
        if let Place::Line(line) = place {
            self.lines.charge(line, more, less);
            self.owed_to_lines.take(more);
        }
        let (more, less) = match place {
            Place::Credit | Place::Line(_) => {
                (owed_part(more), Cost(less.0 / CREDIT_PARTS_PER_DEBT_PART))
            }
            Place::Debt(_) => (less, more),
        };
        self.owed.take(less);
        if more > Cost::ZERO {
            self.owe(more);
        }
    }

    /// The number of flows that wait in the tier of `place`.
    pub fn waiting(&self, place: Place) -> usize {
        match place {
            Place::Credit => self.credit.waiting(),
            // Strangers are one flow, however many wait.
            Place::Line(Line::Strangers | Line::Burning) => 1,
            Place::Line(line) => self.lines.waiting(line),
            Place::Debt(_) => self.debt.turns.waiting(),
        }
    }

    /// The number of flows and clients that are remembered, in both tiers.
    pub fn len(&self) -> usize {
        let clients: usize = self.debt.buckets.values().map(|bucket| bucket.turns.len()).sum();
        self.credit.len() + self.debt.turns.len() + clients
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn fuzz_the_largest_in_service_is_that_of_all() {
        evenkeel_fuzz::fuzz().with_type::<Vec<(u8, u8)>>().for_each(|steps| {
            let (mut service, mut all) = (InService::default(), Vec::<(Tag, Tag)>::new());
            for (what, which) in steps {
                let (which, value) = (usize::from(*which), Tag::from(*what >> 6));
                match what % 3 {
                    0 => {
                        service.begin(value, value / 2);
                        all.push((value, value / 2));
                    }
                    1 if !all.is_empty() => {
                        let at = which % all.len();
                        all[at] = (all[at].0 + value, all[at].1.max(value));
                        service.raise(all[at].0, all[at].1);
                    }
                    _ if !all.is_empty() => {
                        let (finish, size) = all.swap_remove(which % all.len());
                        service.end(finish, size, all.iter().copied());
                    }
                    _ => {}
                }
                let most = |of: fn(&(Tag, Tag)) -> Tag| all.iter().map(of).max().unwrap_or(0);
                assert_eq!(service.last.value, most(|one| one.0));
                assert_eq!(service.size.value, most(|one| one.1));
                assert_eq!(service.count, all.len());
            }
        });
    }
}
