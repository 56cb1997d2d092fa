//! The admission queue as one that several instances share: what the driver of the peers brings and
//! takes.
//!
//! Who owns the queue and what instances tell each other is decided in
//! `evenkeel_core::queue::shared`. The connections: `evenkeel_peers::driver`.

use super::{AdmissionQueue, AdmissionState, pass};
use evenkeel_core::queue::shared::{InstanceId, QueueMessage, SharedQueue, SharedQueueReport};
use evenkeel_core::units::Time;
use evenkeel_telemetry::pressure::PressureNotice;
use std::sync::Arc;

/// Called when the queue has messages for other instances. It must not call the queue.
pub type QueueWaker = Arc<dyn Fn() + Send + Sync>;

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

    /// Whether the queue can be shared: requests that came before it was prepared have had their
    /// turn.
    pub fn is_ready_to_share(&self) -> bool {
        self.state.lock().queue.is_ready()
    }

    /// Begins to share the queue as the instance `own`.
    pub fn start_sharing(&self, own: InstanceId, wake: QueueWaker, now: Time) {
        let mut state = self.state.lock();
        state.queue.start(own, now);
        state.wake = Some(wake);
    }

    /// Ends the sharing of the queue.
    pub fn end_sharing(&self, now: Time) {
        self.change(now, |state| state.queue.end_sharing(now));
    }

    /// There is a connection to another instance.
    pub fn handle_link(&self, id: InstanceId, now: Time) {
        self.change(now, |state| state.queue.handle_link(id, now));
    }

    /// The connection to another instance has ended, and maybe the instance as well.
    pub fn handle_link_end(&self, node: u64, is_gone: bool, now: Time) {
        self.change(now, |state| state.queue.handle_link_end(node, is_gone, now));
    }

    /// Messages of another instance.
    pub fn handle_messages(&self, from: u64, messages: &[QueueMessage], now: Time) {
        self.change(now, |state| {
            for message in messages {
                state.queue.handle_message(from, *message, now);
            }
        });
    }

    /// Passes on the messages for other instances, each with the instance that it is for.
    pub fn take_messages(&self, each: &mut dyn FnMut(u64, QueueMessage)) {
        let mut state = self.state.lock();
        while let Some((to, message)) = state.queue.poll_message() {
            each(to, message);
        }
    }

    /// When [`AdmissionQueue::beat`] is to be called; `None` as long as no other instance is known.
    pub fn poll_beat(&self) -> Option<Time> {
        self.state.lock().queue.poll_beat()
    }

    /// Tells other instances that this one is there, and notices which are not.
    pub fn beat(&self, now: Time) {
        self.change(now, |_| ());
    }

    /// The state of the shared queue; `None` if this instance shares it with no other.
    pub fn shared_report(&self, now: Time) -> Option<SharedQueueReport> {
        self.state.lock().queue.report(now)
    }

    fn change(&self, now: Time, change: impl FnOnce(&mut AdmissionState)) {
        let mut state = self.state.lock();
        change(&mut state);
        pass(state, now);
    }
}
