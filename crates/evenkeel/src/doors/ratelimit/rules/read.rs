//! From rule files to rules: the schema of the reference server, with its messages and ours.
//!
//! All files together are one set of rules, and any fault refuses the whole. Every fault is told
//! with file, line and column. Beyond the reference a limit may have a `unit_multiplier`, and
//! `calendar: true` for months and years of the calendar. Which files there are, and when they
//! are read again, is `config::source::folder`'s business.

mod fields;

use super::level::{Level, Node};
use super::pattern::Pattern;
use super::{Limit, Rule, Rules, Step, Unit, keys, metadata};
use crate::config::fault::{Fault, Faults};
use crate::config::source::folder::{self, File};
use crate::config::tree::{self, Dialect, Node as Tree, Value};
use crate::doors::ratelimit::tally::Tallies;
use evenkeel_core::windows::{Algorithm, Length};
use fields::Fields;
use keys::shown;
use prost_types::Struct;
use std::sync::Arc;

/// What a rule file may be: the reference reads the first document only, and has merge keys and
/// tags. A rule takes about eleven keys and values, and a kilobyte while it is read.
pub const DIALECT: Dialect = Dialect {
    bytes_max: folder::FILE_BYTES_MAX as usize,
    depth_max: 100,
    nodes_max: 10_000_000,
    repeated_max: 500_000,
    first_of_many: true,
    merge_keys: true,
    tags: true,
};

/// More faults than this are not collected: nobody would read them either.
const FAULTS_MAX: usize = 100;

/// The longest window, in seconds: counters tell no longer ones apart.
const WINDOW_MAX: u32 = 30 * 365 * 86_400;

/// How algorithms are written.
const ALGORITHMS: [(&str, Algorithm); 3] = [
    ("fixed_window", Algorithm::Fixed),
    ("sliding_window", Algorithm::Sliding),
    ("token_bucket", Algorithm::Bucket),
];

/// What the rules are read with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Several files may have rules for one domain.
    pub merge_domains: bool,
    /// Keys and values are compared joined, as the reference does.
    pub compat_keys: bool,
    /// Months and years are those of the calendar unless a limit says otherwise.
    pub calendar: bool,
}

/// Reads all files as one set of rules.
///
/// # Errors
/// Everything that is wrong with them, file by file.
pub fn read(files: &[File], options: Options, tallies: &Tallies) -> Result<Rules, Vec<Faults>> {
    let parsed =
        files.iter().map(|file| (file.name.as_str(), tree::parse_as(&file.bytes, DIALECT)));
    read_all(parsed, options, tallies)
}

/// The same of trees that stand in no file, each with its name.
///
/// # Errors
/// As [`read`].
pub fn read_trees(
    trees: Vec<(String, Tree)>,
    options: Options,
    tallies: &Tallies,
) -> Result<Rules, Vec<Faults>> {
    read_all(trees.into_iter().map(|(name, tree)| (name, Ok(tree))), options, tallies)
}

fn read_all(
    files: impl Iterator<Item = (impl AsRef<str>, Result<Tree, Fault>)>,
    options: Options,
    tallies: &Tallies,
) -> Result<Rules, Vec<Faults>> {
    let mut rules = Rules::default();
    let mut refused = Vec::new();
    for (name, parsed) in files {
        let mut reader = Reader { options, tallies, faults: Vec::new() };
        match parsed {
            Ok(root) => reader.file(root, &mut rules),
            Err(fault) => {
                let what = format!("error loading config file: {}", fault.what);
                reader.faults.push(Fault::new(fault.place, what));
            }
        }
        if !reader.faults.is_empty() {
            reader.faults.truncate(FAULTS_MAX);
            refused.push(Faults::new(name.as_ref(), reader.faults));
        }
    }
    if refused.is_empty() { Ok(rules) } else { Err(refused) }
}

/// Whether this is a rule file, sound or not.
#[must_use]
pub fn names_domain(bytes: &[u8]) -> bool {
    tree::parse_as(bytes, DIALECT).is_ok_and(|root| root.find(&["domain"]).is_some())
}

/// Whether a file has rules, or is no YAML.
#[must_use]
pub fn may_be_rules(bytes: &[u8]) -> bool {
    tree::parse_as(bytes, DIALECT).map_or(true, |root| root.find(&["domain"]).is_some())
}

struct Reader<'a> {
    options: Options,
    tallies: &'a Tallies,
    faults: Vec<Fault>,
}

/// The way from the root to a node.
struct Way<'w> {
    domain: &'w str,
    path: String,
    steps: Vec<Step>,
}

impl Reader<'_> {
    fn fault(&mut self, place: crate::config::fault::Place, what: impl Into<String>) {
        if self.faults.len() <= FAULTS_MAX {
            self.faults.push(Fault::new(place, what));
        }
    }

    fn file(&mut self, root: Tree, rules: &mut Rules) {
        let root = fields::merged(root);
        keys::check(&root, &mut self.faults);
        let fields = Fields::of(&root, &mut self.faults);
        let domain = fields.text("domain", &mut self.faults).unwrap_or_default();
        if domain.is_empty() {
            self.fault(fields.place_of("domain"), "config file cannot have empty domain");
            return;
        }
        if rules.knows(&domain) && !self.options.merge_domains {
            let what = format!("duplicate domain '{}' in config file", shown(&domain));
            self.fault(fields.place_of("domain"), what);
        }
        let fresh = || Level::new(self.options.compat_keys);
        let mut level = rules.domains.remove(&*domain).unwrap_or_else(fresh);
        let way = Way { domain: &domain, path: domain.clone(), steps: Vec::new() };
        self.descriptors(&fields, &way, &mut level);
        rules.domains.insert(domain.as_str().into(), level);
    }

    fn descriptors(&mut self, fields: &Fields<'_>, way: &Way<'_>, level: &mut Level) {
        for node in fields.list("descriptors", &mut self.faults) {
            // What has another form has been told by the first look.
            if let Value::Map(_) = node.value {
                self.descriptor(node, way, level);
            }
        }
    }

    fn descriptor(&mut self, node: &Tree, above: &Way<'_>, level: &mut Level) {
        let fields = Fields::of(node, &mut self.faults);
        let key = fields.text("key", &mut self.faults).unwrap_or_default();
        let value = fields.text("value", &mut self.faults).unwrap_or_default();
        if key.is_empty() {
            self.fault(fields.place_of("key"), "descriptor has empty key");
            return;
        }
        let step = self.step(&fields, &key, &value);
        let path = format!("{}.{}", above.path, step.text);
        let steps = above.steps.iter().cloned().chain([step]).collect();
        let way = Way { domain: above.domain, path, steps };
        let rule = self.rule(&fields, &way);
        let mut below = Level::new(self.options.compat_keys);
        self.descriptors(&fields, &way, &mut below);
        if !level.insert(&key, &value, Node { rule, below }) {
            let what = format!("duplicate descriptor composite key '{}'", shown(&way.path));
            self.fault(fields.place, what);
        }
    }

    fn step(&mut self, fields: &Fields<'_>, key: &str, value: &str) -> Step {
        let mut text = String::new();
        super::push_entry(&mut text, key, value);
        let shared = fields.flag("share_threshold", &mut self.faults);
        // Joined with the value, a key may be a pattern too.
        let pattern = if self.options.compat_keys { &text } else { value };
        if shared && Pattern::new(pattern).is_none() {
            let what = format!(
                "share_threshold can only be used with wildcard values (containing '*'), but \
                 found key '{}'",
                shown(&text)
            );
            self.fault(fields.place_of("share_threshold"), what);
        }
        Step {
            text: text.into(),
            shows_value: fields.flag("value_to_metric", &mut self.faults),
            shared,
        }
    }

    /// The rule of a descriptor; `None` if it has no limit.
    fn rule(&mut self, fields: &Fields<'_>, way: &Way<'_>) -> Option<Arc<Rule>> {
        let shadow = fields.flag("shadow_mode", &mut self.faults);
        let quota = fields.flag("quota_mode", &mut self.faults);
        let detailed = fields.flag("detailed_metric", &mut self.faults);
        let metadata = self.metadata(fields);
        let limit = Fields::of(fields.get("rate_limit")?, &mut self.faults);
        let name: Option<Box<str>> = limit.text("name", &mut self.faults).map(Into::into);
        let replaces = self.replaces(&limit, name.as_deref());
        let limit = self.limit(&limit);
        let tally = self.tallies.of_rule(&way.path);
        let (path, steps) = (way.path.as_str().into(), way.steps.as_slice().into());
        let name = name.filter(|name| !name.is_empty());
        Some(Arc::new(Rule {
            path,
            limit,
            name,
            replaces,
            shadow,
            quota,
            detailed,
            metadata,
            steps,
            tally,
        }))
    }

    fn metadata(&mut self, fields: &Fields<'_>) -> Option<Struct> {
        let node = fields.get("metadata")?;
        let metadata = metadata::read(node);
        if metadata.is_none() {
            let what =
                "error loading config file: `metadata` must be a section with keys and values";
            self.fault(node.place, what);
        }
        metadata
    }

    fn replaces(&mut self, limit: &Fields<'_>, own: Option<&str>) -> Box<[Box<str>]> {
        let mut names = Vec::new();
        let entries = limit.list("replaces", &mut self.faults).iter();
        // What has another form has been told by the first look.
        for node in entries.filter(|node| matches!(node.value, Value::Map(_))) {
            let entry = Fields::of(node, &mut self.faults);
            let name = entry.text("name", &mut self.faults).unwrap_or_default();
            if name.is_empty() {
                self.fault(node.place, "should not have an empty replaces entry");
            } else if own == Some(&name) {
                self.fault(node.place, "replaces should not contain name of same descriptor");
            }
            names.push(name.into());
        }
        names.into()
    }

    /// `None`: unlimited, or faulty.
    fn limit(&mut self, fields: &Fields<'_>) -> Option<Limit> {
        let written = fields.text("unit", &mut self.faults).unwrap_or_default();
        let same = |(name, ..): &&(&str, Unit, u32)| name.eq_ignore_ascii_case(&written);
        let unit = Unit::ALL.iter().find(same).map(|(_, unit, _)| *unit);
        let requests = fields.number("requests_per_unit", &mut self.faults).unwrap_or(0);
        let length = self.length(fields, unit);
        if fields.flag("unlimited", &mut self.faults) {
            if unit.is_some() {
                let what = "should not specify rate limit unit when unlimited";
                self.fault(fields.place_of("unit"), what);
            }
            return None;
        }
        if unit.is_none() {
            let what = format!("invalid rate limit unit '{}'", shown(&written));
            self.fault(fields.place_of("unit"), what);
        }
        let algorithm = self.algorithm(fields, length);
        Some(Limit { requests, unit: unit?, length: length?, algorithm: algorithm? })
    }

    fn length(&mut self, fields: &Fields<'_>, unit: Option<Unit>) -> Option<Length> {
        let multiplier = fields.number("unit_multiplier", &mut self.faults).unwrap_or(1);
        let calendar = fields.get("calendar").is_some();
        let asked = fields.flag("calendar", &mut self.faults);
        let months = match unit? {
            Unit::Month => Some(1),
            Unit::Year => Some(12),
            _ => None,
        };
        if asked && months.is_none() {
            let what = "`calendar` goes with the units month and year only; remove it";
            self.fault(fields.place_of("calendar"), what);
        }
        let by_calendar = if calendar { asked } else { self.options.calendar };
        let seconds = unit?.seconds().checked_mul(multiplier).filter(|n| *n <= WINDOW_MAX);
        let Some(seconds) = seconds.filter(|n| *n > 0) else {
            let what = "`unit_multiplier` must be at least 1, and the window at most 30 years";
            self.fault(fields.place_of("unit_multiplier"), what);
            return None;
        };
        Some(match months.filter(|_| by_calendar) {
            Some(months) => Length::Months(months * multiplier),
            None => Length::Seconds(seconds),
        })
    }

    fn algorithm(&mut self, fields: &Fields<'_>, length: Option<Length>) -> Option<Algorithm> {
        let Some(name) = fields.text("algorithm", &mut self.faults) else {
            return Some(Algorithm::Fixed);
        };
        let found = ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, known)| *known);
        let what = match (found, length) {
            (None, _) => format!(
                "there is no algorithm `{}`; there are fixed_window, sliding_window, token_bucket",
                shown(&name)
            ),
            (Some(Algorithm::Sliding), Some(Length::Months(_))) => {
                "`sliding_window` does not go with `calendar`; remove one".to_owned()
            }
            _ => return found,
        };
        self.fault(fields.place_of("algorithm"), what);
        None
    }
}
