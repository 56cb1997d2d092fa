//! What a gatekeeper has to tell its master, on the way from the threads that serve requests to the
//! one that has the connection.
//!
//! Telling waits for nobody. While there is no master nothing is kept, or it would hear of requests
//! of long ago as if they ran now; while there is one, as much is kept as a moment of overload
//! takes, and what does not fit is dropped and counted. The protocol: `doors/zeromq`.

use crate::watch::counts::gatekeeper::GatekeeperCounts;
use evenkeel_core::units::Time;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Notify;

/// Bytes that wait to be sent; each note counts as more than its texts.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// What a note takes beside its texts, here and on the wire.
const NOTE_BYTES: usize = 96;

/// What became of a request, as the master is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It ran at once.
    Accepted,
    /// It ran then.
    Delayed(Time),
    /// It did not run.
    Rejected,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What became of it.
    pub status: Status,
    /// Whose it was.
    pub identifier: Box<[u8]>,
    /// When it came.
    pub came: Time,
    /// What the master may log of it.
    pub log_info: Box<[u8]>,
}

impl Note {
    /// What it takes, here and on the wire.
    fn bytes(&self) -> usize {
        NOTE_BYTES + self.identifier.len() + self.log_info.len()
    }
}

/// Notes that wait to be sent.
#[derive(Default)]
pub struct Outbox {
    /// `None`: there is nobody to tell.
    notes: Mutex<Option<Vec<Note>>>,
    /// Of notes that wait or are being sent.
    bytes: AtomicUsize,
    wake: Notify,
}

impl Outbox {
    /// Has a request told, if there is somebody to tell and room.
    pub fn push(&self, note: Note, counts: &GatekeeperCounts) {
        let mut notes = self.notes.lock();
        let Some(notes) = notes.as_mut() else { return counts.away.increment(1) };
        let bytes = note.bytes();
        let room = |held| (held + bytes <= BYTES_MAX).then_some(held + bytes);
        if self.bytes.fetch_update(Relaxed, Relaxed, room).is_err() {
            return counts.full.increment(1);
        }
        notes.push(note);
        self.wake.notify_one();
    }

    /// There is a master, or there is none any more; what waits then is dropped.
    pub fn set_open(&self, open: bool, counts: &GatekeeperCounts) {
        let mut notes = self.notes.lock();
        if open {
            notes.get_or_insert_default();
        } else if let Some(dropped) = notes.take() {
            counts.away.increment(dropped.len() as u64);
            self.sent(&dropped);
        }
    }

    /// What waits. It counts until it has been [sent](Self::sent).
    #[must_use]
    pub fn take(&self) -> Vec<Note> {
        self.notes.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What was taken has been sent, or never will be.
    pub fn sent(&self, notes: &[Note]) {
        let bytes = notes.iter().map(Note::bytes).sum();
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Whether nothing waits or is being sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.load(Relaxed) == 0
    }

    /// Until something waits.
    pub async fn wake(&self) {
        self.wake.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::registry::Registry;

    fn note(size: usize) -> Note {
        let identifier = vec![b'x'; size].into();
        Note { status: Status::Accepted, identifier, came: Time(1), log_info: Box::default() }
    }

    #[test]
    fn nothing_is_kept_for_a_master_that_is_away() {
        let counts = GatekeeperCounts::new(&Registry::default(), "d", Default::default());
        let outbox = Outbox::default();
        outbox.push(note(1), &counts);
        assert!(outbox.is_empty() && outbox.take().is_empty());
        outbox.set_open(true, &counts);
        outbox.push(note(1), &counts);
        outbox.push(note(2), &counts);
        outbox.set_open(false, &counts);
        assert_eq!((counts.away.get(), counts.full.get()), (3, 0));
        outbox.set_open(true, &counts);
        assert!(outbox.is_empty() && outbox.take().is_empty(), "no request is told of late");
    }

    #[test]
    fn a_master_that_reads_slowly_misses_messages_and_takes_no_more_memory() {
        let counts = GatekeeperCounts::new(&Registry::default(), "d", Default::default());
        let outbox = Outbox::default();
        outbox.set_open(true, &counts);
        for _ in 0..100 {
            outbox.push(note(65_536), &counts);
        }
        let fit = BYTES_MAX / (65_536 + NOTE_BYTES);
        assert_eq!(counts.full.get(), 100 - fit as u64);
        let taken = outbox.take();
        assert_eq!(taken.len(), fit);
        // Being sent it counts still.
        outbox.push(note(65_536), &counts);
        assert_eq!(counts.full.get(), 101 - fit as u64);
        outbox.sent(&taken);
        assert!(outbox.is_empty());
        outbox.push(note(65_536), &counts);
        assert_eq!(outbox.take().len(), 1);
    }
}
