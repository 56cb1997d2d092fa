//! The state of a request's body on its link: whether it arrives, how quickly, and what went wrong.
//!
//! What is done with the bytes: `body.rs`.

use super::wake::WakerSlot;
use crate::failure::UploadError;
use crate::timer::WaitTimer;
use std::cell::Cell;
use std::task::Waker;
use std::time::Duration;

/// A client that takes longer than this for its next [`TRICKLE_BYTES`] must make room for others
/// when there is none.
pub(crate) const TRICKLE_AFTER: Duration = Duration::from_secs(5);

/// The number of bytes to send within [`TRICKLE_AFTER`].
const TRICKLE_BYTES: u32 = 1024;

/// A client is uploading if the time waited for it since its last [`TRICKLE_BYTES`] is below this.
const FLOWS_WITHIN: Duration = Duration::from_secs(1);

const _: () = assert!(
    FLOWS_WITHIN.as_nanos() < TRICKLE_AFTER.as_nanos(),
    "a client that is uploading does not send next to nothing"
);

/// The body of the running request.
#[derive(Default)]
pub(crate) struct UploadState {
    /// The body is still being read.
    runs: Cell<bool>,
    /// No backend has been asked yet, so the body is buffered.
    is_kept_back: Cell<bool>,
    /// A part of the body waits for a slot. The next part is read in the meantime, up to a bound.
    is_queued: Cell<bool>,
    /// The reader waits for bytes.
    waits: WaitTimer,
    fault: Cell<Option<UploadError>>,
    /// The bytes received and the milliseconds waited for them since both were last reset, which
    /// happens after [`TRICKLE_BYTES`].
    bytes: Cell<u32>,
    waited: Cell<u32>,
    /// [`TRICKLE_BYTES`] have been received at least once.
    has_begun: Cell<bool>,
    task: WakerSlot,
}

impl UploadState {
    /// Resets the state for a request. `runs`: it has a body.
    pub(crate) fn begin(&self, runs: bool) {
        self.runs.set(runs);
        self.is_kept_back.set(runs);
        self.is_queued.set(false);
        self.fault.set(None);
        self.has_begun.set(false);
        self.bytes.set(0);
        self.waited.set(0);
    }

    /// Whether the body is still being read.
    pub(crate) fn runs(&self) -> bool {
        self.runs.get()
    }

    /// Ends the reading: all of the body is read, or the rest is not needed. Returns whether it was
    /// still being read.
    pub(crate) fn end(&self) -> bool {
        self.waits.end();
        self.runs.replace(false)
    }

    /// A backend is asked from now on.
    pub(crate) fn note_backend_asked(&self) {
        self.is_kept_back.set(false);
    }

    /// Notes whether a part of the body waits for a slot.
    pub(crate) fn note_queued(&self, is_queued: bool) {
        self.is_queued.set(is_queued);
    }

    /// Whether a part of the body waits for a slot.
    pub(crate) fn is_queued(&self) -> bool {
        self.is_queued.get()
    }

    /// Starts to wait for bytes, in the task of `waker`.
    pub(crate) fn wait(&self, waker: &Waker, now: u64) {
        self.task.set(waker);
        self.waits.begin(now);
    }

    pub(crate) fn arrived(&self, bytes: usize, now: u64) {
        let bytes = self.bytes.get().saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        let enough = bytes >= TRICKLE_BYTES;
        let waited = self.waited(now);
        self.has_begun.set(self.has_begun.get() || enough);
        self.bytes.set(if enough { 0 } else { bytes });
        self.waited.set(if enough { 0 } else { waited });
        self.waits.end();
    }

    /// Ends the wait; no more bytes are read.
    pub(crate) fn stop_waiting(&self) {
        self.waits.end();
    }

    /// Records why the body does not get through. The first error wins.
    pub(crate) fn fail(&self, fault: UploadError) {
        if self.fault.get().is_none() {
            self.fault.set(Some(fault));
        }
    }

    /// Returns why the body did not get through.
    pub(crate) fn fault(&self) -> Option<UploadError> {
        self.fault.get()
    }

    /// Whether the body failed because of the client.
    pub(crate) fn has_failed(&self) -> bool {
        self.fault.get().is_some_and(|fault| fault != UploadError::Refused)
    }

    /// Whether a backend waits for bytes from the client.
    pub(crate) fn is_awaited_by_backend(&self) -> bool {
        self.waits.waits() && !self.is_kept_back.get()
    }

    /// Returns the time waited since the client last sent [`TRICKLE_BYTES`], in milliseconds.
    fn waited(&self, now: u64) -> u32 {
        self.waited.get().saturating_add(self.waits.elapsed(now))
    }

    /// Whether the client sends next to nothing.
    pub(crate) fn trickles(&self, now: u64) -> bool {
        self.waits.waits() && Duration::from_millis(self.waited(now).into()) > TRICKLE_AFTER
    }

    /// Whether the client is uploading, however slowly.
    pub(crate) fn flows(&self, now: u64) -> bool {
        self.has_begun.get() && Duration::from_millis(self.waited(now).into()) < FLOWS_WITHIN
    }

    /// Whether the client sends next to nothing of a body that no backend waits for.
    pub(crate) fn is_spare(&self, now: u64) -> bool {
        self.is_kept_back.get() && self.trickles(now)
    }

    /// Whether the reader has waited for longer than `limit`.
    pub(super) fn is_late(&self, limit: Duration, now: u64, slack: u64) -> bool {
        self.waits.exceeds(limit, now, slack)
    }

    /// Gives up waiting for the client.
    pub(crate) fn give_up(&self) {
        self.fail(UploadError::Late);
        self.task.wake();
    }
}
