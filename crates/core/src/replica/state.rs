//! The state that an instance asks for when it joins: the buckets of a peer, and the reports that
//! they contain.
//!
//! One peer after the other is asked until one answers. An answer begins with the list of the
//! reports that its buckets contain, so that those are not charged again when they arrive, and so
//! that charges of this instance that are not among them are added to the state. Over links no
//! report counts before the answer. No bucket is charged here.

use super::answer::{ContainedReports, StateAnswer};
use super::content::{self, StateAnswerPart};
use super::peer::ReplicaPeer;
use super::send::pack_pieces;
use super::unsent::{EntryPacker, ReportBody};
use super::update::{PeerDeficit, ReplicaEvent, ReplicaUpdate};
use super::window::SequenceWindow;
use super::wire::{self, PeerFrameKind, PeerFrameSender, PeerFrameWriter, REPORT_BYTES};
use super::{REPLICA_BOUNDS, Replica, StateRequest, clients};
use crate::key::KeyHash;
use crate::units::{Cost, Nanos, Time};
use alloc::vec::Vec;

/// Maximum number of times that peers are asked for the state, one after the other.
const STATE_REQUESTS_MAX: u8 = 5;
/// Time to wait for the answer to a state request.
const STATE_ANSWER_TIMEOUT: Nanos = Nanos::from_secs(5);

impl Replica {
    /// Whether this instance waits for the state of a peer, or for a peer. Until then, the caller
    /// passes all local charges to [`Replica::charge`] before it handles a frame, so that none is
    /// missing in the sum.
    #[must_use]
    pub fn awaits_state(&self) -> bool {
        !matches!(self.wanting, StateRequest::No)
    }

    /// The buckets have charges from before the start, such as from a snapshot, which the state of
    /// a peer may contain too.
    pub fn set_restored(&mut self) {
        self.is_restored = true;
    }

    /// Asks a peer for the present state, if no request is pending and a peer can answer.
    pub(super) fn ask_for_state(&mut self, now: Time) {
        let StateRequest::Anybody { asked } = self.wanting else { return };
        let able = |peer: &ReplicaPeer| match self.settings.reliable {
            true => peer.ready.is_some(),
            false => peer.seen.is_some(),
        };
        let able: Vec<u64> =
            self.peers.iter().filter(|(_, peer)| able(peer)).map(|(node, _)| *node).collect();
        if able.is_empty() {
            return;
        }
        let node = able[usize::from(asked) % able.len()];
        let mut writer = PeerFrameWriter::head(PeerFrameKind::Want, self.sender(), now);
        writer.word(node);
        self.send_to(node, writer.done().into());
        // Over a group, reports of others count before the state has arrived.
        let may_overlap = self.is_restored || !self.settings.reliable;
        let (asked, answer) = (asked + 1, StateAnswer::new(may_overlap));
        self.wanting = StateRequest::Of { node, since: now, asked, answer };
    }

    /// Gives up on a peer that does not answer in time, and asks the next one.
    pub(super) fn retry_state_request(&mut self, now: Time) {
        if let StateRequest::Of { node, since, .. } = self.wanting
            && now.since(since) > STATE_ANSWER_TIMEOUT
        {
            self.give_up_state_request(node);
        }
        self.ask_for_state(now);
    }

    /// Stops waiting for the state from `node`, if it was asked for it.
    pub(super) fn give_up_state_request(&mut self, node: u64) {
        if let StateRequest::Of { node: of, asked, .. } = self.wanting
            && of == node
        {
            self.wanting = match asked < STATE_REQUESTS_MAX {
                true => StateRequest::Anybody { asked },
                false => StateRequest::No,
            };
        }
    }

    pub(super) fn handle_state_request(&mut self, node: u64, of: u64) {
        let Some(peer) = self.peers.get_mut(&node).filter(|_| of == self.settings.node) else {
            return;
        };
        if peer.given < REPLICA_BOUNDS.given_max {
            peer.given += 1;
            self.push_event(ReplicaEvent::Wanted { node });
        }
    }

    /// Sends the present state to `node`: the reports that it contains, and the amount that each
    /// bucket is short of, the largest first. All local charges must have been passed to
    /// [`Replica::charge`] before `buckets` are read.
    pub fn give_state(
        &mut self,
        node: u64,
        buckets: impl IntoIterator<Item = (usize, KeyHash, Cost)>,
        now: Time,
    ) {
        // Unreported charges that the buckets contain would be charged a second time by a later
        // report.
        self.cut(true, now);
        self.flush();
        self.send_seen_windows(node, now);
        let room = self.settings.frame_max.saturating_sub(REPORT_BYTES);
        let mut cutter = EntryPacker::new(room);
        let max = REPLICA_BOUNDS.state_max[usize::from(!self.settings.reliable)];
        for (limit, key, missing) in buckets.into_iter().take(max) {
            let Some(shared) = self.limits.get(limit) else { continue };
            if cutter.group.0 != shared.fingerprint {
                cutter.close_group();
                cutter.group = (shared.fingerprint, 0);
            }
            cutter.push(key, missing.0);
        }
        let mut bodies = cutter.done();
        if bodies.is_empty() {
            bodies.push(ReportBody { bytes: Vec::new(), entries: 0 });
        }
        let parts = bodies.len() as u64;
        for (part, body) in (0..).zip(bodies) {
            let mut writer = PeerFrameWriter::head(PeerFrameKind::State, self.sender(), now);
            content::write_answer(
                &mut writer,
                StateAnswerPart { to: node, number: self.next, part, parts },
            );
            writer.bytes(&body.bytes);
            self.send_to(node, writer.done().into());
        }
    }

    /// Sends the list of reports that the state contains: all reports of this instance, and the
    /// reports of others that were seen.
    fn send_seen_windows(&mut self, node: u64, now: Time) {
        let ours = (self.sender(), SequenceWindow::starting_at(self.next));
        let others = self.peers.iter().filter_map(|(node, peer)| {
            let sender = PeerFrameSender { node: *node, life: peer.life };
            Some((sender, peer.seen.clone()?))
        });
        let written = core::iter::once(ours).chain(others).map(|(sender, window)| {
            let mut writer = PeerFrameWriter::part();
            content::write_ack(&mut writer, sender, &window);
            writer.done()
        });
        let room = self.settings.frame_max.saturating_sub(REPORT_BYTES);
        let packed = pack_pieces(written, room);
        let parts = packed.len() as u64;
        for (part, bytes) in (0..).zip(packed) {
            let mut writer = PeerFrameWriter::head(PeerFrameKind::Seen, self.sender(), now);
            content::write_answer(
                &mut writer,
                StateAnswerPart { to: node, number: self.next, part, parts },
            );
            writer.bytes(&bytes);
            self.send_to(node, writer.done().into());
        }
    }

    /// The answer to which a part belongs, if this instance waits for it.
    pub(super) fn expected_answer(
        &mut self,
        node: u64,
        part: StateAnswerPart,
    ) -> Option<&mut StateAnswer> {
        match &mut self.wanting {
            StateRequest::Of { node: asked, answer, .. }
                if *asked == node && part.to == self.settings.node =>
            {
                Some(answer)
            }
            _ => None,
        }
    }

    /// Handles a part of the state.
    pub(super) fn handle_state(
        &mut self,
        node: u64,
        (part, groups): (StateAnswerPart, wire::ChargeEntries<'_>),
        now: Time,
        told: &mut dyn FnMut(ReplicaUpdate<'_>),
    ) {
        let own = self.sender();
        let answer = self.expected_answer(node, part).filter(|answer| answer.is_listed(part));
        let Some(list) = answer.map(|answer| answer.take_list(own)) else { return };
        // Not before: the state that this instance gives would claim to contain these reports.
        self.mark_seen(list, now);
        // If this answer is cut off, a later one contains the same charges.
        self.is_restored = true;
        let StateRequest::Of { answer, .. } = &mut self.wanting else { return };
        let (places, limits) = (&self.places, &self.limits);
        answer.add_reports(&self.log, |mark| {
            places.get(&mark).map(|place| (*place, limits[*place].unit))
        });
        for entry in groups.filter(|entry| entry.context != clients::CONTEXT) {
            let Some(limit) = self.places.get(&entry.limit).copied() else { continue };
            let (key, missing) = (entry.key, Cost(entry.amount));
            let unreported = Cost(self.tally.unsent(limit, 0, key));
            let apart = Cost(answer.apart(limit, key)).plus(unreported);
            let deficit = PeerDeficit { missing, apart };
            told(ReplicaUpdate::Short { limit, key, deficit });
        }
        if part.part + 1 == part.parts {
            self.wanting = StateRequest::No;
        }
    }

    /// Marks the reports that the state contains as seen, so that they are not charged again.
    fn mark_seen(&mut self, contained: ContainedReports, now: Time) {
        for (sender, window) in contained {
            let own = sender.node == self.settings.node;
            let period = self.settings.period;
            let full = self.peers.len() + 1 >= self.settings.nodes_max;
            if own || (full && !self.peers.contains_key(&sender.node)) {
                continue;
            }
            let peer = self.peers.entry(sender.node);
            let peer = peer.or_insert_with(|| {
                // The peer is known from others but was not heard. It does not count as live until
                // it sends.
                ReplicaPeer { heard: Time::ZERO, ..ReplicaPeer::new(sender, period, now) }
            });
            if peer.life == sender.life {
                peer.seen.get_or_insert_with(SequenceWindow::default).join(&window);
                // So that the peer does not send again the reports that were refused.
                peer.ack_due = self.settings.reliable;
            }
        }
    }
}
