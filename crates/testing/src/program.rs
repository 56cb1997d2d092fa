//! A process that ends with the test that started it, and its log.
//!
//! The log is a file without a name, so a process is never held up by a reader, its children may
//! write to the same log, and the log is complete as soon as the process has ended.

use crate::wait::{DEADLINE, try_wait_for, try_wait_within, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::borrow::BorrowMut;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The time that a server gets to end its workers, before it is killed.
const WORKERS_TIMEOUT: Duration = Duration::from_secs(5);

/// A command that runs the binary `evenkeel`. Only tests of its package know where it is.
#[macro_export]
macro_rules! evenkeel {
    () => {
        ::std::process::Command::new(env!("CARGO_BIN_EXE_evenkeel"))
    };
}

/// A running program; it is ended when this value is dropped.
pub struct Program {
    child: Child,
    log: File,
    /// The number of bytes of the log that [`Program::told`] has read.
    read: u64,
    /// Whether the program gets SIGTERM before it is killed.
    gentle: bool,
}

impl Program {
    /// Starts a command. Its standard error is its log.
    pub fn start(mut command: impl BorrowMut<Command>) -> Program {
        let log = tempfile::tempfile().expect("a log file");
        let command = command.borrow_mut();
        command.stderr(log.try_clone().expect("a log file"));
        Program::spawn(command, log, false)
    }

    /// Starts a server and waits until it listens on `port`. Both of its outputs are its log. When
    /// dropped, it gets SIGTERM first, so that it can end its workers.
    pub fn listening(mut command: impl BorrowMut<Command>, port: u16) -> Program {
        let log = tempfile::tempfile().expect("a log file");
        let [out, err] = [(); 2].map(|()| log.try_clone().expect("a log file"));
        let command = command.borrow_mut();
        command.stdout(out).stderr(err);
        let mut program = Program::spawn(command, log, true);
        wait_for("a listener", || {
            if let Some(status) = program.ended() {
                panic!("{command:?} ended with {status}:\n{}", program.log());
            }
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        });
        program
    }

    fn spawn(command: &mut Command, log: File, gentle: bool) -> Program {
        let started = command.stdin(Stdio::null()).spawn();
        let child = started.unwrap_or_else(|why| panic!("{command:?}: {why}"));
        Program { child, log, read: 0, gentle }
    }

    /// The process id of the program.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything that the program has written so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.log_from(0)).into_owned()
    }

    fn log_from(&self, start: u64) -> Vec<u8> {
        // Reading at a position leaves the position at which the program writes.
        let end = self.log.metadata().expect("a log file").len();
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(start)).expect("a short log")];
        self.log.read_exact_at(&mut bytes, start).expect("its log");
        bytes
    }

    /// The next line of the log that contains `what`, without its end. Earlier lines are skipped.
    /// Panics if the program fails, or after [`DEADLINE`].
    pub fn told(&mut self, what: &str) -> String {
        let start = self.read;
        let line = try_wait_for(|| {
            // The log is read after the program has ended, so it is complete.
            let failed = self.ended().is_some_and(|status| !status.success());
            self.next_line(what).map(Some).or_else(|| failed.then_some(None))
        });
        line.flatten().unwrap_or_else(|| {
            let log = self.log_from(start);
            panic!("the log ended without {what}:\n{}", String::from_utf8_lossy(&log));
        })
    }

    fn next_line(&mut self, what: &str) -> Option<String> {
        let bytes = self.log_from(self.read);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\n")?;
            self.read += line.len() as u64 + 1;
            let line = String::from_utf8_lossy(line);
            if line.contains(what) {
                return Some(line.into_owned());
            }
        }
        None
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        self::signal(self.id(), signal);
    }

    /// The exit status of the program, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    /// Waits until the program has ended.
    pub fn end(&mut self) -> ExitStatus {
        let status = try_wait_for(|| self.ended());
        status.unwrap_or_else(|| panic!("still runs after {DEADLINE:?}:\n{}", self.log()))
    }

    /// Kills the program with SIGKILL, so that it cannot finish anything.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.gentle && self.ended().is_none() {
            self.signal(Signal::TERM);
            try_wait_within(WORKERS_TIMEOUT, || self.ended());
        }
        self.kill();
    }
}

/// Sends a signal to a process that a test has started, or to a successor of one.
pub fn signal(id: u32, signal: Signal) {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(id, signal).expect("a running process");
}

/// The addresses in a line of the log, in their order.
#[must_use]
pub fn addresses(line: &str) -> Vec<SocketAddr> {
    let words = line.split(|c: char| "[]= ,\"".contains(c));
    words.filter_map(|word| word.trim_start_matches("tcp://").parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        let mut command = Command::new("sh");
        Program::start(command.args(["-c", script]))
    }

    #[test]
    fn lines_are_told_in_their_order_and_once() {
        let mut program = shell("echo a 1 >&2; echo b >&2; echo a 2 >&2; printf 'a 3' >&2");
        assert_eq!([program.told("a"), program.told("a")], ["a 1", "a 2"]);
        assert!(program.end().success());
        assert_eq!(program.log(), "a 1\nb\na 2\na 3");
    }

    #[test]
    #[should_panic(expected = "the log ended without b:\na\n")]
    fn a_program_that_fails_is_not_waited_for() {
        shell("echo a >&2; exit 3").told("b");
    }

    #[test]
    fn a_signal_reaches_the_program() {
        let mut program = shell(
            "trap 'echo heard >&2; exit 0' USR1; echo ready >&2; while :; do sleep 0.01; done",
        );
        program.told("ready");
        program.signal(Signal::USR1);
        program.told("heard");
        assert_eq!(program.end().code(), Some(0));
    }

    #[test]
    fn addresses_are_found_in_brackets_and_after_tcp() {
        let line = "open listen=[127.0.0.1:1, tcp://127.0.0.1:2] backend=\"http://127.0.0.1:3\"";
        let found = addresses(line);
        assert_eq!(found, [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port))));
    }
}
