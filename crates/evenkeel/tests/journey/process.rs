//! Processes that end with the test that started them, free ports, and waiting with a deadline.
//!
//! The one place in the tests that sleeps: between two looks at what is waited for.

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

/// Looks again and again until there is something to return.
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

/// A port of loopback that nobody listens on. None of those that the system gives away by itself,
/// where another test could be handed it before it is used.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        // Programs that run beside this one begin elsewhere.
        let begin = (std::process::id() % 100) as u16 * 100;
        let port = 20_000 + begin.wrapping_add(NEXT.fetch_add(1, Relaxed)) % 10_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// A running program; killed, by its id, when dropped.
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts `command` with both outputs in a file and waits until it listens on `port`.
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

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    /// All that it has written so far.
    pub fn output(&self) -> String {
        let mut text = Vec::new();
        let mut file = File::open(&self.log).expect("its log");
        file.read_to_end(&mut text).expect("its log");
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Sends it a signal by name.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.child.id()).expect("a process id");
        let id = rustix::process::Pid::from_raw(id).expect("a process id");
        rustix::process::kill_process(id, signal).expect("a running process");
    }
}

impl Running {
    /// Ends it at once, without a last word.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("its end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGTERM lets servers end their workers; what does not heed it is killed.
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
