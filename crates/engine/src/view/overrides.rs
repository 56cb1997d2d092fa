//! Temporary overrides that operators set for single clients: an exemption, or a weight.
//!
//! A client is identified by the hash of a key. So an override that was set under one limit applies
//! to all requests with that key, whatever other limits count them. The list is bounded, each entry
//! expires, and none outlives the process. The admin door decides which operators may set one. A
//! lookup costs almost no time while the list is empty.

use evenkeel_core::classify::LimitKeys;
use evenkeel_core::key::KeyHash;
use evenkeel_core::units::{Time, Weight};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The highest number of clients with an override.
pub const OVERRIDES_MAX: usize = 256;

/// The effect of an override on its client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OverrideEffect {
    /// The client's requests are neither counted nor delayed.
    Exempt,
    /// In the admission queue, the client's requests have this weight instead of 1.
    Weigh(Weight),
}

/// An override for one client.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// The number by which to undo the override.
    pub id: u64,
    /// The name of the limit under which the operator found the client.
    pub limit: String,
    /// The client's readable name under that limit.
    pub key: String,
    /// The hash of the client's key, which requests are compared with.
    pub hash: KeyHash,
    /// The effect on the client's requests.
    pub effect: OverrideEffect,
    /// When the override was set.
    pub since: Time,
    /// When the override expires.
    pub until: Time,
    /// The operator who set the override, for display.
    pub by: String,
}

/// All overrides of an engine. Lanes decide by a copy ([`OverrideIndex`]), not by this list.
#[derive(Debug, Default)]
pub struct Overrides {
    said: Mutex<Vec<Override>>,
    last: AtomicU64,
}

/// The list is full: an operator has to undo an override first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{OVERRIDES_MAX} clients already have overrides; undo one first")]
pub struct OverridesFullError;

impl Overrides {
    /// Sets an override, and gives it an id. It replaces an earlier override of the same client.
    /// `publish` copies the overrides to the lanes. It is called with the list locked, here and
    /// below, so that of two changes the later one is also published later.
    ///
    /// # Errors
    /// The list is full. It is left unchanged.
    pub fn say(
        &self,
        said: Override,
        publish: impl FnOnce(OverrideIndex),
    ) -> Result<Override, OverridesFullError> {
        let said = Override { id: self.last.fetch_add(1, Relaxed) + 1, ..said };
        let mut all = self.said.lock();
        let others = all.iter().filter(|other| other.hash != said.hash).count();
        if others >= OVERRIDES_MAX {
            return Err(OverridesFullError);
        }
        all.retain(|other| other.hash != said.hash);
        all.push(said.clone());
        publish(OverrideIndex::new(&all));
        Ok(said)
    }

    /// Removes the override with this id and returns it.
    pub fn undo(&self, id: u64, publish: impl FnOnce(OverrideIndex)) -> Option<Override> {
        let mut all = self.said.lock();
        let at = all.iter().position(|said| said.id == id)?;
        let undone = all.remove(at);
        publish(OverrideIndex::new(&all));
        Some(undone)
    }

    /// Removes the overrides that have expired by `now` and returns them.
    pub fn end(&self, now: Time, publish: impl FnOnce(OverrideIndex)) -> Vec<Override> {
        let mut all = self.said.lock();
        let (ended, rest): (Vec<_>, _) = all.drain(..).partition(|said| said.until <= now);
        *all = rest;
        if !ended.is_empty() {
            publish(OverrideIndex::new(&all));
        }
        ended
    }

    /// All overrides, the latest last.
    pub fn list(&self) -> Vec<Override> {
        self.said.lock().clone()
    }
}

/// A copy of the overrides for a lane, sorted by hash, for lookups by binary search without a lock.
#[derive(Clone, Debug)]
pub struct OverrideIndex(Arc<[(KeyHash, OverrideEffect, Time)]>);

impl Default for OverrideIndex {
    fn default() -> OverrideIndex {
        OverrideIndex(Arc::from([]))
    }
}

impl OverrideIndex {
    fn new(all: &[Override]) -> OverrideIndex {
        let mut all: Vec<_> = all.iter().map(|said| (said.hash, said.effect, said.until)).collect();
        all.sort_unstable_by_key(|(hash, ..)| *hash);
        OverrideIndex(all.into())
    }

    /// The effect for a client with these keys: exempt if any override exempts it, else the product
    /// of the weights.
    pub fn of(&self, keys: &LimitKeys, now: Time) -> OverrideEffect {
        let mut weight = Weight::ONE;
        if self.0.is_empty() {
            return OverrideEffect::Weigh(weight);
        }
        for key in keys.as_slice() {
            let Ok(at) = self.0.binary_search_by_key(&key.hash, |(hash, ..)| *hash) else {
                continue;
            };
            match self.0[at] {
                (_, _, until) if until <= now => {}
                (_, OverrideEffect::Exempt, _) => return OverrideEffect::Exempt,
                (_, OverrideEffect::Weigh(said), _) => weight = weight.times(said),
            }
        }
        OverrideEffect::Weigh(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::classify::LimitKey;

    fn said(hash: u64, effect: OverrideEffect, until: u64) -> Override {
        Override {
            id: 0,
            limit: "ip".to_owned(),
            key: "192.0.2.1".to_owned(),
            hash: KeyHash::from_bits(hash),
            effect,
            since: Time(0),
            until: Time(until),
            by: "127.0.0.1".to_owned(),
        }
    }

    fn keys(hashes: &[u64]) -> LimitKeys {
        let mut keys = LimitKeys::default();
        for (limit, hash) in (0..).zip(hashes) {
            keys.push(LimitKey { limit, hash: KeyHash::from_bits(*hash) });
        }
        keys
    }

    #[test]
    fn what_is_said_holds_until_its_end_and_for_its_client_alone() {
        let all = Overrides::default();
        let half = Weight::new(500);
        let mut force = OverrideIndex::default();
        for (hash, effect, until) in [
            (7, OverrideEffect::Exempt, 100),
            (8, OverrideEffect::Weigh(half), 200),
            (9, OverrideEffect::Weigh(half), 200),
        ] {
            all.say(said(hash, effect, until), |index| force = index).expect("room");
        }
        let one = OverrideEffect::Weigh(Weight::ONE);
        assert_eq!(force.of(&keys(&[7]), Time(99)), OverrideEffect::Exempt);
        assert_eq!(force.of(&keys(&[7]), Time(100)), one);
        assert_eq!(force.of(&keys(&[1, 7]), Time(99)), OverrideEffect::Exempt);
        assert_eq!(force.of(&keys(&[8]), Time(0)), OverrideEffect::Weigh(half));
        assert_eq!(force.of(&keys(&[8, 9]), Time(0)), OverrideEffect::Weigh(Weight::new(250)));
        assert_eq!(force.of(&keys(&[1, 2]), Time(0)), one);
        assert_eq!(OverrideIndex::default().of(&keys(&[7]), Time(0)), one);
        assert_eq!(all.end(Time(100), |index| force = index).len(), 1);
        assert_eq!((all.list().len(), force.0.len()), (2, 2));
    }

    #[test]
    fn the_list_is_bounded_and_what_is_said_again_takes_the_place_of_what_was_said() {
        let all = Overrides::default();
        for hash in 0..OVERRIDES_MAX as u64 {
            all.say(said(hash + 1, OverrideEffect::Exempt, 100), drop).expect("room");
        }
        assert_eq!(
            all.say(said(9_999, OverrideEffect::Exempt, 100), drop),
            Err(OverridesFullError)
        );
        let again = all
            .say(said(3, OverrideEffect::Weigh(Weight::new(100)), 100), drop)
            .expect("its own place");
        assert_eq!(all.list().len(), OVERRIDES_MAX);
        assert_eq!(all.undo(again.id, drop).map(|said| said.effect), Some(again.effect));
        assert_eq!(all.undo(again.id, drop), None);
        all.say(said(9_999, OverrideEffect::Exempt, 100), drop).expect("room again");
    }
}
