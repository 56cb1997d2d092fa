//! A mapping file in the format of statsd_exporter: other names and labels for Prometheus.
//!
//! Each mapping has a `match` (by default a glob in which `*` stands for one part between dots, or
//! a regular expression with `match_type: regex`), a `name` and `labels`. Options of histograms and
//! of the lifetime of series have no effect, because all metrics here are counters, and are
//! ignored. The rules are applied by `settings::rename`.

use super::files::WatchedFiles;
use crate::fault::{ConfigFault, ConfigFaults, TextPlace};
use crate::keys::{ConfigKey, SubsectionKey, section};
use crate::reader::SectionReader;
use crate::settings::pattern::NameRegex;
use crate::settings::rename::{MetricRename, NameTemplate};
use crate::tree::{self, YamlNode, YamlValue};
use std::path::Path;

section! {
    DEFAULTS_TABLE = "defaults":
        MATCH_TYPE, METRIC_TYPE, IGNORED[0], IGNORED[1], IGNORED[2], IGNORED[3], IGNORED[4],
        IGNORED[5], IGNORED[6], IGNORED[7], IGNORED[8], IGNORED[9], IGNORED[10];
    MAPPING = "mappings":
        MATCH, MATCH_TYPE, METRIC_TYPE, ACTION, NAME, LABELS, IGNORED[0], IGNORED[1], IGNORED[2],
        IGNORED[3], IGNORED[4], IGNORED[5], IGNORED[6], IGNORED[7], IGNORED[8], IGNORED[9],
        IGNORED[10];
}

section! {
    FILE = "";

    /// Defaults of all mappings.
    DEFAULTS: SubsectionKey = SubsectionKey::one("defaults", &DEFAULTS_TABLE);
    /// The mappings; the first that matches applies.
    MAPPINGS: SubsectionKey = SubsectionKey::list("mappings", &MAPPING);
}

section! {
    /// Whether `match` is a glob or a regular expression.
    MATCH_TYPE: ConfigKey<bool> =
        ConfigKey::words("match_type", &[("glob", false), ("regex", true)]);
    /// The type of the metrics; mappings for other types than counters have no effect.
    METRIC_TYPE: ConfigKey<bool> = ConfigKey::words(
        "match_metric_type",
        &[("counter", true), ("gauge", false), ("observer", false), ("timer", false)],
    );
    /// Whether matching metrics are renamed or dropped.
    ACTION: ConfigKey<bool> = ConfigKey::words("action", &[("map", false), ("drop", true)]);
    /// The names of metrics.
    MATCH: ConfigKey<String> = text("match");
    /// The new name.
    NAME: ConfigKey<String> = text("name");
    /// A section of labels and their values.
    LABELS: ConfigKey<String> = text("labels");
}

/// Keys that are accepted and ignored.
#[rustfmt::skip]
static IGNORED: [ConfigKey<()>; 11] = [
    ignored("timer_type"), ignored("observer_type"), ignored("help"), ignored("ttl"),
    ignored("buckets"), ignored("quantiles"), ignored("histogram_options"),
    ignored("summary_options"), ignored("scale"), ignored("honor_labels"),
    ignored("glob_disable_ordering"),
];

const fn ignored(name: &'static str) -> ConfigKey<()> {
    ConfigKey::opaque(name, |_| Ok(())).doc("Ignored.")
}

const fn text(name: &'static str) -> ConfigKey<String> {
    ConfigKey::text(name, |text| Ok(text.to_owned()))
}

/// Reads a mapping file.
///
/// # Errors
/// All faults of the file.
pub fn read(path: &Path) -> Result<Vec<MetricRename>, ConfigFaults> {
    let file = path.display().to_string();
    let read = WatchedFiles::new(vec![path.to_owned()]).read();
    let bytes = read.map_err(|unread| {
        ConfigFaults::new(&file, vec![ConfigFault::new(TextPlace::default(), unread.to_string())])
    })?;
    let bytes = bytes.into_iter().next().map(|file| file.bytes).unwrap_or_default();
    parse(&file, &bytes)
}

/// Parses the bytes of a mapping file. `file` is only used in messages.
///
/// # Errors
/// As [`read`].
pub fn parse(file: &str, bytes: &[u8]) -> Result<Vec<MetricRename>, ConfigFaults> {
    let root = tree::parse(bytes).map_err(|fault| ConfigFaults::new(file, vec![fault]))?;
    let mut faults = Vec::new();
    let mut section = SectionReader::open("", &FILE, Some(&root), root.place, &mut faults);
    let regex = section.section(&DEFAULTS, |defaults| defaults.key(&MATCH_TYPE)).unwrap_or(false);
    let nodes: &[YamlNode] = match section.node("mappings").map(|node| &node.value) {
        Some(YamlValue::List(nodes)) => nodes,
        _ => {
            section.fault("mappings", "it needs `mappings`: a list");
            &[]
        }
    };
    let rules = section.sections(&MAPPINGS, nodes, |mapping| rule(mapping, regex));
    section.close();
    if faults.is_empty() {
        // Mappings for other metrics than counters have no effect here and are dropped.
        Ok(rules.into_iter().flatten().collect())
    } else {
        Err(ConfigFaults::new(file, faults))
    }
}

/// Reads a mapping. `None` if it is faulty, or for metrics other than counters.
fn rule(mapping: &mut SectionReader<'_, '_>, regex: bool) -> Option<MetricRename> {
    let regex = mapping.key(&MATCH_TYPE).unwrap_or(regex);
    let pattern = mapping.key_with("match", |text| match regex {
        true => NameRegex::new(text),
        false => glob(text),
    });
    if !mapping.has("match") {
        mapping.fault("match", "a mapping needs `match`: the names of metrics to which it applies");
    }
    let drop = mapping.key(&ACTION).unwrap_or(false);
    let counts = mapping.key(&METRIC_TYPE);
    if !drop && !mapping.has("name") {
        mapping.fault("name", "a mapping needs `name`: the new name of matching metrics");
    }
    let labels = mapping.node("labels");
    let name = mapping.key_with("name", |text| match &pattern {
        Some(pattern) => NameTemplate::new(text, pattern).map(Some),
        None => Ok(None),
    });
    let pattern = pattern?;
    let tags = labels.map(|labels| tags(mapping, labels, &pattern)).unwrap_or_default();
    let name = name.flatten().filter(|_| !drop);
    (counts.unwrap_or(true) && (drop || name.is_some())).then_some(MetricRename {
        pattern,
        name,
        tags,
    })
}

fn tags(
    mapping: &mut SectionReader<'_, '_>,
    labels: &YamlNode,
    pattern: &NameRegex,
) -> Vec<(String, NameTemplate)> {
    let YamlValue::Map(entries) = &labels.value else {
        mapping.fault("labels", "`labels` must be a section: names with values");
        return Vec::new();
    };
    let mut tags = Vec::new();
    for (key, node) in entries {
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        let sound =
            key.name.starts_with(first) && key.name.chars().all(|c| first(c) || c.is_ascii_digit());
        let template = match &node.value {
            YamlValue::Text(text) if sound => NameTemplate::new(text, pattern),
            YamlValue::Text(_) => Err(format!("`{}` cannot be a label", key.name.escape_debug())),
            _ => Err("a label must be a single value".to_owned()),
        };
        match template {
            Ok(template) => tags.push((key.name.clone(), template)),
            Err(why) => mapping.fault("labels", why),
        }
    }
    tags
}

/// Compiles a glob: `*` stands for one part between dots.
fn glob(text: &str) -> Result<NameRegex, String> {
    let parts: Vec<String> = text.split('*').map(regex_lite::escape).collect();
    NameRegex::new(&format!("^{}$", parts.join("([^.]*)")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_fuzz::fuzz;

    fn told(text: &str, name: &str) -> Option<String> {
        let rules = parse("map.yaml", text.as_bytes()).unwrap_or_else(|faults| panic!("{faults}"));
        rules.iter().find_map(|rule| {
            let found = rule.pattern.find(name)?;
            let tags = rule.tags.iter().map(|(key, tag)| format!(" {key}={}", tag.filled(&found)));
            let name = rule.name.as_ref().map_or("-".to_owned(), |name| name.filled(&found));
            Some(name + &tags.collect::<String>())
        })
    }

    const MAP: &str = "
defaults: {ttl: 1m}
mappings:
- match: 'r.*.*.hits'
  name: r_hits
  timer_type: histogram
  labels: {domain: $1, key: '${2}'}
- {match: 'r\\.(.*)_(\\w+)\\.over', match_type: regex, name: 'over_$2', labels: {a: $1}}
- {match: 'r.secret.*', action: drop}
- {match: 'r.time', name: t, match_metric_type: timer}
- {match: 'r.time', name: 'counted:time'}
";

    #[test]
    fn the_first_mapping_that_fits_counts() {
        for (name, expected) in [
            ("r.d.k_v.hits", Some("r_hits domain=d key=k_v")),
            ("r.d.k.l.hits", None),
            ("r.x_y_z.over", Some("over_z a=x_y")),
            ("r.secret.it", Some("-")),
            ("r.time", Some("counted:time")),
        ] {
            assert_eq!(told(MAP, name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn every_fault_is_told_with_its_place() {
        let text = "mappings:\n- {match: 'a.*', name: '$2'}\n- {name: x}\n- {match: '(', \
                    match_type: regex, name: x}\n- {match: a, name: x, labels: {'1': y}}\n\
                    - {match: a, names: x}\n";
        let told = parse("map.yaml", text.as_bytes()).expect_err("faulty").to_string();
        for line in [
            "map.yaml:2:24: `name` is `$2`: `^a\\.([^.]*)$` has no group 2",
            "map.yaml:3:3: a mapping needs `match`",
            "map.yaml:4:11: `match` is `(`: found open group without closing ')'",
            "map.yaml:5:31: `1` cannot be a label",
            "map.yaml:6:3: a mapping needs `name`",
            "did you mean `name`?",
        ] {
            assert!(told.contains(line), "{line}\n{told}");
        }
    }

    #[test]
    fn fuzz_mapping_files() {
        fuzz().for_each(|bytes: &[u8]| _ = parse("map.yaml", bytes));
    }
}
