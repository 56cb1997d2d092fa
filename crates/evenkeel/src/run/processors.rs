//! Reports to the engine, ten times a second, how busy this machine's processors are, if the backend
//! runs on them.
//!
//! Idle processors while requests wait for a slot mean that the processors are not what limits. The
//! search for the concurrency then goes up without delay: `evenkeel_core::queue::concurrency`. All
//! programs count, because what others use is not free for the backend. Without the file (another
//! system than Linux) the search relies on the requests alone.

use evenkeel_engine::Engine;
use std::fs;
use std::sync::Weak;
use std::time::Duration;

/// The times of all processors since the machine was started (proc(5)).
const FILE: &str = "/proc/stat";
/// Interval between two readings. The next constant is the interval between two checks whether the
/// backend runs on this machine.
const READ_INTERVAL: Duration = Duration::from_millis(100);
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// The time that all processors together were used and idle, in the system's ticks, and their
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessorTimes {
    used: u64,
    idle: u64,
    processors: u32,
}

impl ProcessorTimes {
    fn read() -> Option<ProcessorTimes> {
        ProcessorTimes::parse(&fs::read_to_string(FILE).ok()?)
    }

    fn parse(text: &str) -> Option<ProcessorTimes> {
        let all = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let times: Vec<u64> =
            all.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        // user nice system idle iowait irq softirq steal; what follows is part of the first two.
        let [user, nice, system, idle, waiting, irq, soft, steal] = *times.first_chunk()?;
        let used = [user, nice, system, irq, soft, steal].into_iter().fold(0, u64::saturating_add);
        let is_processor = |line: &&str| {
            line.strip_prefix("cpu")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let processors = u32::try_from(text.lines().filter(is_processor).count()).ok()?;
        Some(ProcessorTimes { used, idle: idle.saturating_add(waiting), processors })
    }

    /// The part of the time of `cpus` processors that was used since `before`, at most 1; `None` if
    /// no time has passed.
    fn used_part(&self, before: &ProcessorTimes, cpus: f64) -> Option<f64> {
        let used = self.used.saturating_sub(before.used) as f64;
        let idle = self.idle.saturating_sub(before.idle) as f64;
        let processors = f64::from(self.processors);
        (used + idle > 0.0)
            .then(|| (used / (used + idle) * processors / cpus.min(processors)).min(1.0))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "cpu  100 5 20 300 40 1 2 3 9 0\ncpu0 50 0 10 150 20 0 1 1 0 0\n\
                        cpu1 50 5 10 150 20 1 1 2 9 0\nintr 1\nctxt 2\n";

    #[test]
    fn used_and_idle_times_are_told_apart() {
        let times = ProcessorTimes::parse(TEXT).expect("times");
        assert_eq!(times, ProcessorTimes { used: 131, idle: 340, processors: 2 });
        for text in ["", "cpu \n", "cpu  1 2 3\n", "cpu  1 2 3 x 5 6 7 8\n", "intr 5\n"] {
            assert_eq!(ProcessorTimes::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_part_is_of_the_backends_processors() {
        let before = ProcessorTimes { used: 100, idle: 100, processors: 4 };
        let now = ProcessorTimes { used: 110, idle: 130, processors: 4 };
        let part = |cpus| now.used_part(&before, cpus);
        // One of four was busy.
        assert_eq!([4.0, 2.0, 1.0, 0.5, 16.0].map(part), [0.25, 0.5, 1.0, 1.0, 0.25].map(Some));
        assert_eq!(before.used_part(&before, 1.0), None);
        assert_eq!(before.used_part(&now, 1.0), None, "a clock that goes back");
    }
}
