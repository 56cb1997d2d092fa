//! The rules after they have been read, and the search for the rule that applies to a descriptor.
//!
//! A domain is a tree of levels. A descriptor's entries lead through it from left to right. At each
//! level an exact value takes precedence over a pattern, and a pattern over a key without a value.
//! There is no backtracking. The rule at the end applies if it has a limit. How rules are parsed:
//! `rules::read`; one level: `rules::level`. This module counts nothing.

mod faults;
mod fencer;
mod keys;
pub mod level;
pub mod metadata;
pub mod pattern;
pub mod read;

use super::tally::{RuleTallies, RuleTally};
use evenkeel_config::fault::{ConfigFault, ConfigFaults, TextPlace};
use evenkeel_config::source::folder::WatchedFolder;
use evenkeel_core::windows::{WindowAlgorithm, WindowLength};
use foldhash::fast::RandomState;
use level::RuleLevel;
pub use metadata::merge as merge_metadata;
use prost_types::Struct;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// All rules in force.
#[derive(Debug, Default)]
pub struct RatelimitRules {
    domains: HashMap<Box<str>, RuleLevel, RandomState>,
}

/// The unit of time of a limit. The discriminants are the numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum RateUnit {
    /// 1 second.
    Second = 1,
    /// 60 seconds.
    Minute = 2,
    /// 3600 seconds.
    Hour = 3,
    /// 86,400 seconds, which is a day in UTC.
    Day = 4,
    /// 30 days, or a calendar month.
    Month = 5,
    /// 365 days, or a calendar year.
    Year = 6,
    /// Seven days, beginning on a Thursday.
    Week = 7,
}

impl RateUnit {
    /// All units with their names and lengths in seconds. The index is the number on the wire minus
    /// 1.
    pub const UNITS: [(&str, RateUnit, u32); 7] = [
        ("SECOND", RateUnit::Second, 1),
        ("MINUTE", RateUnit::Minute, 60),
        ("HOUR", RateUnit::Hour, 3_600),
        ("DAY", RateUnit::Day, 86_400),
        ("MONTH", RateUnit::Month, 30 * 86_400),
        ("YEAR", RateUnit::Year, 365 * 86_400),
        ("WEEK", RateUnit::Week, 7 * 86_400),
    ];

    /// The unit with this number on the wire; `None` if there is none.
    pub fn from_wire(number: i32) -> Option<RateUnit> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        RateUnit::UNITS.get(index).map(|(_, unit, _)| *unit)
    }

    /// The name of the unit in rule files, in capitals.
    pub fn name(self) -> &'static str {
        RateUnit::UNITS[self as usize - 1].0
    }

    /// The length of the unit in seconds; months and years have 30 and 365 days.
    pub fn seconds(self) -> u32 {
        RateUnit::UNITS[self as usize - 1].2
    }
}

/// A number of requests in each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleLimit {
    /// Maximum number of requests in each window. With zero, every request exceeds the limit.
    pub requests: u32,
    /// The unit of the window in answers.
    pub unit: RateUnit,
    /// The length of the window.
    pub length: WindowLength,
    /// The algorithm that counts hits.
    pub algorithm: WindowAlgorithm,
}

impl RuleLimit {
    /// A limit of `requests` in each `unit`, with windows aligned to the epoch.
    pub fn per(requests: u32, unit: RateUnit) -> RuleLimit {
        let (length, algorithm) = (WindowLength::Seconds(unit.seconds()), WindowAlgorithm::Fixed);
        RuleLimit { requests, unit, length, algorithm }
    }
}

/// One rule with a limit, or one that explicitly allows everything.
#[derive(Debug)]
pub struct RatelimitRule {
    /// The domain and the keys with their values, separated by dots.
    pub path: Box<str>,
    /// The limit; `None` if the rule allows everything (`unlimited`).
    pub limit: Option<RuleLimit>,
    /// The name by which other rules refer to it in `replaces`.
    pub name: Option<Box<str>>,
    /// The names of the rules that do not apply to a request if this one does.
    pub replaces: Box<[Box<str>]>,
    /// Whether the rule only counts and never refuses (`shadow_mode`).
    pub shadow: bool,
    /// Whether the rule refuses a request only if all its quota rules are exceeded (`quota_mode`).
    pub quota: bool,
    /// Whether its metrics use the keys and values of requests and not those of the rule
    /// (`detailed_metric`).
    pub detailed: bool,
    /// Metadata for answers while the limit is not exceeded.
    pub metadata: Option<Struct>,
    /// The levels from the domain to this rule.
    pub steps: Box<[RuleStep]>,
    /// The metrics of the rule.
    pub tally: Arc<RuleTally>,
}

/// One level on the path to a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleStep {
    /// The key, followed by `_` and the value if there is one.
    pub text: Box<str>,
    /// Whether metrics show the value of the request (`value_to_metric`).
    pub shows_value: bool,
    /// Whether all values that match the pattern share one counter (`share_threshold`).
    pub shared: bool,
}

impl RuleStep {
    /// The text that is counted in place of the value of an entry with this key; `None` if each
    /// value has its own counter. If keys and values are compared joined, the pattern may cover the
    /// key too.
    pub fn counted(&self, key: &str) -> Option<&str> {
        let value = || self.text.strip_prefix(key).and_then(|rest| rest.strip_prefix('_'));
        self.shared.then(|| value().unwrap_or(&self.text))
    }
}

impl RatelimitRule {
    /// The metrics path for a request; `None` if it does not depend on the request.
    pub fn path_of(&self, domain: &str, entries: &[(&str, &str)]) -> Option<String> {
        if !self.detailed && !self.steps.iter().any(|step| step.shows_value) {
            return None;
        }
        let mut path = domain.to_owned();
        for (step, (key, value)) in self.steps.iter().zip(entries) {
            path.push('.');
            match step.counted(key) {
                Some(counted) => push_entry(&mut path, key, counted),
                None if self.detailed || step.shows_value => push_entry(&mut path, key, value),
                None => path.push_str(&step.text),
            }
        }
        Some(path)
    }
}

/// Appends `key_value` to a path, or `key` if the value is empty.
pub fn push_entry(path: &mut String, key: &str, value: &str) {
    path.push_str(key);
    if !value.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(path, "_{value}");
    }
}

/// Whether a folder has rule files. A folder that cannot be read, or a file that is not valid YAML,
/// counts as such.
pub fn folder_has_rules(folder: &Path) -> bool {
    let files = WatchedFolder::new(folder, false).read();
    files.map_or(true, |files| files.iter().any(|file| read::may_be_rules(&file.bytes)))
}

/// Checks a rule file or a folder of rules and returns warnings; `None` if the path is something
/// else.
pub fn check(path: &Path) -> Option<Result<Vec<String>, Vec<ConfigFaults>>> {
    let fault = |error: std::io::Error| {
        let what = format!("cannot be read: {error}");
        vec![ConfigFaults::new(
            &path.display().to_string(),
            vec![ConfigFault::new(TextPlace::default(), what)],
        )]
    };
    let files = match WatchedFolder::new(path, false).read() {
        Ok(files) => files,
        Err(error) => return Some(Err(fault(error))),
    };
    let is_rules = path.is_dir() || files.iter().any(|file| read::names_domain(&file.bytes));
    let options = read::RuleOptions::default();
    let checked = || read::read(&files, options, &RuleTallies::default());
    is_rules.then(|| checked().map(|_| fencer::warnings(&files, read::RULES_DIALECT)))
}

impl RatelimitRules {
    /// Whether there are rules for a domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// The number of domains with rules.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// The rules of a domain.
    pub fn domain(&self, domain: &str) -> Option<&RuleLevel> {
        self.domains.get(domain)
    }

    /// Passes every rule to `show`, sorted by domain, otherwise in the order of the files.
    pub fn for_each(&self, mut show: impl FnMut(&RatelimitRule)) {
        let mut domains: Vec<_> = self.domains.iter().collect();
        domains.sort_unstable_by_key(|(name, _)| *name);
        domains.into_iter().for_each(|(_, level)| level.for_each(&mut show));
    }

    /// One line for each rule, in the format of the debug port.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        self.for_each(|rule| {
            let unit = rule.limit.map_or("UNKNOWN", |limit| limit.unit.name());
            let requests = rule.limit.map_or(0, |limit| limit.requests);
            let (path, shadow, quota) = (&rule.path, rule.shadow, rule.quota);
            // Without this mark, the line would read as a limit that allows nothing.
            let unlimited = if rule.limit.is_none() { ", unlimited: true" } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{path}: unit={unit} requests_per_unit={requests}, shadow_mode: {shadow}, \
                 quota_mode: {quota}{unlimited}"
            );
        });
        text
    }
}
