//! What passes through a transport, counted where it happens.
//!
//! Bytes are those of frames and what stands around them, without TLS, UDP and NATS. A frame is
//! dropped where there is no room for it or nobody to take it; what is lost on the way nobody here
//! knows.

use crate::watch::metrics::{PEER_BYTES, PEER_FRAMES_DROPPED};
use crate::watch::registry::{Counter, Registry};

/// The handles.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Bytes read.
    pub read: Counter,
    /// Bytes written.
    pub written: Counter,
    /// Frames that were to be sent, and were not.
    pub dropped: Counter,
    /// Frames that came, and found no room.
    pub missed: Counter,
}

impl Traffic {
    /// Those of the program's metrics.
    #[must_use]
    pub fn new(registry: &Registry) -> Traffic {
        Traffic {
            read: registry.counter(&PEER_BYTES, &["read"]),
            written: registry.counter(&PEER_BYTES, &["written"]),
            dropped: registry.counter(&PEER_FRAMES_DROPPED, &["sent"]),
            missed: registry.counter(&PEER_FRAMES_DROPPED, &["received"]),
        }
    }
}
