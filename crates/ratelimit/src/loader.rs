//! Keeps the rules equal to the rule files: it reads them at the start and whenever they change.
//!
//! The files are checked once a second, and on a reload. If the rules have errors, these are logged
//! with their positions and the rules in force stay. Counters survive every reload. How files are
//! found: `config::source::folder`. How they are parsed: `rules::read`. Rules from a server: `xds`.

pub mod xds;

use super::decide::RatelimitDecider;
use super::rules::RatelimitRules;
use super::rules::read::{RuleOptions, read, read_trees};
use evenkeel_config::fault::{ConfigFault, ConfigFaults, TextPlace};
use evenkeel_config::settings::RatelimitSettings;
use evenkeel_config::source::folder::{FolderFile, WatchedFolder};
use evenkeel_config::tree::YamlNode;
use evenkeel_telemetry::config_loads::ConfigLoads;
use std::io;
use std::sync::Arc;

/// Reads rule files and puts their rules in force.
pub struct RuleLoader {
    folder: Option<WatchedFolder>,
    intake: RuleIntake,
    /// Whether rules come from an xDS server and not from files.
    from_server: bool,
}

/// Checks rules and puts them in force, whatever their source.
#[derive(Clone)]
pub struct RuleIntake {
    options: RuleOptions,
    decider: Arc<RatelimitDecider>,
}

impl RuleLoader {
    /// A loader that has not read any rules.
    pub fn new(settings: &RatelimitSettings, decider: Arc<RatelimitDecider>) -> RuleLoader {
        let files = &settings.rules;
        let options = RuleOptions {
            merge_domains: files.merge_domains,
            compat_keys: files.compat_keys,
            calendar: files.calendar,
        };
        let folder =
            files.path.as_ref().map(|path| WatchedFolder::new(path, files.ignore_dot_files));
        RuleLoader {
            folder,
            intake: RuleIntake { options, decider },
            from_server: settings.xds.is_some(),
        }
    }

    /// The intake for rules from another source than files.
    pub fn intake(&self) -> RuleIntake {
        self.intake.clone()
    }

    /// Reads the rule files even if they have not changed.
    pub fn load(&mut self) {
        if self.folder.is_none() {
            if self.from_server {
                return;
            }
            tracing::warn!(
                target: "evenkeel::ratelimit",
                "no path of rules is set: all requests are allowed; set `ratelimit.rules`, or \
                 RUNTIME_ROOT and RUNTIME_SUBDIRECTORY"
            );
        }
        let files = self.folder.as_mut().map_or(Ok(Vec::new()), WatchedFolder::read);
        self.take(files);
        self.report_missing();
    }

    /// Reads the rule files on request. If the path no longer exists, the rules in force stay.
    pub fn reload(&mut self) {
        if !self.report_missing() {
            self.load();
        }
    }

    /// If the path of the rules does not exist, logs that, and counts it as a refusal. Returns
    /// whether that is so.
    fn report_missing(&self) -> bool {
        let path = self.folder.as_ref().map(WatchedFolder::path);
        let Some(path) = path.filter(|path| !path.exists()) else { return false };
        let path = path.display().to_string();
        let rules = self.intake.decider.rules.load();
        let meanwhile = if rules.as_ref().is_some_and(|rules| rules.domains() == 0) {
            tracing::warn!(
                target: "evenkeel::ratelimit", path,
                "the path of the rules does not exist; all requests are allowed until it does"
            );
            "all requests are allowed"
        } else {
            tracing::warn!(
                target: "evenkeel::ratelimit", path,
                "the path of the rules no longer exists; the current rules stay in force"
            );
            ConfigLoads::PREVIOUS_IN_FORCE
        };
        self.intake.refuse(&format!("{path}: it does not exist"), 1, meanwhile);
        true
    }

    /// Reads the rule files if they have changed.
    pub fn reload_if_changed(&mut self) {
        if let Some(files) = self.folder.as_mut().and_then(WatchedFolder::look) {
            self.take(files);
        }
    }

    fn take(&self, files: io::Result<Vec<FolderFile>>) {
        let count = files.as_ref().map_or(0, Vec::len);
        let rules = files.map_err(|error| vec![self.unread(&error)]);
        let RuleIntake { options, decider } = &self.intake;
        let rules = rules.and_then(|files| read(&files, *options, &decider.tallies));
        let path = self.folder.as_ref().map(WatchedFolder::path).filter(|path| path.exists());
        // Errors have already been logged.
        if self.intake.take(rules, count).is_ok()
            && count == 0
            && let Some(path) = path
        {
            let path = path.display().to_string();
            tracing::warn!(
                target: "evenkeel::ratelimit", path, "no rule files: all requests are allowed"
            );
        }
    }

    fn unread(&self, error: &io::Error) -> ConfigFaults {
        let path = self.folder.as_ref().map(|folder| folder.path().display().to_string());
        let what = format!("cannot be read: {error}");
        ConfigFaults::new(
            &path.unwrap_or_default(),
            vec![ConfigFault::new(TextPlace::default(), what)],
        )
    }
}

impl RuleIntake {
    /// Puts rules from trees in force; each tree comes with its name.
    ///
    /// # Errors
    /// The errors in the trees, as text. The rules in force stay.
    pub fn take_trees(&self, trees: Vec<(String, YamlNode)>) -> Result<(), String> {
        let count = trees.len();
        self.take(read_trees(trees, self.options, &self.decider.tallies), count)
    }

    /// Counts a refusal because of `faults` faults; `fault` is the first.
    fn refuse(&self, fault: &str, faults: usize, meanwhile: &'static str) {
        let now = self.decider.steady_now();
        self.decider.events.rule_loads.refuse(fault, faults, meanwhile, now);
    }

    fn take(
        &self,
        rules: Result<RatelimitRules, Vec<ConfigFaults>>,
        count: usize,
    ) -> Result<(), String> {
        match rules {
            Ok(rules) => {
                let domains = rules.domains();
                self.decider.rules.store(Some(Arc::new(rules)));
                self.decider.events.rule_loads.accept();
                tracing::info!(
                    target: "evenkeel::ratelimit", files = count, domains, "rules loaded"
                );
                Ok(())
            }
            Err(refused) => {
                let meanwhile = self.tell_refused();
                let told: Vec<String> = refused.iter().map(ToString::to_string).collect();
                let told = told.join("\n");
                let faults = refused.iter().map(|file| file.faults.len()).sum();
                self.refuse(told.lines().next().unwrap_or_default(), faults, meanwhile);
                told.lines().for_each(|fault| {
                    tracing::error!(target: "evenkeel::ratelimit", "{fault}");
                });
                Err(told)
            }
        }
    }

    /// Logs that rules are refused. Returns what applies until others are accepted.
    fn tell_refused(&self) -> &'static str {
        if self.decider.rules.load().is_some() {
            tracing::error!(
                target: "evenkeel::ratelimit", "rules refused; the current rules stay in force"
            );
            return ConfigLoads::PREVIOUS_IN_FORCE;
        }
        tracing::error!(
            target: "evenkeel::ratelimit",
            "rules refused, and there are no others: calls fail until the rules are correct"
        );
        "calls fail, as there is no previous one"
    }
}
