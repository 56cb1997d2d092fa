//! What a cgroup (version 2) has used of the CPUs, and in which cgroups the processes behind a port
//! are.
//!
//! Both are read off the system's own files. Whoever asks decides what to make of it:
//! `run/cgroup.rs`, `tollgate check`.

use crate::config::settings::Backend;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tollgate_core::units::Nanos;

/// Where cgroups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// The state of a socket that listens, in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// The file that says what the cgroup at `path` has used; a path is that of `/proc/PID/cgroup`, or
/// one below where they are mounted.
#[must_use]
pub fn file(path: &Path) -> PathBuf {
    let below = path.strip_prefix(ROOT).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
    Path::new(ROOT).join(below).join("cpu.stat")
}

/// CPU time that the cgroup has used since it was made.
///
/// # Errors
/// If there is none, or it does not say.
pub fn used(path: &Path) -> io::Result<Nanos> {
    let text = fs::read_to_string(file(path))?;
    usage(&text).ok_or_else(|| io::Error::other("it has no line usage_usec"))
}

fn usage(text: &str) -> Option<Nanos> {
    let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    let micros: u64 = micros.trim().parse().ok()?;
    Some(Nanos(micros.saturating_mul(1_000)))
}

/// The cgroups of processes that listen where `backend` is, as far as we may look; none if it is
/// not on this machine.
#[must_use]
pub fn behind(backend: &Backend) -> Vec<String> {
    let local = ["localhost", "127.0.0.1", "::1", "0.0.0.0"].contains(&backend.host());
    let port = backend.place.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let (Some(port), true) = (port, local && !backend.scheme.is_file()) else {
        return Vec::new();
    };
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let sockets: BTreeSet<String> =
        tables.into_iter().flatten().flat_map(|table| listening(&table, port)).collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let has_it = |process: &fs::DirEntry| {
        let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let mut links = open.filter_map(|fd| fs::read_link(fd.path()).ok());
        links.any(|link| link.to_str().is_some_and(|link| sockets.contains(link)))
    };
    let groups = processes.filter(has_it).filter_map(|process| {
        let text = fs::read_to_string(process.path().join("cgroup")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
    });
    groups.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The sockets that listen on `port`, as `/proc/PID/fd` links to them.
fn listening(table: &str, port: u16) -> Vec<String> {
    let sockets = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, hex) = words.get(1)?.rsplit_once(':')?;
        let listens = words.get(3) == Some(&LISTENS);
        let same = u16::from_str_radix(hex, 16) == Ok(port);
        (listens && same).then(|| words.get(9).map(|inode| format!("socket:[{inode}]")))?
    });
    sockets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_is_read_off_cpu_stat() {
        let text = "usage_usec 1234567\nuser_usec 1\nsystem_usec 2\nnr_periods 0\n";
        assert_eq!(usage(text), Some(Nanos(1_234_567_000)));
        assert_eq!(usage("user_usec 1\n"), None);
        assert_eq!(usage("usage_usec x\n"), None);
        for path in ["/system.slice/a.service", "/sys/fs/cgroup/system.slice/a.service"] {
            let expected = Path::new("/sys/fs/cgroup/system.slice/a.service/cpu.stat");
            assert_eq!(file(Path::new(path)), expected);
        }
    }

    #[test]
    fn sockets_that_listen_are_found_by_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1\n\
            1: 0100007F:1F90 0100007F:0001 01 00000000:00000000 00:00000000 00000000 0 0 4712 1\n\
            2: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4713 1\n";
        assert_eq!(listening(table, 8080), ["socket:[4711]"]);
        assert!(listening(table, 1).is_empty() && listening("", 80).is_empty());
    }

    #[test]
    fn our_own_cgroup_is_found_by_a_port_of_ours() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound").to_string();
        let own = fs::read_to_string("/proc/self/cgroup").expect("there");
        let own = own.lines().find_map(|line| line.strip_prefix("0::"));
        let found = behind(&Backend::http(at));
        assert_eq!(found.first().map(String::as_str), own, "{found:?}");
        assert!(behind(&Backend::http("192.0.2.1:80")).is_empty());
    }

    #[test]
    fn fuzz_whatever_the_files_say_nothing_breaks() {
        bolero::check!().with_type::<(String, u16)>().for_each(|(text, port)| {
            let _ = (usage(text), listening(text, *port));
        });
    }
}
