//! Checks whether a peer may send: it must have said hello in its present life, within the bounds.
//!
//! The transport checks whether a message is authentic.

use super::wire::{Fault, Head, Kind};
use super::{BOUNDS, CLOCKS_DIFFER, Replica};
use crate::units::Time;

impl Replica {
    /// Checks whether the sender of a frame is accepted. A new life of a peer starts with an empty
    /// state.
    pub(super) fn believe(&mut self, link: u64, head: &Head, now: Time) -> Result<(), Fault> {
        if self.settings.reliable {
            let speaker = self.links.get(&link).ok_or(Fault::Stranger)?.speaker;
            let named = speaker == Some(head.sender);
            if !named && (speaker.is_some() || head.kind != Kind::Hello) {
                return Err(Fault::Stranger);
            }
        } else if now.since(head.at).max(head.at.since(now)) > CLOCKS_DIFFER {
            return Err(Fault::Time);
        }
        match self.peers.get(&head.sender.node) {
            Some(peer) if peer.life > head.sender.life => Err(Fault::Stale),
            Some(peer) if peer.life < head.sender.life => {
                self.peers.remove(&head.sender.node);
                Ok(())
            }
            Some(peer) if peer.frames >= BOUNDS.frames_max => Err(Fault::Flood),
            Some(_) => Ok(()),
            None if self.peers.len() + 1 < self.settings.nodes_max => Ok(()),
            None => self.make_room(now),
        }
    }

    /// Forgets the unlinked peer that has been silent for longest, to make room for a new one. A
    /// restarted instance has a new identity, so old identities must make way.
    fn make_room(&mut self, now: Time) -> Result<(), Fault> {
        let period = self.settings.period;
        let gone = self.peers.iter();
        let gone = gone.filter(|(_, peer)| peer.links.is_empty() && !peer.lives(period, now));
        let longest = gone.min_by_key(|(_, peer)| peer.heard).map(|(node, _)| *node);
        longest.and_then(|node| self.peers.remove(&node)).map(|_| ()).ok_or(Fault::Full)
    }
}
