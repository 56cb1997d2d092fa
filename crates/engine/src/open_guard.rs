//! The entry of an open request in the list of its lane, as the request holds it.
//!
//! The list: `open_requests`.

use crate::engine::RequestLists;
use crate::open_requests::{OpenRequests, RequestStage};
use crate::rules::EngineRules;
use crate::shards::LaneState;
use evenkeel_core::units::Time;
use parking_lot::Mutex;
use std::sync::Arc;

/// The entry of a request. Dropping it removes the entry, with the lane locked.
pub(crate) struct OpenGuard {
    lane: Arc<Mutex<LaneState<EngineRules, RequestLists>>>,
    place: Option<u32>,
}

impl OpenGuard {
    pub(crate) fn new(
        lane: &Arc<Mutex<LaneState<EngineRules, RequestLists>>>,
        place: Option<u32>,
    ) -> OpenGuard {
        OpenGuard { lane: Arc::clone(lane), place }
    }

    /// Changes the stage; `None`: the backend is done with it, or not asked yet. Locks the lane.
    pub(crate) fn set(&self, stage: Option<RequestStage>, now: Time) {
        if let Some(place) = self.place {
            self.lane.lock().own.open.set(place, stage, now);
        }
    }

    /// Removes the entry from the list of its lane, which the caller has locked.
    pub(crate) fn release(&mut self, open: &mut OpenRequests) {
        if let Some(place) = self.place.take() {
            open.remove(place);
        }
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.lane.lock().own.open.remove(place);
        }
    }
}
