//! The guide and the README tell the truth: every configuration they show is read and accepted.
//!
//! A block that begins with ```` ```yaml ```` is one whole configuration file, or the `limits` of
//! one. What the keys mean is tested in `config`; that links lead somewhere is tested here too.

#[path = "guide/monitoring.rs"]
mod monitoring;
#[path = "guide/packaging.rs"]
mod packaging;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The READMEs, ARCHITECTURE.md and every page of the guide: name and text.
fn pages() -> Vec<(PathBuf, String)> {
    let guide = fs::read_dir(root().join("docs/guide")).expect("the guide");
    let mut paths: Vec<PathBuf> = guide.map(|entry| entry.expect("a page").path()).collect();
    let others = ["README.md", "ARCHITECTURE.md", "clients/node/README.md"];
    paths.extend(others.map(|name| root().join(name)));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("text");
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

fn configurations(text: &str) -> impl Iterator<Item = String> {
    let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.map(|block| match block.starts_with("limits:") {
        true => format!("proxy:\n  {}", block.replace('\n', "\n  ")),
        false => block.to_owned(),
    })
}

#[test]
fn every_configuration_shown_is_accepted() {
    let mut seen = 0;
    for (path, text) in pages() {
        for shown in configurations(&text) {
            seen += 1;
            if let Err(faults) = tollgate::config::parse("block", shown.as_bytes(), 4.0) {
                panic!("{}:\n{shown}\n{faults}", path.display());
            }
        }
    }
    assert!(seen >= 8, "only {seen} blocks were found");
}

/// All files below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("there").path());
    entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
}

/// Ours run as they are; those of other programs are run with them, by the journeys.
#[test]
fn every_example_is_accepted() {
    let examples = below(&root().join("examples"));
    let ours = examples.iter().filter(|path| {
        let folder = path.parent().expect("a folder");
        let direct = folder.ends_with("examples") || folder.ends_with("examples/from");
        direct && path.extension().is_some_and(|kind| kind == "yaml")
    });
    let ours: Vec<_> = ours.collect();
    assert!(ours.len() >= 3, "{ours:?}");
    // What nobody runs here is read at least.
    let others = examples.iter().filter(|path| path.extension().is_some_and(|kind| kind == "yaml"));
    for path in others {
        let text = fs::read_to_string(path).expect("text");
        assert!(granit_parser::Parser::new_from_str(&text).all(|event| event.is_ok()), "{path:?}");
    }
    for path in ours {
        let bytes = fs::read(path).expect("a file");
        let checked = tollgate::config::parse("example", &bytes, 4.0);
        assert!(checked.is_ok_and(|config| !config.settings.doors().is_empty()), "{path:?}");
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    for (path, text) in pages() {
        let folder = path.parent().expect("a folder");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let elsewhere = target.contains("://") || file.is_empty();
            let there = elsewhere || folder.join(file).exists();
            assert!(there, "{} links to {target}", path.display());
        }
    }
}
