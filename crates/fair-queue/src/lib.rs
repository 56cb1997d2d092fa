//! A fair queue within a Rust service. Clients take turns by what their requests cost, however many
//! requests each of them sends.
//!
//! [`FairQueueLayer`] is the tower layer, for axum, tonic and hyper. [`FairQueue`] is the queue
//! itself, a fair semaphore for any asynchronous code. Both need a tokio runtime with time enabled,
//! which only those touch that wait. The order of requests is decided by `evenkeel_core::queue`.
//!
//! ```
//! use evenkeel_fair_queue::{FairQueue, FairQueueSettings, Slots};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), evenkeel_fair_queue::QueueRefusal> {
//! let queue = FairQueue::new(FairQueueSettings { slots: Slots::Fixed(4), ..Default::default() });
//! let slot = queue.enter(b"tenant 7", "report").await?;
//! // At most four run here at once.
//! drop(slot);
//! # Ok(())
//! # }
//! ```

mod body;
mod layer;
mod queue;

pub use body::SlotBody;
pub use layer::{FairQueueLayer, FairQueueService, QueueCost, ResponseFuture};
pub use queue::settings::{FairQueueSettings, Slots};
pub use queue::waiting::WaitingSlot;
pub use queue::{FairQueue, FairQueueStats, QueueRefusal, RefusalCause, Slot};

/// Compiles the code of README.md with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct FairQueueReadme;
