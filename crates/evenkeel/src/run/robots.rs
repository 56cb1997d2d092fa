//! The files and key directories of robots while the program runs: read at the start, followed once
//! a second, read again when the settings change.
//!
//! What they contain and what they prove is in `identity::robots`; the engine is only told the
//! result. A fault in a file at the start ends the program, later it is logged. How directories are
//! fetched: `robots/directory.rs`; when: `robots/schedule.rs`.

mod directory;
mod schedule;

use evenkeel_config::settings::{ProxySettings, RobotSettings};
use evenkeel_core::units::Time;
use evenkeel_engine::Engine;
use evenkeel_identity::robots::{LiveRobots, RobotFileError};
use evenkeel_telemetry::Watch;
use parking_lot::Mutex;
use schedule::DirectorySchedule;
use std::sync::Arc;

/// The robots of an engine.
pub(super) struct EngineRobots {
    engine: Arc<Engine>,
    watch: Arc<Watch>,
    live: Mutex<Option<FollowedRobots>>,
}

struct FollowedRobots {
    robots: LiveRobots,
    directories: DirectorySchedule,
}

impl EngineRobots {
    /// Reads the files and tells the engine.
    pub(super) fn open(
        proxy: &ProxySettings,
        engine: &Arc<Engine>,
        watch: &Arc<Watch>,
    ) -> Result<EngineRobots, RobotFileError> {
        let live = Mutex::new(load(&proxy.robots, watch, None)?);
        let robots = EngineRobots { engine: Arc::clone(engine), watch: Arc::clone(watch), live };
        robots.tell(robots.live.lock().as_ref());
        Ok(robots)
    }

    /// Applies changed settings by `apply`, in which the engine follows them. In between there are
    /// no robots, because the engine knows the hosts of each by its number.
    pub(super) fn reload(&self, proxy: &ProxySettings, apply: impl FnOnce()) {
        let mut live = self.live.lock();
        let running = live.as_ref().map(|live| live.robots.settings());
        if running.map_or(proxy.robots.list.is_empty(), |running| *running == proxy.robots) {
            return apply();
        }
        self.tell(None);
        apply();
        *live = load(&proxy.robots, &self.watch, live.take()).unwrap_or_else(|error| {
            tracing::error!(
                %error,
                "proxy.robots is refused; until it is correct no client is a robot or an impostor"
            );
            None
        });
        self.tell(live.as_ref());
    }

    /// Follows the files and the directories. Must be called once a second, within a runtime.
    pub(super) fn look(&self, now: Time) {
        let mut live = self.live.lock();
        let Some(FollowedRobots { robots, directories }) = live.as_mut() else { return };
        let mut changed = robots.look(now);
        directories.look(now, |host, keys| {
            robots.learn(host, keys);
            changed = true;
        });
        if changed {
            self.tell(live.as_ref());
        }
    }

    fn tell(&self, live: Option<&FollowedRobots>) {
        self.engine.set_robots(live.map(|live| Arc::new(live.robots.robots())));
    }
}

fn load(
    settings: &RobotSettings,
    watch: &Watch,
    before: Option<FollowedRobots>,
) -> Result<Option<FollowedRobots>, RobotFileError> {
    if settings.list.is_empty() {
        before.iter().for_each(|before| before.robots.clear());
        return Ok(None);
    }
    let old = before.as_ref().map(|before| &before.robots);
    let robots = LiveRobots::load(settings, watch.registry(), old)?;
    let mut directories =
        before.map_or_else(|| DirectorySchedule::new(settings), |before| before.directories);
    directories.follow(settings);
    Ok(Some(FollowedRobots { robots, directories }))
}
