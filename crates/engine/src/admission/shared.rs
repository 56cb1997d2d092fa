//! The admission queue as one that several instances share: what the driver of the peers brings and
//! takes.
//!
//! The owner of the queue and the messages between instances are decided in
//! `evenkeel_core::queue::shared`. The connections: `evenkeel_peers::driver`.

use super::{AdmissionQueue, AdmissionState, pass};
use crate::replicated::queue::{QueueWaker, SharedAdmission};
use evenkeel_core::queue::shared::{InstanceId, QueueMessage, SharedQueue, SharedQueueReport};
use evenkeel_core::units::Time;
use evenkeel_telemetry::pressure::PressureNotice;

/// The notice of this instance: if another one owns the queue, that has the figures of strangers.
pub(super) fn notice_of(queue: &SharedQueue, notice: PressureNotice) -> PressureNotice {
    match notice {
        _ if queue.is_owner() => notice,
        PressureNotice::Begins { .. } => {
            PressureNotice::Begins { waiting: queue.counts_of_all().waiting as usize }
        }
        PressureNotice::Ends { lasted, .. } => {
            PressureNotice::Ends { lasted, strangers_cost: None, pages: None }
        }
    }
}

impl AdmissionQueue {
    /// Prepares for other instances that may share the queue, or ends the preparation. `is_new`:
    /// the process has just started, so other instances may use all slots.
    pub fn prepare_sharing(&self, shares: bool, is_new: bool, now: Time) {
        self.change(now, |state| match shares {
            true => state.queue.prepare(is_new, now),
            false => state.queue.cancel_preparation(now),
        });
    }

    /// Ends the sharing of the queue.
    pub fn end_sharing(&self, now: Time) {
        self.change(now, |state| state.queue.end_sharing(now));
    }

    fn change(&self, now: Time, change: impl FnOnce(&mut AdmissionState)) {
        let mut state = self.state.lock();
        change(&mut state);
        pass(state, now);
    }
}

impl SharedAdmission for AdmissionQueue {
    fn is_ready(&self) -> bool {
        self.state.lock().queue.is_ready()
    }

    fn start(&self, own: InstanceId, wake: QueueWaker) {
        let mut state = self.state.lock();
        state.queue.start(own, self.clock.now());
        state.wake = Some(wake);
    }

    fn handle_link(&self, id: InstanceId) {
        let now = self.clock.now();
        self.change(now, |state| state.queue.handle_link(id, now));
    }

    fn handle_link_end(&self, node: u64, is_gone: bool) {
        let now = self.clock.now();
        self.change(now, |state| state.queue.handle_link_end(node, is_gone, now));
    }

    fn handle_messages(&self, from: u64, messages: &[QueueMessage]) {
        let now = self.clock.now();
        self.change(now, |state| {
            for message in messages {
                state.queue.handle_message(from, *message, now);
            }
        });
    }

    fn poll_messages(&self, each: &mut dyn FnMut(u64, QueueMessage)) {
        let mut state = self.state.lock();
        while let Some((to, message)) = state.queue.poll_message() {
            each(to, message);
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.state.lock().queue.poll_beat()
    }

    fn handle_timeout(&self) {
        self.change(self.clock.now(), |_| ());
    }

    fn report(&self) -> Option<SharedQueueReport> {
        self.state.lock().queue.report(self.clock.now())
    }
}
