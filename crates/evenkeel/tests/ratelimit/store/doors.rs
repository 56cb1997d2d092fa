//! One count for the line door, the proxy and the master: the real program with real servers.
//!
//! Tests that buckets in the store equal those in memory: `property`. Several servers: `several`.

mod line;
mod property;
mod requests;
mod several;

use super::redis::Redis;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::{DEADLINE, wait_for};
use evenkeel_testing::{admin, evenkeel};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A running program with a store, and its files.
pub struct Instance {
    process: Program,
    _folder: tempfile::TempDir,
    /// The address of the admin door.
    pub admin: SocketAddr,
    /// The addresses of the other doors, in the order of the log.
    pub doors: Vec<SocketAddr>,
}

impl Instance {
    /// Starts the program with these sections and with the keys `store` in the section of the
    /// store. `open` is the log message that its door is open. Returns as soon as all threads are
    /// connected to the store.
    pub fn start(sections: &str, store: &str, redis: &Redis, open: &str) -> Instance {
        // A machine that is busy with other tests answers late.
        let deadline = if store.contains("deadline") { "" } else { "deadline: 5s, " };
        let text = format!("store: {{redis: '{}', {deadline}{store}}}", redis.url());
        let program = Instance::alone(&format!("{text}\n{sections}"), open);
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // The master's door has one thread.
        let wanted = if open.starts_with("master") { 1 } else { threads as u64 };
        let good = || program.metric("evenkeel_store_connections{state=\"good\"}");
        wait_for("connections", || (good() >= wanted).then_some(()));
        program
    }

    /// Starts the program without a store section, and returns as soon as its door is open.
    pub fn alone(text: &str, open: &str) -> Instance {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("evenkeel.yaml");
        fs::write(&path, format!("admin: {{listen: '127.0.0.1:0'}}\n{text}\n")).expect("saved");
        let mut command = evenkeel!();
        command.args(["serve", "--config"]).arg(path);
        let mut process = Program::start(command);
        let line = process.told(open);
        let admin = line.split("admin=[").nth(1).and_then(|rest| rest.split(']').next());
        let admin = admin.and_then(|one| one.parse().ok()).expect("an admin door");
        let doors = addresses(&line, admin);
        Instance { process, _folder: folder, admin, doors }
    }

    /// The addresses of another door that opened earlier.
    pub fn opened(&self, open: &str) -> Vec<SocketAddr> {
        let log = self.process.log();
        let line = log.lines().find(|line| line.contains(open)).expect("it is open");
        addresses(line, self.admin)
    }

    /// The value of one metric series.
    pub fn metric(&self, series: &str) -> u64 {
        admin::metric(self.admin, series)
    }
}

fn addresses(line: &str, admin: SocketAddr) -> Vec<SocketAddr> {
    let all = evenkeel_testing::program::addresses(line);
    all.into_iter().filter(|one| *one != admin).collect()
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
