//! The announcement that another instance accepts connections at the address of this one.
//!
//! A process that is replaced by a successor runs until its last request has ended. Until then it
//! keeps its links, so the others have no reason to connect to its address, where the successor
//! waits for them. The announcement is that reason. It travels in a frame of state that is
//! addressed to no instance, as a group with its own context. Instances that do not know this
//! context skip it.

use super::Replica;
use super::content::{self, StateAnswerPart};
use super::update::ReplicaEvent;
use super::wire::{ChargeEntries, PeerFrameKind, PeerFrameWriter};
use crate::key::KeyHash;
use crate::units::Time;
use alloc::vec::Vec;

/// The context of the group, which has one entry. Its amount is the number of times that the
/// instance has handed its address over; all but the last successor have failed.
const CONTEXT: u128 = 3;
/// The key of the entry; keys are never zero.
const KEY: u64 = 1;
/// The maximum number of announcements that count in one life of a peer. Fewer: after that many
/// failed successors, others find the next one only when its predecessor has ended. More: a hostile
/// peer causes more connections.
const ANNOUNCED_MAX: u64 = 8;

/// The successors of this instance.
#[derive(Debug, Default)]
pub(super) struct Handovers {
    count: u64,
    /// Whether a successor accepts connections at the address of this instance, or soon will.
    has_successor: bool,
}

impl Replica {
    /// A successor accepts connections at the address of this instance from now on. All
    /// unreported charges are reported before that is announced.
    pub fn hand_over(&mut self, now: Time) {
        self.handle_shutdown(now);
        self.handovers.count += 1;
        self.handovers.has_successor = true;
        let links: Vec<u64> = self.links.keys().copied().collect();
        links.into_iter().for_each(|link| self.announce_handover(link, now));
    }

    /// Handles the failure of the successor: this instance accepts connections again.
    pub fn cancel_handover(&mut self) {
        self.handovers.has_successor = false;
    }

    /// Announces on a link that there is a successor, if there is one.
    pub(super) fn announce_handover(&mut self, link: u64, now: Time) {
        if !self.settings.reliable || !self.handovers.has_successor {
            return;
        }
        let mut writer = PeerFrameWriter::head(PeerFrameKind::State, self.sender(), now);
        content::write_answer(&mut writer, StateAnswerPart::UNASKED);
        writer.group(0, CONTEXT, 1);
        writer.entry(KeyHash::from_bits(KEY), self.handovers.count);
        self.send(link, writer.done().into());
    }

    /// Handles the announcement of a peer.
    pub(super) fn handle_handovers(&mut self, link: u64, node: u64, groups: ChargeEntries<'_>) {
        let count = groups.filter(|entry| entry.context == CONTEXT).map(|entry| entry.amount).max();
        let Some(peer) = self.peers.get_mut(&node).filter(|_| self.settings.reliable) else {
            return;
        };
        let is_new = |count: &u64| *count > peer.handovers && *count <= ANNOUNCED_MAX;
        if let Some(count) = count.filter(is_new) {
            peer.handovers = count;
            self.push_event(ReplicaEvent::HandedOver { link });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::{REPLICA_BOUNDS, ReplicaSettings, ReplicaUpdate, ReplicatedLimit};
    use crate::units::{Cost, Nanos};
    use alloc::vec;

    const START: Time = Time(1_790_000_000_000_000_000);
    const LIMIT: u64 = 5;
    const HITS: KeyHash = KeyHash::from_bits(3);

    fn instance(node: u64) -> Replica {
        let settings = ReplicaSettings {
            node,
            life: 1,
            name: "n".into(),
            period: Nanos::from_secs(1),
            frame_max: 300,
            reliable: true,
            cpus_milli: 1_000,
            nodes_max: 8,
        };
        let (name, numbers) = ("hits".into(), "1/s".into());
        let (unit, per_second) = (1, Cost::ZERO);
        let limit = ReplicatedLimit { fingerprint: LIMIT, name, numbers, unit, per_second };
        Replica::new(settings, vec![limit], START)
    }

    /// Exchanges the frames of two instances over `link` until there are none. The first gives its
    /// state if it is asked for it: one bucket that is short of `short`; `None`: it does not
    /// answer. Returns what the second receives: the sum of the charges, and the shortfall of the
    /// bucket.
    fn exchange(
        a: &mut Replica,
        b: &mut Replica,
        link: u64,
        short: Option<u64>,
    ) -> (u64, Option<u64>) {
        let (mut charged, mut state) = (0, None);
        loop {
            while let Some(event) = a.poll_event() {
                if let (ReplicaEvent::Wanted { node }, Some(short)) = (event, short) {
                    a.give_state(node, [(0, HITS, Cost(short))], START);
                }
            }
            let (to_b, to_a) = (a.poll_transmit(), b.poll_transmit());
            if to_a.is_none() && to_b.is_none() {
                return (charged, state);
            }
            if let Some((_, frame)) = to_a {
                a.handle_frame(link, &frame, START, &mut |_| {}).expect("sound");
            }
            let mut told = |update: ReplicaUpdate<'_>| match update {
                ReplicaUpdate::Charge { amount, .. } => charged += amount.0,
                ReplicaUpdate::Short { deficit, .. } => state = Some(deficit.missing.0),
                _ => {}
            };
            if let Some((to, frame)) = to_b.filter(|(to, _)| *to == link) {
                b.handle_frame(to, &frame, START, &mut told).expect("sound");
            }
        }
    }

    fn up(both: [&mut Replica; 2], link: u64) {
        both.into_iter().for_each(|one| one.handle_up(link, START));
    }

    /// The number of events that another instance accepts connections at the address of a peer.
    fn announced(replica: &mut Replica) -> usize {
        let events = core::iter::from_fn(|| replica.poll_event());
        events.filter(|event| *event == ReplicaEvent::HandedOver { link: 1 }).count()
    }

    #[test]
    fn a_successor_is_announced_once_to_each_and_later_ones_again() {
        let (mut a, mut b) = (instance(1), instance(2));
        up([&mut a, &mut b], 1);
        exchange(&mut a, &mut b, 1, Some(0));
        assert_eq!(announced(&mut b), 0);
        for count in 1..=2 * ANNOUNCED_MAX {
            a.hand_over(START);
            a.announce_handover(1, START);
            exchange(&mut a, &mut b, 1, Some(0));
            assert_eq!(announced(&mut b), usize::from(count <= ANNOUNCED_MAX), "{count}");
            a.cancel_handover();
        }
        // One that connects later learns of a successor, if there is one.
        for (node, expected) in [(3, 0), (4, 1)] {
            let mut late = instance(node);
            let mut a = instance(1);
            a.hand_over(START);
            if expected == 0 {
                a.cancel_handover();
            }
            up([&mut a, &mut late], 1);
            exchange(&mut a, &mut late, 1, Some(0));
            assert_eq!(announced(&mut late), expected);
        }
    }

    #[test]
    fn what_is_reported_before_the_state_is_charged_once() {
        let (mut a, mut b, mut joins) = (instance(1), instance(2), instance(3));
        up([&mut a, &mut b], 2);
        exchange(&mut a, &mut b, 2, Some(0));
        // The other instance has not acknowledged this report, so one that joins gets it as well.
        a.charge(0, 0, HITS, Cost(7), START);
        a.handle_shutdown(START);
        up([&mut a, &mut joins], 1);
        let told = exchange(&mut a, &mut joins, 1, Some(7));
        assert_eq!(told, (0, Some(7)), "the bucket of the one that joins may have it already");
        a.charge(0, 0, HITS, Cost(4), START);
        a.handle_shutdown(START);
        assert_eq!(exchange(&mut a, &mut joins, 1, Some(7)), (4, None));
    }

    #[test]
    fn the_state_is_requested_again_at_once_when_a_link_to_the_peer_is_lost() {
        let (mut a, mut joins) = (instance(1), instance(2));
        a.charge(0, 0, HITS, Cost(7), START);
        a.handle_shutdown(START);
        for link in 1..REPLICA_BOUNDS.given_max.into() {
            up([&mut a, &mut joins], link);
            assert_eq!(exchange(&mut a, &mut joins, link, None), (0, None), "no answer yet");
            [&mut a, &mut joins].into_iter().for_each(|one| one.handle_down(link, false, START));
        }
        up([&mut a, &mut joins], 9);
        assert_eq!(exchange(&mut a, &mut joins, 9, Some(7)), (0, Some(7)));
    }

    #[test]
    fn an_answer_that_was_cut_off_and_one_after_it_count_once() {
        let (mut a, mut joins) = (instance(1), instance(2));
        let keys = 1..=100_u64;
        let buckets = || keys.clone().map(|key| (0, KeyHash::from_bits(key), Cost(7)));
        let mut here = alloc::vec![Cost::ZERO; 101];
        for (link, states_max) in [(1, 1), (2, usize::MAX)] {
            up([&mut a, &mut joins], link);
            let mut states = 0;
            loop {
                while let Some(event) = a.poll_event() {
                    if let ReplicaEvent::Wanted { node } = event {
                        a.give_state(node, buckets(), START);
                    }
                }
                let (to_joins, to_a) = (a.poll_transmit(), joins.poll_transmit());
                if to_joins.is_none() && to_a.is_none() {
                    break;
                }
                if let Some((_, frame)) = to_a {
                    a.handle_frame(link, &frame, START, &mut |_| {}).expect("sound");
                }
                let Some((_, frame)) = to_joins else { continue };
                states += usize::from(frame[1] == PeerFrameKind::State as u8);
                if states > states_max {
                    continue;
                }
                let mut told = |update: ReplicaUpdate<'_>| {
                    if let ReplicaUpdate::Short { key, deficit, .. } = update {
                        let bucket = &mut here[key.bits() as usize];
                        *bucket = bucket.plus(deficit.charge(*bucket));
                    }
                };
                joins.handle_frame(link, &frame, START, &mut told).expect("sound");
            }
            assert!(states > 1, "more than one part");
            [&mut a, &mut joins].into_iter().for_each(|one| one.handle_down(link, false, START));
        }
        assert!(here[1..].iter().all(|bucket| *bucket == Cost(7)), "{here:?}");
    }
}
