//! Reports to the engine, ten times a second, how busy the backend's processors are, if it runs on
//! this machine.
//!
//! Idle processors while requests wait for a slot mean that the processors are not what limits. The
//! search for the concurrency then goes up without delay: `evenkeel_core::queue::concurrency`. With
//! `cost: cgroup` the backend's own use and waits count, otherwise all programs. Without the files
//! (another system than Linux) the search relies on the requests alone. The files are read by
//! `cpus/busy` in `config`.

use evenkeel_config::cpus::busy::BackendProcessors;
use evenkeel_engine::Engine;
use std::sync::Weak;
use std::time::Duration;

/// Interval between two readings. The next constant is the interval between two checks whether the
/// backend runs on this machine.
const READ_INTERVAL: Duration = Duration::from_millis(100);
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Runs as long as the engine exists.
pub async fn follow(engine: Weak<Engine>) {
    let mut before: Option<BackendProcessors> = None;
    while let Some(engine) = engine.upgrade() {
        let Some(watched) = engine.watched_processors() else {
            before = None;
            drop(engine);
            tokio::time::sleep(IDLE_INTERVAL).await;
            continue;
        };
        let (cgroup, now) = (watched.cgroup.as_deref(), engine.clock().now());
        let now = BackendProcessors::read(cgroup, watched.is_local, now);
        let part = before.as_ref().and_then(|before| now.busy_part(before, watched.cpus));
        if let Some(part) = part {
            engine.processors_used(part);
        }
        before = Some(now);
        drop(engine);
        tokio::time::sleep(READ_INTERVAL).await;
    }
}
