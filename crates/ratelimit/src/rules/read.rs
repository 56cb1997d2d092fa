//! Converts rule files to rules: the schema of the reference server with Evenkeel's extensions.
//!
//! All files together form one set of rules, and one error refuses the whole set. Errors are
//! reported with file, line and column, up to a bound (`rules::faults`). Beyond the reference
//! server's schema, a limit may have an `algorithm`, a `unit_multiplier`, and `calendar: true` for
//! calendar months and years. How files are found and when they are read again:
//! `config::source::folder`.

mod fields;

use super::faults::RuleFaults;
use super::level::{RuleLevel, RuleNode};
use super::pattern::ValuePattern;
use super::{RateUnit, RatelimitRule, RatelimitRules, RuleLimit, RuleStep, keys, metadata};
use crate::tally::RuleTallies;
use evenkeel_config::fault::{ConfigFault, ConfigFaults, TextPlace};
use evenkeel_config::source::folder::{self, FolderFile};
use evenkeel_config::tree::{self, YamlDialect, YamlNode as Tree, YamlValue};
use evenkeel_core::windows::{WindowAlgorithm, WindowLength};
use fields::RuleFields;
use keys::shown;
use prost_types::Struct;
use std::sync::Arc;

/// The YAML dialect of rule files. As in the reference server, only the first document is read, and
/// merge keys and tags are supported. A rule takes about eleven keys and values, and a kilobyte
/// while it is read.
pub const RULES_DIALECT: YamlDialect = YamlDialect {
    bytes_max: folder::FILE_BYTES_MAX as usize,
    depth_max: 100,
    nodes_max: 10_000_000,
    repeated_max: 500_000,
    first_of_many: true,
    merge_keys: true,
    tags: true,
};

/// The longest window, in seconds. Counters cannot represent longer ones.
const WINDOW_SECS_MAX: u32 = 30 * 365 * 86_400;

/// The names of algorithms in rule files.
const ALGORITHMS: [(&str, WindowAlgorithm); 3] = [
    ("fixed_window", WindowAlgorithm::Fixed),
    ("sliding_window", WindowAlgorithm::Sliding),
    ("token_bucket", WindowAlgorithm::Bucket),
];

/// The options for reading rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleOptions {
    /// Whether several files may have rules for the same domain.
    pub merge_domains: bool,
    /// Whether keys and values are compared joined, as in the reference server.
    pub compat_keys: bool,
    /// Whether months and years are calendar ones by default; a limit can override this.
    pub calendar: bool,
}

/// Reads all files as one set of rules.
///
/// # Errors
/// The errors, grouped by file: of each file the first hundred and the number of the others.
pub fn read(
    files: &[FolderFile],
    options: RuleOptions,
    tallies: &RuleTallies,
) -> Result<RatelimitRules, Vec<ConfigFaults>> {
    let parsed =
        files.iter().map(|file| (file.name.as_str(), tree::parse_as(&file.bytes, RULES_DIALECT)));
    read_all(parsed, options, tallies)
}

/// Reads trees that do not come from files as one set of rules; each tree comes with its name.
///
/// # Errors
/// The errors, grouped by tree: of each tree the first hundred and the number of the others.
pub fn read_trees(
    trees: Vec<(String, Tree)>,
    options: RuleOptions,
    tallies: &RuleTallies,
) -> Result<RatelimitRules, Vec<ConfigFaults>> {
    read_all(trees.into_iter().map(|(name, tree)| (name, Ok(tree))), options, tallies)
}

fn read_all(
    files: impl Iterator<Item = (impl AsRef<str>, Result<Tree, ConfigFault>)>,
    options: RuleOptions,
    tallies: &RuleTallies,
) -> Result<RatelimitRules, Vec<ConfigFaults>> {
    let mut rules = RatelimitRules::default();
    let mut refused = Vec::new();
    for (name, parsed) in files {
        let mut reader = RuleReader { options, tallies, faults: RuleFaults::default() };
        match parsed {
            Ok(root) => reader.file(root, &mut rules),
            Err(fault) => {
                reader.fault(fault.place, format!("error loading config file: {fault}"));
            }
        }
        refused.extend(reader.faults.finish(name.as_ref()));
    }
    if refused.is_empty() { Ok(rules) } else { Err(refused) }
}

/// Whether a file is valid YAML and names a domain, even if its rules have errors.
pub fn names_domain(bytes: &[u8]) -> bool {
    tree::parse_as(bytes, RULES_DIALECT).is_ok_and(|root| root.find(&["domain"]).is_some())
}

/// Whether a file names a domain or is not valid YAML.
pub fn may_be_rules(bytes: &[u8]) -> bool {
    tree::parse_as(bytes, RULES_DIALECT).map_or(true, |root| root.find(&["domain"]).is_some())
}

struct RuleReader<'a> {
    options: RuleOptions,
    tallies: &'a RuleTallies,
    faults: RuleFaults,
}

/// The path from the root to a node.
struct RulePath<'w> {
    domain: &'w str,
    path: String,
    steps: Vec<RuleStep>,
}

impl RuleReader<'_> {
    fn fault(&mut self, place: TextPlace, what: impl Into<String>) {
        self.faults.push(ConfigFault::new(place, what));
    }

    fn file(&mut self, root: Tree, rules: &mut RatelimitRules) {
        let root = fields::merged(root);
        keys::check(&root, &mut self.faults);
        let fields = RuleFields::of(&root, &mut self.faults);
        let domain = fields.text("domain", &mut self.faults).unwrap_or_default();
        if domain.is_empty() {
            self.fault(fields.place_of("domain"), "config file cannot have empty domain");
            return;
        }
        if rules.has_domain(&domain) && !self.options.merge_domains {
            let what = format!("duplicate domain '{}' in config file", shown(&domain));
            self.fault(fields.place_of("domain"), what);
        }
        let fresh = || RuleLevel::new(self.options.compat_keys);
        let mut level = rules.domains.remove(&*domain).unwrap_or_else(fresh);
        let way = RulePath { domain: &domain, path: domain.clone(), steps: Vec::new() };
        self.descriptors(&fields, &way, &mut level);
        rules.domains.insert(domain.as_str().into(), level);
    }

    fn descriptors(&mut self, fields: &RuleFields<'_>, way: &RulePath<'_>, level: &mut RuleLevel) {
        for node in fields.list("descriptors", &mut self.faults) {
            // `keys::check` has already reported a node of another kind.
            if let YamlValue::Map(_) = node.value {
                self.descriptor(node, way, level);
            }
        }
    }

    fn descriptor(&mut self, node: &Tree, above: &RulePath<'_>, level: &mut RuleLevel) {
        let fields = RuleFields::of(node, &mut self.faults);
        let key = fields.text("key", &mut self.faults).unwrap_or_default();
        let value = fields.text("value", &mut self.faults).unwrap_or_default();
        if key.is_empty() {
            self.fault(fields.place_of("key"), "descriptor has empty key");
            return;
        }
        let step = self.step(&fields, &key, &value);
        let path = format!("{}.{}", above.path, step.text);
        let steps = above.steps.iter().cloned().chain([step]).collect();
        let way = RulePath { domain: above.domain, path, steps };
        let rule = self.rule(&fields, &way);
        let mut below = RuleLevel::new(self.options.compat_keys);
        self.descriptors(&fields, &way, &mut below);
        if !level.insert(&key, &value, RuleNode { rule, below }) {
            let what = format!("duplicate descriptor composite key '{}'", shown(&way.path));
            self.fault(fields.place, what);
        }
    }

    fn step(&mut self, fields: &RuleFields<'_>, key: &str, value: &str) -> RuleStep {
        let mut text = String::new();
        super::push_entry(&mut text, key, value);
        let shared = fields.flag("share_threshold", &mut self.faults);
        // If the key is joined with the value, it may be a pattern too.
        let pattern = if self.options.compat_keys { &text } else { value };
        if shared && ValuePattern::new(pattern).is_none() {
            let what = format!(
                "share_threshold can only be used with wildcard values (containing '*'), but \
                 found key '{}'",
                shown(&text)
            );
            self.fault(fields.place_of("share_threshold"), what);
        }
        RuleStep {
            text: text.into(),
            shows_value: fields.flag("value_to_metric", &mut self.faults),
            shared,
        }
    }

    /// The rule of a descriptor; `None` if it has no `rate_limit`.
    fn rule(&mut self, fields: &RuleFields<'_>, way: &RulePath<'_>) -> Option<Arc<RatelimitRule>> {
        let shadow = fields.flag("shadow_mode", &mut self.faults);
        let quota = fields.flag("quota_mode", &mut self.faults);
        let detailed = fields.flag("detailed_metric", &mut self.faults);
        let metadata = self.metadata(fields);
        let limit = RuleFields::of(fields.get("rate_limit")?, &mut self.faults);
        let name: Option<Box<str>> = limit.text("name", &mut self.faults).map(Into::into);
        let replaces = self.replaces(&limit, name.as_deref());
        let limit = self.limit(&limit);
        let tally = self.tallies.for_rule(&way.path);
        let (path, steps) = (way.path.as_str().into(), way.steps.as_slice().into());
        let name = name.filter(|name| !name.is_empty());
        Some(Arc::new(RatelimitRule {
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

    fn metadata(&mut self, fields: &RuleFields<'_>) -> Option<Struct> {
        let node = fields.get("metadata")?;
        let metadata = metadata::read(node);
        if metadata.is_none() {
            let what =
                "error loading config file: `metadata` must be a section with keys and values";
            self.fault(node.place, what);
        }
        metadata
    }

    fn replaces(&mut self, limit: &RuleFields<'_>, own: Option<&str>) -> Box<[Box<str>]> {
        let mut names = Vec::new();
        let entries = limit.list("replaces", &mut self.faults).iter();
        // `keys::check` has already reported an entry of another kind.
        for node in entries.filter(|node| matches!(node.value, YamlValue::Map(_))) {
            let entry = RuleFields::of(node, &mut self.faults);
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

    /// The limit of a rule; `None` if it is unlimited or has an error.
    fn limit(&mut self, fields: &RuleFields<'_>) -> Option<RuleLimit> {
        let written = fields.text("unit", &mut self.faults).unwrap_or_default();
        let same = |(name, ..): &&(&str, RateUnit, u32)| name.eq_ignore_ascii_case(&written);
        let unit = RateUnit::UNITS.iter().find(same).map(|(_, unit, _)| *unit);
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
        Some(RuleLimit { requests, unit: unit?, length: length?, algorithm: algorithm? })
    }

    fn length(&mut self, fields: &RuleFields<'_>, unit: Option<RateUnit>) -> Option<WindowLength> {
        let multiplier = fields.number("unit_multiplier", &mut self.faults).unwrap_or(1);
        let calendar = fields.get("calendar").is_some();
        let asked = fields.flag("calendar", &mut self.faults);
        let months = match unit? {
            RateUnit::Month => Some(1),
            RateUnit::Year => Some(12),
            _ => None,
        };
        if asked && months.is_none() {
            let what = "`calendar` can be used only with the units month and year; remove it";
            self.fault(fields.place_of("calendar"), what);
        }
        let by_calendar = if calendar { asked } else { self.options.calendar };
        let seconds = unit?.seconds().checked_mul(multiplier).filter(|n| *n <= WINDOW_SECS_MAX);
        let Some(seconds) = seconds.filter(|n| *n > 0) else {
            let what = "`unit_multiplier` must be at least 1, and the window at most 30 years";
            self.fault(fields.place_of("unit_multiplier"), what);
            return None;
        };
        Some(match months.filter(|_| by_calendar) {
            Some(months) => WindowLength::Months(months * multiplier),
            None => WindowLength::Seconds(seconds),
        })
    }

    fn algorithm(
        &mut self,
        fields: &RuleFields<'_>,
        length: Option<WindowLength>,
    ) -> Option<WindowAlgorithm> {
        let Some(name) = fields.text("algorithm", &mut self.faults) else {
            return Some(WindowAlgorithm::Fixed);
        };
        let found = ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, known)| *known);
        let what = match (found, length) {
            (None, _) => format!(
                "unknown algorithm `{}`; known are fixed_window, sliding_window, token_bucket",
                shown(&name)
            ),
            (Some(WindowAlgorithm::Sliding), Some(WindowLength::Months(_))) => {
                "`sliding_window` cannot be combined with `calendar`; remove one".to_owned()
            }
            _ => return found,
        };
        self.fault(fields.place_of("algorithm"), what);
        None
    }
}
