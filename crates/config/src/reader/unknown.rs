//! Messages about keys that a section does not have.
//!
//! A key that belongs elsewhere, or that other programs have, gets a message with what to write
//! here. For all others the most similar key is named, or all that there are.

use crate::fault::{nearest, quoted};
use crate::keys::SectionTable;
use crate::tree::YamlNode;
use evenkeel_core::units::ExactRate;

/// Describes an unknown key with its value, in the section of this name.
pub(super) fn message(
    name: &str,
    value: &YamlNode,
    (section, table): (&str, &'static SectionTable),
) -> String {
    let place = if section.is_empty() { String::new() } else { format!(" in `{section}`") };
    let start = format!("unknown key {}{place}", quoted(name));
    if let Some(limit) = limit(name, value).filter(|_| table.path == "proxy.limits") {
        return format!("{start}; write `{limit}`");
    }
    if let Some(what) = misplaced(name, table) {
        return what;
    }
    let known: Vec<&str> = table.keys.iter().map(|row| row.facts().name).collect();
    match nearest(name, &known) {
        Some(nearest) => format!("{start}; did you mean `{nearest}`?"),
        None => format!("{start}; known are {}", known.join(", ")),
    }
}

/// How a limit is written of which only the unit is named, as in other gateways. A number is taken
/// for one per minute, or per the time in the name.
fn limit(name: &str, value: &YamlNode) -> Option<String> {
    let (unit, time, example) = match name {
        "tokens" | "tpm" | "tpm_limit" => ("tokens", "m", "100000/m"),
        "requests" | "rpm" | "rpm_limit" | "requests_per_minute" => ("hits", "m", "60/m"),
        "rps" | "requests_per_second" => ("hits", "s", "10/s"),
        "limit" => ("hits", "", "10/s"),
        "money" | "budget" | "max_budget" => ("money", "", "20/d"),
        _ => return None,
    };
    let is_rate = |text: &str| text.parse::<ExactRate>().is_ok();
    let given = value.as_text().map(|text| match text.parse::<u64>() {
        Ok(_) if !time.is_empty() => format!("{text}/{time}"),
        _ => text.to_owned(),
    });
    let rate = given.filter(|given| is_rate(given));
    Some(format!("unit: {unit}, rate: {}", rate.as_deref().unwrap_or(example)))
}

/// Why a key of other sections cannot be in this one.
fn misplaced(name: &str, table: &'static SectionTable) -> Option<String> {
    let section = table.path;
    if section.is_empty() {
        let has =
            |path| table.all().iter().any(|inner| inner.path == path && inner.row(name).is_some());
        let proxy = || format!("`{name}` belongs below `proxy`; write `proxy:` above, and indent");
        let limit = || format!("`{name}` belongs to a limit: an entry of the list `proxy.limits`");
        return has("proxy").then(proxy).or_else(|| has("proxy.limits").then(limit));
    }
    let why = match (name, section) {
        ("when", "line" | "line.limits") => {
            "this door knows only tags; use `prefix`, or let the check door decide"
        }
        ("or", "proxy.limits.when") => {
            return Some("there is no `or`; write `any` with a list of conditions".to_owned());
        }
        ("and" | "all", "proxy.limits.when") => {
            let what = format!("there is no `{name}`; all keys of a condition must match anyway");
            return Some(what);
        }
        ("when", "master.domains") => {
            "a master knows only identifiers; write `when` in `gatekeeper`, with its own domain"
        }
        _ => return None,
    };
    Some(format!("`{name}` compares requests and cannot be used in `{section}`: {why}"))
}
