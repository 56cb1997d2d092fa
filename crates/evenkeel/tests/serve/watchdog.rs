//! If a thread of any door hangs, the program no longer informs the watchdog; an idle program does.
//!
//! The test stops a single thread from outside, with a debugger (ptrace, which needs root or a
//! system that lets programs of one user trace each other).

use super::LONG;
use super::handover::notices;
use evenkeel_testing::evenkeel;
use evenkeel_testing::program::Program;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Stops the thread with the given id, prints a line, and holds the thread until its input ends.
const DEBUGGER: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
thread = int(sys.argv[1])
if libc.ptrace(16, thread, 0, 0) != 0:
    sys.exit('cannot attach: ' + os.strerror(ctypes.get_errno()))
os.waitpid(thread, 0x40000000)
print('stopped', flush=True)
sys.stdin.read()
";

/// A configuration with every door; none of them gets a request.
const CONFIG: &str = "
admin: {listen: 127.0.0.1:0}
proxy: {listen: 127.0.0.1:0, backend: http://127.0.0.1:9}
check: {listen: 127.0.0.1:0}
line: {listen: 'tcp://127.0.0.1:0'}
ratelimit: {grpc: 127.0.0.1:0, http: 127.0.0.1:0, rules: RULES}
master:
  accounting: 'tcp://127.0.0.1:0'
  control: 'tcp://127.0.0.1:0'
  domains: {api: [{rate: 2/s, burst: 3}]}
gatekeeper: {master: 'tcp://127.0.0.1:9', domain: api}
";

struct Debugger(Child);

impl Drop for Debugger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops the first thread of the program with this name.
fn hang(program: &Program, name: &str) -> Debugger {
    let tasks = format!("/proc/{}/task", program.id());
    let tasks = fs::read_dir(tasks).expect("it runs").map(|task| task.expect("a thread").path());
    let is_it = |task: &Path| {
        fs::read_to_string(task.join("comm")).is_ok_and(|called| called.trim() == name)
    };
    let task = tasks.into_iter().find(|task| is_it(task));
    let task = task.unwrap_or_else(|| panic!("no thread is called {name}"));
    let id = task.file_name().expect("an id").to_owned();
    let mut debugger = Command::new("python3");
    debugger.args(["-c", DEBUGGER]).arg(id).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut debugger = debugger.spawn().expect("python3");
    let mut said = String::new();
    let out = debugger.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut said).expect("a line");
    assert_eq!(said, "stopped\n", "{name}");
    Debugger(debugger)
}

fn a_hung_thread_is_told_of(name: &str, door: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
    let rules = folder.path().join("rules");
    fs::create_dir(&rules).expect("a folder");
    let path = folder.path().join("evenkeel.yaml");
    let text = CONFIG.replace("RULES", rules.to_str().expect("text"));
    fs::write(&path, text).expect("saved");
    let mut command = evenkeel!();
    command.arg("serve").arg("--config").arg(&path);
    command.env("NOTIFY_SOCKET", folder.path().join("notify")).env("WATCHDOG_USEC", "6000000");
    let mut program = Program::start(&mut command);
    program.told("proxy open");
    notices(&manager, "READY=1");
    for _ in 0..3 {
        notices(&manager, "WATCHDOG=1");
    }
    let debugger = hang(&program, name);
    // On a busy machine, another thread may have been late before.
    let quoted = format!("\"{door}\"");
    while !program.told("the watchdog is not notified").contains(&quoted) {}
    drop(debugger);
    // The thread runs again, and so the watchdog is informed again.
    while manager.set_nonblocking(true).is_ok() && manager.recv(&mut [0; 256]).is_ok() {}
    manager.set_nonblocking(false).expect("it waits again");
    manager.set_read_timeout(Some(LONG)).expect("a timeout");
    notices(&manager, "WATCHDOG=1");
}

#[test]
fn a_thread_of_any_door_that_hangs_keeps_the_watchdog_from_hearing_that_all_is_well() {
    let doors = [
        ("proxy-0", "proxy"),
        ("line-0", "line"),
        ("check", "check"),
        ("ratelimit-0", "ratelimit"),
        ("ratelimit-side", "ratelimit"),
        ("master", "master"),
        ("gatekeeper", "gatekeeper"),
        ("admin", "admin"),
    ];
    thread::scope(|scope| {
        for (name, door) in doors {
            scope.spawn(move || a_hung_thread_is_told_of(name, door));
        }
    });
}
