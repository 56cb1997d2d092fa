//! Start-time fair queueing among members of any kind (clients or buckets).
//!
//! ```text
//! start tag  = max(V when it began to wait, its last finish tag)
//! finish tag = start tag + estimate / weight, corrected when the true cost is known
//! V          = the start tag last served; the least start tag is served first
//! ```
//!
//! With `TurnOrder::Finish` the least finish tag is served first. Then a member that asks for
//! little goes before one that asks for much, even in a round in which it has been served already.
//! In return a member may run ahead of another by one more request.
//!
//! (Goyal, Vin, Cheng, 1996; several in service at once: Jin, Chase, Kaur, 2004.) A member that
//! does not wait, has nothing in service and is not ahead of V equals one that never existed, so it
//! is forgotten. Of idle members that are ahead of V, a limited number is remembered, and those
//! least ahead are forgotten. Both are done only when the number of members has doubled, so they
//! cost a request next to nothing.
//!
//! A correction downwards gives back no more than what the request itself had added to its member's
//! tag: the part that a later `max` with V would have absorbed anyway stays. So a member gains
//! nothing by opening requests and cancelling them.

use super::prehashed::Map;
use super::request::RequestId;
use crate::units::{Cost, Weight};
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

/// The number of light members that are examined in search of one that is not ahead.
const FRESH_EXAMINED_MAX: usize = 32;

/// The request that a member waits with: the first of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HeadRequest {
    /// Whether the cost is more than a guess. Among requests with equal tags, known costs come
    /// last.
    pub is_known: bool,
    pub estimate: Cost,
    pub id: RequestId,
    pub weight: Weight,
}

/// The order in which waiting members are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnOrder {
    /// By start tag. Among equal tags guesses come first, then smaller requests.
    Start,
    /// By finish tag.
    Finish,
}

/// A waiting member's position in the order. Members with equal ranks are ordered by their requests
/// (see [`HeadRequest`]), the earlier request first.
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
    /// The finish tag that the request will have if it is served now.
    finish: Tag,
    key: K,
}

#[derive(Clone, Copy, Debug)]
struct TurnMember {
    /// V when the member began to wait: its start tag is no earlier.
    floor: Tag,
    finish: Tag,
    /// How much may be taken back from `finish`: the least distance between `finish` and V at the
    /// times when the member began to wait, since it last had nothing in service.
    slack: Tag,
    running: usize,
    head: Option<HeadRequest>,
}

impl TurnMember {
    const ABSENT: TurnMember =
        TurnMember { floor: 0, finish: 0, slack: Tag::MAX, running: 0, head: None };

    fn start(&self) -> Tag {
        self.floor.max(self.finish)
    }

    fn turn<K>(&self, key: K, order: TurnOrder) -> Option<QueuedTurn<K>> {
        let head = self.head?;
        let rank = match order {
            TurnOrder::Start => self.start(),
            TurnOrder::Finish => self.finish_of(head),
        };
        Some(QueuedTurn { rank, head, start: self.start(), key })
    }

    /// The size and the tag of the request of the member, if it waits and has nothing in service.
    fn fresh<K>(&self, key: K) -> Option<FreshMember<K>> {
        let head = self.head.filter(|_| self.running == 0)?;
        Some(FreshMember {
            size: length(head.estimate, head.weight),
            finish: self.finish_of(head),
            key,
        })
    }

    fn finish_of(&self, head: HeadRequest) -> Tag {
        self.start() + length(head.estimate, head.weight)
    }

    /// Notes that the member begins to wait at this virtual time.
    fn join(&mut self, virtual_time: Tag) {
        self.floor = virtual_time;
        if self.running > 0 {
            self.slack = self.slack.min(self.finish.saturating_sub(virtual_time));
        }
    }

    /// Puts a request of the member into service. Returns its start tag.
    fn serve(&mut self, estimate: Cost, weight: Weight) -> Tag {
        let start = self.start();
        self.floor = 0;
        self.finish = start + length(estimate, weight);
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
    /// The largest finish tag so far.
    latest: Tag,
    members: Map<K, TurnMember>,
    waiting: BTreeSet<QueuedTurn<K>>,
    /// The members in `waiting` that have nothing in service.
    fresh: BTreeSet<FreshMember<K>>,
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
            latest: 0,
            members: Map::default(),
            waiting: BTreeSet::new(),
            fresh: BTreeSet::new(),
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
        Some(turn.start + length(turn.head.estimate, turn.head.weight))
    }

    /// The members that wait, have nothing in service, will have a finish tag below `bound`, and
    /// add no more than `size` to it; the smallest first. Only the [`FRESH_EXAMINED_MAX`] smallest
    /// are examined.
    pub fn fresh(&self, bound: Tag, size: Tag) -> impl Iterator<Item = K> {
        let small =
            self.fresh.iter().take_while(move |one| one.size <= size).take(FRESH_EXAMINED_MAX);
        small.filter(move |one| one.finish < bound).map(|one| one.key)
    }

    /// The smallest size among members that wait, have nothing in service and will have a finish
    /// tag below `bound`. Only the [`FRESH_EXAMINED_MAX`] smallest are examined.
    pub fn least_fresh(&self, bound: Tag) -> Option<Tag> {
        self.fresh
            .iter()
            .take(FRESH_EXAMINED_MAX)
            .find(|one| one.finish < bound)
            .map(|one| one.size)
    }

    /// How far the member's next start tag is ahead of V; zero if it is not.
    pub fn ahead(&self, key: K) -> Tag {
        let start = self.members.get(&key).map_or(0, TurnMember::start);
        start.saturating_sub(self.virtual_time)
    }

    /// The number of members that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
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
        if head.is_none() && !self.members.contains_key(&key) {
            return;
        }
        let virtual_time = self.virtual_time;
        self.edit(key, |member| {
            if head.is_some() && member.head.is_none() {
                member.join(virtual_time);
            }
            member.head = head;
        });
        self.forget();
    }

    /// Puts a request of the member into service; `next` is the one after it. Returns its finish
    /// tag.
    pub fn serve(
        &mut self,
        key: K,
        estimate: Cost,
        weight: Weight,
        next: Option<HeadRequest>,
    ) -> Tag {
        let start = self.edit(key, |member| {
            member.head = next;
            member.serve(estimate, weight)
        });
        self.advance_virtual_time(start);
        start + length(estimate, weight)
    }

    /// Puts a request into service that has just arrived, while no member waits: the same as
    /// `set_head` and `serve` together, but cheaper. Returns its finish tag.
    pub fn pass(&mut self, key: K, estimate: Cost, weight: Weight) -> Tag {
        let member = self.members.entry(key).or_insert(TurnMember::ABSENT);
        member.join(self.virtual_time);
        let start = member.serve(estimate, weight);
        self.latest = self.latest.max(member.finish);
        self.running += 1;
        self.advance_virtual_time(start);
        start + length(estimate, weight)
    }

    /// Adds `more` to the member's tag, because a request of it in service costs more than
    /// expected.
    pub fn raise(&mut self, key: K, more: Tag) {
        self.edit(key, |member| member.finish = member.finish.saturating_add(more));
    }

    /// Ends a request that was in service and has cost `cost`, and corrects the member's tag.
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
        let result = change(member);
        self.running += member.running;
        self.latest = self.latest.max(member.finish);
        replace(&mut self.waiting, turn, member.turn(key, order));
        replace(&mut self.fresh, fresh, member.fresh(key));
        result
    }

    /// Forgets members that equal a new one, and those least ahead of V if there are too many.
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
