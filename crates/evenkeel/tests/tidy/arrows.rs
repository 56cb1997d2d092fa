//! Which crate may depend on which, and which module of the core and of `ask` may use which. A new
//! arrow here is reviewed as carefully as a new public API.
//!
//! Cargo holds the arrows between crates; this keeps their layers. A module of the core may use
//! those named, and all that these may use. What a module declares (`mod`) does not count, only
//! what it names with `crate::`. Circles of files within a crate: `ci/circles`.

use crate::allowed::allowed;
use crate::source::{Source, root};
use std::fs;

/// The core's modules, each with those that it may use. An entry may only name entries above it, so
/// a cycle is impossible.
const CORE: [(&str, &[&str]); 17] = [
    ("units", &[]),
    ("percent", &[]),
    ("key", &[]),
    ("bucket", &["units"]),
    ("fact", &[]),
    ("condition", &["fact", "percent"]),
    ("limit", &["bucket", "condition", "fact", "key"]),
    ("classify", &["limit"]),
    ("table", &["bucket", "key"]),
    ("limiter", &["classify", "table"]),
    ("meter", &["key", "units"]),
    ("top", &["key", "units"]),
    ("queue", &["classify", "meter", "table"]),
    ("swarm", &["key", "units"]),
    ("replica", &["classify", "key", "limit", "meter", "queue", "units"]),
    ("sim", &["limiter", "meter", "queue", "replica", "swarm", "top"]),
    ("lib", &["sim"]),
];

/// The crates in layers: each may depend only on crates of the layers above it in this list, so
/// doors do not know each other, and `client` brings none of the program.
const LAYERS: [&[&str]; 9] = [
    &["core", "client", "memcpy", "usage"],
    &["config", "fair-queue", "runtime"],
    &["telemetry"],
    &["tls", "identity", "serve"],
    &["acme", "export", "engine", "grpc"],
    &["models", "peers", "store"],
    &["proxy", "ratelimit", "ask"],
    &["lab", "embed"],
    &["evenkeel"],
];

/// The doors of the crate `ask`, which do not know each other either.
const DOORS: [&str; 4] = ["check", "ext_proc", "line", "zeromq"];

/// Dependencies between crates that point to the same layer or a later one.
pub fn between_crates() -> Vec<String> {
    let mut faults = Vec::new();
    for entry in fs::read_dir(root().join("crates")).expect("the crates") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let manifest = fs::read_to_string(path.join("Cargo.toml")).expect("a manifest");
        if name != "testing" {
            faults.extend(crate_fault(&name, &manifest));
        }
    }
    faults
}

fn crate_fault(name: &str, manifest: &str) -> Vec<String> {
    let layer = |name: &str| LAYERS.iter().position(|crates| crates.contains(&name));
    let Some(own) = layer(name) else {
        return vec![format!("crate `{name}` has no place in tidy/arrows.rs; give it one")];
    };
    let shipped = manifest.split("dev-dependencies]").next().unwrap_or_default();
    let used = shipped.lines().filter_map(|line| line.strip_prefix("evenkeel-"));
    let used = used.filter_map(|rest| rest.split(['.', ' ']).next());
    used.filter(|used| layer(used).is_none_or(|layer| layer >= own))
        .map(|used| format!("crate `{name}` may not use `{used}`, which is not below it"))
        .collect()
}

pub fn faults(sources: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources.iter().filter(|s| s.is_shipped()) {
        for (line, text) in source.shipped_code() {
            let place = format!("{}:{line}", source.path);
            let why = match source.path.split_once("/src/") {
                Some(("crates/core", path)) => core_fault(path, text),
                Some(("crates/ask", path)) => door_fault(path, text),
                _ => None,
            };
            let why = why.filter(|_| !allowed("arrow", &source.path));
            faults.extend(why.map(|why| format!("{place}: {why}: `{}`", text.trim())));
        }
    }
    faults
}

/// The module that a file belongs to: its first folder, or its name.
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

/// A door of `ask` that names another one.
fn door_fault(path: &str, line: &str) -> Option<String> {
    let own = module(path);
    let other = named(line).find(|name| DOORS.contains(name) && *name != own)?;
    Some(format!("`{own}` may not use `{other}`: what both need belongs below them"))
}

/// Checks that the core has `#![no_std]`, and uses `std` for tests and the model checker only.
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
    assert!(door_fault("line/talk.rs", "use crate::check::Desk;").is_some());
    assert!(door_fault("line/talk.rs", "use crate::line::resp;").is_none());
    assert!(crate_fault("engine", "[dependencies]\nevenkeel-store.workspace = true").len() == 1);
    assert!(crate_fault("proxy", "[dependencies]\nevenkeel-ask.workspace = true").len() == 1);
    assert!(crate_fault("proxy", "[dependencies]\nevenkeel-core.workspace = true").is_empty());
    assert!(crate_fault("stray", "").len() == 1);
}
