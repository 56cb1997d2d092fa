//! Reports to the engine, ten times a second, how busy this machine's processors are, if the
//! backend runs on them.
//!
//! Idle processors while requests wait for a slot mean that the processors are not what limits. The
//! search for the concurrency then goes up without delay: `evenkeel_core::queue::concurrency`. All
//! programs count, because what others use is not free for the backend. Without the file (another
//! system than Linux) the search relies on the requests alone. The file: `cpus/busy` in `config`.

use evenkeel_config::cpus::busy::ProcessorTimes;
use evenkeel_engine::Engine;
use std::sync::Weak;
use std::time::Duration;

/// Interval between two readings. The next constant is the interval between two checks whether the
/// backend runs on this machine.
const READ_INTERVAL: Duration = Duration::from_millis(100);
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Runs as long as the engine exists.
pub async fn follow(engine: Weak<Engine>) {
    let mut before = None;
    while let Some(engine) = engine.upgrade() {
        let Some(cpus) = engine.watched_processors() else {
            before = None;
            drop(engine);
            tokio::time::sleep(IDLE_INTERVAL).await;
            continue;
        };
        let now = ProcessorTimes::read();
        let pair = now.as_ref().zip(before.as_ref());
        if let Some(part) = pair.and_then(|(now, before)| now.used_part(before, cpus)) {
            engine.processors_used(part);
        }
        before = now;
        drop(engine);
        tokio::time::sleep(READ_INTERVAL).await;
    }
}
