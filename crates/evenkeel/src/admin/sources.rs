//! What the admin door shows: the engines, the metrics, the configuration and the stage of the
//! program.
//!
//! This file computes nothing. Values that are read from the engines: `observe`.

use evenkeel_engine::view::EngineView;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The data that the admin door shows.
pub struct AdminSources {
    /// The metrics of this process.
    pub watch: Arc<Watch>,
    /// The clock of all counters.
    pub clock: Clock,
    /// The engine of each door that has one.
    pub engines: Vec<DoorEngine>,
    /// Returns the running configuration as YAML. It is called for each request, since the
    /// configuration can be reloaded.
    pub show: Box<dyn Fn() -> String + Send + Sync>,
}

/// The engine of one door.
#[derive(Clone)]
pub struct DoorEngine {
    /// The name of the door in metrics: `proxy`, `line`.
    pub door: &'static str,
    /// The engine itself.
    pub engine: Arc<dyn EngineView>,
}

/// The stage of the program, as `/readyz` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReadinessStage {
    Starting,
    Ready,
    Draining,
}

/// The stage of the program, shared between threads.
#[derive(Debug)]
pub struct Readiness(AtomicU8);

impl Default for Readiness {
    fn default() -> Readiness {
        Readiness(AtomicU8::new(ReadinessStage::Starting as u8))
    }
}

impl Readiness {
    /// Sets the stage that `/readyz` reports from now on.
    pub fn set(&self, stage: ReadinessStage) {
        self.0.store(stage as u8, Ordering::Release);
    }

    /// Returns the current stage.
    pub fn get(&self) -> ReadinessStage {
        match self.0.load(Ordering::Acquire) {
            0 => ReadinessStage::Starting,
            1 => ReadinessStage::Ready,
            _ => ReadinessStage::Draining,
        }
    }
}
