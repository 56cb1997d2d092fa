//! A redis-server for one test, on loopback, and its client.

use crate::envoy::free_port;
use crate::program::wait_for;
use redis::{Connection, ConnectionLike, Value};
use std::ffi::OsString;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// A server; killed when dropped.
pub struct Redis {
    child: Mutex<Child>,
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
        let child = Mutex::new(run(port, &folder, &more));
        let redis = Redis { child, port, folder, more };
        redis.answers();
        redis
    }

    /// Starts a sentinel with this configuration file, which the sentinel also writes.
    pub fn sentinel(file: &std::path::Path) -> Redis {
        let port = free_port();
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(program());
        command.arg(file).arg("--sentinel").args(["--port", &port.to_string()]);
        command.args(["--bind", "127.0.0.1"]).stdout(Stdio::null()).stderr(Stdio::null());
        let child = Mutex::new(command.spawn().expect("redis-server is installed"));
        let redis = Redis { child, port, folder, more: Vec::new() };
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

    pub fn signal(&self, name: &str) {
        let pid = self.child.lock().expect("whole").id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("a signal");
        assert!(sent.success());
    }

    pub fn kill(&self) {
        let mut child = self.child.lock().expect("whole");
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Starts the server again; the content of its memory is lost.
    pub fn restart(&self) {
        self.kill();
        *self.child.lock().expect("whole") = run(self.port, &self.folder, &self.more);
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
fn program() -> OsString {
    std::env::var_os("EVENKEEL_TEST_REDIS").unwrap_or_else(|| "redis-server".into())
}

fn run(port: u16, folder: &tempfile::TempDir, more: &[String]) -> Child {
    let mut command = Command::new(program());
    command.args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"]);
    command.arg("--dir").arg(folder.path()).args(more);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("redis-server is installed")
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
