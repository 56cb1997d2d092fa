//! The files of robots while the program runs: read at the start, followed once a second, read
//! again when the settings change.
//!
//! What the files contain and what they prove is in `identity::robots`; the engine is only told the
//! result. A fault in a file at the start ends the program, later it is logged.

use evenkeel_config::settings::{ProxySettings, RobotSettings};
use evenkeel_engine::Engine;
use evenkeel_identity::robots::{LiveRobots, RobotFileError};
use evenkeel_telemetry::Watch;
use parking_lot::Mutex;
use std::sync::Arc;

/// The robots of an engine.
pub(super) struct EngineRobots {
    engine: Arc<Engine>,
    watch: Arc<Watch>,
    live: Mutex<Option<LiveRobots>>,
}

impl EngineRobots {
    /// Reads the files and tells the engine.
    pub(super) fn open(
        proxy: &ProxySettings,
        engine: &Arc<Engine>,
        watch: &Arc<Watch>,
    ) -> Result<EngineRobots, RobotFileError> {
        let live = load(&proxy.robots, watch, None)?;
        engine.set_robots(live.as_ref().map(LiveRobots::running));
        let (engine, watch) = (Arc::clone(engine), Arc::clone(watch));
        Ok(EngineRobots { engine, watch, live: Mutex::new(live) })
    }

    /// Applies changed settings by `apply`, in which the engine follows them. In between there are
    /// no robots, because the engine knows the hosts of each by its number.
    pub(super) fn reload(&self, proxy: &ProxySettings, apply: impl FnOnce()) {
        let mut live = self.live.lock();
        let same = live.as_ref().map(LiveRobots::settings) == Some(&proxy.robots);
        if same || (live.is_none() && proxy.robots.list.is_empty()) {
            return apply();
        }
        self.engine.set_robots(None);
        apply();
        match load(&proxy.robots, &self.watch, live.as_ref()) {
            Ok(loaded) => *live = loaded,
            Err(error) => {
                tracing::error!(%error, "proxy.robots is refused; until it is correct no client \
                                         is a robot or an impostor");
                *live = None;
            }
        }
        self.engine.set_robots(live.as_ref().map(LiveRobots::running));
    }

    /// Follows the files. Must be called once a second.
    pub(super) fn look(&self) {
        let changed = self.live.lock().as_mut().and_then(LiveRobots::look);
        if changed.is_some() {
            self.engine.set_robots(changed);
        }
    }
}

fn load(
    settings: &RobotSettings,
    watch: &Watch,
    before: Option<&LiveRobots>,
) -> Result<Option<LiveRobots>, RobotFileError> {
    let any = !settings.list.is_empty();
    any.then(|| LiveRobots::load(settings, watch.registry(), before)).transpose()
}
