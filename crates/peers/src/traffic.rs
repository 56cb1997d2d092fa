//! The traffic counters of a transport.
//!
//! Bytes include frames and their envelope, but not TLS, UDP and NATS. A frame counts as dropped if
//! there is no room for it or no receiver. Frames lost on the network are not counted, because
//! neither side can see them.

use evenkeel_telemetry::metrics::{PEER_BYTES, PEER_FRAMES_DROPPED};
use evenkeel_telemetry::registry::{Counter, Registry};

#[derive(Clone, Debug, Default)]
pub struct Traffic {
    pub read: Counter,
    pub written: Counter,
    /// Frames to send that were dropped.
    pub dropped: Counter,
    /// Received frames that were dropped for lack of room.
    pub missed: Counter,
}

impl Traffic {
    pub fn new(registry: &Registry) -> Traffic {
        Traffic {
            read: registry.counter(&PEER_BYTES, &["read"]),
            written: registry.counter(&PEER_BYTES, &["written"]),
            dropped: registry.counter(&PEER_FRAMES_DROPPED, &["sent"]),
            missed: registry.counter(&PEER_FRAMES_DROPPED, &["received"]),
        }
    }
}
