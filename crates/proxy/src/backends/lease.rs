//! A connection to a backend, as a request holds it: with the backend that it goes back to.
//!
//! The connection itself does not name its backend, so that what speaks HTTP knows nothing of how
//! backends are chosen and connections are kept.

use super::UpstreamBackend;
use crate::wire::UpstreamWire;
use evenkeel_engine::BackendOccupation;
use std::rc::Rc;

/// A connection or stream for one request. Dropping it closes the connection, or resets the stream,
/// unless its answer is complete.
pub(crate) struct UpstreamLease {
    pub(crate) backend: Rc<UpstreamBackend>,
    pub(crate) wire: UpstreamWire,
    /// Counts the request as one of the whole process, if requests are counted.
    _occupation: Option<BackendOccupation>,
}

impl UpstreamLease {
    pub(super) fn new(
        backend: &Rc<UpstreamBackend>,
        wire: UpstreamWire,
        occupation: Option<BackendOccupation>,
    ) -> UpstreamLease {
        UpstreamLease { backend: Rc::clone(backend), wire, _occupation: occupation }
    }

    /// Keeps the connection for another request, if one may follow. `now`: the thread's coarse
    /// milliseconds.
    pub(crate) fn keep(self, now: u64) {
        self.backend.keep(self.wire, now);
    }
}
