//! The cgroups of this process, and all cgroups above them, whose limits bound what it may use.
//!
//! Version 1 has a hierarchy for each controller, and version 2 has one for all.

use std::fs;
use std::path::{Path, PathBuf};

/// Where cgroups are mounted.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";

/// One cgroup.
pub(crate) struct ProcessCgroup {
    /// Whether it is of version 1.
    pub is_v1: bool,
    pub folder: PathBuf,
}

/// The cgroups of this process, as `/proc/self/cgroup` lists them; empty if there are none.
pub(crate) fn own() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// The cgroups in `own`, the content of `/proc/self/cgroup`, that may have limits of `controller`,
/// and those above them.
pub(crate) fn with_controller(own: &str, root: &Path, controller: &str) -> Vec<ProcessCgroup> {
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let is_v1 = controllers.split(',').any(|name| name == controller);
        if !is_v1 && !controllers.is_empty() {
            continue;
        }
        let root = if is_v1 { root.join(controller) } else { root.to_owned() };
        let above = Path::new(path.trim_start_matches('/')).ancestors();
        groups.extend(above.map(|path| ProcessCgroup { is_v1, folder: root.join(path) }));
    }
    groups
}
