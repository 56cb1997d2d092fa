//! CPU time that a cgroup (version 2) has used and waited for, its quota, and the cgroups of the
//! processes behind a port.
//!
//! All come from the files of the system, wherever they are mounted: on systems with both versions
//! of cgroups, version 2 is mounted next to version 1. The users are `run/cgroup.rs`, `busy` and
//! `evenkeel check`.

use super::processes;
use crate::settings::{BackendAddress, CostSource, Settings};
use evenkeel_core::units::Nanos;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The usual mount point of cgroups.
const DEFAULT_MOUNT_POINT: &str = "/sys/fs/cgroup";

/// The root cgroup, for processes that are in no other.
const ROOT_CGROUP: &str = "/";

/// The mount that was found. It is searched only once, but not cached while it is missing.
static MOUNTED: OnceLock<CgroupMount> = OnceLock::new();

/// A mount of cgroups version 2.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CgroupMount {
    point: PathBuf,
    /// The cgroup at the mount point. In some containers it is not the root of the hierarchy.
    root: PathBuf,
}

impl CgroupMount {
    /// The mount of this system, or the usual one if none is found.
    fn here() -> CgroupMount {
        if let Some(mount) = MOUNTED.get() {
            return mount.clone();
        }
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        match CgroupMount::among(&table) {
            Some(mount) => MOUNTED.get_or_init(|| mount).clone(),
            None => CgroupMount { point: DEFAULT_MOUNT_POINT.into(), root: "/".into() },
        }
    }

    /// Finds the mount with the largest part of the hierarchy, in a text like
    /// `/proc/self/mountinfo` (proc(5)).
    fn among(table: &str) -> Option<CgroupMount> {
        let mounts = table.lines().filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(3);
            let (root, point) = (path(fields.next()?), path(fields.next()?));
            (kind.split(' ').next() == Some("cgroup2")).then_some(CgroupMount { point, root })
        });
        mounts.min_by_key(|mount| mount.root.components().count())
    }

    fn folder(&self, path: &Path) -> PathBuf {
        let absolute = [&*self.point, Path::new(DEFAULT_MOUNT_POINT), &*self.root, Path::new("/")];
        let below = absolute.iter().find_map(|begin| path.strip_prefix(begin).ok());
        self.point.join(below.unwrap_or(path))
    }

    fn file(&self, path: &Path) -> PathBuf {
        self.folder(path).join("cpu.stat")
    }

    fn load(&self, path: &Path) -> Option<CgroupLoad> {
        let folder = self.folder(path);
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let above = folder.ancestors().take_while(|group| group.starts_with(&self.point));
        Some(CgroupLoad {
            used: usage(&read("cpu.stat")?)?,
            waited: read("cpu.pressure").and_then(|text| pressure(&text)),
            quota: above.filter_map(super::v2_quota).reduce(f64::min),
        })
    }
}

/// How busy the processors are that a cgroup may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CgroupLoad {
    /// CPU time that the cgroup has used since it was created.
    pub used: Nanos,
    /// The time since then in which at least one of its tasks waited for a processor, because
    /// others used it or because the quota was used up. `None`: the kernel does not measure it.
    pub waited: Option<Nanos>,
    /// The lowest quota of the cgroup and of those above it, in processors.
    pub quota: Option<f64>,
}

impl CgroupLoad {
    /// Reads the present values of the cgroup at `path`; `None` if it does not exist.
    #[must_use]
    pub fn read(path: &Path) -> Option<CgroupLoad> {
        CgroupMount::here().load(path)
    }
}

/// Decodes a path of that table: some characters are written as a backslash and three octal digits.
fn path(field: &str) -> PathBuf {
    let mut parts = field.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let sign = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (sign, part.get(3..)) {
            (Some(sign), Some(rest)) => {
                plain.push(char::from(sign));
                plain.push_str(rest);
            }
            _ => plain.push_str(part),
        }
    }
    plain.into()
}

/// The file with the CPU time of the cgroup at `path`. The path is one of `/proc/PID/cgroup`, or a
/// path below the mount point.
#[must_use]
pub fn file(path: &Path) -> PathBuf {
    CgroupMount::here().file(path)
}

/// CPU time that the cgroup has used since it was created.
///
/// # Errors
/// If the cgroup does not exist, or its file has no line `usage_usec`.
pub fn used(path: &Path) -> io::Result<Nanos> {
    let text = fs::read_to_string(file(path))?;
    usage(&text).ok_or_else(|| io::Error::other("it has no line usage_usec"))
}

fn usage(text: &str) -> Option<Nanos> {
    let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    let micros: u64 = micros.trim().parse().ok()?;
    Some(Nanos(micros.saturating_mul(1_000)))
}

/// The time in `cpu.pressure` in which some task waited: `some avg10=0.00 [...] total=1234`, in
/// microseconds.
fn pressure(text: &str) -> Option<Nanos> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let micros = some.split(' ').find_map(|field| field.strip_prefix("total="))?;
    let micros: u64 = micros.trim().parse().ok()?;
    Some(Nanos(micros.saturating_mul(1_000)))
}

/// Notes for people, for a check and for the log of a start: the cgroups of the backends, unless
/// `cost` names one or counts tokens.
#[must_use]
pub fn cost_notes(settings: &Settings) -> Vec<String> {
    let proxies = settings.proxy.iter().filter(|proxy| !proxy.listen.is_empty());
    let is_measured =
        |cost: &CostSource| matches!(cost, CostSource::Cgroup(_) | CostSource::Tokens);
    let unmeasured = proxies.filter(|proxy| !is_measured(&proxy.cost));
    unmeasured.flat_map(|proxy| &proxy.backends).filter_map(cost_advice).collect()
}

/// Advice for people: the values of `cost` that are possible for `backend`, which are the cgroups
/// of its processes that can be read.
#[must_use]
pub fn cost_advice(backend: &BackendAddress) -> Option<String> {
    advice(backend, &backend_cgroups(backend), |path| used(Path::new(path)).is_ok())
}

fn advice(
    backend: &BackendAddress,
    groups: &[String],
    is_readable: impl Fn(&str) -> bool,
) -> Option<String> {
    // The root cgroup is the whole machine, and has no statistics if cgroups are of version 1.
    let useful = groups.iter().filter(|path| *path != ROOT_CGROUP && is_readable(path));
    let written: Vec<String> = useful.map(|path| format!("`cost: cgroup:{path}`")).collect();
    let what = match written.is_empty() {
        true if groups.iter().any(|path| path == ROOT_CGROUP) => {
            "are in the root cgroup, which is the whole machine: `cost: cgroup:PATH` needs a \
             cgroup of their own (a systemd unit, a container)"
                .to_owned()
        }
        true => return None,
        false => format!("could be measured by {}", written.join(" or ")),
    };
    Some(format!("the processes behind {backend} {what}"))
}

/// Warning for people: the processes of `backend` are not in the cgroup at `path`. `None` if they
/// are, or if no process is visible.
#[must_use]
pub fn wrong_cgroup_warning(path: &Path, backend: &BackendAddress) -> Option<String> {
    let groups = backend_cgroups(backend);
    let mount = CgroupMount::here();
    let measured = mount.folder(path);
    let is_in = |group: &String| mount.folder(Path::new(group)).starts_with(&measured);
    (!groups.is_empty() && !groups.iter().any(is_in)).then(|| {
        let groups = groups.join(" and ");
        format!("no process behind {backend} is in {}: they are in {groups}", path.display())
    })
}

/// Cgroups of the processes that listen at the address of `backend`, as far as this process may see
/// them. Empty if the backend is not on this machine.
#[must_use]
pub fn backend_cgroups(backend: &BackendAddress) -> Vec<String> {
    let local = ["localhost", "127.0.0.1", "::1", "0.0.0.0"].contains(&backend.host());
    let port = backend.place.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let (Some(port), true) = (port, local && !backend.scheme.is_file()) else {
        return Vec::new();
    };
    let groups = processes::listening_on(port).into_iter().filter_map(|process| {
        let text = fs::read_to_string(process.join("cgroup")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
    });
    groups.collect::<BTreeSet<_>>().into_iter().collect()
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
    }

    #[test]
    fn load_is_read_with_the_lowest_quota_and_without_what_the_kernel_lacks() {
        let point = tempfile::tempdir().expect("a folder");
        let folder = point.path().join("pod/app");
        fs::create_dir_all(&folder).expect("made");
        let mount = CgroupMount { point: point.path().into(), root: "/".into() };
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("written");
        let load = || mount.load(Path::new("/pod/app"));
        assert_eq!(load(), None);
        write("cpu.stat", "usage_usec 1500\nuser_usec 1\n");
        let used = Nanos(1_500_000);
        assert_eq!(load(), Some(CgroupLoad { used, waited: None, quota: None }));
        write("cpu.pressure", "some avg10=0.12 avg60=0.00 avg300=0.00 total=70\nfull total=9\n");
        write("cpu.max", "200000 100000\n");
        fs::write(folder.with_file_name("cpu.max"), "50000 100000\n").expect("written");
        let waited = Some(Nanos(70_000));
        assert_eq!(load(), Some(CgroupLoad { used, waited, quota: Some(0.5) }));
        for text in ["", "some", "full total=9", "some total=x", "some total=-1"] {
            write("cpu.pressure", text);
            assert_eq!(load().expect("there").waited, None, "{text}");
        }
    }

    #[test]
    fn those_that_can_be_read_are_named() {
        let backend = BackendAddress::http("127.0.0.1:80");
        let groups = ["/".to_owned(), "/a.slice".to_owned(), "/b".to_owned()];
        let some = |known: &'static [&str]| {
            advice(&backend, &groups, |path| known.contains(&path)).unwrap_or_default()
        };
        let root = "the processes behind http://127.0.0.1:80 are in the root cgroup";
        assert!(some(&["/"]).starts_with(root), "{}", some(&["/"]));
        assert_eq!(advice(&backend, &groups[1..], |_| false), None);
        let said = "the processes behind http://127.0.0.1:80 could be measured by \
                    `cost: cgroup:/a.slice` or `cost: cgroup:/b`";
        assert_eq!(some(&["/b", "/a.slice"]), said);
    }

    /// Mount tables of a system with version 2 only, of one with both versions, of a container that
    /// sees one cgroup of the hierarchy, and of a system without cgroups.
    #[test]
    fn they_are_found_where_they_are_mounted() {
        let alone = "24 1 0:20 / /proc rw - proc proc rw\n\
            31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let both = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 master:1 - cgroup2 cgroup2 rw\n";
        let within = "41 31 0:38 /docker/4711 /cgroups\\040here rw - cgroup2 cgroup2 rw\n";
        for (table, given, expected) in [
            (alone, "/system.slice/a", "/sys/fs/cgroup/system.slice/a/cpu.stat"),
            (alone, "/sys/fs/cgroup/system.slice/a", "/sys/fs/cgroup/system.slice/a/cpu.stat"),
            (alone, "/", "/sys/fs/cgroup/cpu.stat"),
            (both, "/system.slice/a", "/sys/fs/cgroup/unified/system.slice/a/cpu.stat"),
            (both, "/sys/fs/cgroup/unified/a", "/sys/fs/cgroup/unified/a/cpu.stat"),
            (within, "/docker/4711/a", "/cgroups here/a/cpu.stat"),
            (within, "/cgroups here/a", "/cgroups here/a/cpu.stat"),
        ] {
            let mount = CgroupMount::among(table).expect("one");
            assert_eq!(mount.file(Path::new(given)), Path::new(expected), "{given}");
        }
        assert_eq!(CgroupMount::among("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"), None);
        assert_eq!(path("/a\\134b\\"), Path::new("/a\\b"));
    }

    #[test]
    fn our_own_cgroup_is_found_by_a_port_of_ours_and_any_other_is_wrong() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound").to_string();
        let own = fs::read_to_string("/proc/self/cgroup").expect("there");
        let own = own.lines().find_map(|line| line.strip_prefix("0::"));
        let backend = BackendAddress::http(at);
        let found = backend_cgroups(&backend);
        assert_eq!(found.first().map(String::as_str), own, "{found:?}");
        assert_eq!(wrong_cgroup_warning(Path::new(own.expect("version 2")), &backend), None);
        let wrong = wrong_cgroup_warning(Path::new("/evenkeel.test"), &backend).expect("wrong");
        let places = format!(" is in /evenkeel.test: they are in {}", own.unwrap_or_default());
        assert!(wrong.ends_with(&places), "{wrong}");
        assert!(backend_cgroups(&BackendAddress::http("192.0.2.1:80")).is_empty());
    }

    #[test]
    fn notes_are_about_costs_in_cpu_time_alone() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let notes = |cost: &str| {
            let text = format!("proxy: {{backend: 'http://{at}', {cost}}}");
            cost_notes(&crate::parse("t.yaml", text.as_bytes(), 2.0).expect("good").settings)
        };
        let advice = cost_advice(&BackendAddress::http(at.to_string()));
        assert_eq!(notes("cost: shared"), Vec::from_iter(advice));
        assert_eq!(notes("preset: openai"), [""; 0]);
        assert_eq!(notes("cost: cgroup:/a"), [""; 0]);
    }

    #[test]
    fn fuzz_whatever_the_files_say_nothing_breaks() {
        evenkeel_fuzz::fuzz().with_type::<String>().for_each(|text| {
            let _ = (usage(text), pressure(text), pressure(&format!("some {text}")), path(text));
            let line = format!("1 2 0:3 {text} - cgroup2 cgroup2 rw");
            let _ = (
                CgroupMount::among(text),
                CgroupMount::among(&line).map(|mount| mount.file(Path::new("/"))),
            );
        });
    }
}
