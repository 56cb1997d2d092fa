//! A redis-server for one test, on loopback, and its client.

use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use redis::{Connection, ConnectionLike, Value};
use rustix::process::Signal;
use std::ffi::OsString;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// A server; killed when dropped.
pub struct Redis {
    process: Mutex<Program>,
    pub port: u16,
    folder: tempfile::TempDir,
    more: Vec<String>,
}

impl Redis {
    /// Starts a server with these arguments after the usual ones.
    pub fn start(more: &[&str]) -> Redis {
        Redis::on(free_port(), more)
    }

    pub fn on(port: u16, more: &[&str]) -> Redis {
        let folder = tempfile::tempdir().expect("a folder");
        let more: Vec<String> = more.iter().map(ToString::to_string).collect();
        let process = Mutex::new(run(port, &folder, &more));
        let redis = Redis { process, port, folder, more };
        redis.answers();
        redis
    }

    /// Starts a sentinel with this configuration file, which the sentinel also writes.
    pub fn sentinel(file: &std::path::Path) -> Redis {
        let port = free_port();
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(server());
        command.arg(file).arg("--sentinel").args(["--port", &port.to_string()]);
        command.args(["--bind", "127.0.0.1"]);
        let process = Mutex::new(Program::listening(command, port));
        let redis = Redis { process, port, folder, more: Vec::new() };
        redis.answers();
        redis
    }

    fn answers(&self) {
        wait_for("redis-server", || self.try_ask(&["PING"]));
    }

    /// The address of the server, in the reference server's form.
    pub fn url(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn signal(&self, signal: Signal) {
        self.process.lock().expect("whole").signal(signal);
    }

    pub fn kill(&self) {
        self.process.lock().expect("whole").kill();
    }

    /// Starts the server again; the content of its memory is lost.
    pub fn restart(&self) {
        self.kill();
        *self.process.lock().expect("whole") = run(self.port, &self.folder, &self.more);
        self.answers();
    }

    /// A connection to the server, without authentication.
    pub fn connection(&self) -> Option<Connection> {
        let client = redis::Client::open(format!("redis://{}/", self.url())).ok()?;
        let connection = client.get_connection_with_timeout(Duration::from_secs(5)).ok()?;
        connection.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        Some(connection)
    }

    /// The answer of the server; `None` if there is none.
    pub fn try_ask(&self, words: &[&str]) -> Option<Value> {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(*word));
        self.connection()?.req_command(&command).ok()
    }

    /// The answer of the server as text, one line for each part.
    pub fn text(&self, words: &[&str]) -> String {
        text(&self.try_ask(words).unwrap_or_else(|| panic!("an answer to {words:?}")))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program to run: Redis, or a replacement to be tested.
fn server() -> OsString {
    std::env::var_os("EVENKEEL_TEST_REDIS").unwrap_or_else(|| "redis-server".into())
}

fn run(port: u16, folder: &tempfile::TempDir, more: &[String]) -> Program {
    let mut command = Command::new(server());
    command.args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"]);
    command.arg("--dir").arg(folder.path()).args(more);
    Program::listening(command, port)
}

pub fn text(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).trim_end().to_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join("\n"),
        Value::VerbatimString { text, .. } => text.trim_end().to_owned(),
        Value::Map(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| format!("{} {}", text(key), text(value)));
            pairs.collect::<Vec<_>>().join("\n")
        }
        Value::Nil => String::new(),
        other => format!("{other:?}"),
    }
}
