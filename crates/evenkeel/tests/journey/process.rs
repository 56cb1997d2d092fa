//! Processes that end with the test that started them, free ports, and waiting with a deadline.
//!
//! This is the only place in the tests that sleeps: between two checks of a condition.

use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything takes on a slow, busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Calls `look` repeatedly until it returns a value.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited {DEADLINE:?} for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A free port of loopback. It is outside of the range from which the system assigns ports, so that
/// no other test gets it before it is used.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        // Other processes that run at the same time begin with another port.
        let begin = (std::process::id() % 100) as u16 * 100;
        let port = 20_000 + begin.wrapping_add(NEXT.fetch_add(1, Relaxed)) % 10_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// A running program; killed by its process id when dropped.
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts `command` with both outputs in a file, and waits until it listens on `port`.
    pub fn start(mut command: Command, log: &Path, port: u16) -> Running {
        let file = File::create(log).expect("a log file");
        let same = file.try_clone().expect("a log file");
        command.stdin(Stdio::null()).stdout(file).stderr(same);
        let child = command.spawn().unwrap_or_else(|why| panic!("{command:?}: {why}"));
        let mut running = Running { child, log: log.to_path_buf() };
        wait_for("a listener", || {
            if let Some(status) = running.ended() {
                panic!("{command:?} ended with {status}:\n{}", running.output());
            }
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        });
        running
    }

    /// The process id of the program.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status of the program, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    /// Everything that the program has written so far.
    pub fn output(&self) -> String {
        let mut text = Vec::new();
        let mut file = File::open(&self.log).expect("its log");
        file.read_to_end(&mut text).expect("its log");
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.child.id()).expect("a process id");
        let id = rustix::process::Pid::from_raw(id).expect("a process id");
        rustix::process::kill_process(id, signal).expect("a running process");
    }
}

impl Running {
    /// Kills the program with SIGKILL, so that it cannot finish anything.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("its end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGTERM lets servers end their workers; a program that ignores it is killed.
        if self.ended().is_none() {
            self.signal(rustix::process::Signal::TERM);
            let end = Instant::now() + Duration::from_secs(5);
            while self.ended().is_none() && Instant::now() < end {
                thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
