//! What multicast and NATS have in common: one link, the group of all, and sealed messages on it.
//!
//! What comes is opened and told; what is no message of ours is refused, told if somebody listens,
//! and forgotten. What finds no room is lost and counted: who counts together over a group lives
//! with lost messages anyway. How messages travel: `multicast`, `nats`; their seal: `seal`.

use super::seal::{OVERHEAD, Opened, Refusal, Seal};
use super::traffic::Traffic;
use super::{Event, LinkId};
use crate::clock::Clock;
use bytes::Bytes;
use std::fmt::Display;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// What a way of reaching the group starts with.
pub struct Group {
    /// How messages are sealed.
    pub seal: Seal,
    /// What time it is.
    pub clock: Clock,
    /// What passes.
    pub traffic: Traffic,
    /// Who hears.
    pub events: mpsc::Sender<Event>,
    /// The link, if it is there, else that of the last time.
    pub link: LinkId,
    /// Whether it is there.
    pub is_up: bool,
    /// The longest frame and the longest message, in bytes.
    frame_max: usize,
    message_max: usize,
}

impl Group {
    /// A group that is not there yet.
    #[must_use]
    pub fn new(
        seal: Seal,
        clock: Clock,
        traffic: Traffic,
        events: mpsc::Sender<Event>,
        frame_max: usize,
    ) -> Group {
        let message_max = frame_max + OVERHEAD;
        let link = LinkId(0);
        Group { seal, clock, traffic, events, link, is_up: false, frame_max, message_max }
    }

    /// The group can be reached.
    pub async fn up(&mut self, peer: String) {
        if !self.is_up {
            self.is_up = true;
            self.link = LinkId(self.link.0 + 1);
            // Who listens no longer has dropped the transport.
            let _ = self.events.send(Event::Up { link: self.link, peer, fresh: true }).await;
        }
    }

    /// It cannot be reached any more.
    pub async fn down(&mut self, why: &str) {
        if self.is_up {
            self.is_up = false;
            let why = why.to_owned();
            let _ = self.events.send(Event::Down { link: self.link, why }).await;
        }
    }

    /// A message with this frame, if the link is the one that is there.
    pub fn message(&mut self, link: LinkId, frame: &[u8]) -> Option<Vec<u8>> {
        let there = self.is_up && link == self.link && frame.len() <= self.frame_max;
        let now = self.now();
        let sealed = there.then(|| self.seal.seal(frame, now).ok()).flatten();
        if sealed.is_none() {
            self.lost();
        }
        sealed
    }

    /// A message could not be sent.
    pub fn lost(&self) {
        self.traffic.dropped.increment(1);
    }

    /// So many bytes were sent.
    pub fn sent(&self, bytes: usize) {
        self.traffic.written.increment(bytes as u64);
    }

    /// Something came.
    pub fn heard(&mut self, message: &[u8], from: impl Display) {
        self.traffic.read.increment(message.len() as u64);
        let now = self.now();
        let opened = match message.len() <= self.message_max {
            true => self.seal.open(message, now),
            false => Err(Refusal::Foreign),
        };
        let event = match opened {
            Ok(Opened::Own) => return,
            Ok(Opened::Frame(_, frame)) => {
                Event::Frame { link: self.link, bytes: Bytes::from(frame) }
            }
            Err(refusal) => {
                // A flood of them must not hold anything up.
                let refused = Event::Refused { from: from.to_string(), why: refusal.to_string() };
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
