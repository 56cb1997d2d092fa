//! The rules: what they are once they are read, and which of them a descriptor meets.
//!
//! A domain is a tree of levels. A descriptor's entries walk it from left to right; at each level
//! an exact value goes before a pattern and a pattern before a key alone, and no step is taken
//! back. The rule at the end applies if it has a limit. How rules are written: `rules/read`; one
//! level: `rules/level`. Nothing is counted here.

mod fencer;
mod keys;
pub mod level;
pub mod metadata;
pub mod pattern;
pub mod read;

use super::tally::{Tallies, Tally};
use crate::config::fault::{Fault, Faults, Place};
use crate::config::source::folder::Folder;
use evenkeel_core::windows::{Algorithm, Length};
use foldhash::fast::RandomState;
use level::Level;
pub use metadata::merge as merge_metadata;
use prost_types::Struct;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// All rules that are in force.
#[derive(Debug, Default)]
pub struct Rules {
    domains: HashMap<Box<str>, Level, RandomState>,
}

/// What time a limit is for. The numbers are those on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Unit {
    /// A second.
    Second = 1,
    /// 60 seconds.
    Minute = 2,
    /// 3600 seconds.
    Hour = 3,
    /// A day of UTC.
    Day = 4,
    /// 30 days, or a month of the calendar.
    Month = 5,
    /// 365 days, or a year of the calendar.
    Year = 6,
    /// Seven days that begin on a Thursday.
    Week = 7,
}

impl Unit {
    /// All, with their names.
    pub const ALL: [(&str, Unit, u32); 7] = [
        ("SECOND", Unit::Second, 1),
        ("MINUTE", Unit::Minute, 60),
        ("HOUR", Unit::Hour, 3_600),
        ("DAY", Unit::Day, 86_400),
        ("MONTH", Unit::Month, 30 * 86_400),
        ("YEAR", Unit::Year, 365 * 86_400),
        ("WEEK", Unit::Week, 7 * 86_400),
    ];

    /// From its number on the wire.
    #[must_use]
    pub fn from_wire(number: i32) -> Option<Unit> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        Unit::ALL.get(index).map(|(_, unit, _)| *unit)
    }

    /// As it is written, in capitals.
    #[must_use]
    pub fn name(self) -> &'static str {
        Unit::ALL[self as usize - 1].0
    }

    /// How many seconds it has.
    #[must_use]
    pub fn seconds(self) -> u32 {
        Unit::ALL[self as usize - 1].2
    }
}

/// So many requests in so much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests in each window; zero: none ever.
    pub requests: u32,
    /// What the window is called in answers.
    pub unit: Unit,
    /// How long it is.
    pub length: Length,
    /// How hits are counted in it.
    pub algorithm: Algorithm,
}

impl Limit {
    /// `requests` in each `unit`, aligned to the epoch.
    #[must_use]
    pub fn per(requests: u32, unit: Unit) -> Limit {
        let (length, algorithm) = (Length::Seconds(unit.seconds()), Algorithm::Fixed);
        Limit { requests, unit, length, algorithm }
    }
}

/// One rule with a limit, or with leave to go without one.
#[derive(Debug)]
pub struct Rule {
    /// Domain, keys and values, with dots between.
    pub path: Box<str>,
    /// The limit; `None`: unlimited.
    pub limit: Option<Limit>,
    /// What other rules call it by.
    pub name: Option<Box<str>>,
    /// The names of the rules that do not count beside it.
    pub replaces: Box<[Box<str>]>,
    /// It counts and refuses nothing.
    pub shadow: bool,
    /// It refuses only when all quota rules of a request do.
    pub quota: bool,
    /// Its figures show what requests say, not what the rule does.
    pub detailed: bool,
    /// What answers carry while it is not over.
    pub metadata: Option<Struct>,
    /// How the way to it is counted and shown.
    pub steps: Box<[Step]>,
    /// Its figures.
    pub tally: Arc<Tally>,
}

/// One level of the way to a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The key, and behind `_` the value if there is one.
    pub text: Box<str>,
    /// Figures show the value of the request (`value_to_metric`).
    pub shows_value: bool,
    /// All values share one counter: that of the pattern.
    pub shared: bool,
}

impl Step {
    /// What is counted of an entry with this key in place of its value, if values share a counter.
    /// Where keys and values are compared joined, the key may be covered by the pattern too.
    #[must_use]
    pub fn counted(&self, key: &str) -> Option<&str> {
        let value = self.text.strip_prefix(key).and_then(|rest| rest.strip_prefix('_'));
        self.shared.then(|| value.unwrap_or(&self.text))
    }
}

impl Rule {
    /// The path that figures are kept under, if it depends on what the request says.
    #[must_use]
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

/// Adds `key_value`, or `key` where there is no value.
pub fn push_entry(path: &mut String, key: &str, value: &str) {
    path.push_str(key);
    if !value.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(path, "_{value}");
    }
}

/// Whether a folder has files of rules; one that cannot be read as YAML may be meant as such.
#[must_use]
pub fn lie_in(folder: &Path) -> bool {
    let files = Folder::new(folder, false).read();
    files.map_or(true, |files| files.iter().any(|file| read::may_be_rules(&file.bytes)))
}

/// Checks a folder of rules, or a rule file, and returns warnings; `None` if the path is
/// something else.
#[must_use]
pub fn check(path: &Path) -> Option<Result<Vec<String>, Vec<Faults>>> {
    let fault = |error: std::io::Error| {
        let what = format!("cannot be read: {error}");
        vec![Faults::new(&path.display().to_string(), vec![Fault::new(Place::default(), what)])]
    };
    let files = match Folder::new(path, false).read() {
        Ok(files) => files,
        Err(error) => return Some(Err(fault(error))),
    };
    let is_rules = path.is_dir() || files.iter().any(|file| read::names_domain(&file.bytes));
    let options = read::Options::default();
    let checked = || read::read(&files, options, &Tallies::default());
    is_rules.then(|| checked().map(|_| fencer::warnings(&files, read::DIALECT)))
}

impl Rules {
    /// Whether there are rules for a domain.
    #[must_use]
    pub fn knows(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// How many domains there are.
    #[must_use]
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// The rules of a domain.
    #[must_use]
    pub fn domain(&self, domain: &str) -> Option<&Level> {
        self.domains.get(domain)
    }

    /// Shows every rule, domains in order, the rest in the order of the files.
    pub fn for_each(&self, mut show: impl FnMut(&Rule)) {
        let mut domains: Vec<_> = self.domains.iter().collect();
        domains.sort_unstable_by_key(|(name, _)| *name);
        domains.into_iter().for_each(|(_, level)| level.for_each(&mut show));
    }

    /// One line for each rule, as the debug port shows them.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut text = String::new();
        self.for_each(|rule| {
            let unit = rule.limit.map_or("UNKNOWN", |limit| limit.unit.name());
            let requests = rule.limit.map_or(0, |limit| limit.requests);
            let (path, shadow, quota) = (&rule.path, rule.shadow, rule.quota);
            // A number of its own would read as a limit that lets nothing pass.
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
