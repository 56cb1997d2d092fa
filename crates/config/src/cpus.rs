//! The number of CPUs to share out: those of the machine, or fewer if a cgroup has a quota.
//!
//! A container with a quota of half a CPU on a machine with 64 must not share out 64. Quotas of
//! cgroups version 1 and 2 are read, for this process's own cgroup and all cgroups above it, if
//! they are mounted.

pub mod busy;
pub mod cgroup;
pub mod processes;

use crate::groups;
use std::fs;
use std::path::Path;

/// CPU-seconds per second that are available to this process: the minimum of the cores that it may
/// use and the quotas of its cgroups.
#[must_use]
pub fn available() -> f64 {
    let cores = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    quotas(&groups::own(), Path::new(groups::ROOT)).into_iter().fold(cores, f64::min)
}

/// All quotas of the cgroups in `own`, which is the content of `/proc/self/cgroup`.
fn quotas(own: &str, root: &Path) -> Vec<f64> {
    let groups = groups::with_controller(own, root, "cpu");
    let quota = |group: &groups::ProcessCgroup| match group.is_v1 {
        true => v1_quota(&group.folder),
        false => v2_quota(&group.folder),
    };
    groups.iter().filter_map(quota).collect()
}

fn v2_quota(group: &Path) -> Option<f64> {
    parse_v2(&fs::read_to_string(group.join("cpu.max")).ok()?)
}

fn v1_quota(group: &Path) -> Option<f64> {
    let quota = fs::read_to_string(group.join("cpu.cfs_quota_us")).ok()?;
    let period = fs::read_to_string(group.join("cpu.cfs_period_us")).ok()?;
    parse_v1(&quota, &period)
}

/// Parses `cpu.max`: `max 100000` or `50000 100000`, quota and period in microseconds.
fn parse_v2(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    parse_v1(quota, period)
}

/// Parses quota and period, in microseconds. `None` for -1 or `max`, which mean no quota.
fn parse_v1(quota: &str, period: &str) -> Option<f64> {
    let quota: u64 = quota.trim().parse().ok()?;
    let period: u64 = period.trim().parse().ok()?;
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read_in_both_forms() {
        assert_eq!(parse_v2("max 100000\n"), None);
        assert_eq!(parse_v2("50000 100000\n"), Some(0.5));
        assert_eq!(parse_v1("-1\n", "100000\n"), None);
        assert_eq!(parse_v1("250000\n", "100000\n"), Some(2.5));
        assert_eq!(parse_v2("garbage"), None);
        assert!(available() > 0.0);
    }

    #[test]
    fn the_quota_of_a_group_above_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).expect("made");
        fs::write(group.join("cpu.max"), "max 100000").expect("written");
        fs::write(root.path().join("a/cpu.max"), "150000 100000").expect("written");
        assert_eq!(quotas("0::/a/b\n", root.path()), [1.5]);
        let v1 = root.path().join("cpu/x");
        fs::create_dir_all(&v1).expect("made");
        fs::write(v1.join("cpu.cfs_quota_us"), "50000").expect("written");
        fs::write(v1.join("cpu.cfs_period_us"), "100000").expect("written");
        assert_eq!(quotas("4:cpu,cpuacct:/x\n3:memory:/x\n", root.path()), [0.5]);
    }
}
