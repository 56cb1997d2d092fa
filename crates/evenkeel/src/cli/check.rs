//! `evenkeel check`: whether a start would accept a file, and whether its rules can be read.
//!
//! It decides what kind of file each path names (a configuration, rules, a file of Envoy, groups)
//! and has it read by the part of the program that uses it. It starts nothing. How the findings are
//! printed: `excerpt`.

use crate::run;
use evenkeel_config::cpus::cgroup;
use evenkeel_config::excerpt;
use evenkeel_config::fault::ConfigFaults;
use evenkeel_config::machine::Machine;
use evenkeel_config::settings::Settings;
use evenkeel_config::source::ConfigSource;
use evenkeel_config::source::folder::{self, FolderEntry};
use evenkeel_runtime::clock::Clock;
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
    for path in paths {
        match check_one(path) {
            Ok(warnings) => {
                eprint!("{}", excerpt::warnings(warnings.iter().map(String::as_str)));
                warned += warnings.len();
                writeln!(io::stdout(), "{}: good", path.display())?;
            }
            Err(found) => faults.extend(found.lines().map(str::to_owned)),
        }
    }
    let shown = excerpt::errors(faults.iter().map(String::as_str));
    eprint!("{shown}{}", excerpt::count(faults.len(), warned));
    anyhow::ensure!(faults.is_empty(), FaultsFound);
    Ok(())
}

/// Checks one file or folder, and returns its warnings. A file that names a domain is a rule file.
/// All files of a folder are rule files, unless the folder contains configurations.
fn check_one(path: &Path) -> Result<Vec<String>, String> {
    let entries = folder::entries(path);
    if entries.iter().any(|entry| matches!(entry, FolderEntry::Configuration(_))) {
        return check_entries(entries);
    }
    if path.is_dir() && !evenkeel_ratelimit::rules::folder_has_rules(path) {
        return Err(format!(
            "{}: this folder contains neither a configuration nor a rule file (with a `domain`)",
            path.display()
        ));
    }
    if let Some(checked) = evenkeel_ratelimit::rules::check(path) {
        return checked.map_err(|faults| lines(&faults));
    }
    if let Some(checked) = evenkeel_config::envoy::check(path) {
        return checked.map_err(|faults| faults.to_string());
    }
    match evenkeel_config::check_group_file(path) {
        Some(checked) => {
            let groups = checked.map_err(|faults| faults.to_string())?;
            let (file, noun) = (path.display(), if groups == 1 { "group" } else { "groups" });
            eprintln!(
                "note: {file} has {groups} {noun}; a configuration that names it in `group_files` \
                 is checked with it"
            );
            Ok(Vec::new())
        }
        None => check_configuration(path),
    }
}

/// Checks the configurations of a folder, and names what else is in it. A file that should be one
/// and is not valid YAML is a fault, because its content is unknown.
fn check_entries(entries: Vec<FolderEntry>) -> Result<Vec<String>, String> {
    let (mut warnings, mut faulty) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            FolderEntry::Configuration(path) | FolderEntry::Broken(path) => {
                match check_configuration(&path) {
                    Ok(more) => warnings.extend(more),
                    Err(faults) => faulty.push(faults),
                }
            }
            FolderEntry::Other(path, why) => {
                // A closed pipe ends the check at the next line that matters.
                let _ = writeln!(io::stdout(), "{}: skipped, {why}", path.display());
            }
        }
    }
    if faulty.is_empty() { Ok(warnings) } else { Err(faulty.join("\n")) }
}

fn lines(faults: &[ConfigFaults]) -> String {
    faults.iter().map(ConfigFaults::to_string).collect::<Vec<_>>().join("\n")
}

/// Checks whether `serve` would start with this file, as far as this is possible without a start.
fn check_configuration(path: &Path) -> Result<Vec<String>, String> {
    let mut source = ConfigSource::new(path);
    let here = Machine::here();
    let problems = |settings: &Settings| {
        let now = Clock::start().now();
        evenkeel_tls::start_problems(settings)
            .and(evenkeel_acme::start_problems(settings))
            .and(evenkeel_identity::refusal_pages::start_problems(settings))
            .and(evenkeel_identity::waiting_room::start_problems(settings))
            .and(evenkeel_identity::robots::start_problems(settings, now))
            .and(evenkeel_identity::networks::start_problems(settings, now))
            .and(run::trial::trial(settings))
    };
    let warnings = source.check(here, problems);
    let mut warnings = warnings.map_err(|faults| faults.to_string())?;
    if let Ok(config) = source.load(here) {
        for note in cgroup::cost_notes(&config.settings) {
            eprintln!("note: {note}");
        }
        let networks = evenkeel_identity::networks::notes(&config.settings);
        for note in networks.into_iter().chain(evenkeel_identity::robots::notes(&config.settings)) {
            eprintln!("note: {note}");
        }
        tell_keys(path, &config.settings, here).map_err(|error| error.to_string())?;
        let door = config.settings.ratelimit.as_ref();
        let rules = door.and_then(|door| door.rules.path.as_deref());
        let rules = rules.filter(|path| path.exists());
        if let Some(checked) = rules.and_then(evenkeel_ratelimit::rules::check) {
            warnings.extend(checked.map_err(|faults| lines(&faults))?);
        }
    }
    Ok(warnings)
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
