//! One count for the line door, the proxy and the master: the real program with real servers.
//!
//! Tests that buckets in the store equal those in memory: `property`. Several servers: `several`.

mod line;
mod property;
mod requests;
mod several;

use super::redis::Redis;
use crate::program::wait_for;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

/// Longer than anything takes on a slow, busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A running program; killed when dropped.
pub struct Program {
    child: Child,
    /// The log, read up to the message that the doors are open. It stays open, because the program
    /// writes to it.
    _log: BufReader<ChildStderr>,
    _folder: tempfile::TempDir,
    /// The address of the admin door.
    pub admin: SocketAddr,
    /// The addresses of the other doors, in the order of the log.
    pub doors: Vec<SocketAddr>,
    /// The log up to that moment.
    said: String,
}

impl Program {
    /// Starts the program with these sections and with the keys `store` in the section of the
    /// store. `open` is the log message that its door is open. Returns as soon as all threads are
    /// connected to the store.
    pub fn start(sections: &str, store: &str, redis: &Redis, open: &str) -> Program {
        // A machine that is busy with other tests answers late.
        let deadline = if store.contains("deadline") { "" } else { "deadline: 5s, " };
        let text = format!("store: {{redis: '{}', {deadline}{store}}}", redis.url());
        let program = Program::alone(&format!("{text}\n{sections}"), open);
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // The master's door has one thread.
        let wanted = if open.starts_with("master") { 1 } else { threads as u64 };
        let good = || program.metric("evenkeel_store_connections{state=\"good\"}");
        wait_for("connections", || (good() >= wanted).then_some(()));
        program
    }

    /// Starts the program without a store section, and returns as soon as its door is open.
    pub fn alone(text: &str, open: &str) -> Program {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("evenkeel.yaml");
        fs::write(&path, format!("admin: {{listen: '127.0.0.1:0'}}\n{text}\n")).expect("saved");
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(["serve", "--config"]).arg(path).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut log = BufReader::new(child.stderr.take().expect("piped"));
        let mut all = String::new();
        let line = loop {
            let mut line = String::new();
            let count = log.read_line(&mut line).expect("a log");
            assert!(count > 0, "the log ended without {open}:\n{all}");
            all += &line;
            if line.contains(open) {
                break line;
            }
        };
        let admin = line.split("admin=[").nth(1).and_then(|rest| rest.split(']').next());
        let admin = admin.and_then(|one| one.parse().ok()).expect("an admin door");
        let doors = addresses(&line, admin);
        Program { child, _log: log, _folder: folder, admin, doors, said: all }
    }

    /// The addresses of another door that opened earlier.
    pub fn opened(&self, open: &str) -> Vec<SocketAddr> {
        let line = self.said.lines().find(|line| line.contains(open)).expect("it is open");
        addresses(line, self.admin)
    }

    /// Kills the program.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The answer of the admin door.
    pub fn get(&self, path: &str) -> String {
        let head = "host: 127.0.0.1\r\nconnection: close\r\n";
        let mut stream = TcpStream::connect(self.admin).expect("it listens");
        stream.write_all(format!("GET {path} HTTP/1.1\r\n{head}\r\n").as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// The value of one metric series.
    pub fn metric(&self, series: &str) -> u64 {
        let all = self.get("/metrics");
        let line = all.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{all}")).parse().expect("a number")
    }
}

fn addresses(line: &str, admin: SocketAddr) -> Vec<SocketAddr> {
    let words = line.split(|c: char| "[]= ,\"/".contains(c));
    words.filter_map(|word| word.parse().ok()).filter(|one| *one != admin).collect()
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A connection to a door.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.set_nodelay(true).expect("an option");
    stream
}

/// Sends `text` and reads an answer of `count` bytes.
pub fn ask(stream: &mut TcpStream, text: &str, count: usize) -> String {
    stream.write_all(text.as_bytes()).expect("sent");
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).expect("answers");
    String::from_utf8(bytes).expect("text")
}

/// The number of runs of a command since the statistics were last reset.
pub fn calls(redis: &Redis, command: &str) -> u64 {
    let stats = redis.text(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
    let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).unwrap_or(0)
}
