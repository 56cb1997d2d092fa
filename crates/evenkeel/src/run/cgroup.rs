//! Reports the CPU time of the backend's cgroup to the engine ten times a second, if the
//! configuration names one.
//!
//! While the file cannot be read, requests cost the same as with `cost: shared`. That is logged
//! once, and the file is tried again each time. The calculation is in the core's meter.

use evenkeel_config::cpus::cgroup;
use evenkeel_core::units::{Cost, Nanos};
use evenkeel_engine::Engine;
use std::path::PathBuf;
use std::sync::Weak;
use std::time::Duration;

/// Interval between two readings. The next constant is the interval between two checks whether a
/// cgroup is configured.
const READ_INTERVAL: Duration = Duration::from_millis(100);
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Runs as long as the engine exists.
pub async fn follow(engine: Weak<Engine>) {
    let mut follower = CgroupFollower { engine, known: None, failing: false };
    while let Some(pause) = follower.look() {
        tokio::time::sleep(pause).await;
    }
}

struct CgroupFollower {
    engine: Weak<Engine>,
    /// The cgroup at the last reading, and its CPU time.
    known: Option<(PathBuf, Nanos)>,
    failing: bool,
}

impl CgroupFollower {
    /// Reads once. Returns the delay before the next reading, or `None` if the engine is gone.
    fn look(&mut self) -> Option<Duration> {
        let engine = self.engine.upgrade()?;
        let Some(path) = engine.cgroup() else {
            self.known = None;
            return Some(IDLE_INTERVAL);
        };
        match cgroup::used(&path) {
            Ok(used) => {
                let before = self.known.take().filter(|(known, _)| *known == path);
                if let Some((_, before)) = before {
                    // A cgroup that was created again starts at zero.
                    engine.cgroup_used(Some(Cost::cpu(Nanos(used.0.saturating_sub(before.0)))));
                }
                self.known = Some((path, used));
                self.failing = false;
            }
            Err(error) => {
                engine.cgroup_used(None);
                self.known = None;
                if !std::mem::replace(&mut self.failing, true) {
                    let cgroup = path.display();
                    tracing::warn!(
                        %cgroup, %error,
                        "the backend's CPU usage cannot be read: `cost: shared` is used instead"
                    );
                }
            }
        }
        Some(READ_INTERVAL)
    }
}
