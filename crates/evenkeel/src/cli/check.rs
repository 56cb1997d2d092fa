//! `evenkeel check`: whether a start would accept a file, and whether its rules can be read.
//!
//! It decides what kind of file each path names (a configuration, rules, a file of Envoy, groups)
//! and has it read by the part of the program that uses it. It starts nothing. How the findings are
//! printed: `excerpt`.

use crate::run;
use evenkeel_config::StartProblems;
use evenkeel_config::cpus::cgroup;
use evenkeel_config::excerpt;
use evenkeel_config::fault::ConfigFaults;
use evenkeel_config::machine::Machine;
use evenkeel_config::settings::Settings;
use evenkeel_config::source::ConfigSource;
use evenkeel_config::source::folder::{self, FolderEntry};
use evenkeel_runtime::clock::Clock;
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Error: a check found faults, which it has printed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the check found errors")]
pub struct FaultsFound;

/// Checks all files and folders, and prints what is wrong with them and how much it is.
///
/// # Errors
/// [`FaultsFound`], or standard output cannot be written.
pub fn check(paths: &[PathBuf]) -> anyhow::Result<()> {
    let (mut faults, mut warned) = (Vec::new(), 0);
    // Files that one configuration includes are checked with it, each with the same findings.
    let mut shown = HashSet::new();
    for path in paths {
        let mut found = check_one(path);
        found.warnings.retain(|warning| shown.insert(warning.clone()));
        eprint!("{}", excerpt::warnings(found.warnings.iter().map(String::as_str)));
        warned += found.warnings.len();
        if found.faults.is_empty() {
            writeln!(io::stdout(), "{}: good", path.display())?;
        }
        faults.extend(found.faults.into_iter().filter(|fault| shown.insert(fault.clone())));
    }
    let shown = excerpt::errors(faults.iter().map(String::as_str));
    eprint!("{shown}{}", excerpt::count(faults.len(), warned));
    anyhow::ensure!(faults.is_empty(), FaultsFound);
    Ok(())
}

/// What a check has found, each as a line.
#[derive(Default)]
struct Findings {
    warnings: Vec<String>,
    faults: Vec<String>,
}

impl Findings {
    /// Faults as text, one in each line.
    fn faulty(text: &str) -> Findings {
        Findings { faults: text.lines().map(str::to_owned).collect(), ..Findings::default() }
    }

    fn of(result: Result<Vec<String>, ConfigFaults>) -> Findings {
        match result {
            Ok(warnings) => Findings { warnings, ..Findings::default() },
            Err(faults) => {
                let text = faults.to_string();
                Findings { warnings: faults.warnings, ..Findings::faulty(&text) }
            }
        }
    }

    fn and(mut self, other: Findings) -> Findings {
        self.warnings.extend(other.warnings);
        self.faults.extend(other.faults);
        self
    }
}

/// Checks one file or folder. A file that names a domain is a rule file. All files of a folder are
/// rule files, unless the folder contains configurations.
fn check_one(path: &Path) -> Findings {
    let entries = folder::entries(path);
    if entries.iter().any(|entry| matches!(entry, FolderEntry::Configuration(_))) {
        return check_entries(entries);
    }
    if path.is_dir() && !evenkeel_ratelimit::rules::folder_has_rules(path) {
        return Findings::faulty(&format!(
            "{}: this folder contains neither a configuration nor a rule file (with a `domain`)",
            path.display()
        ));
    }
    if let Some(checked) = evenkeel_ratelimit::rules::check(path) {
        return of_rules(checked);
    }
    if let Some(checked) = evenkeel_config::envoy::check(path) {
        return Findings::of(checked);
    }
    match evenkeel_config::check_group_file(path) {
        Some(Ok(groups)) => {
            let (file, noun) = (path.display(), if groups == 1 { "group" } else { "groups" });
            eprintln!(
                "note: {file} has {groups} {noun}; a configuration that names it in `group_files` \
                 is checked with it"
            );
            Findings::default()
        }
        Some(Err(faults)) => Findings::of(Err(faults)),
        None => check_configuration(path),
    }
}

/// Checks the configurations of a folder, and names what else is in it. A file that should be one
/// and is not valid YAML is a fault, because its content is unknown.
fn check_entries(entries: Vec<FolderEntry>) -> Findings {
    let mut found = Findings::default();
    for entry in entries {
        match entry {
            FolderEntry::Configuration(path) | FolderEntry::Broken(path) => {
                found = found.and(check_configuration(&path));
            }
            FolderEntry::Other(path, why) => {
                // A closed pipe ends the check at the next line that matters.
                let _ = writeln!(io::stdout(), "{}: skipped, {why}", path.display());
            }
        }
    }
    found
}

fn of_rules(checked: Result<Vec<String>, Vec<ConfigFaults>>) -> Findings {
    match checked {
        Ok(warnings) => Findings::of(Ok(warnings)),
        Err(faults) => faults
            .into_iter()
            .map(|faults| Findings::of(Err(faults)))
            .fold(Findings::default(), Findings::and),
    }
}

/// Checks a configuration and the files that it names, without trying its sockets. Returns its
/// warnings.
pub fn check_text(path: &Path) -> Result<Vec<String>, String> {
    let checked = ConfigSource::new(path).check(Machine::here(), file_problems);
    checked.map_err(|faults| faults.to_string())
}

/// Checks whether `serve` would start with this file, as far as this is possible without a start.
/// Returns its warnings.
pub fn check_start(path: &Path) -> Result<Vec<String>, String> {
    let problems = |settings: &Settings| file_problems(settings).and(run::trial::trial(settings));
    let checked = ConfigSource::new(path).check(Machine::here(), problems);
    checked.map_err(|faults| faults.to_string())
}

/// What is wrong with the files that a configuration names.
fn file_problems(settings: &Settings) -> StartProblems {
    let now = Clock::start().now();
    evenkeel_tls::start_problems(settings)
        .and(evenkeel_acme::start_problems(settings))
        .and(evenkeel_identity::refusal_pages::start_problems(settings))
        .and(evenkeel_identity::waiting_room::start_problems(settings))
        .and(evenkeel_identity::robots::start_problems(settings, now))
        .and(evenkeel_identity::networks::start_problems(settings, now))
}

/// Checks a file as for a start, and prints notes about it. A file that a configuration near it
/// includes is checked as a part of that.
fn check_configuration(path: &Path) -> Findings {
    match evenkeel_config::includer(path) {
        Some(whole) => {
            let (part, whole_name) = (path.display(), whole.display());
            eprintln!("note: {part} is included by {whole_name}, and is checked as a part of it");
            check_whole(&whole)
        }
        None => check_whole(path),
    }
}

fn check_whole(path: &Path) -> Findings {
    let mut source = ConfigSource::new(path);
    let here = Machine::here();
    let problems = |settings: &Settings| file_problems(settings).and(run::trial::trial(settings));
    let found = Findings::of(source.check(here, problems));
    if !found.faults.is_empty() {
        return found;
    }
    let Ok(config) = source.load(here) else { return found };
    let networks = evenkeel_identity::networks::notes(&config.settings);
    let robots = evenkeel_identity::robots::notes(&config.settings);
    for note in cgroup::cost_notes(&config.settings).into_iter().chain(networks).chain(robots) {
        eprintln!("note: {note}");
    }
    if let Err(error) = tell_keys(path, &config.settings, here) {
        return found.and(Findings::faulty(&error.to_string()));
    }
    let door = config.settings.ratelimit.as_ref();
    let rules = door.and_then(|door| door.rules.path.as_deref());
    let checked = rules.filter(|path| path.exists()).and_then(evenkeel_ratelimit::rules::check);
    match checked {
        Some(checked) => found.and(of_rules(checked)),
        None => found,
    }
}

/// Prints the default of `keys_max` if a limit has it, since it depends on the machine.
fn tell_keys(path: &Path, settings: &Settings, machine: Machine) -> io::Result<()> {
    let keys = machine.keys_max();
    let proxy = settings.proxy.iter().flat_map(|proxy| &proxy.limits);
    let mut limits = proxy.chain(settings.line.iter().flat_map(|line| &line.limits));
    let is_default =
        settings.state.keys_max.is_none() && limits.any(|limit| limit.keys_max == keys);
    let (Some(memory), true) = (machine.memory, is_default) else { return Ok(()) };
    let (path, memory, bytes) = (path.display(), memory >> 20, keys * 24 / 1_000_000);
    let what = "`keys_max` of a limit, by the memory here";
    writeln!(io::stdout(), "{path}: {what} ({memory} MiB): {keys}, up to {bytes} MB")
}
