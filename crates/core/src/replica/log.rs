//! Reports that were cut and may have to be sent again: each until all have it, for a minute at
//! most.
//!
//! Bounded in age, bytes and number. What is dropped before all have it is counted by the caller:
//! those peers count too little for ever, which forgives and punishes nobody.

use super::BOUNDS;
use crate::units::Time;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

/// One frame of a report.
pub struct Sent {
    /// Its number.
    pub number: u64,
    /// When it was cut.
    pub cut: Time,
    /// As it is sent.
    pub frame: Arc<[u8]>,
}

/// Frames in the order of their numbers.
#[derive(Default)]
pub struct Log {
    frames: VecDeque<Sent>,
    bytes: usize,
}

impl Log {
    /// Keeps a frame.
    pub fn push(&mut self, sent: Sent) {
        self.bytes += sent.frame.len();
        self.frames.push_back(sent);
    }

    /// The frames whose numbers are `from` or higher.
    pub fn since(&self, from: u64) -> impl Iterator<Item = &Sent> {
        let at = self.frames.partition_point(|sent| sent.number < from);
        self.frames.range(at..)
    }

    /// The oldest.
    pub fn first(&self) -> Option<&Sent> {
        self.frames.front()
    }

    /// Drops frames that all have, which are those below `done`, without a word; and returns one
    /// that has to go for its age or for room, to be called until there is none.
    pub fn trim(&mut self, done: u64, now: Time) -> Option<Sent> {
        while self.frames.front().is_some_and(|sent| sent.number < done) {
            self.pop();
        }
        let old = self.frames.front().is_some_and(|sent| now.since(sent.cut) > BOUNDS.resend_for);
        let full = self.bytes > BOUNDS.log_bytes_max || self.frames.len() > BOUNDS.log_frames_max;
        if old || full { self.pop() } else { None }
    }

    fn pop(&mut self) -> Option<Sent> {
        let sent = self.frames.pop_front()?;
        self.bytes -= sent.frame.len();
        Some(sent)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
