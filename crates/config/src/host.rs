//! Facts about the machine that `evenkeel doctor` compares with the configuration: processors,
//! memory, open files, ports, the queues of the kernel, and the program's own file.
//!
//! Everything is read from the files of the system each time; a fact that it does not have is
//! `None`. The judgement is in `doctor` of the program. Both the running server and the command
//! read them, because the server may be in a container or belong to another user.

use crate::groups::{self, ProcessCgroup};
use crate::{cpus, memory};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The machine, as one process sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The processors that this process may use (its affinity).
    pub cores: f64,
    /// The same, or the quota of its cgroup if that is lower.
    pub cpus: f64,
    /// Open files of this process.
    pub files_used: Option<u64>,
    /// The hard limit on them; `None`: there is no limit.
    pub files_max: Option<u64>,
    /// The memory limit that is closest: in bytes, of the cgroup.
    pub memory_max: Option<u64>,
    /// The memory that counts towards that limit, in bytes, without files that can be dropped.
    pub memory_used: Option<u64>,
    /// `net.core.somaxconn`: the longest queue of connections that wait to be accepted.
    pub somaxconn: Option<u64>,
    /// Connections that found such a queue full, in this network namespace since it exists.
    pub listen_overflows: Option<u64>,
    /// The number of ports for outgoing connections.
    pub ports: Option<u64>,
    /// Sockets in TIME_WAIT.
    pub time_wait: Option<u64>,
    /// Whether the clock follows a time server, as far as systemd-timesyncd says it.
    pub clock_follows: Option<bool>,
}

impl HostFacts {
    /// Reads all facts.
    #[must_use]
    pub fn read() -> HostFacts {
        let text = |path: &str| fs::read_to_string(path).ok();
        let number = |path: &str| text(path)?.trim().parse().ok();
        let memory = memory::closest_limit(&groups::own(), Path::new(groups::ROOT));
        let ports = text("/proc/sys/net/ipv4/ip_local_port_range");
        HostFacts {
            cores: std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64),
            cpus: cpus::available(),
            files_used: fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64),
            files_max: getrlimit(Resource::Nofile).maximum,
            memory_max: memory.map(|(max, _)| max),
            memory_used: memory.map(|(_, used)| used),
            somaxconn: number("/proc/sys/net/core/somaxconn"),
            listen_overflows: text("/proc/net/netstat")
                .and_then(|text| counter(&text, "TcpExt:", "ListenOverflows")),
            ports: ports.and_then(|text| port_count(&text)),
            time_wait: text("/proc/net/sockstat").and_then(|text| after_word(&text, "TCP:", "tw")),
            clock_follows: Path::new("/run/systemd/timesync/synchronized").exists().then_some(true),
        }
    }
}

/// The value of a counter in a table of names and values, such as `/proc/net/netstat`.
fn counter(text: &str, table: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let column = lines.next()?.split_whitespace().position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

/// The number after `word` in the line that begins with `line`.
fn after_word(text: &str, line: &str, word: &str) -> Option<u64> {
    let line = text.lines().find(|found| found.starts_with(line))?;
    line.split_whitespace().skip_while(|found| *found != word).nth(1)?.parse().ok()
}

/// The number of ports in `32768 60999`.
fn port_count(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace().map(str::parse::<u64>);
    let (low, high) = (words.next()?.ok()?, words.next()?.ok()?);
    high.checked_sub(low).map(|count| count.saturating_add(1))
}

/// The size of the groups' memory without files that can be dropped at once.
pub(crate) fn memory_used(group: &ProcessCgroup) -> Option<u64> {
    let file = if group.is_v1 { "memory.usage_in_bytes" } else { "memory.current" };
    let used: u64 = fs::read_to_string(group.folder.join(file)).ok()?.trim().parse().ok()?;
    let stat = fs::read_to_string(group.folder.join("memory.stat")).unwrap_or_default();
    let name = if group.is_v1 { "total_inactive_file " } else { "inactive_file " };
    let idle = stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(used.saturating_sub(idle.unwrap_or(0)))
}

/// The file of the program that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFile {
    /// Its path at the start.
    pub path: PathBuf,
    identity: (u64, u64),
}

impl ProgramFile {
    /// The file of this process; `None` if the system does not tell. Must be called at the start.
    #[must_use]
    pub fn of_process() -> Option<ProgramFile> {
        let path = std::env::current_exe().ok()?;
        let identity = identity(Path::new("/proc/self/exe")).or_else(|| identity(&path))?;
        Some(ProgramFile { path, identity })
    }

    /// Whether another file is at its path now; `None` if there is none.
    #[must_use]
    pub fn is_replaced(&self) -> Option<bool> {
        Some(identity(&self.path)? != self.identity)
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// The folder of a file that is written now and then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFolder {
    /// The file.
    pub file: String,
    /// Why it cannot be written; `None` if it can.
    pub unwritable: Option<String>,
    /// Free bytes of its file system.
    pub free: Option<u64>,
}

impl StateFolder {
    /// Examines the folder of `file`.
    #[must_use]
    pub fn of(file: &Path) -> StateFolder {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let space = statvfs(folder).ok();
        let is_read_only =
            space.as_ref().is_some_and(|space| space.f_flag.contains(StatVfsMountFlags::RDONLY));
        let why = match access(folder, Access::WRITE_OK | Access::EXEC_OK) {
            _ if is_read_only => Some("its file system is read-only".to_owned()),
            Err(error) => Some(error.to_string()),
            Ok(()) => None,
        };
        StateFolder {
            file: file.display().to_string(),
            unwritable: why,
            free: space.map(|space| space.f_bavail.saturating_mul(space.f_frsize)),
        }
    }
}

/// Whether other users of this machine may read the file; `None` if it cannot be examined.
#[must_use]
pub fn is_readable_by_others(file: &Path) -> Option<bool> {
    Some(fs::metadata(file).ok()?.permissions().mode() & 0o004 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_kernel_are_read() {
        let netstat = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 22 3\n\
                       IpExt: A B\nIpExt: 4 5\n";
        assert_eq!(counter(netstat, "TcpExt:", "ListenOverflows"), Some(22));
        assert_eq!(counter(netstat, "TcpExt:", "Nothing"), None);
        let sockets = "sockets: used 9\nTCP: inuse 3 orphan 0 tw 17 alloc 4 mem 0\n";
        assert_eq!(after_word(sockets, "TCP:", "tw"), Some(17));
        assert_eq!(after_word(sockets, "UDP:", "tw"), None);
        assert_eq!(port_count("32768\t60999\n"), Some(28_232));
        assert_eq!(port_count("2 1"), None);
    }

    #[test]
    fn fuzz_whatever_the_kernel_writes_nothing_breaks() {
        evenkeel_fuzz::fuzz().with_type::<String>().for_each(|text| {
            let _ = (counter(text, "T", "a"), after_word(text, "T", "a"), port_count(text));
        });
    }

    #[test]
    fn this_process_has_facts_and_a_program() {
        let facts = HostFacts::read();
        assert!(facts.cores >= 1.0 && facts.cpus > 0.0 && facts.files_used > Some(0), "{facts:?}");
        let program = ProgramFile::of_process().expect("a program");
        assert_eq!(program.is_replaced(), Some(false));
        let moved = ProgramFile { path: "/nonexistent/a".into(), ..program.clone() };
        assert_eq!(moved.is_replaced(), None);
        let other = ProgramFile { path: "/".into(), ..program };
        assert_eq!(other.is_replaced(), Some(true));
    }

    #[test]
    fn a_folder_that_does_not_exist_cannot_be_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let good = StateFolder::of(&folder.path().join("state"));
        assert!(good.unwritable.is_none() && good.free.is_some(), "{good:?}");
        let bad = StateFolder::of(&folder.path().join("no/state"));
        assert!(bad.unwritable.is_some_and(|why| why.contains("No such file")));
        let file = folder.path().join("token");
        assert_eq!(is_readable_by_others(&file), None);
        fs::write(&file, "x").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("set");
        assert_eq!(is_readable_by_others(&file), Some(false));
    }
}
