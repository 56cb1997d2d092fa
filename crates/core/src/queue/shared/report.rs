//! The state of a shared queue for operators, as one instance knows it.
//!
//! The figures of other instances are those of their last message: the owner and the others
//! exchange messages ten times a second, and those others among themselves once a second.

use super::{
    Instance, InstanceId, OTHERS_SILENT_MAX, RequestCounts, Role, SILENT_MAX, SharedQueue,
};
use crate::units::Time;
use alloc::vec::Vec;

/// The state of a shared queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedQueueReport {
    /// This instance.
    pub own: InstanceId,
    /// The number of the instance that owns the queue.
    pub owner: u64,
    /// The term of the owner, one higher than that of the owner before it.
    pub term: u64,
    /// Since when this instance has had that owner.
    pub since: Time,
    /// The number of times that this instance has taken the queue over.
    pub takeovers: u64,
    /// The number of slots of the whole queue.
    pub slots: usize,
    /// The requests of this instance.
    pub counts: RequestCounts,
    /// The slots that this instance keeps, with or without a request; `None` if it owns the queue.
    pub kept: Option<usize>,
    /// The requests of all instances that take part.
    pub all: RequestCounts,
    /// The other instances, in the order of their numbers.
    pub others: Vec<OtherInstance>,
}

/// Another instance that shares a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherInstance {
    /// The instance.
    pub id: InstanceId,
    /// Its requests, as it last said.
    pub counts: RequestCounts,
    /// The slots that it keeps, with or without a request; known to the owner only.
    pub kept: Option<usize>,
    /// Whether it has been silent for longer than it may be. It does not take
    /// part then.
    pub is_silent: bool,
    /// Whether it can be reached, but has not joined the queue of this instance, which is the
    /// owner: it joins in a moment, or has another owner.
    pub is_apart: bool,
}

impl OtherInstance {
    /// Whether it takes part in the queue.
    #[must_use]
    pub fn takes_part(&self) -> bool {
        !self.is_silent && !self.is_apart
    }
}

impl SharedQueueReport {
    /// Whether this instance owns the queue.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.owner == self.own.node
    }

    /// The number of instances that take part, including this one.
    #[must_use]
    pub fn instances(&self) -> usize {
        1 + self.others.iter().filter(|other| other.takes_part()).count()
    }
}

impl SharedQueue {
    /// The state of the queue; `None` if this instance shares it with no other.
    #[must_use]
    pub fn report(&self, now: Time) -> Option<SharedQueueReport> {
        let own = self.own?;
        let kept = match &self.role {
            Role::Owner => None,
            Role::Member(member) => Some(member.kept),
        };
        let owner = self.owner()?;
        let other = |one: &Instance| self.other(one, owner, now);
        Some(SharedQueueReport {
            own,
            owner,
            term: self.term,
            since: self.owner_since,
            takeovers: self.takeovers,
            slots: self.slots(),
            counts: self.counts(),
            kept,
            all: self.counts_of_all(),
            others: self.instances.values().map(other).collect(),
        })
    }

    fn other(&self, one: &Instance, owner: u64, now: Time) -> OtherInstance {
        let owns = matches!(self.role, Role::Owner);
        let silent_max = if owns || one.id.node == owner { SILENT_MAX } else { OTHERS_SILENT_MAX };
        let is_silent = !one.is_linked || now.since(one.heard) >= silent_max;
        OtherInstance {
            id: one.id,
            counts: one.counts,
            kept: owns.then_some(one.kept),
            is_silent,
            is_apart: owns && !is_silent && !one.has_joined,
        }
    }
}
