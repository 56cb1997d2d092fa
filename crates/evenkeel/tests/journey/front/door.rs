//! Evenkeel with its check door and without a front or a backend: the tests send the questions of a
//! front.

use crate::client::{Answer, Client};
use crate::gate::{Line, decisions, evenkeel, metric};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The check door, and its program while it runs.
pub struct Door {
    gate: Option<Program>,
    /// A folder for files of the test.
    pub folder: TempDir,
    config: PathBuf,
    /// The port of the check door.
    pub port: u16,
    /// The port for access logs.
    pub syslog: u16,
    /// The port of the admin door.
    pub admin: u16,
}

impl Door {
    /// Starts the program with these lines in its section `proxy`; they may begin further sections.
    pub fn start(proxy: &str) -> Door {
        Door::start_with("", |_| proxy.to_owned())
    }

    /// Starts the program with these keys in the section `check`. `proxy` gets the folder of the
    /// test.
    pub fn start_with(check: &str, proxy: impl Fn(&Path) -> String) -> Door {
        let folder = tempfile::tempdir().expect("a folder");
        let [port, syslog, admin] = [(); 3].map(|()| free_port());
        let config = folder.path().join("evenkeel.yaml");
        let text = format!(
            "admin: {{listen: 127.0.0.1:{admin}}}\nlog: {{level: info, format: json}}\n\
             check: {{listen: 127.0.0.1:{port}, syslog: \"udp://127.0.0.1:{syslog}\"{check}}}\n\
             proxy:\n  listen: off\n{}",
            proxy(folder.path())
        );
        std::fs::write(&config, text).expect("a configuration");
        let mut door = Door { gate: None, folder, config, port, syslog, admin };
        door.revive();
        door
    }

    /// Starts the program again.
    pub fn revive(&mut self) {
        let mut command = evenkeel();
        command.arg("serve").arg("--config").arg(&self.config);
        self.gate = Some(Program::listening(command, self.port));
    }

    /// Kills the program with SIGKILL, so that it cannot finish anything.
    pub fn kill(&mut self) {
        self.gate.take().expect("it lives").kill();
    }

    /// Asks about `GET /` of `client`.
    pub fn ask(&self, client: &str) -> Answer {
        self.ask_with(client, "/check", "")
    }

    /// Asks at `target` with more header lines.
    pub fn ask_with(&self, client: &str, target: &str, more: &str) -> Answer {
        let about = format!("X-Real-IP: {client}\r\n{more}");
        Client::new("127.0.0.1", self.port).get_with(target, &about)
    }

    /// Reports the cost of an admitted request, and returns the status of the answer.
    pub fn report(&self, query: &str) -> u16 {
        Client::new("127.0.0.1", self.port).ask(&report(query)).status
    }

    /// Asks for `client`, and returns the id of the admitted request.
    pub fn pass(&self, client: &str) -> String {
        let passed = self.ask(client);
        assert_eq!(passed.status, 204, "{client}: {}", passed.text());
        passed.header("x-evenkeel-id").expect("an id").to_owned()
    }

    /// Asks for `client`, and reports this cost.
    pub fn spend(&self, client: &str, cost: &str) {
        let id = self.pass(client);
        assert_eq!(self.report(&format!("id={id}&cost={cost}")), 204);
    }

    /// The current value of a metric.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        metric(self.admin, name, labels)
    }

    /// Waits until a metric has at least this value.
    pub fn wait_for_metric(&self, name: &str, labels: &[(&str, &str)], at_least: f64) {
        wait_for(name, || (self.metric(name, labels) >= at_least).then_some(()));
    }

    /// Everything that the program has written since its last start.
    pub fn log(&self) -> String {
        self.gate.as_ref().map(Program::log).unwrap_or_default()
    }

    /// The decisions about one client, once there are at least `count`.
    pub fn decisions_about(&self, client: &str, count: usize) -> Vec<Line> {
        wait_for("decisions in the log", || {
            let mut lines = decisions(&self.log());
            lines.retain(|line| line.text("client") == client);
            (lines.len() >= count).then_some(lines)
        })
    }
}

/// The request that reports the cost of an admitted request.
pub fn report(query: &str) -> String {
    format!("POST /report?{query} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n")
}
