//! The interface of a queue that instances may share to the driver of the peers.
//!
//! The queue behind it: `admission`. Its messages are those of `evenkeel_core::queue::shared`.
//! It is a file of its own because `admission` may not depend on the views that `replicated` needs.

use evenkeel_core::queue::shared::{InstanceId, QueueMessage, SharedQueueReport};
use evenkeel_core::units::Time;
use std::sync::Arc;

/// Called when the queue has messages for other instances. It must not call the queue.
pub type QueueWaker = Arc<dyn Fn() + Send + Sync>;

/// The queue of an engine, which instances may share.
pub trait SharedAdmission: Send + Sync {
    /// Whether the queue can be shared now. If it cannot, it can soon.
    fn is_ready(&self) -> bool {
        true
    }

    /// Begins to share the queue as the instance `own`. `wake` is called when there are messages;
    /// it must not call the queue.
    fn start(&self, own: InstanceId, wake: QueueWaker);

    /// There is a connection to another instance that shares the queue.
    fn handle_link(&self, id: InstanceId);

    /// The connection to another instance has ended. `is_gone`: the other has closed it, so it has
    /// ended; otherwise it may still run.
    fn handle_link_end(&self, node: u64, is_gone: bool);

    /// Messages of another instance.
    fn handle_messages(&self, from: u64, messages: &[QueueMessage]);

    /// Passes on the messages since the last call, each with the instance that it is for.
    fn poll_messages(&self, each: &mut dyn FnMut(u64, QueueMessage));

    /// When [`SharedAdmission::handle_timeout`] is to be called next.
    fn poll_timeout(&self) -> Option<Time>;

    /// Sends other instances a sign of life, and notices which of them send none.
    fn handle_timeout(&self);

    /// The state of the queue; `None` if no other instance can share it.
    fn report(&self) -> Option<SharedQueueReport> {
        None
    }
}
