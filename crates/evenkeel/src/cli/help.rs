//! What the help of the commands says beyond their flags: examples, and advice for words that are
//! no commands here.
//!
//! Flags and their texts are in `cli` and in the files of the commands.

use super::Cli;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, CommandFactory};

pub const ALL: &str = "\
Examples:
  evenkeel demo                                          see it work, without a site
  evenkeel proxy --backend http://127.0.0.1:80           in front of a site, on port 8888
  evenkeel proxy --backend http://127.0.0.1:80 --shadow  the same, but it only watches
  evenkeel doctor                                        is the set-up right?
  evenkeel clients                                       who uses the capacity now?

Exit codes: 0 done, 1 failed or found errors, 2 the command line is wrong.
The guide: docs/guide, or /usr/share/doc/evenkeel";
pub const SERVE: &str = "\
Examples:
  evenkeel serve -c evenkeel.yaml
  EVENKEEL_CONFIG=evenkeel.yaml evenkeel serve

SIGTERM and SIGINT drain and stop, SIGHUP reloads, SIGUSR2 starts a successor.";
pub const PROXY: &str = "\
Examples:
  evenkeel proxy -b http://127.0.0.1:8080 -l 0.0.0.0:80
  evenkeel proxy -b http://127.0.0.1:8080 --trusted-proxies 127.0.0.1    behind nginx
  evenkeel proxy -b http://10.0.0.5:80 --cpus 8                          site elsewhere
  evenkeel proxy -b http://127.0.0.1:8080 --shadow                       only watch

Everything else needs a file: evenkeel serve, docs/guide/configuration.md";
pub const CHECK: &str = "\
Examples:
  evenkeel check                               the file that `serve` would use
  evenkeel check evenkeel.yaml
  evenkeel check /etc/evenkeel/ratelimit       rules of the Envoy rate limit service";
pub const SHOW: &str = "\
Examples:
  evenkeel show -c evenkeel.yaml
  evenkeel show -c /etc/tempomat.json > evenkeel.yaml      import a file of Tempomat";
pub const RELOAD: &str = "\
A server also follows its file by itself, within some seconds. A faulty file is refused, and the
exit code is 1 then; the current configuration stays in force.";
pub const UPGRADE: &str = "\
Example:
  cp evenkeel.new /usr/local/bin/evenkeel.tmp
  mv /usr/local/bin/evenkeel.tmp /usr/local/bin/evenkeel
  evenkeel upgrade

If the new program does not start, the old one continues to serve, and the exit code is 1.";
pub const DOCTOR: &str = "\
Examples:
  sudo evenkeel doctor               with the rights to read the file and its secrets
  evenkeel doctor -c evenkeel.yaml   a file before it is put in force
  evenkeel doctor --json             for scripts

Exit codes: 0 no problem, 1 a problem (with --strict also a warning).
Every check is explained in docs/guide/doctor.md.";
pub const CLIENTS: &str = "\
Examples:
  evenkeel clients --limit ip
  watch -n 1 evenkeel clients --limit ip
  evenkeel clients --json | jq '.limits[0].rows[0]'";
pub const REPLAY: &str = "\
Examples:
  evenkeel replay /var/log/nginx/access.log
  evenkeel replay access.log.*.gz -c evenkeel.yaml --html report.html";

/// The command line. Each command accepts `--version`, which its help does not show.
pub fn command() -> clap::Command {
    let version = || Arg::new("version").short('V').long("version").action(ArgAction::Version);
    Cli::command().mut_subcommands(|one| one.disable_version_flag(true).arg(version().hide(true)))
}

/// What to do for words that other programs have as commands.
const ELSEWHERE: [(&str, &str); 9] = [
    ("stop", "systemctl stop evenkeel, or SIGTERM: it drains and stops"),
    ("restart", "evenkeel upgrade loses no request; or systemctl restart evenkeel"),
    ("replace", "evenkeel upgrade"),
    ("metrics", "curl -s 127.0.0.1:9970/metrics"),
    ("logs", "journalctl -u evenkeel"),
    ("log", "journalctl -u evenkeel"),
    ("config", "evenkeel show"),
    ("stats", "evenkeel clients, evenkeel top"),
    ("health", "curl -s 127.0.0.1:9970/healthz, or evenkeel doctor"),
];

/// Advice after an error of the command line; empty if there is none.
pub fn advice(error: &clap::Error) -> String {
    let word = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) => word,
        _ => return String::new(),
    };
    if let Some((_, advice)) = ELSEWHERE.iter().find(|(name, _)| name == word) {
        return format!("\n  for `{word}`: {advice}\n");
    }
    let root = command();
    let names = root.get_subcommands().filter(|one| !one.is_hide_set());
    let names: Vec<&str> = names.map(clap::Command::get_name).collect();
    format!("\ncommands: {}\n", names.join(", "))
}
