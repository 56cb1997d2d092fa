//! Sockets that are handed in, and processes that replace each other while clients send requests.

#[path = "handover/doors.rs"]
mod doors;
#[path = "handover/together.rs"]
mod together;

use super::{LONG, get, start};
use evenkeel_testing::evenkeel;
use evenkeel_testing::program::{self, Program};
use evenkeel_testing::wait::until;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::Signal;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A backend that answers every request with `hello` at once.
pub fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                while read_head(&mut stream).is_some() {
                    let text = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
                    if stream.write_all(text).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// Starts the program with this socket, as systemd would.
fn start_on(listener: &TcpListener, config: &Path) -> Program {
    let passed = fcntl_dupfd_cloexec(listener, 300).expect("a descriptor");
    fcntl_setfd(&passed, FdFlags::empty()).expect("a flag");
    let mut command = evenkeel!();
    command.arg("serve").arg("--config").arg(config);
    command.env("LISTEN_FDS", "1").env("LISTEN_FDS_FIRST_FD", passed.as_raw_fd().to_string());
    Program::start(&mut command)
}

pub fn configuration(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("evenkeel.yaml");
    fs::write(&path, text).expect("saved");
    path
}

/// The process id in a line of the log.
pub fn told_pid(line: &str) -> u32 {
    let pid = line.split("pid=").nth(1).expect("a pid");
    pid.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("a number")
}

/// Ends the last process when dropped, even if the test fails.
pub struct Last(pub u32);

impl Drop for Last {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-s", "KILL", &self.0.to_string()]).status();
    }
}

/// Clients that send requests without a pause, and count those without an answer.
struct Crowd {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// Starts `count` clients. Every second one keeps its connection, as far as the program allows.
    fn start(count: usize, address: SocketAddr) -> Crowd {
        let mut crowd = Crowd {
            stop: Arc::default(),
            answered: Arc::default(),
            lost: Arc::default(),
            threads: Vec::new(),
        };
        for index in 0..count {
            let (stop, answered, lost) =
                (Arc::clone(&crowd.stop), Arc::clone(&crowd.answered), Arc::clone(&crowd.lost));
            crowd.threads.push(thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let requests = if index % 2 == 0 { 1 } else { 100 };
                    let count = answered_on_one(address, requests, &stop);
                    answered.fetch_add(count.unwrap_or(0), Ordering::Relaxed);
                    lost.fetch_add(usize::from(count.is_none()), Ordering::Relaxed);
                }
            }));
        }
        crowd
    }

    /// Waits until this number of further requests was answered.
    fn go_on(&self, count: usize) {
        let before = self.answered.load(Ordering::Relaxed);
        until("answers", || self.answered.load(Ordering::Relaxed) >= before + count);
    }

    fn stop(self) -> (usize, usize) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        (self.answered.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }
}

/// If a client is delayed for longer than this between two requests, a process that is being
/// replaced may have closed its connection.
const PATIENCE: Duration = Duration::from_millis(900);

/// The number of requests answered on one connection; `None` if one got no answer.
fn answered_on_one(address: SocketAddr, requests: usize, stop: &AtomicBool) -> Option<usize> {
    // The time of connecting, or of the last request.
    let mut last = Instant::now();
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    for asked in 1..=requests {
        let now = Instant::now();
        let sent = stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let late = last.elapsed() > PATIENCE;
        last = now;
        let head = match sent.ok().and_then(|()| read_head(&mut stream)) {
            None if late => return Some(asked - 1),
            head => head?,
        };
        let mut body = [0; 5];
        stream.read_exact(&mut body).ok()?;
        if !head.starts_with("HTTP/1.1 200 ") || &body != b"hello" {
            return None;
        }
        if head.contains("connection: close") || stop.load(Ordering::Relaxed) {
            return Some(asked);
        }
    }
    Some(requests)
}

#[test]
fn a_hundred_reloads_and_ten_replacements_lose_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let text = format!(
        "admin: off\nstate: {{file: {}}}\nproxy:\n  listen: {address}\n  backend: http://{}\n",
        folder.path().join("state").display(),
        backend()
    );
    let path = configuration(folder.path(), &text);
    let mut program = start_on(&listener, &path);
    program.told("proxy open");
    // From here on, only the program has this socket.
    drop(listener);
    let mut last = Last(program.id());
    let crowd = Crowd::start(6, address);
    for _ in 0..10 {
        for _ in 0..10 {
            program::signal(last.0, Signal::HUP);
            program.told("configuration reloaded");
        }
        program::signal(last.0, Signal::USR2);
        let successor = told_pid(&program.told("a successor was started and opens its doors"));
        program.told("replaced: the successor accepts all new clients");
        last.0 = successor;
        crowd.go_on(101);
    }
    let (answered, lost) = crowd.stop();
    assert!(answered > 1_000, "{answered}");
    assert_eq!(lost, 0, "of {answered}");
    program::signal(last.0, Signal::TERM);
    program.told("stopping: draining");
}

#[test]
fn a_successor_that_cannot_start_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let text =
        format!("admin: off\nproxy:\n  listen: {address}\n  backend: http://{}\n", backend());
    let path = configuration(folder.path(), &text);
    let mut program = start_on(&listener, &path);
    program.told("proxy open");
    fs::write(&path, "proxy: {listen: nowhere}\n").expect("saved");
    program.signal(Signal::USR2);
    program.told("not replaced: this process continues to serve");
    assert!(get(address, "/").ends_with("hello"));
    // The replacement can be tried again.
    fs::write(&path, text).expect("saved");
    program.signal(Signal::USR2);
    let last = Last(told_pid(&program.told("a successor was started and opens its doors")));
    program.told("replaced");
    program.told("stopped");
    assert_eq!(program.end().code(), Some(0));
    assert!(get(address, "/").ends_with("hello"));
    program::signal(last.0, Signal::TERM);
}

#[test]
fn doors_that_cannot_be_handed_over_keep_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "admin: off\nline: {listen: 'tcp://127.0.0.1:0'}\n\
                peers: {via: nats, nats: 'nats://127.0.0.1:9'}\n";
    let path = configuration(folder.path(), text);
    let mut program = start(&["serve", "--config", &path.display().to_string()]);
    program.told("line open");
    program.signal(Signal::USR2);
    assert!(program.told("not replaced: restart instead").contains("only a mesh"));
    program.signal(Signal::TERM);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn sockets_that_nobody_wants_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let text = "admin: off\nproxy: {listen: '127.0.0.1:0', backend: 'http://127.0.0.1:1'}\n";
    let path = configuration(folder.path(), text);
    let mut program = start_on(&listener, &path);
    let told = program.told("inherited sockets were closed because no listener is configured");
    assert!(told.contains(&address.to_string()), "{told}");
    program.signal(Signal::TERM);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_socket_in_another_form_of_the_address_is_named() {
    for (configured, door) in [
        ("proxy: {listen: '127.0.0.1:PORT', backend: 'http://127.0.0.1:1'}", "cannot listen on"),
        ("line: {listen: 'tcp://127.0.0.1:PORT'}", "line: "),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let text = configured.replace("PORT", &at.port().to_string());
        let path = configuration(folder.path(), &format!("admin: off\n{text}\n"));
        let mut program = start_on(&listener, &path);
        let told = program.told(&format!(
            "inherited but not used: {at}; write the address exactly \
                                          as"
        ));
        assert!(told.contains(door) && !told.contains("another program"), "{told}");
        assert_ne!(program.end().code(), Some(0));
    }
}

/// Waits until the service manager gets this message; each message is sent once.
pub fn notices(manager: &UnixDatagram, what: &str) {
    manager.set_read_timeout(Some(LONG)).expect("a timeout");
    let mut all = Vec::new();
    loop {
        let mut said = [0; 256];
        let count = match manager.recv(&mut said) {
            Ok(count) => count,
            // The process was stopped for a while.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => panic!("{error}: {all:?}"),
        };
        let said = String::from_utf8_lossy(&said[..count]).into_owned();
        if said.lines().any(|line| line == what) {
            return;
        }
        all.push(said);
    }
}

#[test]
fn the_watchdog_hears_the_program_and_then_its_successor() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
    let text =
        format!("admin: off\nproxy: {{listen: 127.0.0.1:0, backend: http://{}}}\n", backend());
    let path = configuration(folder.path(), &text);
    let mut command = evenkeel!();
    command.arg("serve").arg("--config").arg(&path);
    command.env("NOTIFY_SOCKET", folder.path().join("notify")).env("WATCHDOG_USEC", "30000000");
    let mut program = Program::start(&mut command);
    program.told("proxy open");
    notices(&manager, "READY=1");
    for _ in 0..2 {
        notices(&manager, "WATCHDOG=1");
    }
    program.signal(Signal::USR2);
    let successor = Last(told_pid(&program.told("a successor was started and opens its doors")));
    notices(&manager, &format!("MAINPID={}", successor.0));
    // After the other process has ended, all messages come from the successor.
    assert!(program.end().success());
    while manager.set_nonblocking(true).is_ok() && manager.recv(&mut [0; 256]).is_ok() {}
    manager.set_nonblocking(false).expect("it waits again");
    notices(&manager, "WATCHDOG=1");
    drop(successor);
}
