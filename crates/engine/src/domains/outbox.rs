//! The queue of reports from a gatekeeper to its master, between the threads that serve requests
//! and the one that has the connection.
//!
//! Adding a report never waits. While the master is unreachable no reports are kept, because they
//! would arrive later as if the requests had just run. While it is connected, the queue holds
//! enough for a moment of overload. Reports that do not fit are dropped and counted. The protocol:
//! `ask/zeromq`.

use evenkeel_core::units::Time;
use evenkeel_telemetry::counts::gatekeeper::GatekeeperCounts;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Notify;

/// The most bytes of reports that wait or are being sent. Each counts more than its texts.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// The size of a report without its texts, in memory and on the wire.
const NOTE_BYTES: usize = 96;

/// The outcome of a request, as reported to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedStatus {
    /// The request ran at once.
    Accepted,
    /// The request was delayed until this time.
    Delayed(Time),
    /// The request did not run.
    Rejected,
}

/// The report of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestReport {
    /// The outcome of the request.
    pub status: ReportedStatus,
    /// The identifier that the master counts the request by.
    pub identifier: Box<[u8]>,
    /// When the request arrived.
    pub came: Time,
    /// Text about the request for the master's log.
    pub log_info: Box<[u8]>,
}

impl RequestReport {
    /// The size of the report, in memory and on the wire.
    fn bytes(&self) -> usize {
        NOTE_BYTES + self.identifier.len() + self.log_info.len()
    }
}

/// The reports that wait to be sent.
#[derive(Default)]
pub struct ReportOutbox {
    /// The waiting reports; `None` while the master is unreachable.
    notes: Mutex<Option<Vec<RequestReport>>>,
    /// The bytes of all reports that wait or are being sent.
    bytes: AtomicUsize,
    wake: Notify,
}

impl ReportOutbox {
    /// Adds a report, if the master is connected and there is room. Otherwise counts it as lost.
    pub fn push(&self, note: RequestReport, counts: &GatekeeperCounts) {
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

    /// Records that the master is connected or has become unreachable. In the second case waiting
    /// reports are dropped and counted.
    pub fn set_open(&self, open: bool, counts: &GatekeeperCounts) {
        let mut notes = self.notes.lock();
        if open {
            notes.get_or_insert_default();
        } else if let Some(dropped) = notes.take() {
            counts.away.increment(dropped.len() as u64);
            self.release(&dropped);
        }
    }

    /// Takes out all waiting reports. They count towards the bound until
    /// [`release`](Self::release) is called with them.
    #[must_use]
    pub fn take(&self) -> Vec<RequestReport> {
        self.notes.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Frees the room of reports that were taken, whether they were sent or not.
    pub fn release(&self, notes: &[RequestReport]) {
        let bytes = notes.iter().map(RequestReport::bytes).sum();
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Whether no report waits or is being sent.
    pub fn is_empty(&self) -> bool {
        self.bytes.load(Relaxed) == 0
    }

    /// Waits until there is a report to send.
    pub async fn wake(&self) {
        self.wake.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_telemetry::registry::Registry;

    fn note(size: usize) -> RequestReport {
        let identifier = vec![b'x'; size].into();
        RequestReport {
            status: ReportedStatus::Accepted,
            identifier,
            came: Time(1),
            log_info: Box::default(),
        }
    }

    #[test]
    fn nothing_is_kept_for_a_master_that_is_away() {
        let counts = GatekeeperCounts::new(&Registry::default(), "d", Default::default());
        let outbox = ReportOutbox::default();
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
        let outbox = ReportOutbox::default();
        outbox.set_open(true, &counts);
        for _ in 0..100 {
            outbox.push(note(65_536), &counts);
        }
        let fit = BYTES_MAX / (65_536 + NOTE_BYTES);
        assert_eq!(counts.full.get(), 100 - fit as u64);
        let taken = outbox.take();
        assert_eq!(taken.len(), fit);
        // Reports that are being sent still count.
        outbox.push(note(65_536), &counts);
        assert_eq!(counts.full.get(), 101 - fit as u64);
        outbox.release(&taken);
        assert!(outbox.is_empty());
        outbox.push(note(65_536), &counts);
        assert_eq!(outbox.take().len(), 1);
    }
}
