//! What the admin door shows: the engines, the metrics, the configuration and the stage of the
//! program.
//!
//! This file computes nothing. Values that are read from the engines: `observe`.

use evenkeel_config::host::ProgramFile;
use evenkeel_engine::view::EngineView;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use std::path::PathBuf;
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
    /// What `evenkeel doctor` asks about the process.
    pub setup: SetupFacts,
}

/// Facts about the process that do not change while it runs.
#[derive(Clone, Debug, Default)]
pub struct SetupFacts {
    /// The configuration file; `None`: flags or environment variables.
    pub config_file: Option<PathBuf>,
    /// The file of the program.
    pub program: Option<ProgramFile>,
    /// Connections that had found a queue of the kernel full before the start.
    pub listen_overflows: Option<u64>,
    /// The file of the snapshot.
    pub state_file: Option<PathBuf>,
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
