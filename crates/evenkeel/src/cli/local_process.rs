//! The server of an admin address, as a process of this machine that gets signals.
//!
//! A server has no address for orders such as reload and upgrade: its user, or root, signals it.

use evenkeel_config::cpus::processes;
use rustix::process::{Pid, Signal, kill_process};

/// Why a server gets no signal.
#[derive(Debug, thiserror::Error)]
pub enum LocalProcessError {
    #[error(
        "no evenkeel that this user may see listens at {0} on this machine; start it, name its \
         admin address with --admin, or become its user (sudo)"
    )]
    Missing(String),
    #[error("process {pid} cannot be signalled: {why}; become its user (sudo)")]
    Forbidden { pid: i32, why: rustix::io::Errno },
}

/// A server on this machine.
#[derive(Clone, Copy, Debug)]
pub struct LocalProcess {
    pub pid: i32,
    process: Pid,
}

impl LocalProcess {
    /// The server that listens at this admin address.
    ///
    /// # Errors
    /// There is none that this user may see.
    pub fn at(address: &str) -> Result<LocalProcess, LocalProcessError> {
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let found = port.map(processes::evenkeel_on).unwrap_or_default();
        // While one process replaces another, both listen. The newer one has the higher number in
        // most cases; a wrong choice is not worse than a signal a moment earlier.
        let newest = found.into_iter().max();
        let process =
            newest.and_then(|pid| Some(LocalProcess { pid, process: Pid::from_raw(pid)? }));
        process.ok_or_else(|| LocalProcessError::Missing(address.to_owned()))
    }

    /// Sends a signal to it.
    ///
    /// # Errors
    /// This user may not.
    pub fn signal(self, signal: Signal) -> Result<(), LocalProcessError> {
        let pid = self.pid;
        kill_process(self.process, signal).map_err(|why| LocalProcessError::Forbidden { pid, why })
    }
}
