//! The guide and the README are correct: every configuration in them is read and accepted.
//!
//! A code block marked as `yaml` is one whole configuration file, or the `limits` of one. The
//! meaning of keys is tested in `config`. The targets of links are also tested here.

#[path = "guide/conditions.rs"]
mod conditions;
#[path = "guide/messages.rs"]
mod messages;
#[path = "guide/monitoring.rs"]
mod monitoring;
#[path = "guide/packaging.rs"]
mod packaging;
#[path = "guide/pictures.rs"]
mod pictures;
#[path = "guide/release.rs"]
mod release;

use evenkeel_testing::examples;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The READMEs, ARCHITECTURE.md and every page of the guide: path and text.
fn pages() -> Vec<(PathBuf, String)> {
    let guide = fs::read_dir(root().join("docs/guide")).expect("the guide");
    let mut paths: Vec<PathBuf> = guide.map(|entry| entry.expect("a page").path()).collect();
    let others = ["README.md", "SECURITY.md", "ARCHITECTURE.md", "clients/node/README.md"];
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
            let text = examples::beside_its_files(&shown);
            // Relative paths of `include` are those of the examples.
            let name = examples::path("block").display().to_string();
            if let Err(faults) = evenkeel_config::parse(&name, text.as_bytes(), 4.0) {
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

/// Evenkeel's own examples run as they are. The journeys run the examples for other programs with
/// these programs.
#[test]
fn every_example_is_accepted() {
    let examples = below(&root().join("examples"));
    let ours = examples.iter().filter(|path| {
        let folder = path.parent().expect("a folder");
        let folders = ["examples", "examples/from", "examples/models"];
        let ours = folders.iter().any(|name| folder.ends_with(name));
        ours && path.extension().is_some_and(|kind| kind == "yaml")
    });
    let ours: Vec<_> = ours.collect();
    assert!(ours.len() >= 3, "{ours:?}");
    // YAML files that no test runs are at least parsed.
    let others = examples.iter().filter(|path| path.extension().is_some_and(|kind| kind == "yaml"));
    for path in others {
        let text = fs::read_to_string(path).expect("text");
        assert!(granit_parser::Parser::new_from_str(&text).all(|event| event.is_ok()), "{path:?}");
    }
    for path in ours {
        let bytes = fs::read(path).expect("a file");
        let checked = evenkeel_config::parse("example", &bytes, 4.0);
        assert!(checked.is_ok_and(|config| !config.settings.doors().is_empty()), "{path:?}");
    }
}

/// Files with groups are accepted together, and each of their groups can be named.
#[test]
fn every_example_of_groups_is_accepted() {
    let files = below(&examples::path("groups"));
    assert!(files.len() >= 2, "{files:?}");
    let listed: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let read = |limits: &str| {
        let text = format!("group_files: [{}]\nproxy: {{limits: [{limits}]}}", listed.join(", "));
        let config = evenkeel_config::parse("groups", text.as_bytes(), 4.0);
        config.unwrap_or_else(|faults| panic!("{faults}")).settings
    };
    let names: Vec<_> = read("").groups.groups.iter().map(|group| group.name.clone()).collect();
    assert!(names.len() >= 8, "{names:?}");
    let denied = format!("{{name: a, action: deny, when: {{group: [{}]}}}}", names.join(", "));
    assert_eq!(read(&denied).proxy.expect("open").denials.len(), 1);
}

/// Each crawler has the operator, a source, how it was verified, and when.
#[test]
fn every_crawler_has_its_source_and_date() {
    let text = fs::read_to_string(examples::path("groups/ai-crawlers.yaml")).expect("text");
    let entries = text.lines().filter_map(|line| line.trim().strip_prefix("- "));
    let mut seen = 0;
    for entry in entries {
        let (_, source) = entry.split_once("  # ").expect(entry);
        let verified = source.rsplit(";").next().expect(entry).trim();
        let (how, date) = verified.split_once(' ').expect(entry);
        assert!(["seen", "quoted", "listed"].contains(&how), "{entry}");
        assert!(date.len() == 10 && date.starts_with("20"), "{entry}");
        seen += 1;
    }
    assert!(seen > 30, "only {seen}");
}

/// In the large example, sections that need another program to run are comments. Without the
/// comment marks they are accepted, each alone and all together.
#[test]
fn what_the_example_has_in_comments_is_accepted() {
    let text = fs::read_to_string(root().join("examples/evenkeel.yaml")).expect("text");
    // Several instances share counts by `peers` or by a `store`, not by both.
    let (before, rest) = text.split_once("\npeers:").expect("peers");
    let (_, comments) = rest.split_once("\n\n").expect("an end");
    let parts = comments.split("\n#\n").map(|part| {
        let lines = part.lines().map(|line| line.strip_prefix("# ").unwrap_or("no comment"));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    });
    let parts: Vec<String> = parts.collect();
    let names: Vec<&str> = parts.iter().filter_map(|part| part.split(':').next()).collect();
    assert_eq!(names, ["ratelimit", "traces", "store", "master", "gatekeeper"]);
    let read = |name: &str, more: &str| {
        let whole = format!("{before}\n{more}");
        let config = evenkeel_config::parse(name, whole.as_bytes(), 4.0);
        config.unwrap_or_else(|faults| panic!("{name}:\n{more}\n{faults}")).settings
    };
    for (name, part) in names.iter().zip(&parts) {
        let service = if *name == "traces" { &*parts[0] } else { "" };
        read(name, &format!("{service}{part}"));
    }
    let all = read("all", &parts.concat());
    assert!(all.ratelimit.is_some() && all.master.is_some() && !all.gatekeepers.is_empty());
    assert!(all.store.is_some() && all.traces.is_some());
}

/// The files that a page links to.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.filter(|target| !target.contains("://"));
    files.filter_map(|target| target.split('#').next()).filter(|file| !file.is_empty())
}

#[test]
fn links_between_pages_lead_somewhere() {
    for (path, text) in pages() {
        let folder = path.parent().expect("a folder");
        for target in links(&text) {
            assert!(folder.join(target).exists(), "{} links to {target}", path.display());
        }
    }
}
