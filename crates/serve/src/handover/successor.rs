//! The successor: a process that inherits the listening sockets of this one and reports when its
//! doors are open.
//!
//! Until then this process serves as before, and continues if the successor fails. Descriptors are
//! passed under chosen, consecutive numbers, without unsafe code between fork and exec. The steps
//! after that are in `run`.

use super::{ListenSockets, READY_MESSAGE};
use evenkeel_runtime::clock::Clock;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Time for the successor to open its doors.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between two checks whether the successor still runs.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The first descriptor number to pass. The next constant is the number of attempts to find a free
/// row.
const FIRST_FD: i32 = 200;
const ATTEMPTS_MAX: usize = 64;

/// How this process was started: program and arguments.
#[derive(Clone, Debug)]
pub struct ProcessOrigin {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl ProcessOrigin {
    /// Records the program and its arguments. Must be called at the start, because another program
    /// may be at the same path later; that one becomes the successor.
    ///
    /// # Errors
    /// If the system does not know the path of the program.
    pub fn of_process() -> io::Result<ProcessOrigin> {
        let mut arguments = std::env::args_os();
        let named = arguments.next().map(PathBuf::from);
        let program = std::env::current_exe()?;
        let found = named.and_then(|named| found(&program, &named));
        Ok(ProcessOrigin { program: found.unwrap_or(program), arguments: arguments.collect() })
    }
}

/// The path by which `program` was started, if it was started by a path. It may contain a symbolic
/// link that later points to another version.
fn found(program: &Path, named: &Path) -> Option<PathBuf> {
    named.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let way = std::path::absolute(named).ok()?;
    way.canonicalize().is_ok_and(|end| end == program).then_some(way)
}

/// Why there is no successor.
#[derive(Debug, thiserror::Error)]
pub enum SuccessorError {
    /// The successor could not be started.
    #[error("it could not be started: {0}")]
    Start(#[from] io::Error),
    /// The successor has exited.
    #[error("it ended before its doors were open ({0}); see its own log for the reason")]
    Ended(std::process::ExitStatus),
    /// The successor runs, but its doors are not open in time.
    #[error("its doors were not open after 30 s; it was stopped")]
    Late,
}

/// A process that is opening its doors.
pub struct Successor {
    child: Child,
    herald: tokio::net::UnixDatagram,
    until: Instant,
}

impl Successor {
    /// Starts a successor with all open sockets.
    ///
    /// # Errors
    /// If the system provides no process or no descriptors.
    pub fn start(origin: &ProcessOrigin, sockets: &ListenSockets) -> io::Result<Successor> {
        let (herald, theirs) = UnixDatagram::pair()?;
        herald.set_nonblocking(true)?;
        let open = sockets.open.lock();
        let listeners = open.iter().flatten().map(AsFd::as_fd);
        let all: Vec<BorrowedFd<'_>> = listeners.chain([theirs.as_fd()]).collect();
        let passed = in_a_row(&all)?;
        let first = passed.first().map_or(FIRST_FD, AsRawFd::as_raw_fd);
        for fd in &passed {
            fcntl_setfd(fd, FdFlags::empty())?;
        }
        let child = Command::new(&origin.program)
            .args(&origin.arguments)
            .env("LISTEN_FDS", passed.len().to_string())
            .env("LISTEN_FDS_FIRST_FD", first.to_string())
            .env_remove("LISTEN_PID")
            // The successor becomes the service's main process and must report to the watchdog.
            .env_remove("WATCHDOG_PID")
            .spawn()
            .map_err(|why| {
                io::Error::new(why.kind(), format!("{}: {why}", origin.program.display()))
            })?;
        let herald = tokio::net::UnixDatagram::from_std(herald)?;
        Ok(Successor { child, herald, until: Clock::deadline(READY_TIMEOUT) })
    }

    /// The process id of the successor.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the doors of the successor are open. Cancel safe.
    ///
    /// # Errors
    /// If that fails. The successor has ended then.
    pub async fn ready(&mut self) -> Result<(), SuccessorError> {
        if let Ok(opened) = timeout_at(self.until, self.opened()).await {
            return opened;
        }
        self.child.kill()?;
        self.child.wait()?;
        Err(SuccessorError::Late)
    }

    async fn opened(&mut self) -> Result<(), SuccessorError> {
        loop {
            let mut said = [0; 16];
            let heard = timeout(EXIT_POLL_INTERVAL, self.herald.recv(&mut said)).await;
            if matches!(heard, Ok(Ok(count)) if said[..count] == *READY_MESSAGE) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(SuccessorError::Ended(status));
            }
        }
    }
}

/// Duplicates the descriptors under consecutive numbers.
fn in_a_row(descriptors: &[BorrowedFd<'_>]) -> io::Result<Vec<OwnedFd>> {
    let mut first = FIRST_FD;
    for _ in 0..ATTEMPTS_MAX {
        let mut row: Vec<OwnedFd> = Vec::with_capacity(descriptors.len());
        for descriptor in descriptors {
            let next = row.last().map_or(first, |last| last.as_raw_fd() + 1);
            let copy = fcntl_dupfd_cloexec(descriptor, next)?;
            let number = copy.as_raw_fd();
            if number != next && !row.is_empty() {
                first = number;
                break;
            }
            row.push(copy);
        }
        if row.len() == descriptors.len() {
            return Ok(row);
        }
    }
    Err(io::Error::other("too few consecutive free descriptor numbers"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_is_kept_with_its_links_if_it_leads_to_the_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("its name");
        let (program, link) = (folder.join("program"), folder.join("link"));
        std::fs::write(&program, "").expect("written");
        symlink(&program, &link).expect("a link");
        assert_eq!(found(&program, &link), Some(link));
        assert_eq!(found(&program, &folder.join("nothing")), None);
        assert_eq!(found(&program, Path::new("program")), None, "of which folder is not known");
    }

    #[test]
    fn descriptors_stand_in_a_row_whatever_is_taken() {
        let (one, other) = UnixDatagram::pair().expect("a pair");
        let all = [one.as_fd(), other.as_fd(), one.as_fd()];
        let numbers = |row: &[OwnedFd]| row.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>();
        let first = in_a_row(&all).expect("a row");
        let middle = numbers(&first)[1];
        let mut first = first;
        // A gap of one is too small for the next row.
        drop(first.remove(0));
        let second = numbers(&in_a_row(&all).expect("another"));
        assert!(second.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{second:?}");
        assert!(second[0] > middle, "{second:?}");
    }
}
