//! How busy the processors of this machine are, with all programs.
//!
//! The user is `run/processors.rs`. How much CPU time the programs of a cgroup use: `cgroup`.

use std::fs;

/// The times of all processors since the machine was started (proc(5)).
const FILE: &str = "/proc/stat";
/// The time that all processors together were used and idle, in the system's ticks, and their
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorTimes {
    used: u64,
    idle: u64,
    processors: u32,
}

impl ProcessorTimes {
    /// Reads the present times; `None` on systems that do not tell them.
    #[must_use]
    pub fn read() -> Option<ProcessorTimes> {
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
    #[must_use]
    pub fn used_part(&self, before: &ProcessorTimes, cpus: f64) -> Option<f64> {
        let used = self.used.saturating_sub(before.used) as f64;
        let idle = self.idle.saturating_sub(before.idle) as f64;
        let processors = f64::from(self.processors);
        (used + idle > 0.0)
            .then(|| (used / (used + idle) * processors / cpus.min(processors)).min(1.0))
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
