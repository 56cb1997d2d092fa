//! How busy the processors of a backend on this machine are.
//!
//! If its cgroup is known, the kernel says exactly how much CPU time it used and whether it waited
//! for more. Otherwise all programs of the machine count, because what others use is not free for
//! the backend. The user is `run/processors.rs`. The files of cgroups are read in `cgroup`.

use super::cgroup::CgroupLoad;
use evenkeel_core::units::{SECOND, Time};
use std::fs;
use std::path::{Path, PathBuf};

/// The times of all processors since the machine was started (proc(5)).
const FILE: &str = "/proc/stat";
/// Tasks of a cgroup that wait for a processor in more than this part of the time are held up by
/// it, although the cgroup may use little: other programs have the processors.
const WAITED_PART: f64 = 0.5;

/// The counters of a backend's processors at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendProcessors {
    now: Time,
    /// The path of the backend's cgroup, and its counters, if they can be read.
    cgroup: Option<(PathBuf, CgroupLoad)>,
    /// The counters of the machine, unless the cgroup says it all.
    machine: Option<ProcessorTimes>,
}

impl BackendProcessors {
    /// Reads the counters at the time `now`, of the cgroup at this path if it is known. `is_local`:
    /// the backend runs on this machine, whether a cgroup can be read or not.
    #[must_use]
    pub fn read(cgroup: Option<&Path>, is_local: bool, now: Time) -> BackendProcessors {
        let cgroup = cgroup.and_then(|path| Some((path.to_owned(), CgroupLoad::read(path)?)));
        let waits_known = cgroup.as_ref().is_some_and(|(_, load)| load.waited.is_some());
        let is_needed = !waits_known && (is_local || cgroup.is_some());
        let machine = is_needed.then(ProcessorTimes::read).flatten();
        BackendProcessors { now, cgroup, machine }
    }

    /// The part of their time in which the processors were busy since `before`, at most 1. The
    /// backend has `cpus` of them, or the quota of its cgroup. `None`: not known.
    #[must_use]
    pub fn busy_part(&self, before: &BackendProcessors, cpus: f64) -> Option<f64> {
        let machine = || self.machine?.used_part(&before.machine?, cpus);
        let (Some((path, load)), Some((old_path, old))) = (&self.cgroup, &before.cgroup) else {
            return machine();
        };
        let period = self.now.since(before.now).as_secs_f64();
        if path != old_path || period <= 0.0 {
            return None;
        }
        // A cgroup that was created again starts at zero.
        let used = load.used.0.checked_sub(old.used.0)? as f64 / SECOND as f64;
        let own = used / period / load.quota.unwrap_or(cpus);
        let waited = load.waited.zip(old.waited);
        let part = match waited.map(|(now, old)| now.0.saturating_sub(old.0)) {
            Some(waited) if waited as f64 / SECOND as f64 > WAITED_PART * period => 1.0,
            Some(_) => own,
            None => machine().map_or(own, |all| all.max(own)),
        };
        Some(part.min(1.0))
    }
}

/// The time that all processors together were used and idle, in the system's ticks, and their
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessorTimes {
    used: u64,
    idle: u64,
    processors: u32,
}

impl ProcessorTimes {
    /// Reads the present times; `None` on systems that do not have them.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::cgroup;
    use evenkeel_core::units::Nanos;
    use evenkeel_testing::wait::{try_wait_within, until};
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

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

    const CGROUP: &str = "/app";

    /// Counters at `seconds`: CPU time of the cgroup, and the time for which it waited, in seconds;
    /// and of the ticks of a machine with two processors those that were used, of 200 a second.
    fn counters(
        seconds: f64,
        used: f64,
        (waited, quota): (Option<f64>, Option<f64>),
        machine: Option<u64>,
    ) -> BackendProcessors {
        let load = CgroupLoad {
            used: Nanos::from_secs_f64(used),
            waited: waited.map(Nanos::from_secs_f64),
            quota,
        };
        let idle = |used| (200.0 * seconds) as u64 - used;
        BackendProcessors {
            now: Time(5 * SECOND).plus(Nanos::from_secs_f64(seconds)),
            cgroup: Some((CGROUP.into(), load)),
            machine: machine.map(|used| ProcessorTimes { used, idle: idle(used), processors: 2 }),
        }
    }

    #[test]
    fn a_cgroup_is_busy_at_its_quota_or_if_it_waits() {
        for (used, waited, quota, machine, expected) in [
            // Half a processor on an idle machine, all of it used.
            (0.05, Some(0.04), Some(0.5), None, 1.0),
            (0.01, Some(0.0), Some(0.5), None, 0.2),
            // The quota is that of the backend, whatever Evenkeel itself may use.
            (0.1, Some(0.0), Some(4.0), None, 0.25),
            (0.1, Some(0.0), None, None, 0.5),
            (0.3, Some(0.0), None, None, 1.0),
            // Others use the processors: it waits, or it does not.
            (0.02, Some(0.09), None, None, 1.0),
            (0.02, Some(0.04), None, None, 0.1),
            // The kernel does not measure waits.
            (0.02, None, None, Some(19), 0.95),
            (0.02, None, Some(0.2), Some(5), 1.0),
            (0.02, None, None, None, 0.1),
        ] {
            let before = counters(0.0, 0.0, (waited.map(|_| 0.0), quota), machine.map(|_| 0));
            let after = counters(0.1, used, (waited, quota), machine);
            let part = after.busy_part(&before, 2.0).expect("known");
            assert!((part - expected).abs() < 1e-6, "{used} {waited:?} {quota:?}: {part}");
        }
    }

    #[test]
    fn two_readings_that_do_not_belong_together_say_nothing() {
        let before = counters(1.0, 3.0, (Some(1.0), None), None);
        let after = counters(1.1, 3.1, (Some(1.0), None), None);
        assert!(after.busy_part(&before, 2.0).is_some());
        assert_eq!(before.busy_part(&before, 2.0), None, "no time has passed");
        let anew = counters(1.1, 0.1, (Some(0.0), None), None);
        assert_eq!(anew.busy_part(&before, 2.0), None, "created again");
        let mut other = after.clone();
        other.cgroup = other.cgroup.map(|(_, load)| ("/other".into(), load));
        assert_eq!(other.busy_part(&before, 2.0), None);
        let gone = BackendProcessors { cgroup: None, ..after };
        assert_eq!((gone.busy_part(&before, 2.0), before.busy_part(&gone, 2.0)), (None, None));
    }

    /// A cgroup of this test. Its programs are killed and it is removed when this value is dropped.
    struct OwnCgroup {
        folder: PathBuf,
        programs: Vec<Child>,
    }

    impl OwnCgroup {
        const PATH: &str = "/evenkeel-busy-test";

        /// `None`, with a message, if this process may not make one, or the kernel does not measure
        /// its waits.
        fn make() -> Option<OwnCgroup> {
            let file = cgroup::file(Path::new(OwnCgroup::PATH));
            let folder = file.parent().expect("a folder").to_owned();
            let made = fs::create_dir(&folder);
            let own = OwnCgroup { folder, programs: Vec::new() };
            let load = CgroupLoad::read(Path::new(OwnCgroup::PATH));
            if load.is_none_or(|load| load.waited.is_none()) {
                eprintln!("skipped: no cgroup with cpu.pressure at {:?}: {made:?}", own.folder);
                return None;
            }
            Some(own)
        }

        /// Starts a program that computes without end, in this cgroup or beside it.
        fn spin(&mut self, is_inside: bool) {
            let enter = format!("echo $$ > {}", self.folder.join("cgroup.procs").display());
            let enter = if is_inside { &*enter } else { ":" };
            let script = format!("{enter}; while :; do :; done");
            let program = Command::new("sh").args(["-c", &script]).spawn();
            self.programs.push(program.expect("a shell"));
        }

        /// Waits until the programs of this cgroup have begun, and returns how busy its processors
        /// are for a while.
        fn busy_part(&self, inside: usize) -> f64 {
            until("all have begun", || {
                let ids = fs::read_to_string(self.folder.join("cgroup.procs")).expect("there");
                ids.lines().count() == inside
            });
            let clock = Instant::now();
            let path = Some(Path::new(OwnCgroup::PATH));
            let read = || {
                let now = Time(u64::try_from(clock.elapsed().as_nanos()).expect("a short time"));
                BackendProcessors::read(path, true, now)
            };
            let before = read();
            try_wait_within(Duration::from_millis(300), || None::<()>);
            let cpus = std::thread::available_parallelism().expect("a number").get();
            read().busy_part(&before, cpus as f64).expect("known")
        }
    }

    impl Drop for OwnCgroup {
        fn drop(&mut self) {
            for program in &mut self.programs {
                let _ = program.kill();
                let _ = program.wait();
            }
            let _ = fs::remove_dir(&self.folder);
        }
    }

    #[test]
    fn a_real_cgroup_is_busy_if_its_own_programs_are() {
        let Some(mut own) = OwnCgroup::make() else { return };
        let cpus = std::thread::available_parallelism().expect("a number").get();
        (0..2 * cpus).for_each(|_| own.spin(false));
        let idle = own.busy_part(0);
        assert!(idle < 0.01, "other programs are busy, it is not: {idle}");
        (0..2 * cpus).for_each(|_| own.spin(true));
        let busy = own.busy_part(2 * cpus);
        assert!(busy > 0.99, "it waits for other programs and for itself: {busy}");
    }

    #[test]
    fn without_a_cgroup_only_a_backend_on_this_machine_is_known() {
        let read = |is_local| BackendProcessors::read(None, is_local, Time::ZERO).machine.is_some();
        assert_eq!([read(true), read(false)], [true, false]);
        let missing = Path::new("/evenkeel.test/none");
        let reading = BackendProcessors::read(Some(missing), false, Time::ZERO);
        assert_eq!((reading.cgroup, reading.machine), (None, None));
    }
}
