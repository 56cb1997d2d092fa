//! Queues that instances share: which peer shares which queue, and how their messages travel.
//!
//! Messages travel over links only, in frames of their own that may overtake all others. An
//! instance announces its queues after each hello, in a frame of state that is addressed to no
//! instance, as a group of a context of its own. An instance that knows no queues passes over it,
//! and is sent no such frames, because it announces none. Messages keep their order, or the link
//! ends: if a frame is refused or finds no room, the caller has to close the link. The meaning
//! of the messages is in `crate::queue::shared`.

use super::content::{self, StateAnswerPart};
use super::peer::ReplicaPeer;
use super::queue_wire::{self, MESSAGE_BYTES_MAX, QueueMessages};
use super::update::{ReplicaEvent, ReplicaUpdate};
use super::wire::{ChargeEntries, HEAD_BYTES, PeerFrameKind, PeerFrameWriter};
use super::{REPLICA_BOUNDS, Replica};
use crate::key::KeyHash;
use crate::queue::shared::{InstanceId, QueueMessage};
use crate::units::Time;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The context of groups that announce queues. The key of an entry is the fingerprint of a queue,
/// and its amount the version of the messages, or [`NOT_SHARED`].
const CONTEXT: u128 = 2;
/// The version of the messages. Instances with different versions do not share a queue.
const MESSAGES_VERSION: u64 = 1;
/// The queue is not shared any more.
const NOT_SHARED: u64 = 0;

/// Why a peer that can be reached does not share a queue of this instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueApart {
    /// It announces no queue.
    NoQueue,
    /// It announces other queues.
    OtherQueue,
    /// It announces the queue with messages of another version.
    OtherVersion,
}

impl Replica {
    /// Why a peer does not share a queue; `None` if it does, or cannot be reached, or if this
    /// instance does not share it.
    #[must_use]
    pub fn queue_apart(&self, node: u64, queue: u64) -> Option<QueueApart> {
        let peer = self.peers.get(&node).filter(|peer| !peer.links.is_empty())?;
        if self.queues.binary_search(&queue).is_err() || peer.queues.contains_key(&queue) {
            return None;
        }
        Some(match (peer.queues_of_other_version.contains(&queue), peer.queues.is_empty()) {
            (true, _) => QueueApart::OtherVersion,
            (false, true) => QueueApart::NoQueue,
            (false, false) => QueueApart::OtherQueue,
        })
    }

    /// Sets the queues of this instance that others may share: their fingerprints, which are hashes
    /// of keys; at most [`super::ReplicaBounds::queues_max`], and none over a group.
    pub fn set_queues(&mut self, mut queues: Vec<u64>) {
        queues.retain(|queue| KeyHash::from_bits(*queue).bits() == *queue);
        queues.sort_unstable();
        queues.dedup();
        queues.truncate(if self.settings.reliable { REPLICA_BOUNDS.queues_max } else { 0 });
        if queues == self.queues {
            return;
        }
        let before = core::mem::replace(&mut self.queues, queues);
        let is_in = |list: &[u64], queue: &u64| list.binary_search(queue).is_ok();
        let new = self.queues.iter().filter(|queue| !is_in(&before, queue));
        let met: Vec<_> = new.flat_map(|queue| self.sharers(*queue)).collect();
        met.into_iter().for_each(|event| self.push_event(event));
        self.queues_gone = before.into_iter().filter(|queue| !is_in(&self.queues, queue)).collect();
        self.hello_due = true;
    }

    /// The events for all peers that share a queue.
    fn sharers(&self, queue: u64) -> impl Iterator<Item = ReplicaEvent> {
        let sharing = self.peers.iter().filter(move |(_, peer)| peer.queues.contains_key(&queue));
        sharing.map(move |(node, peer)| ReplicaEvent::QueueUp { queue, id: id(*node, peer) })
    }

    /// Announces the queues of this instance on a link.
    pub(super) fn announce_queues(&mut self, link: u64, now: Time) {
        if self.queues.is_empty() && self.queues_gone.is_empty() {
            return;
        }
        let mut writer = PeerFrameWriter::head(PeerFrameKind::State, self.sender(), now);
        let whole = StateAnswerPart::UNASKED;
        content::write_answer(&mut writer, whole);
        writer.group(0, CONTEXT, self.queues.len() + self.queues_gone.len());
        for (queues, version) in [(&self.queues, MESSAGES_VERSION), (&self.queues_gone, NOT_SHARED)]
        {
            queues.iter().for_each(|queue| writer.entry(KeyHash::from_bits(*queue), version));
        }
        self.send(link, writer.done().into());
    }

    /// Handles the queues that a peer announces.
    pub(super) fn handle_queues(&mut self, link: u64, node: u64, groups: ChargeEntries<'_>) {
        if !self.settings.reliable {
            return;
        }
        for entry in groups.filter(|entry| entry.context == CONTEXT) {
            let Some(peer) = self.peers.get_mut(&node) else { return };
            let queue = entry.key.bits();
            let is_ours = self.queues.binary_search(&queue).is_ok();
            match entry.amount {
                NOT_SHARED | MESSAGES_VERSION => peer.queues_of_other_version.remove(&queue),
                _ => is_ours && peer.queues_of_other_version.insert(queue),
            };
            if entry.amount != MESSAGES_VERSION {
                if peer.queues.remove(&queue).is_some() && is_ours {
                    self.push_event(ReplicaEvent::QueueDown { queue, node, is_gone: true });
                }
                continue;
            }
            let is_known = peer.queues.contains_key(&queue);
            if !is_known && peer.queues.len() >= REPLICA_BOUNDS.queues_max {
                continue;
            }
            let before = peer.queues.insert(queue, link);
            if before != Some(link) && is_ours {
                let id = id(node, peer);
                self.push_event(ReplicaEvent::QueueUp { queue, id });
            }
            // Queues are announced once on a link. If the other link was that of the instance, and
            // this one is not, it connects again.
            if let Some(link) = before.filter(|before| *before != link) {
                self.push_event(ReplicaEvent::QueueLost { link });
            }
        }
    }

    /// Handles the end of the link on which a peer shares queues.
    pub(super) fn handle_queue_link_end(&mut self, link: u64, node: u64, is_gone: bool) {
        self.queue_out.retain(|(to, _)| *to != link);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let mut ended: Vec<u64> = Vec::new();
        peer.queues.retain(|queue, on| {
            if *on == link {
                ended.push(*queue);
            }
            *on != link
        });
        ended.retain(|queue| self.queues.binary_search(queue).is_ok());
        for queue in ended {
            self.push_event(ReplicaEvent::QueueDown { queue, node, is_gone });
        }
    }

    /// Handles messages of a peer. Ages in them count from now: a frame takes milliseconds, while
    /// the clocks of two instances may drift apart by more.
    pub(super) fn handle_queue_messages(
        &mut self,
        node: u64,
        (queue, messages): (u64, QueueMessages<'_>),
        now: Time,
        told: &mut dyn FnMut(ReplicaUpdate<'_>),
    ) {
        let messages = messages.read(now);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let is_shared =
            self.queues.binary_search(&queue).is_ok() && peer.queues.contains_key(&queue);
        for counts in [&mut peer.counts, &mut self.totals.counts] {
            counts.queue_messages_in += messages.len() as u64;
        }
        if is_shared {
            told(ReplicaUpdate::Queue { queue, from: node, messages: &messages });
        }
    }

    /// Sends messages about a queue to a peer that shares it. They are lost if there is no such
    /// peer; then its link has ended, or is to be closed ([`ReplicaEvent::QueueLost`]).
    pub fn queue_frame(&mut self, node: u64, queue: u64, messages: &[QueueMessage], now: Time) {
        let sender = self.sender();
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Some(link) = peer.queues.get(&queue).copied() else { return };
        for counts in [&mut peer.counts, &mut self.totals.counts] {
            counts.queue_messages_out += messages.len() as u64;
        }
        let full = self.settings.frame_max.saturating_sub(MESSAGE_BYTES_MAX);
        let mut rest = messages;
        while !rest.is_empty() {
            let mut writer = PeerFrameWriter::head(PeerFrameKind::Queue, sender, now);
            writer.word(queue);
            let begun = HEAD_BYTES + 8;
            while let Some((message, others)) = rest.split_first() {
                if writer.len() > full.max(begun) {
                    break;
                }
                queue_wire::write_message(&mut writer, message, written_time(now));
                rest = others;
            }
            if self.queue_out.len() >= REPLICA_BOUNDS.queue_out_max {
                return self.push_event(ReplicaEvent::QueueLost { link });
            }
            self.queue_out.push_back((link, writer.done().into()));
        }
    }

    /// Returns the next frame about a queue and its link, if there is one. It may overtake the
    /// frames of [`Replica::poll_transmit`], except for the first of its link.
    pub fn poll_queue_transmit(&mut self) -> Option<(u64, Arc<[u8]>)> {
        let frame = self.queue_out.pop_front()?;
        self.count_sent(&frame);
        Some(frame)
    }
}

/// A time as it is in the head of a frame.
fn written_time(now: Time) -> Time {
    Time(now.0 - now.0 % super::wire::NANOS_PER_MILLI)
}

fn id(node: u64, peer: &ReplicaPeer) -> InstanceId {
    InstanceId { life: peer.life, node }
}

#[cfg(test)]
mod tests;
