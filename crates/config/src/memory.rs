//! The memory that this process may use: that of the machine, or less if a cgroup has a limit.
//!
//! Limits of cgroups version 1 and 2 are read, for this process's own cgroup and all cgroups above
//! it, if they are mounted.

use crate::groups::{self, ProcessCgroup};
use crate::host;
use std::fs;
use std::path::Path;

/// The memory in bytes; `None` if the system does not tell.
#[must_use]
pub fn available() -> Option<u64> {
    let total = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    limits(&groups::own(), Path::new(groups::ROOT)).into_iter().chain(total).min()
}

/// All limits of the cgroups in `own`, which is the content of `/proc/self/cgroup`.
fn limits(own: &str, root: &Path) -> Vec<u64> {
    let groups = groups::with_controller(own, root, "memory");
    groups.iter().filter_map(limit).collect()
}

/// The limit that is closest to being reached, and the memory that counts towards it.
pub(crate) fn closest_limit(own: &str, root: &Path) -> Option<(u64, u64)> {
    let groups = groups::with_controller(own, root, "memory");
    let all = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let is_limit = |max: &u64| all.is_none_or(|all| *max < all);
    let full =
        |group: &ProcessCgroup| Some((limit(group).filter(is_limit)?, host::memory_used(group)?));
    let free = |(max, used): &(u64, u64)| max.saturating_sub(*used);
    groups.iter().filter_map(full).min_by_key(free)
}

fn limit(group: &ProcessCgroup) -> Option<u64> {
    let file = if group.is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
    // `max` in version 2 means no limit. Version 1 has a number beyond all machines.
    fs::read_to_string(group.folder.join(file)).ok()?.trim().parse().ok()
}

/// The line `MemTotal:       16318236 kB` of `/proc/meminfo`.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_off_meminfo() {
        assert_eq!(total("MemTotal:       1024 kB\nMemFree: 7 kB\n"), Some(1 << 20));
        for text in ["", "MemTotal:", "MemTotal: x kB", "MemTotal: 7", "MemFree: 7 kB"] {
            assert_eq!(total(text), None, "{text}");
        }
        assert!(available().is_some());
    }

    #[test]
    fn the_limit_of_a_group_above_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).expect("made");
        fs::write(group.join("memory.max"), "max\n").expect("written");
        fs::write(root.path().join("a/memory.max"), "1000\n").expect("written");
        assert_eq!(limits("0::/a/b\n", root.path()), [1000]);
        let v1 = root.path().join("memory/x");
        fs::create_dir_all(&v1).expect("made");
        fs::write(v1.join("memory.limit_in_bytes"), "2000\n").expect("written");
        assert_eq!(limits("4:cpu:/x\n3:memory:/x\n", root.path()), [2000]);
        assert!(limits("", root.path()).is_empty());
    }
}
