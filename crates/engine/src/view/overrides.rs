//! Temporary overrides that operators set: an exemption, a weight or a refusal for a single client,
//! and for a group of strangers that burns, a refusal or the last place in line.
//!
//! A client is identified by the hash of a key. So an override that was set under one limit applies
//! to all requests with that key, whatever other limits count them. The list is bounded, each entry
//! expires, and none outlives the process. The admin door decides which operators may set one. A
//! lookup costs almost no time while the list is empty. Groups: `group_orders`.

mod group_orders;

use evenkeel_core::classify::LimitKeys;
use evenkeel_core::key::KeyHash;
use evenkeel_core::units::{Time, Weight};
pub use group_orders::{GroupOrders, StrangerGroup};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The highest number of overrides.
pub const OVERRIDES_MAX: usize = 256;

/// The effect of an override on its client or its group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OverrideEffect {
    /// The client's requests are neither counted nor delayed.
    Exempt,
    /// In the admission queue, the client's requests have this weight instead of 1.
    Weigh(Weight),
    /// The client's requests are refused.
    Refuse,
    /// Requests of strangers of the group are refused.
    Deny(StrangerGroup),
    /// Under pressure, requests of strangers of the group wait behind all others.
    Slow(StrangerGroup),
}

/// An override for one client, or for one group of strangers.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// The number by which to undo the override.
    pub id: u64,
    /// The name of the limit under which the operator found the client; `None` for a group.
    pub limit: Option<String>,
    /// The client's readable name under that limit, or what the requests of the group have in
    /// common, in words.
    pub key: String,
    /// The hash of the client's key, which requests are compared with, or the key of the group.
    pub hash: KeyHash,
    /// The effect on the requests.
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
#[error("there are {OVERRIDES_MAX} overrides already; undo one first")]
pub struct OverridesFullError;

impl Overrides {
    /// Sets an override, and gives it an id. It replaces an earlier override of the same client
    /// or group. `publish` copies the overrides to the lanes. It is called with the list locked,
    /// here and below, so that of two changes the later one is also published later.
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

/// A copy of the overrides for a lane: of clients, sorted by hash, for lookups by binary search
/// without a lock, and of groups.
#[derive(Clone, Debug)]
pub struct OverrideIndex {
    clients: Arc<[(KeyHash, ClientEffect, Time)]>,
    groups: GroupOrders,
}

#[derive(Clone, Debug)]
enum ClientEffect {
    Exempt,
    Weigh(Weight),
    Refuse(Arc<Override>),
}

/// The operators' orders for a client. An exemption comes before all other orders.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientOrder {
    /// Its requests are neither counted nor delayed.
    Exempt,
    /// Its requests are refused, by this order.
    Refuse(Arc<Override>),
    /// The weight of its requests: the product of all that were set.
    Weigh(Weight),
}

impl Default for OverrideIndex {
    fn default() -> OverrideIndex {
        OverrideIndex { clients: Arc::from([]), groups: GroupOrders::default() }
    }
}

impl OverrideIndex {
    fn new(all: &[Override]) -> OverrideIndex {
        let of_client = |said: &Override| {
            let effect = match said.effect {
                OverrideEffect::Exempt => ClientEffect::Exempt,
                OverrideEffect::Weigh(weight) => ClientEffect::Weigh(weight),
                OverrideEffect::Refuse => ClientEffect::Refuse(Arc::new(said.clone())),
                OverrideEffect::Deny(_) | OverrideEffect::Slow(_) => return None,
            };
            Some((said.hash, effect, said.until))
        };
        let mut clients: Vec<_> = all.iter().filter_map(of_client).collect();
        clients.sort_unstable_by_key(|(hash, ..)| *hash);
        OverrideIndex { clients: clients.into(), groups: GroupOrders::new(all) }
    }

    /// The operators' order for a client with these keys.
    pub fn order(&self, keys: &LimitKeys, now: Time) -> ClientOrder {
        let mut order = ClientOrder::Weigh(Weight::ONE);
        if self.clients.is_empty() {
            return order;
        }
        for key in keys.as_slice() {
            let Ok(at) = self.clients.binary_search_by_key(&key.hash, |(hash, ..)| *hash) else {
                continue;
            };
            match (&self.clients[at], &mut order) {
                ((_, _, until), _) if *until <= now => {}
                ((_, ClientEffect::Exempt, _), _) => return ClientOrder::Exempt,
                ((_, ClientEffect::Refuse(said), _), _) => {
                    order = ClientOrder::Refuse(Arc::clone(said));
                }
                ((_, ClientEffect::Weigh(said), _), ClientOrder::Weigh(weight)) => {
                    *weight = weight.times(*said);
                }
                ((_, ClientEffect::Weigh(_), _), _) => {}
            }
        }
        order
    }

    /// The overrides for groups.
    pub fn groups(&self) -> &GroupOrders {
        &self.groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::classify::LimitKey;

    fn said(hash: u64, effect: OverrideEffect, until: u64) -> Override {
        Override {
            id: 0,
            limit: Some("ip".to_owned()),
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
        let one = ClientOrder::Weigh(Weight::ONE);
        assert_eq!(force.order(&keys(&[7]), Time(99)), ClientOrder::Exempt);
        assert_eq!(force.order(&keys(&[7]), Time(100)), one);
        assert_eq!(force.order(&keys(&[1, 7]), Time(99)), ClientOrder::Exempt);
        assert_eq!(force.order(&keys(&[8]), Time(0)), ClientOrder::Weigh(half));
        let quarter = ClientOrder::Weigh(Weight::new(250));
        assert_eq!(force.order(&keys(&[8, 9]), Time(0)), quarter);
        assert_eq!(force.order(&keys(&[1, 2]), Time(0)), one);
        assert_eq!(OverrideIndex::default().order(&keys(&[7]), Time(0)), one);
        assert_eq!(all.end(Time(100), |index| force = index).len(), 1);
        assert_eq!((all.list().len(), force.clients.len()), (2, 2));
    }

    #[test]
    fn a_refusal_comes_before_weights_and_after_an_exemption_and_ends() {
        let all = Overrides::default();
        let mut force = OverrideIndex::default();
        for (hash, effect) in [
            (7, OverrideEffect::Exempt),
            (8, OverrideEffect::Refuse),
            (9, OverrideEffect::Weigh(Weight::new(500))),
        ] {
            all.say(said(hash, effect, 100), |index| force = index).expect("room");
        }
        let refused = |hashes: &[u64], now| match force.order(&keys(hashes), Time(now)) {
            ClientOrder::Refuse(said) => Some(said.hash.bits()),
            _ => None,
        };
        for hashes in [&[8][..], &[8, 9], &[9, 8], &[1, 8]] {
            assert_eq!(refused(hashes, 99), Some(8), "{hashes:?}");
            assert_eq!(refused(hashes, 100), None, "{hashes:?}");
        }
        for hashes in [[7, 8], [8, 7]] {
            assert_eq!(force.order(&keys(&hashes), Time(0)), ClientOrder::Exempt);
        }
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
