//! Start-time fair queueing among members (clients or buckets): Goyal, Vin, Cheng, 1996; several in
//! service at once: Jin, Chase, Kaur, 2004.
//!
//! ```text
//! start tag  = max(V when it began to wait + its own length, the member's last finish tag)
//! finish tag = start tag + length, corrected when the true cost is known
//! V          = the start tag last served; the least start tag is served first
//! length     = estimate / weight
//! ```
//!
//! A tag counts what a member has been given, and V is how far those who wait have come. A member
//! that begins to wait pays an entry fee: it starts its own length after V, as if it had just been
//! served one request like the one that it asks for. That is the end of the present round, where a
//! member that has just been served is as well. (At V itself it would be before all others. A swarm
//! with a new name for each request would always have one there, V would stand still, and a client
//! that was served once would wait for ever.) So no request waits longer than first come, first
//! served, and then for one round, in which each other member is served as much as this one asks
//! for, and one request more if it has several at once. A request that is no larger than the others
//! does not wait for that round either. A cancelled request has paid nothing, and leaves its place
//! to no other: the member's next request begins to wait then. Proof and figures: docs/adr/0005.

use super::guesses::FreeGuesses;
use super::prehashed::Map;
use super::request::RequestId;
use crate::units::{Cost, Time, Weight};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::hash::Hash;

/// A virtual time: cost divided by weight, in thousandths of nano-units, so that a large weight is
/// not rounded off.
pub(super) type Tag = u128;

/// The number of tag units in a nano-unit of cost.
const TAG_UNITS_PER_NANO: Tag = 1_000;

/// What `cost` adds to a tag. Never zero, or a member with free requests would be served for ever.
pub(super) fn length(cost: Cost, weight: Weight) -> Tag {
    let cost = Tag::from(cost.0.max(1));
    if weight == Weight::ONE {
        return cost * TAG_UNITS_PER_NANO;
    }
    cost * TAG_UNITS_PER_NANO * Tag::from(Weight::ONE.thousandths())
        / Tag::from(weight.thousandths())
}

/// The number of members that are examined in search of one that is light and not ahead, or that
/// has few in service.
const FRESH_EXAMINED_MAX: usize = 32;
/// A member that is this many requests ahead of V is not behind the others: its entry fee, the
/// request that paid it, and one more. With fewer, two requests at once keep each other from
/// reserved slots: a light client's p95 before models is then three times what it is alone.
const BEHIND_REQUESTS_MAX: Tag = 3;

/// The length that a request adds to tags.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestSize {
    pub length: Tag,
    /// Whether the length is a guess.
    pub is_guess: bool,
}

/// When a member began to wait.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// V at that time.
    at: Tag,
    /// Whether the member pays no fee as long as the cost of its request is a guess.
    is_free: bool,
}

impl Entry {
    /// The least start tag of a request that joins in this way.
    fn start(self, size: RequestSize) -> Tag {
        let fee = if self.is_free && size.is_guess { 0 } else { size.length };
        self.at.saturating_add(fee)
    }
}

/// The request that a member waits with: the first of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HeadRequest {
    /// Whether the cost is more than a guess. Among requests with equal tags, known costs come
    /// last, and then later requests.
    pub is_known: bool,
    pub id: RequestId,
    pub estimate: Cost,
    pub weight: Weight,
    /// Its place in a line, and since when it waits. Turns do not use them.
    pub base: Time,
    pub since: Time,
}

impl HeadRequest {
    fn length(&self) -> Tag {
        length(self.estimate, self.weight)
    }

    fn size(&self) -> RequestSize {
        RequestSize { length: self.length(), is_guess: !self.is_known }
    }
}

/// The order in which waiting members are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnOrder {
    /// By start tag.
    Start,
    /// By finish tag. Then a member that asks for little goes before one that asks for much, even
    /// in a round in which it has been served already. In return a member may run ahead of another
    /// by one more request.
    Finish,
}

/// A waiting member's position in the order. Of equal ranks, guesses come first, then the earlier
/// request (see [`HeadRequest`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueuedTurn<K> {
    rank: Tag,
    head: HeadRequest,
    start: Tag,
    key: K,
}

/// A member that waits and has nothing in service; ordered by size, the smallest request first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FreshMember<K> {
    size: Tag,
    /// The finish tag that the request would have without an entry fee: the fee is for a place
    /// among those that wait, and this is compared with what is in service.
    finish: Tag,
    key: K,
}

#[derive(Clone, Copy, Debug)]
struct TurnMember {
    /// `None`: the member has waited since it was last served, or does not wait.
    joined: Option<Entry>,
    finish: Tag,
    /// How much may be taken back from `finish`: the least amount by which it has put off a request
    /// that was served, since the member last had nothing in service.
    slack: Tag,
    running: usize,
    head: Option<HeadRequest>,
}

impl TurnMember {
    const ABSENT: TurnMember =
        TurnMember { joined: None, finish: 0, slack: Tag::MAX, running: 0, head: None };

    /// The start tag of a request, if it is the first of this member to be served.
    fn start(&self, size: RequestSize) -> Tag {
        self.finish.max(self.joined.map_or(0, |entry| entry.start(size)))
    }

    fn turn<K>(&self, key: K, order: TurnOrder) -> Option<QueuedTurn<K>> {
        let head = self.head?;
        let start = self.start(head.size());
        let rank = match order {
            TurnOrder::Start => start,
            TurnOrder::Finish => start + head.length(),
        };
        Some(QueuedTurn { rank, head, start, key })
    }

    /// The size and the tag of the request of the member, if it waits and has nothing in service.
    fn fresh<K>(&self, key: K) -> Option<FreshMember<K>> {
        let head = self.head.filter(|_| self.running == 0)?;
        let (size, joined) = (head.length(), self.joined.map_or(0, |entry| entry.at));
        Some(FreshMember { size, finish: self.finish.max(joined) + size, key })
    }

    /// Puts a request of the member into service. Returns its start tag.
    fn serve(&mut self, size: RequestSize) -> Tag {
        let start = self.start(size);
        if let Some(entry) = self.joined.take().filter(|_| self.running > 0) {
            self.slack = self.slack.min(self.finish.saturating_sub(entry.start(size)));
        }
        self.finish = start + size.length;
        self.running += 1;
        start
    }

    /// Whether the member neither waits nor has anything in service.
    fn is_idle(&self) -> bool {
        self.head.is_none() && self.running == 0
    }
}

/// The scheduler: members that take turns.
///
/// Invariants: `waiting` has one entry for each member with a `head`, and `fresh` one for each of
/// those with nothing in service, both with the tags that follow from the member's present state.
/// `running` is the sum over all members. `virtual_time` never decreases.
#[derive(Clone, Debug)]
pub(super) struct Turns<K> {
    order: TurnOrder,
    virtual_time: Tag,
    guesses: FreeGuesses,
    /// The largest finish tag so far.
    latest: Tag,
    members: Map<K, TurnMember>,
    waiting: BTreeSet<QueuedTurn<K>>,
    /// The members in `waiting` that have nothing in service.
    fresh: BTreeSet<FreshMember<K>>,
    /// The sum of the estimates of all heads.
    work: Cost,
    idle_max: usize,
    /// With more members than this, idle members are forgotten.
    full: usize,
    running: usize,
}

impl<K: Copy + Ord + Hash> Turns<K> {
    /// A scheduler without members. At least `idle_max` idle members that are ahead of V are
    /// remembered. In all, there are never more members than twice the larger of `idle_max` and the
    /// number that was left when idle ones were last forgotten.
    pub fn new(order: TurnOrder, idle_max: usize) -> Turns<K> {
        Turns {
            order,
            virtual_time: 0,
            guesses: FreeGuesses::default(),
            latest: 0,
            members: Map::default(),
            waiting: BTreeSet::new(),
            fresh: BTreeSet::new(),
            work: Cost::ZERO,
            idle_max,
            full: 2 * idle_max,
            running: 0,
        }
    }

    /// The member that is next.
    pub fn next(&self) -> Option<K> {
        self.waiting.first().map(|turn| turn.key)
    }

    /// The request of the member that is next.
    pub fn next_head(&self) -> Option<HeadRequest> {
        self.waiting.first().map(|turn| turn.head)
    }

    /// The finish tag that the request of the next member will have.
    pub fn next_finish(&self) -> Option<Tag> {
        let turn = self.waiting.first()?;
        Some(turn.start + turn.head.length())
    }

    /// The members that wait, have nothing in service, would have a finish tag below `bound`
    /// without an entry fee, and add no more than `size` to it; the smallest first. Only the
    /// [`FRESH_EXAMINED_MAX`] smallest are examined.
    pub fn fresh(&self, bound: Tag, size: Tag) -> impl Iterator<Item = K> {
        let small =
            self.fresh.iter().take_while(move |one| one.size <= size).take(FRESH_EXAMINED_MAX);
        small.filter(move |one| one.finish < bound).map(|one| one.key)
    }

    /// The waiting members that [`Turns::is_behind`] holds for, with their next requests, in the
    /// order of their turns. Only the first [`FRESH_EXAMINED_MAX`] are examined.
    pub fn behind(&self, bound: Tag) -> impl Iterator<Item = K> {
        let first = self.waiting.iter().take(FRESH_EXAMINED_MAX);
        let behind = first.filter(move |turn| self.is_behind(turn.key, turn.head.length(), bound));
        behind.map(|turn| turn.key)
    }

    /// Whether the last finish tag of a member that waits or has something in service is below
    /// `bound`, or less than [`BEHIND_REQUESTS_MAX`] requests of this `size` ahead of V. V does not
    /// move on with what a member gets out of turn, so it is never further ahead for that.
    pub fn is_behind(&self, key: K, size: Tag, bound: Tag) -> bool {
        let ahead = size.saturating_mul(BEHIND_REQUESTS_MAX);
        let bound = bound.max(self.virtual_time.saturating_add(ahead));
        self.members.get(&key).is_some_and(|one| one.finish < bound)
    }

    /// The smallest size among members that wait, have nothing in service and would have a finish
    /// tag below `bound` without an entry fee. Only the [`FRESH_EXAMINED_MAX`] smallest are
    /// examined.
    pub fn least_fresh(&self, bound: Tag) -> Option<Tag> {
        self.fresh
            .iter()
            .take(FRESH_EXAMINED_MAX)
            .find(|one| one.finish < bound)
            .map(|one| one.size)
    }

    /// How far the member's last finish tag is ahead of V; zero if it is not.
    pub fn ahead(&self, key: K) -> Tag {
        let finish = self.members.get(&key).map_or(0, |member| member.finish);
        finish.saturating_sub(self.virtual_time)
    }

    /// The number of members that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The estimated cost of the first waiting request of each member.
    pub fn work(&self) -> Cost {
        self.work
    }

    /// Whether no member waits or has a request in service, so that all members can be forgotten.
    pub fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }

    /// The number of members that are remembered.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Sets the member's next request; `None`: the member does not wait (any longer).
    pub fn set_head(&mut self, key: K, head: Option<HeadRequest>) {
        let member = self.members.get(&key);
        if head.is_none() && member.is_none() {
            return;
        }
        let waits = member.is_some_and(|member| member.head.is_some());
        let entry = head.filter(|_| !waits).map(|head| self.enter(head.size()));
        self.edit(key, |member| {
            if waits != head.is_some() {
                member.joined = entry;
            }
            member.head = head;
        });
        self.forget();
    }

    /// The entry of a member that begins to wait with such a request.
    fn enter(&mut self, size: RequestSize) -> Entry {
        let at = self.virtual_time;
        let is_free = size.is_guess && self.guesses.admits(at, size.length);
        Entry { at, is_free }
    }

    /// Puts a request of the member into service; `next` is the one after it. Returns its finish
    /// tag.
    pub fn serve(&mut self, key: K, size: RequestSize, next: Option<HeadRequest>) -> Tag {
        let start = self.edit(key, |member| {
            member.head = next;
            member.serve(size)
        });
        self.advance_virtual_time(start);
        start + size.length
    }

    /// Puts a request into service that has just arrived, while no member waits: the same as
    /// `set_head` and `serve` together, but cheaper. Returns its finish tag.
    pub fn pass(&mut self, key: K, size: RequestSize) -> Tag {
        let entry = self.enter(size);
        let member = self.members.entry(key).or_insert(TurnMember::ABSENT);
        member.joined = Some(entry);
        let start = member.serve(size);
        self.latest = self.latest.max(member.finish);
        self.running += 1;
        self.advance_virtual_time(start);
        start + size.length
    }

    /// Adds `more` to the member's tag, because a request of it in service costs more than
    /// expected.
    pub fn raise(&mut self, key: K, more: Tag) {
        self.edit(key, |member| member.finish = member.finish.saturating_add(more));
    }

    /// Ends a request that was in service and has cost `cost`, and corrects the member's tag. A
    /// correction downwards gives back no more than what the request itself had added to the tag:
    /// the part that a later `max` with V would have absorbed anyway stays. So a member gains
    /// nothing by opening requests and cancelling them.
    pub fn settle(&mut self, key: K, estimate: Cost, weight: Weight, cost: Cost) {
        let (was, is) = (length(estimate, weight), length(cost, weight));
        self.edit(key, |member| {
            let back = was.saturating_sub(is).min(member.slack).min(member.finish);
            member.finish = member.finish.saturating_add(is.saturating_sub(was)) - back;
            member.running = member.running.saturating_sub(1);
            member.slack = if member.running == 0 { Tag::MAX } else { member.slack - back };
        });
        self.forget();
    }

    /// Advances V after a request with this start tag was served.
    fn advance_virtual_time(&mut self, start: Tag) {
        // If a member was served out of turn (in a reserved slot), V does not overtake those that
        // wait.
        let least = self.waiting.first().map_or(start, |turn| turn.start.min(start));
        self.virtual_time = self.virtual_time.max(least);
        self.forget();
    }

    /// Changes a member and keeps the invariants of all orders. Every change goes through here,
    /// except `pass`.
    fn edit<R>(&mut self, key: K, change: impl FnOnce(&mut TurnMember) -> R) -> R {
        let order = self.order;
        let member = self.members.entry(key).or_insert(TurnMember::ABSENT);
        let (turn, fresh) = (member.turn(key, order), member.fresh(key));
        self.running -= member.running;
        let work = |member: &TurnMember| member.head.map_or(Cost::ZERO, |head| head.estimate);
        self.work = self.work.minus(work(member));
        let result = change(member);
        self.running += member.running;
        self.work = self.work.plus(work(member));
        self.latest = self.latest.max(member.finish);
        replace(&mut self.waiting, turn, member.turn(key, order));
        replace(&mut self.fresh, fresh, member.fresh(key));
        result
    }

    /// Forgets members that equal a new one, and those least ahead of V if there are too many. A
    /// member equals a new one if it does not wait, has nothing in service and is not ahead of V.
    /// Done only when the number of members has doubled, so it costs a request next to nothing.
    fn forget(&mut self) {
        if self.is_over() {
            self.virtual_time = self.virtual_time.max(self.latest);
            self.members.clear();
        } else if self.members.len() > self.full {
            self.forget_idle();
        }
    }

    fn forget_idle(&mut self) {
        let virtual_time = self.virtual_time;
        self.members.retain(|_, member| !member.is_idle() || member.finish > virtual_time);
        let idle = self.members.iter().filter(|(_, member)| member.is_idle());
        let mut idle: Vec<(Tag, K)> = idle.map(|(key, member)| (member.finish, *key)).collect();
        let too_many = idle.len().saturating_sub(self.idle_max);
        if too_many > 0 {
            idle.select_nth_unstable(too_many - 1);
            for (_, key) in &idle[..too_many] {
                self.members.remove(key);
            }
        }
        self.full = 2 * self.members.len().max(self.idle_max);
    }
}

/// Puts `after` into `set` in place of `before`.
fn replace<T: Ord>(set: &mut BTreeSet<T>, before: Option<T>, after: Option<T>) {
    if before == after {
        return;
    }
    before.map(|before| set.remove(&before));
    after.map(|after| set.insert(after));
}

#[cfg(test)]
mod tests;
