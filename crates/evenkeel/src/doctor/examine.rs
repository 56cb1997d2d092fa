//! From facts to findings: every check, in the order in which they are printed.
//!
//! A check is a function of the facts alone. It returns nothing if it does not concern this set-up,
//! for example because there is no store. The checks are in files by what they are about.

mod backends;
mod clients;
mod machine;
mod process;

use super::facts::SetupFacts;
use crate::cli::remote::DEFAULT_ADMIN;
use serde::Serialize;

/// How good or bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    /// Nothing is wrong.
    Ok,
    /// It could not be examined.
    Unknown,
    /// It works, but may not do what it should.
    Warning,
    /// Clients are treated wrongly, or will be.
    Problem,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check, which is also the heading of its paragraph in the guide.
    pub check: &'static str,
    pub level: FindingLevel,
    /// What was found, with figures.
    pub found: String,
    /// Why it matters; one sentence.
    pub why: &'static str,
    /// What to do: lines of the configuration, commands.
    #[serde(rename = "do")]
    pub todo: Vec<String>,
}

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Examined {
    level: FindingLevel,
    found: String,
    todo: Vec<String>,
}

impl Examined {
    fn new(level: FindingLevel, found: impl Into<String>) -> Option<Examined> {
        Some(Examined { level, found: found.into(), todo: Vec::new() })
    }
}

fn fine(found: impl Into<String>) -> Option<Examined> {
    Examined::new(FindingLevel::Ok, found)
}

fn unknown(why: impl Into<String>) -> Option<Examined> {
    Examined::new(FindingLevel::Unknown, why)
}

fn warning<T: Into<String>>(
    found: impl Into<String>,
    todo: impl IntoIterator<Item = T>,
) -> Option<Examined> {
    let todo = todo.into_iter().map(Into::into).collect();
    Some(Examined { level: FindingLevel::Warning, found: found.into(), todo })
}

fn problem<T: Into<String>>(
    found: impl Into<String>,
    todo: impl IntoIterator<Item = T>,
) -> Option<Examined> {
    let todo = todo.into_iter().map(Into::into).collect();
    Some(Examined { level: FindingLevel::Problem, found: found.into(), todo })
}

/// A check: its name, why it matters, and its function.
struct Check {
    name: &'static str,
    why: &'static str,
    examine: fn(&SetupFacts) -> Option<Examined>,
}

macro_rules! checks {
    ($($name:literal $why:literal $examine:path;)*) => {
        &[$(Check { name: $name, why: $why, examine: $examine }),*]
    };
}

/// All checks.
const CHECKS: &[Check] = checks! {
    "configuration" "A server does not start with an error in its file, and may do something else \
                     than you mean after a warning."
        process::configuration;
    "server" "Without a running server, only the file, this machine and the backends can be \
              examined."
        process::server;
    "reload" "A change of the file has no effect before it is in force."
        process::reload;
    "program" "A running server keeps the old program until it is replaced."
        process::program;
    "shadow" "In shadow mode no request is held or refused, so the site is not protected."
        process::shadow;
    "admin" "The admin address shows addresses and paths of your clients."
        process::admin;
    "trusted-proxies" "Behind a proxy that is not trusted, all visitors count as one client."
        clients::trusted_proxies;
    "forwarded-headers" "Without that header, all visitors behind a trusted proxy count as one \
                         client."
        clients::forwarded_headers;
    "cpus" "Shares are parts of `cpus`: too high, and waiting for a processor is charged as work; \
            too low, and clients wait while the server is idle."
        machine::cpus;
    "queue" "A request that may not wait is refused."
        clients::queue;
    "refusals" "A limit that is too low refuses visitors, not only crawlers."
        clients::refusals;
    "debts" "Debts show whether the capacity and the costs are set right."
        clients::debts;
    "tables" "In a full table, clients get back a part of their budget early."
        clients::tables;
    "connections" "If all connections are in use, new clients wait to be accepted."
        machine::connections;
    "open-files" "Without a free file, no connection is accepted, and none to a backend is opened."
        machine::open_files;
    "listen-queue" "A connection that finds the kernel's queue full is retried after a second."
        machine::listen_queue;
    "ports" "Each connection to a backend needs a port of this machine."
        machine::ports;
    "clock" "Log lines, certificates and cookies go by the clock."
        machine::clock;
    "memory" "At its memory limit, the process is killed."
        machine::memory;
    "state" "Without a snapshot, a restart forgives all debts."
        machine::state;
    "backend" "Requests to a backend that cannot be reached end with 502."
        backends::reachable;
    "keep-alive" "Without connections that stay open, each request costs a new one, and a port \
                  for a minute."
        backends::keep_alive;
    "backend-failures" "Each failure is an error page for a visitor."
        backends::failures;
    "certificates" "Browsers reject a certificate that has expired."
        process::certificates;
    "store" "Without the store, each instance counts alone."
        process::store;
    "peers" "Instances that cannot reach each other count apart."
        process::peers;
};

/// The findings of all checks that concern this set-up.
pub fn examine(facts: &SetupFacts) -> Vec<Finding> {
    let finding = |check: &Check| {
        let Examined { level, found, todo } = (check.examine)(facts)?;
        let todo = todo.into_iter().map(|line| to_this_server(line, &facts.admin)).collect();
        Some(Finding { check: check.name, level, found, why: check.why, todo })
    };
    CHECKS.iter().filter_map(finding).collect()
}

/// Adds the admin address to a command that asks the server, unless it is the default one.
fn to_this_server(line: String, admin: &str) -> String {
    const COMMANDS: [&str; 4] = [RELOAD, "evenkeel upgrade", "evenkeel clients", "evenkeel top"];
    match COMMANDS.iter().find_map(|command| Some((command, line.strip_prefix(command)?))) {
        Some((command, rest)) if admin != DEFAULT_ADMIN => {
            format!("{command} --admin {admin}{rest}")
        }
        _ => line,
    }
}

/// The check needs the running server.
const NO_SERVER: &str = "needs the running server";

/// The part of `all` in percent; 0 if there is nothing.
fn percent(part: f64, all: f64) -> f64 {
    if all > 0.0 { 100.0 * part / all } else { 0.0 }
}

/// A length of time for people.
fn length(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7_200.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.0} h", seconds / 3_600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

/// The command that makes the server take over a changed file.
const RELOAD: &str = "evenkeel reload";

#[cfg(test)]
mod tests;
