//! The task to wake when the state of a link changes.
//!
//! A link has two: the task that serves it, and the one that reads its request's body. Waking a
//! task only makes it read the state again; `link.rs` and `upload.rs` decide the next step.

use std::cell::RefCell;
use std::task::Waker;

/// The waker of the last task that waited, if any.
#[derive(Default)]
pub(crate) struct WakerSlot(RefCell<Option<Waker>>);

impl WakerSlot {
    /// Remembers the task of `waker`.
    pub(crate) fn set(&self, waker: &Waker) {
        let mut place = self.0.borrow_mut();
        if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *place = Some(waker.clone());
        }
    }

    /// Wakes the task, which may have ended.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.0.borrow() {
            waker.wake_by_ref();
        }
    }
}
