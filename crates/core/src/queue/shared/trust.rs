//! The owners that an instance has followed, and which of them it does not follow for a while.
//!
//! An instance leaves an owner that does not answer, and one that claims what cannot be. An owner
//! that takes the queue over again and again has lost it each time, or gives it up: it is not
//! followed either. All this holds for the instance in that life, and for a limited time, because
//! its fault may be that of the network.

use super::{InstanceId, REJOIN_AFTER};
use crate::units::{Nanos, Time};
use alloc::vec::Vec;

/// The number of owners that are remembered; the one with the oldest record is forgotten.
const OWNERS_MAX: usize = 32;
/// An owner is followed at most this often in [`COUNTED_FOR`]. Fewer: an owner on a busy machine
/// that is silent for moments is left. More: one that gives the queue up each time stops all others
/// for longer.
const FOLLOWED_MAX: u32 = 8;
const COUNTED_FOR: Nanos = Nanos::from_secs(60);
/// An owner that was left is not followed for this time. It doubles with each further time.
/// Shorter: more requests wait at an owner that does not answer. Longer: two owners after a fault
/// of the network.
const LEFT_FOR: Nanos = Nanos::from_secs(60);
const DOUBLINGS_MAX: u32 = 6;

#[derive(Clone, Copy, Debug)]
struct OwnerRecord {
    id: InstanceId,
    /// How often this instance has joined its queue since `begun`.
    joined: u32,
    begun: Time,
    /// Until when it is not followed, and how often it was left.
    until: Time,
    left: u32,
}

/// The owners that an instance has followed.
#[derive(Debug, Default)]
pub(super) struct OwnerRecords(Vec<OwnerRecord>);

impl OwnerRecords {
    /// Returns whether an owner may be followed that was not followed until now. Leaves one that
    /// has been followed too often.
    pub fn try_follow(&mut self, id: InstanceId, now: Time) -> bool {
        let Some(record) = self.0.iter().find(|record| record.id == id).copied() else {
            return true;
        };
        let is_counted = now.since(record.begun) < COUNTED_FOR;
        if now >= record.until && is_counted && record.joined >= FOLLOWED_MAX {
            self.leave(id, now);
            return false;
        }
        now >= record.until
    }

    /// Notes that this instance joins the queue of an owner. Returns how long it stays in it before
    /// it joins the same queue again, if the owner has forgotten it.
    pub fn join(&mut self, id: InstanceId, now: Time) -> Nanos {
        let record = self.record(id, now);
        if now.since(record.begun) >= COUNTED_FOR {
            (record.joined, record.begun) = (0, now);
        }
        let doublings = record.joined.min(FOLLOWED_MAX);
        record.joined += 1;
        Nanos(REJOIN_AFTER.0 << doublings)
    }

    /// Notes that this instance leaves an owner.
    pub fn leave(&mut self, id: InstanceId, now: Time) {
        let record = self.record(id, now);
        let length = Nanos(LEFT_FOR.0 << record.left.min(DOUBLINGS_MAX));
        record.until = now.plus(length);
        record.left = record.left.saturating_add(1);
        record.joined = 0;
    }

    fn record(&mut self, id: InstanceId, now: Time) -> &mut OwnerRecord {
        let known = self.0.iter().position(|record| record.id == id);
        let place = known.unwrap_or_else(|| {
            if self.0.len() >= OWNERS_MAX {
                let oldest = self.0.iter().enumerate();
                let oldest = oldest.min_by_key(|(_, record)| record.until.max(record.begun));
                let oldest = oldest.map_or(0, |(place, _)| place);
                self.0.swap_remove(oldest);
            }
            self.0.push(OwnerRecord { id, joined: 0, begun: now, until: Time::ZERO, left: 0 });
            self.0.len() - 1
        });
        &mut self.0[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(node: u64) -> InstanceId {
        InstanceId { life: 1, node }
    }

    fn at(secs: u64) -> Time {
        Time(Nanos::from_secs(1_000 + secs).0)
    }

    #[test]
    fn an_owner_that_was_left_is_followed_after_a_minute_and_then_two() {
        let mut records = OwnerRecords::default();
        assert!(records.try_follow(owner(1), at(0)));
        records.leave(owner(1), at(0));
        assert!(!records.try_follow(owner(1), at(59)) && records.try_follow(owner(1), at(60)));
        assert!(records.try_follow(owner(2), at(1)));
        let restarted = InstanceId { life: 2, node: 1 };
        assert!(records.try_follow(restarted, at(1)), "another life");
        records.leave(owner(1), at(60));
        assert!(!records.try_follow(owner(1), at(179)) && records.try_follow(owner(1), at(180)));
    }

    #[test]
    fn an_owner_is_followed_eight_times_a_minute_at_most() {
        let mut records = OwnerRecords::default();
        for time in 0..8 {
            assert!(records.try_follow(owner(1), at(time)));
            records.join(owner(1), at(time));
        }
        assert!(!records.try_follow(owner(1), at(8)));
        assert!(!records.try_follow(owner(1), at(67)) && records.try_follow(owner(1), at(68)));
        // Joining the same queue again takes longer each time.
        let mut delays = (0..4).map(|_| records.join(owner(2), at(0)).0 / REJOIN_AFTER.0);
        assert!(delays.by_ref().eq([1, 2, 4, 8]));
    }

    #[test]
    fn the_number_of_records_is_bounded() {
        let mut records = OwnerRecords::default();
        for node in 0..1_000 {
            records.join(owner(node), at(node));
            records.leave(owner(node), at(node));
        }
        assert_eq!(records.0.len(), OWNERS_MAX);
        assert!(!records.try_follow(owner(999), at(1_000)));
    }
}
