//! Checks whether a peer may send: it must have said hello in its present life, within the bounds.
//!
//! The transport checks whether a message is authentic.

use super::wire::{PeerFrameError, PeerFrameHead, PeerFrameKind};
use super::{CLOCK_SKEW_MAX, REPLICA_BOUNDS, Replica};
use crate::units::Time;

impl Replica {
    /// Checks whether the sender of a frame is accepted. A new life of a peer starts with an empty
    /// state.
    pub(super) fn check_sender(
        &mut self,
        link: u64,
        head: &PeerFrameHead,
        now: Time,
    ) -> Result<(), PeerFrameError> {
        let is_queue = head.kind == PeerFrameKind::Queue;
        if self.settings.reliable {
            let speaker = self.links.get(&link).ok_or(PeerFrameError::Stranger)?.speaker;
            let named = speaker == Some(head.sender);
            if !named && (speaker.is_some() || head.kind != PeerFrameKind::Hello) {
                return Err(PeerFrameError::Stranger);
            }
        } else if is_queue {
            return Err(PeerFrameError::Broken);
        } else if now.since(head.at).max(head.at.since(now)) > CLOCK_SKEW_MAX {
            return Err(PeerFrameError::Time);
        }
        match self.peers.get(&head.sender.node) {
            Some(peer) if peer.life > head.sender.life => Err(PeerFrameError::Stale),
            Some(peer) if peer.life < head.sender.life => {
                self.peers.remove(&head.sender.node);
                Ok(())
            }
            Some(peer) if is_queue && peer.queue_frames.is_full(now) => Err(PeerFrameError::Flood),
            Some(_) if is_queue => Ok(()),
            Some(peer) if peer.frames >= REPLICA_BOUNDS.frames_max => Err(PeerFrameError::Flood),
            Some(_) => Ok(()),
            None if self.peers.len() + 1 < self.settings.nodes_max => Ok(()),
            None => self.make_room(now),
        }
    }

    /// Forgets the unlinked peer that has been silent for longest, to make room for a new one. A
    /// restarted instance has a new identity, so old identities must make way.
    fn make_room(&mut self, now: Time) -> Result<(), PeerFrameError> {
        let period = self.settings.period;
        let gone = self.peers.iter();
        let gone = gone.filter(|(_, peer)| peer.links.is_empty() && !peer.is_live(period, now));
        let longest = gone.min_by_key(|(_, peer)| peer.heard).map(|(node, _)| *node);
        longest.and_then(|node| self.peers.remove(&node)).map(|_| ()).ok_or(PeerFrameError::Full)
    }
}
