//! The gate: the real binary in front of a site, its decision log and its metrics.

use crate::client::Client;
use crate::site::Site;
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The binary under test.
pub fn evenkeel() -> Command {
    evenkeel!()
}

/// A running Evenkeel.
pub struct Gate {
    pub process: Program,
    /// The port for clients.
    pub port: u16,
    /// The port of the admin door.
    pub admin: u16,
    /// The path of its configuration.
    pub config: PathBuf,
    site: u16,
}

/// One line of the decision log.
#[derive(Clone, Debug)]
pub struct Line(Value);

impl Line {
    pub fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    pub fn number(&self, field: &str) -> f64 {
        self.0[field].as_f64().unwrap_or_else(|| panic!("no number `{field}` in {}", self.0))
    }

    pub fn has(&self, field: &str) -> bool {
        !self.0[field].is_null()
    }
}

impl Gate {
    /// Starts `evenkeel serve` with these lines in its section `proxy`.
    pub fn start(site: &Site, proxy: &str) -> Gate {
        Gate::start_with(site, "evenkeel.yaml", |port, admin| {
            written(port, admin, site.port, proxy)
        })
    }

    /// Starts `evenkeel serve` with this file. `text` gets the ports for clients and for the admin
    /// door.
    pub fn start_with(site: &Site, file: &str, text: impl Fn(u16, u16) -> String) -> Gate {
        let (port, admin) = (free_port(), free_port());
        let config = site.folder.path().join(file);
        fs::write(&config, text(port, admin)).expect("a configuration");
        let mut command = evenkeel();
        command.arg("serve").arg("--config").arg(&config);
        let process = Program::listening(command, port);
        Gate { process, port, admin, config, site: site.port }
    }

    /// Starts the program again after it has ended, with the same configuration.
    pub fn start_again(&mut self) {
        self.run(evenkeel());
    }

    /// Starts the program again through another one, which runs its arguments as a command.
    pub fn start_under(&mut self, mut command: Command) {
        command.arg(evenkeel().get_program());
        self.run(command);
    }

    fn run(&mut self, mut command: Command) {
        command.arg("serve").arg("--config").arg(&self.config);
        self.process = Program::listening(command, self.port);
    }

    /// Writes another section `proxy` without a signal to the program.
    pub fn write(&self, proxy: &str) {
        let text = written(self.port, self.admin, self.site, proxy);
        let aside = self.config.with_extension("aside");
        fs::write(&aside, text).expect("a configuration");
        fs::rename(&aside, &self.config).expect("a configuration");
    }

    /// A client at `address`.
    pub fn client(&self, address: &str) -> Client {
        Client::new(address, self.port)
    }

    /// All decisions logged so far.
    pub fn decisions(&self) -> Vec<Line> {
        decisions(&self.process.log())
    }

    /// The decisions about one client, once there are at least `count`.
    pub fn decisions_about(&self, client: &str, count: usize) -> Vec<Line> {
        wait_for("decisions in the log", || {
            let mut lines = self.decisions();
            lines.retain(|line| line.text("client") == client);
            (lines.len() >= count).then_some(lines)
        })
    }

    /// The current value of a metric: the sum of all its series that have all of `labels`.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        metric(self.admin, name, labels)
    }

    /// Waits until a metric has at least this value.
    pub fn wait_for_metric(&self, name: &str, labels: &[(&str, &str)], at_least: f64) {
        wait_for(name, || (self.metric(name, labels) >= at_least).then_some(()));
    }

    /// Waits until the backend has no request to work on.
    pub fn wait_until_idle(&self) {
        wait_for("an idle backend", || {
            (self.metric("evenkeel_working_requests", &[]) == 0.0).then_some(())
        });
    }

    /// A page of the admin door.
    pub fn admin_page(&self, path: &str) -> String {
        admin_page(self.admin, path)
    }

    /// The output of `evenkeel clients`.
    pub fn doctor(&self) -> Output {
        self.doctor_with(&[])
    }

    /// The output of `evenkeel clients` with more flags.
    pub fn doctor_with(&self, flags: &[&str]) -> Output {
        let admin = format!("127.0.0.1:{}", self.admin);
        evenkeel().args(["clients", "--admin", &admin]).args(flags).output().expect("the binary")
    }
}

fn written(port: u16, admin: u16, backend: u16, proxy: &str) -> String {
    format!(
        "admin: {{listen: 127.0.0.1:{admin}}}\nlog: {{level: info, format: json}}\nproxy:\n  \
         listen: 127.0.0.1:{port}\n  backend: http://127.0.0.1:{backend}\n{proxy}"
    )
}

/// A page of the admin door on this port.
fn admin_page(admin: u16, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{admin}\r\n\r\n");
    Client::new("127.0.0.1", admin).ask(&request).text()
}

/// The current value of a metric: the sum of all its series that have all of `labels`.
pub fn metric(admin: u16, name: &str, labels: &[(&str, &str)]) -> f64 {
    let text = admin_page(admin, "/metrics");
    let series = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
    });
    let carries = |line: &&str| {
        labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
    };
    let values = series.filter(carries).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().expect("a number")).sum()
}

/// The lines of a log in JSON.
pub fn lines(log: &str) -> Vec<Line> {
    log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).map(fields).collect()
}

/// The decisions in a log in JSON.
pub fn decisions(log: &str) -> Vec<Line> {
    lines(log).into_iter().filter(|line| line.has("verdict")).collect()
}

/// The fields of a log line, wherever the format has them.
fn fields(line: Value) -> Line {
    match line.get("fields") {
        Some(fields) => Line(fields.clone()),
        None => Line(line),
    }
}
