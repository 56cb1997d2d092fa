//! The common part of multicast and NATS: one link, which is the group of all, with sealed messages
//! on it.
//!
//! Received messages are opened and reported. A message that is not from a peer is refused,
//! reported if there is room, and dropped. Frames that find no room are dropped and counted:
//! instances that count together over a group must cope with lost messages anyway. How messages
//! travel: `multicast`, `nats`. Their seal: `seal`.

use super::seal::{GroupSeal, OVERHEAD_BYTES, OpenedMessage, SealError};
use super::traffic::Traffic;
use super::{LinkId, TransportEvent};
use bytes::Bytes;
use evenkeel_runtime::clock::Clock;
use std::fmt::Display;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

pub struct PeerGroup {
    seal: GroupSeal,
    clock: Clock,
    pub traffic: Traffic,
    events: mpsc::Sender<TransportEvent>,
    /// The current link, or the latest one while the group is unreachable.
    link: LinkId,
    is_up: bool,
    /// The longest frame, in bytes.
    frame_max: usize,
}

impl PeerGroup {
    /// Makes a group that is not reachable yet.
    pub fn new(
        seal: GroupSeal,
        clock: Clock,
        traffic: Traffic,
        events: mpsc::Sender<TransportEvent>,
        frame_max: usize,
    ) -> PeerGroup {
        PeerGroup { seal, clock, traffic, events, link: LinkId(0), is_up: false, frame_max }
    }

    /// Records that the group is reachable, as a new link.
    pub async fn up(&mut self, peer: String) {
        if !self.is_up {
            self.is_up = true;
            self.link = LinkId(self.link.0 + 1);
            // The receiver is gone only if the transport was dropped.
            let _ = self.events.send(TransportEvent::Up { link: self.link, peer }).await;
        }
    }

    /// Records that the group is unreachable.
    pub async fn down(&mut self, why: &str) {
        if self.is_up {
            self.is_up = false;
            let why = why.to_owned();
            let _ = self
                .events
                .send(TransportEvent::Down { link: self.link, why, is_gone: false })
                .await;
        }
    }

    /// Seals a frame into a message; `None`, counted as dropped, if `link` is not the current link
    /// or the frame is too long.
    pub fn message(&mut self, link: LinkId, frame: &[u8]) -> Option<Vec<u8>> {
        let there = self.is_up && link == self.link && frame.len() <= self.frame_max;
        let now = self.now();
        let sealed = there.then(|| self.seal.seal(frame, now).ok()).flatten();
        if sealed.is_none() {
            self.count_lost();
        }
        sealed
    }

    /// Counts a message that could not be sent.
    pub fn count_lost(&self) {
        self.traffic.dropped.increment(1);
    }

    pub fn count_sent(&self, bytes: usize) {
        self.traffic.written.increment(bytes as u64);
    }

    /// Handles a received message: opens it and reports its frame, or refuses it.
    pub fn handle_message(&mut self, message: &[u8], from: impl Display) {
        self.traffic.read.increment(message.len() as u64);
        let now = self.now();
        let opened = match message.len() <= self.frame_max + OVERHEAD_BYTES {
            true => self.seal.open(message, now),
            false => Err(SealError::Foreign),
        };
        let event = match opened {
            Ok(OpenedMessage::Own) => return,
            Ok(OpenedMessage::Frame(_, frame)) => {
                TransportEvent::Frame { link: self.link, bytes: Bytes::from(frame) }
            }
            Err(refusal) => {
                // A flood of refused messages must not block the transport, so the event may be
                // lost.
                let refused =
                    TransportEvent::Refused { from: from.to_string(), why: refusal.to_string() };
                let _ = self.events.try_send(refused);
                return;
            }
        };
        if let Err(TrySendError::Full(_)) = self.events.try_send(event) {
            self.traffic.missed.increment(1);
        }
    }

    fn now(&self) -> u64 {
        self.clock.now().0 / 1_000_000
    }
}
