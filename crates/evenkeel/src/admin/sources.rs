//! What the admin door shows: the engines, the metrics, the configuration and the stage of the
//! program.
//!
//! This file computes nothing. Values that are read from the engines: `observe`.

use evenkeel_engine::view::EngineView;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use std::sync::Arc;

/// The data that the admin door shows.
pub struct AdminSources {
    /// The metrics of this process.
    pub watch: Arc<Watch>,
    /// The clock of all counters.
    pub clock: Clock,
    pub engines: Vec<DoorEngine>,
    /// Returns the running configuration as YAML. It is called for each request, since the
    /// configuration can be reloaded.
    pub show: Box<dyn Fn() -> String + Send + Sync>,
}

#[derive(Clone)]
pub struct DoorEngine {
    /// The name of the door in metrics: `proxy`, `line`.
    pub door: &'static str,
    pub engine: Arc<dyn EngineView>,
}

/// The stage of the program, as `/readyz` reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadinessStage {
    #[default]
    Starting,
    Ready,
    Draining,
}
