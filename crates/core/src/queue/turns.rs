//! Whose turn it is: start-time fair queueing among members, whatever these are.
//!
//! ```text
//! start tag  = max(V when it began to wait, its last finish tag)
//! finish tag = start tag + estimate / weight, corrected when the true cost is known
//! V          = the start tag last served; the least start tag is served first
//! ```
//!
//! or the least finish tag (`Order`): then who asks for little goes before who asks for much even
//! in a round in which it has been served already. For that a member may run ahead of another by
//! one request more.
//!
//! (Goyal, Vin, Cheng, 1996; several in service at once: Jin, Chase, Kaur, 2004.) A member that
//! does not wait, has nothing in service and is not ahead of V equals one that was never here,
//! so it is forgotten. Of those ahead only so many are remembered; those least ahead go. Both
//! happen now and then, when the members have doubled: so they cost a request next to nothing.
//!
//! Corrections downwards give back no more than what the request itself had put on its member's
//! tag: the part that a later `max` with V would have swallowed anyway stays. So opening
//! requests and cancelling them leaves nobody better off than never having asked.

use super::Id;
use super::spread::Map;
use crate::units::{Cost, Weight};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::hash::Hash;

/// Cost over weight, in thousandths of nano-units: a large weight is not rounded off.
pub(super) type Tag = u128;

/// How many of these are a nano-unit.
const PER_UNIT: Tag = 1_000;

/// What `cost` adds to a tag; never nothing, or what costs nothing would be served for ever.
pub(super) fn length(cost: Cost, weight: Weight) -> Tag {
    let cost = Tag::from(cost.0.max(1));
    if weight == Weight::ONE {
        return cost * PER_UNIT;
    }
    cost * PER_UNIT * Tag::from(Weight::ONE.thousandths()) / Tag::from(weight.thousandths())
}

/// How many of those that ask for little are looked at for one that is not ahead.
const NEAR: usize = 32;

/// The request that a member waits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    /// Whether its cost is more than a guess. Those come last of equal ones.
    pub is_known: bool,
    pub estimate: Cost,
    pub id: Id,
    pub weight: Weight,
}

/// The order of those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// By start tag; of equal ones guesses first, and then the smaller request.
    Start,
    /// By finish tag.
    Finish,
}

/// A place in that order; of equal ones the earlier request is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn<K> {
    rank: Tag,
    head: Head,
    start: Tag,
    key: K,
}

/// Somebody who waits and has nothing in service; the smallest request first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fresh<K> {
    size: Tag,
    /// What will be its finish tag.
    finish: Tag,
    key: K,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    /// V when it began to wait; no earlier start tag.
    floor: Tag,
    finish: Tag,
    /// How much may be taken back from `finish`: the least that it was ahead of V when the member
    /// began to wait, since it had nothing in service.
    slack: Tag,
    running: usize,
    head: Option<Head>,
}

impl Member {
    const ABSENT: Member = Member { floor: 0, finish: 0, slack: Tag::MAX, running: 0, head: None };

    fn start(&self) -> Tag {
        self.floor.max(self.finish)
    }

    fn turn<K>(&self, key: K, order: Order) -> Option<Turn<K>> {
        let head = self.head?;
        let rank = match order {
            Order::Start => self.start(),
            Order::Finish => self.finish_of(head),
        };
        Some(Turn { rank, head, start: self.start(), key })
    }

    /// What it asks for, if it waits and has nothing in service.
    fn fresh<K>(&self, key: K) -> Option<Fresh<K>> {
        let head = self.head.filter(|_| self.running == 0)?;
        Some(Fresh { size: length(head.estimate, head.weight), finish: self.finish_of(head), key })
    }

    fn finish_of(&self, head: Head) -> Tag {
        self.start() + length(head.estimate, head.weight)
    }

    /// It comes to wait.
    fn join(&mut self, virtual_time: Tag) {
        self.floor = virtual_time;
        if self.running > 0 {
            self.slack = self.slack.min(self.finish.saturating_sub(virtual_time));
        }
    }

    /// A request of its goes into service. Its start tag.
    fn serve(&mut self, estimate: Cost, weight: Weight) -> Tag {
        let start = self.start();
        self.floor = 0;
        self.finish = start + length(estimate, weight);
        self.running += 1;
        start
    }

    /// Whether it neither waits nor has anything in service.
    fn is_idle(&self) -> bool {
        self.head.is_none() && self.running == 0
    }
}

/// Members that take turns.
#[derive(Clone, Debug)]
pub(super) struct Turns<K> {
    order: Order,
    virtual_time: Tag,
    /// The largest finish tag there was.
    latest: Tag,
    members: Map<K, Member>,
    waiting: BTreeSet<Turn<K>>,
    /// Those of `waiting` that have nothing in service.
    fresh: BTreeSet<Fresh<K>>,
    idle_max: usize,
    /// With more members than this it is time to forget some.
    full: usize,
    running: usize,
}

impl<K: Copy + Ord + Hash> Turns<K> {
    /// Nobody there. Of members that have gone some are remembered: `idle_max` at least, and
    /// never so many that the members are more than twice those and whoever is there.
    pub fn new(order: Order, idle_max: usize) -> Turns<K> {
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

    /// Whose turn it is.
    pub fn next(&self) -> Option<K> {
        self.waiting.first().map(|turn| turn.key)
    }

    /// The request whose turn it is.
    pub fn next_head(&self) -> Option<Head> {
        self.waiting.first().map(|turn| turn.head)
    }

    /// What will be the finish tag of the request whose turn it is.
    pub fn next_finish(&self) -> Option<Tag> {
        let turn = self.waiting.first()?;
        Some(turn.start + length(turn.head.estimate, turn.head.weight))
    }

    /// Those that wait, have nothing in service, will have a finish tag below `bound`, and add no
    /// more than `size` to it; the smallest first. Only some of these are looked at.
    pub fn fresh(&self, bound: Tag, size: Tag) -> impl Iterator<Item = K> {
        let small = self.fresh.iter().take_while(move |one| one.size <= size).take(NEAR);
        small.filter(move |one| one.finish < bound).map(|one| one.key)
    }

    /// The least that one adds who has nothing in service and will have a finish tag below `bound`.
    pub fn least_fresh(&self, bound: Tag) -> Option<Tag> {
        self.fresh.iter().take(NEAR).find(|one| one.finish < bound).map(|one| one.size)
    }

    /// How far a member's next start tag is ahead of V.
    pub fn ahead(&self, key: K) -> Tag {
        let start = self.members.get(&key).map_or(0, Member::start);
        start.saturating_sub(self.virtual_time)
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits and nothing is in service, so that all can be forgotten.
    pub fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }

    /// How many members are remembered.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// The member's next request; `None`: it does not wait (any more).
    pub fn set_head(&mut self, key: K, head: Option<Head>) {
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

    /// A request of the member's goes into service; `next` is the one after it. Its finish tag.
    pub fn serve(&mut self, key: K, estimate: Cost, weight: Weight, next: Option<Head>) -> Tag {
        let start = self.edit(key, |member| {
            member.head = next;
            member.serve(estimate, weight)
        });
        self.go_on(start);
        start + length(estimate, weight)
    }

    /// A request comes and goes into service at once, while nobody waits: as `set_head` and
    /// `serve` together, for less. Its finish tag.
    pub fn pass(&mut self, key: K, estimate: Cost, weight: Weight) -> Tag {
        let member = self.members.entry(key).or_insert(Member::ABSENT);
        member.join(self.virtual_time);
        let start = member.serve(estimate, weight);
        self.latest = self.latest.max(member.finish);
        self.running += 1;
        self.go_on(start);
        start + length(estimate, weight)
    }

    /// A request of the member's that is in service adds so much more to its tag.
    pub fn raise(&mut self, key: K, more: Tag) {
        self.edit(key, |member| member.finish = member.finish.saturating_add(more));
    }

    /// A request that was in service is over, and has cost `cost`.
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

    /// Something with this start tag was served.
    fn go_on(&mut self, start: Tag) {
        // Out of turn (a reserved slot) V does not overtake those whose turn it was.
        let least = self.waiting.first().map_or(start, |turn| turn.start.min(start));
        self.virtual_time = self.virtual_time.max(least);
        self.forget();
    }

    /// Changes a member and keeps all orders right.
    fn edit<R>(&mut self, key: K, change: impl FnOnce(&mut Member) -> R) -> R {
        let order = self.order;
        let member = self.members.entry(key).or_insert(Member::ABSENT);
        let (turn, fresh) = (member.turn(key, order), member.fresh(key));
        self.running -= member.running;
        let result = change(member);
        self.running += member.running;
        self.latest = self.latest.max(member.finish);
        replace(&mut self.waiting, turn, member.turn(key, order));
        replace(&mut self.fresh, fresh, member.fresh(key));
        result
    }

    /// Forgets who equals a newcomer, and who is least ahead if there are too many.
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
