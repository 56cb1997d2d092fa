//! The number of CPUs to share out: those of the machine, or fewer if a cgroup has a quota.
//!
//! A container with a quota of half a CPU on a machine with 64 must not share out 64. Quotas of
//! cgroups version 1 and 2 are read, for this process's own cgroup and all cgroups above it, if
//! they are mounted.

pub mod busy;
pub mod cgroup;
pub mod processes;

use std::fs;
use std::path::Path;

/// CPU-seconds per second that are available to this process: the minimum of the cores that it may
/// use and the quotas of its cgroups.
#[must_use]
pub fn available() -> f64 {
    let cores = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    quotas(&own, Path::new("/sys/fs/cgroup")).into_iter().fold(cores, f64::min)
}

/// All quotas of the cgroups in `own`, which is the content of `/proc/self/cgroup`.
fn quotas(own: &str, root: &Path) -> Vec<f64> {
    let mut quotas = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let v1 = controllers.split(',').any(|name| name == "cpu");
        if !v1 && !controllers.is_empty() {
            continue;
        }
        let root = if v1 { root.join("cpu") } else { root.to_owned() };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            quotas.extend(if v1 {
                v1_quota(&root.join(group))
            } else {
                v2_quota(&root.join(group))
            });
        }
    }
    quotas
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
