//! Reports that may have to be sent again: each is kept until all peers have it, for a minute at
//! most.
//!
//! The log is bounded in age, bytes and number of frames. The caller counts reports that are
//! dropped before all peers have them. The sums of these peers stay too low for ever, which only
//! favours clients.

use super::bounds::REPLICA_BOUNDS;
use crate::units::Time;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

/// One frame of a report.
pub struct LoggedFrame {
    /// The number of the frame.
    pub number: u64,
    /// The time at which the report was created.
    pub cut: Time,
    /// The encoded frame.
    pub frame: Arc<[u8]>,
}

/// Frames in the order of their numbers.
#[derive(Default)]
pub struct ResendLog {
    frames: VecDeque<LoggedFrame>,
    bytes: usize,
}

impl ResendLog {
    /// Appends a frame. Its number must be higher than all others.
    pub fn push(&mut self, sent: LoggedFrame) {
        self.bytes += sent.frame.len();
        self.frames.push_back(sent);
    }

    /// The frames with the number `from` or a higher one.
    pub fn since(&self, from: u64) -> impl Iterator<Item = &LoggedFrame> {
        let at = self.frames.partition_point(|sent| sent.number < from);
        self.frames.range(at..)
    }

    /// The oldest frame.
    pub fn first(&self) -> Option<&LoggedFrame> {
        self.frames.front()
    }

    /// Drops frames below `done`, which all peers have, once no new peer can need them. Then
    /// removes and returns one frame that is too old or exceeds the bounds. The caller repeats the
    /// call until it returns `None`.
    pub fn trim(&mut self, done: u64, now: Time) -> Option<LoggedFrame> {
        let is_done = |sent: &LoggedFrame| {
            sent.number < done && now.since(sent.cut) > REPLICA_BOUNDS.keep_for
        };
        while self.frames.front().is_some_and(is_done) {
            self.pop();
        }
        let old =
            self.frames.front().is_some_and(|sent| now.since(sent.cut) > REPLICA_BOUNDS.resend_for);
        let full = self.bytes > REPLICA_BOUNDS.log_bytes_max
            || self.frames.len() > REPLICA_BOUNDS.log_frames_max;
        if old || full { self.pop() } else { None }
    }

    fn pop(&mut self) -> Option<LoggedFrame> {
        let sent = self.frames.pop_front()?;
        self.bytes -= sent.frame.len();
        Some(sent)
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Total length of the frames in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
