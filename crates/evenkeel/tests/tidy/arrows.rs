//! Which module may use which. A new arrow here is looked at as hard as a new public API.
//!
//! In the core a module may use those named, and all that these may use. In the binary's crate
//! what is forbidden is named, since most may use most. What a module declares (`mod`) is not
//! looked at, only what it names with `crate::`.

use crate::allowed::allowed;
use crate::source::Source;

/// The core's modules, each with those it may use; an entry may only name entries above it, so
/// no circle can be written.
const CORE: [(&str, &[&str]); 13] = [
    ("units", &[]),
    ("key", &[]),
    ("bucket", &["units"]),
    ("limit", &["bucket", "key"]),
    ("classify", &["limit"]),
    ("table", &["bucket", "key"]),
    ("limiter", &["classify", "table"]),
    ("meter", &["key", "units"]),
    ("top", &["key", "units"]),
    ("queue", &["classify", "meter", "table"]),
    ("replica", &["key", "units"]),
    ("sim", &["limiter", "meter", "queue", "replica", "top"]),
    ("lib", &["sim"]),
];

/// In the binary's crate: who must not use what, and why.
const FORBIDDEN: [(&str, &str, &str); 16] = [
    ("clock", "engine", "a clock knows nothing of what is timed"),
    ("clock", "doors", "a clock knows nothing of what is timed"),
    ("config", "engine", "configuration is read before anything runs"),
    ("config", "doors", "configuration is read before anything runs"),
    ("config", "watch", "configuration is read before anything runs"),
    ("client", "engine", "the engine asks about clients, never the other way"),
    ("client", "doors", "doors ask about clients, never the other way"),
    ("engine", "doors", "doors ask the engine, never the other way"),
    ("watch", "doors", "what is seen is handed in by those who do it"),
    ("watch", "engine", "the engine reports to watch, never the other way"),
    ("engine", "store", "what is kept is read off the engine, and it does not know"),
    ("store", "doors", "what is kept outside knows no protocol"),
    ("doors", "store::snapshot", "doors decide nothing and keep nothing"),
    ("engine", "cli", "only the command line knows the command line"),
    ("doors", "cli", "only the command line knows the command line"),
    ("watch", "cli", "only the command line knows the command line"),
];

pub fn faults(sources: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources.iter().filter(|s| s.is_shipped()) {
        for (line, text) in source.shipped_code() {
            let place = format!("{}:{line}", source.path);
            let why = match source.path.strip_prefix("crates/core/src/") {
                Some(path) => core_fault(path, text),
                None => binary_fault(&source.path, text),
            };
            let why = why.filter(|_| !allowed("arrow", &source.path));
            faults.extend(why.map(|why| format!("{place}: {why}: `{}`", text.trim())));
        }
    }
    faults
}

/// The module a file belongs to: its first folder, or its name.
fn module(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

/// The modules of this crate that a line names.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crate::").flat_map(|(at, word)| {
        let rest = &line[at + word.len()..];
        let (list, end) = match rest.strip_prefix('{') {
            Some(list) => (list, list.find('}').unwrap_or(list.len())),
            None => {
                (rest, rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len()))
            }
        };
        list[..end].split(',').map(|name| name.trim().split("::").next().unwrap_or_default())
    })
}

fn reachable(from: &str) -> Vec<&'static str> {
    let direct = CORE.iter().find(|(name, _)| *name == from).map_or(&[][..], |(_, to)| to);
    direct.iter().flat_map(|to| std::iter::once(*to).chain(reachable(to))).collect()
}

fn core_fault(path: &str, line: &str) -> Option<String> {
    let module = module(path);
    if !CORE.iter().any(|(name, _)| *name == module) {
        return Some(format!("`{module}` has no place in tidy/arrows.rs; give it one"));
    }
    let reachable = reachable(module);
    let known = |name: &str| CORE.iter().any(|(module, _)| *module == name);
    let wrong =
        named(line).find(|name| known(name) && *name != module && !reachable.contains(name))?;
    Some(format!("`{module}` may not use `{wrong}`; let their caller carry between them"))
}

fn binary_fault(path: &str, line: &str) -> Option<String> {
    let path = path.strip_prefix("crates/evenkeel/src/")?;
    let from = module(path);
    if from == "doors" {
        let own = path.split('/').nth(1).unwrap_or("").trim_end_matches(".rs");
        let other = line.split("crate::doors::").nth(1).map(|rest| {
            rest.split(|c: char| c != '_' && !c.is_alphanumeric()).next().unwrap_or_default()
        });
        if other.is_some_and(|other| other != own) {
            return Some("doors do not know each other; what both need belongs below them".into());
        }
    }
    let names: Vec<_> = named(line).collect();
    let names_it = |whom: &str| match whom.contains("::") {
        true => line.contains(&format!("crate::{whom}")),
        false => names.contains(&whom),
    };
    let rule = FORBIDDEN.iter().find(|(who, whom, _)| *who == from && names_it(whom))?;
    Some(rule.2.to_owned())
}

/// That `#![no_std]` stands and `std` comes in for tests and the model checker only.
pub fn std_in_core(sources: &[Source]) -> Vec<String> {
    let root = "crates/core/src/lib.rs";
    let lib = sources.iter().find(|s| s.path == root).expect("the core's root");
    let mut faults = Vec::new();
    if !lib.lines.iter().any(|line| line == "#![no_std]") {
        faults.push(format!("{root}: `#![no_std]` is gone"));
    }
    for source in sources.iter().filter(|s| s.path.starts_with("crates/core/src/")) {
        let mut before = "";
        for (line, text) in source.shipped_code() {
            let gated =
                before.contains("cfg(") && (before.contains("test") || before.contains("loom"));
            let std = text.contains("std::") && !text.contains("loom::std");
            if !gated && (std || text.contains("extern crate std")) {
                let place = format!("{}:{line}", source.path);
                faults.push(format!("{place}: std in the core; use `core::` or `alloc::`"));
            }
            before = text;
        }
    }
    faults
}

#[test]
fn arrows_are_found() {
    assert!(core_fault("units.rs", "use crate::key::Seed;").is_some());
    assert!(core_fault("bucket/debt.rs", "use crate::units::Time;").is_none());
    assert!(core_fault("meter.rs", "use crate::{top::Top, units};").is_some());
    assert!(core_fault("stray.rs", "").is_some());
    assert!(binary_fault("crates/evenkeel/src/engine.rs", "use crate::doors::proxy;").is_some());
    assert!(
        binary_fault("crates/evenkeel/src/doors/admin.rs", "crate::doors::proxy::x()").is_some()
    );
    assert!(
        binary_fault("crates/evenkeel/src/doors/proxy/a.rs", "crate::doors::proxy::x()").is_none()
    );
    assert!(
        binary_fault("crates/evenkeel/src/doors/a.rs", "use crate::store::snapshot;").is_some()
    );
    assert!(binary_fault("crates/evenkeel/src/doors/a.rs", "use crate::store::redis;").is_none());
}
