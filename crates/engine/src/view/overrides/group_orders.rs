//! The orders of operators about groups of strangers: refuse their requests, or let them wait
//! behind all others.
//!
//! An order is about a group that burned when it was given. It applies for its time whether or not
//! the group still burns, and whether or not there is pressure. Clients that were served twice
//! before the swarm came are not affected. Requests look here without a lock, and without an order
//! they do nothing.

use super::{Override, OverrideEffect};
use evenkeel_core::swarm::{Properties, SwarmGroup};
use evenkeel_core::units::Time;
use std::sync::Arc;

/// The strangers of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrangerGroup {
    /// The common properties of their requests.
    pub group: SwarmGroup,
    /// The beginning of the pressure under which the group burned. A client is no stranger if it
    /// was served twice, and first before this time.
    pub pressure: Time,
}

/// The overrides for groups; those that refuse come first.
#[derive(Clone, Debug, Default)]
pub struct GroupOrders(Option<Arc<[(StrangerGroup, Override)]>>);

impl GroupOrders {
    pub(super) fn new(all: &[Override]) -> GroupOrders {
        let with_group = |said: &Override| match said.effect {
            OverrideEffect::Deny(group) | OverrideEffect::Slow(group) => {
                Some((group, said.clone()))
            }
            OverrideEffect::Exempt | OverrideEffect::Weigh(_) | OverrideEffect::Refuse => None,
        };
        let mut orders: Vec<_> = all.iter().filter_map(with_group).collect();
        orders.sort_by_key(|(_, said)| matches!(said.effect, OverrideEffect::Slow(_)));
        GroupOrders((!orders.is_empty()).then(|| orders.into()))
    }

    /// Whether there is no order.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The order about a request with these properties, if there is one: a refusal, if there are
    /// several. `is_returning`: whether its client was served twice, and first before that time.
    pub fn find(
        &self,
        properties: &Properties,
        is_returning: impl Fn(Time) -> bool,
        now: Time,
    ) -> Option<&Override> {
        let mut orders = self.0.iter().flat_map(|orders| orders.iter());
        let found = orders.find(|(strangers, said)| {
            let StrangerGroup { group, pressure } = strangers;
            said.until > now && group.contains(properties) && !is_returning(*pressure)
        });
        found.map(|(_, said)| said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::overrides::{ClientOrder, OverrideIndex, Overrides};
    use evenkeel_core::classify::LimitKeys;
    use evenkeel_core::key::KeyHash;
    use evenkeel_core::swarm::SwarmFinder;
    use evenkeel_core::units::{Cost, Nanos, Weight};

    fn properties(network: u64, agent: u64) -> Properties {
        let mut properties = Properties::default();
        properties[0] = Some(KeyHash::from_bits(network));
        properties[6] = Some(KeyHash::from_bits(agent));
        properties
    }

    /// The group of a swarm with one agent from many networks.
    fn burning(agent: u64) -> SwarmGroup {
        let mut finder = SwarmFinder::default();
        let (second, key) = (Nanos::from_secs(1).0, KeyHash::from_bits);
        for n in 0..200 {
            let client = properties(1_000 + n, 2_000 + n % 7);
            finder.handle_request(true, key(n), &client, Cost(1), Time(second));
        }
        for n in 0..200 {
            let (stranger, now) = (properties(3_000 + n, agent), Time(second * (2 + n / 50)));
            finder.handle_request(false, key(1_000 + n), &stranger, Cost(second), now);
        }
        finder.burning().first().expect("a group").group
    }

    fn said(effect: OverrideEffect, hash: u64, until: u64) -> Override {
        Override {
            id: 0,
            limit: None,
            key: "a swarm".to_owned(),
            hash: KeyHash::from_bits(hash),
            effect,
            since: Time(0),
            until: Time(until),
            by: "127.0.0.1".to_owned(),
        }
    }

    #[test]
    fn an_order_is_on_the_strangers_of_its_group_until_its_end_or_until_it_is_undone() {
        let (all, mut index) = (Overrides::default(), OverrideIndex::default());
        assert!(index.groups().is_empty());
        let of = |agent| StrangerGroup { group: burning(agent), pressure: Time(50) };
        let deny = OverrideEffect::Deny(of(7));
        let denied = all.say(said(deny, 1, 100), |new| index = new).expect("room");
        let find = |index: &OverrideIndex, agent, now| {
            index.groups().find(&properties(9, agent), |_| false, Time(now)).map(|said| said.effect)
        };
        assert_eq!(find(&index, 7, 99), Some(deny));
        assert_eq!((find(&index, 8, 99), find(&index, 7, 100)), (None, None));
        // Clients have no part in it, and those that were here before are no strangers.
        let none = ClientOrder::Weigh(Weight::ONE);
        assert_eq!(index.order(&LimitKeys::default(), Time(0)), none);
        let was_here = |pressure| pressure == Time(50);
        assert_eq!(index.groups().find(&properties(9, 7), was_here, Time(60)), None);

        let slow = OverrideEffect::Slow(of(7));
        all.say(said(slow, 2, 300), |new| index = new).expect("room");
        assert_eq!(find(&index, 7, 99), Some(deny), "the refusal goes before");
        assert_eq!(find(&index, 7, 100), Some(slow));
        assert_eq!(all.undo(denied.id, |new| index = new).map(|said| said.effect), Some(deny));
        assert_eq!(find(&index, 7, 99), Some(slow));
        assert_eq!(all.end(Time(300), |new| index = new).len(), 1);
        assert!(index.groups().is_empty());
    }
}
