//! Warnings about rules that Evenkeel accepts and Fencer would refuse.
//!
//! Fencer's schema is stricter, so rules for both servers should follow it. These warnings appear
//! in `evenkeel check` only; they do not change how a rule is read.

use evenkeel_config::fault::TextPlace;
use evenkeel_config::source::folder::FolderFile;
use evenkeel_config::tree::{self, YamlDialect, YamlNode, YamlValue};

/// The units that Fencer knows, in its spelling.
const UNITS: [&str; 4] = ["second", "minute", "hour", "day"];

/// Returns one line for each violation, with its position.
pub fn warnings(files: &[FolderFile], dialect: YamlDialect) -> Vec<String> {
    let mut all = Vec::new();
    for file in files {
        let Ok(root) = tree::parse_as(&file.bytes, dialect) else { continue };
        let mut found = Vec::new();
        descriptors(&root, &mut found);
        all.extend(found.into_iter().map(|(place, what)| {
            let TextPlace { line, column, .. } = place;
            format!("{}:{line}:{column}: Fencer would refuse this: {what}", file.name)
        }));
    }
    all
}

type FencerWarnings = Vec<(TextPlace, &'static str)>;

fn descriptors(node: &YamlNode, found: &mut FencerWarnings) {
    let Some(YamlValue::List(items)) = node.find(&["descriptors"]).map(|node| &node.value) else {
        return;
    };
    for item in items {
        let has = |key| item.find(&[key]).is_some_and(|node| node.value != YamlValue::Null);
        match (has("rate_limit"), has("descriptors")) {
            (true, true) => found.push((item.place, "a limit and descriptors in one node")),
            (false, false) => found.push((item.place, "neither a limit nor descriptors")),
            _ => {}
        }
        if let Some(unit) = item.find(&["rate_limit", "unit"])
            && !matches!(&unit.value, YamlValue::Text(text) if UNITS.contains(&text.as_str()))
        {
            found.push((unit.place, "a unit other than second, minute, hour and day"));
        }
        descriptors(item, found);
    }
}
