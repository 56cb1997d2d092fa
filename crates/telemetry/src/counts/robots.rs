//! The handles with which requests of robots and faults of their signatures are counted.
//!
//! `telemetry::metrics` has the meaning of each metric; `identity::robots` finds the proofs. The
//! same counters are shown by the admin page, so each robot keeps its handles.

use crate::metrics::{ROBOT_REQUESTS, SIGNATURE_FAULTS};
use crate::registry::{Counter, Registry};

/// The requests of one robot.
#[derive(Clone, Debug)]
pub struct RobotCounts {
    /// Proven by a signature.
    pub signature: Counter,
    /// Proven by an address list.
    pub address: Counter,
    /// Proven by the name of the host.
    pub host: Counter,
    /// Claimed without proof.
    pub none: Counter,
}

impl RobotCounts {
    /// Makes the handles of the robot with this name.
    #[must_use]
    pub fn new(registry: &Registry, robot: &str) -> RobotCounts {
        let of = |proof| registry.counter(&ROBOT_REQUESTS, &[robot, proof]);
        RobotCounts {
            signature: of("signature"),
            address: of("address"),
            host: of("host"),
            none: of("none"),
        }
    }
}

/// The counter of a fault of signatures.
#[must_use]
pub fn signature_fault(registry: &Registry, fault: &'static str) -> Counter {
    registry.counter(&SIGNATURE_FAULTS, &[fault])
}
