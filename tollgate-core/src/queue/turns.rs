//! Whose turn it is: start-time fair queueing among members, whatever these are.
//!
//! ```text
//! start tag  = max(V when it began to wait, its last finish tag)
//! finish tag = start tag + estimate / weight, corrected when the true cost is known
//! V          = the start tag last served; the least start tag is served first
//! ```
//!
//! (Goyal, Vin, Cheng, 1996; several in service at once: Jin, Chase, Kaur, 2004.) A member that
//! does not wait, has nothing in service and is not ahead of V equals one that was never here,
//! so it is forgotten. Of those ahead only so many are remembered; the one least ahead goes.
//!
//! Corrections downwards give back no more than what the request itself had put on its member's
//! tag: the part that a later `max` with V would have swallowed anyway stays. So opening
//! requests and cancelling them leaves nobody better off than never having asked.

use super::{Id, Weight};
use crate::units::Cost;
use alloc::collections::{BTreeMap, BTreeSet};

/// Cost over weight, in nano-units.
pub(super) type Tag = u128;

/// What `cost` adds to a tag; never nothing, or what costs nothing would be served for ever.
fn length(cost: Cost, weight: Weight) -> Tag {
    (Tag::from(cost.0) * 1_000 / Tag::from(weight.thousandths())).max(1)
}

/// The request that a member waits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    pub estimate: Cost,
    pub id: Id,
    pub weight: Weight,
}

/// The order of those that wait: by start tag, the smaller request first, then the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn<K> {
    start: Tag,
    head: Head,
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

    fn turn<K>(&self, key: K) -> Option<Turn<K>> {
        self.head.map(|head| Turn { start: self.start(), head, key })
    }

    /// What its finish tag will be.
    fn finish_of(&self, head: Head) -> Tag {
        self.start() + length(head.estimate, head.weight)
    }
}

/// Members that take turns.
#[derive(Clone, Debug)]
pub(super) struct Turns<K> {
    virtual_time: Tag,
    /// The largest finish tag there was.
    latest: Tag,
    members: BTreeMap<K, Member>,
    waiting: BTreeSet<Turn<K>>,
    /// Those of `waiting` that have nothing in service, by what will be their finish tag.
    fresh: BTreeSet<(Tag, K)>,
    /// Those ahead of V that neither wait nor have anything in service.
    idle: BTreeSet<(Tag, K)>,
    idle_max: usize,
    running: usize,
}

impl<K: Copy + Ord> Turns<K> {
    /// Nobody there. Of members that have gone at most `idle_max` are remembered.
    pub fn new(idle_max: usize) -> Turns<K> {
        Turns {
            virtual_time: 0,
            latest: 0,
            members: BTreeMap::new(),
            waiting: BTreeSet::new(),
            fresh: BTreeSet::new(),
            idle: BTreeSet::new(),
            idle_max,
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

    /// Those that wait, have nothing in service, and will have a finish tag below `bound`.
    pub fn fresh(&self, bound: Tag) -> impl Iterator<Item = K> {
        let below = self.fresh.iter().take_while(move |(finish, _)| *finish < bound);
        below.map(|(_, key)| *key)
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
        let virtual_time = self.virtual_time;
        self.edit(key, |member| {
            if head.is_some() && member.head.is_none() {
                member.floor = virtual_time;
                if member.running > 0 {
                    let ahead = member.finish.saturating_sub(virtual_time);
                    member.slack = member.slack.min(ahead);
                }
            }
            member.head = head;
        });
        self.forget();
    }

    /// A request of the member's goes into service; `next` is the one after it. Its finish tag.
    pub fn serve(&mut self, key: K, estimate: Cost, weight: Weight, next: Option<Head>) -> Tag {
        let start = self.edit(key, |member| {
            let start = member.start();
            member.floor = 0;
            member.finish = start + length(estimate, weight);
            member.running += 1;
            member.head = next;
            start
        });
        // Out of turn (a reserved slot) V does not overtake those whose turn it was.
        let least = self.waiting.first().map_or(start, |turn| turn.start.min(start));
        self.virtual_time = self.virtual_time.max(least);
        self.forget();
        start + length(estimate, weight)
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

    /// Changes a member and keeps all orders right.
    fn edit<R>(&mut self, key: K, change: impl FnOnce(&mut Member) -> R) -> R {
        let mut member = self.members.remove(&key).unwrap_or(Member::ABSENT);
        self.running -= member.running;
        if let (Some(turn), Some(head)) = (member.turn(key), member.head) {
            self.waiting.remove(&turn);
            self.fresh.remove(&(member.finish_of(head), key));
        } else {
            self.idle.remove(&(member.finish, key));
        }
        let result = change(&mut member);
        self.put(key, member);
        result
    }

    fn put(&mut self, key: K, member: Member) {
        self.latest = self.latest.max(member.finish);
        self.running += member.running;
        if let (Some(turn), Some(head)) = (member.turn(key), member.head) {
            self.waiting.insert(turn);
            if member.running == 0 {
                self.fresh.insert((member.finish_of(head), key));
            }
        } else if member.running == 0 {
            self.idle.insert((member.finish, key));
        }
        self.members.insert(key, member);
    }

    /// Forgets who equals a newcomer, and who is least ahead if there are too many.
    fn forget(&mut self) {
        if self.is_over() {
            self.virtual_time = self.virtual_time.max(self.latest);
            self.members.clear();
            self.idle.clear();
            return;
        }
        while let Some(&(finish, key)) = self.idle.first() {
            if finish > self.virtual_time && self.idle.len() <= self.idle_max {
                break;
            }
            self.idle.pop_first();
            self.members.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
