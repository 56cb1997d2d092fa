//! The number of requests that run on one backend, which the choice of a backend depends on.
//!
//! A connection or stream counts its own request: only it knows when that ends. Who is chosen:
//! `backends.rs`.

use std::cell::Cell;
use std::rc::Rc;

/// The number of requests that a thread has on one backend. Copies count together.
#[derive(Clone, Default)]
pub(crate) struct RunningRequests(Rc<Cell<usize>>);

impl RunningRequests {
    /// Counts a request that is sent to the backend.
    pub(crate) fn add(&self) {
        self.0.set(self.0.get() + 1);
    }

    /// Ends the count of one request.
    pub(crate) fn remove(&self) {
        self.0.set(self.0.get().saturating_sub(1));
    }

    /// Returns the number of requests.
    pub(crate) fn get(&self) -> usize {
        self.0.get()
    }
}
