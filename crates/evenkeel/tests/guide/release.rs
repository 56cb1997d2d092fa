//! What a release needs of the sources: one version in all places, scripts that the workflow can
//! call, a list of materials with all libraries, and scripts of both packages that a shell reads.
//!
//! The files of a release themselves are made and used by `packaging/release/build` and
//! `packaging/release/test`, which `ci/long` runs.

use super::root;
use std::fs;
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The version is written in several places, of which CONTRIBUTING.md lists those outside of cargo.
#[test]
fn every_place_names_the_same_version() {
    let image = format!("evenkeel:{VERSION}");
    let package = format!("evenkeel_{VERSION}-1_amd64.deb");
    let quoted = format!("\"version\": \"{VERSION}\"");
    for (path, what, count) in [
        ("clients/node/package.json", &quoted, 1),
        ("clients/node/package-lock.json", &quoted, 2),
        ("clients/python/pyproject.toml", &format!("version = \"{VERSION}\""), 1),
        ("packaging/kubernetes/evenkeel.yaml", &image, 1),
        ("docs/guide/docker.md", &image, 2),
        ("docs/guide/kubernetes.md", &image, 1),
        ("docs/guide/installing.md", &package, 2),
    ] {
        let found = text(path).matches(what.as_str()).count();
        assert!(found >= count, "{path} has {what} {found} times");
    }
    let dependencies = text("Cargo.toml");
    let ours = dependencies.lines().filter(|line| line.contains("{ path = \"crates/"));
    for line in ours.filter(|line| line.contains("version")) {
        assert!(line.contains(&format!("version = \"{VERSION}\"")), "{line}");
    }
}

/// A profile fits only the versions of the program and of the compiler that are in its name, and
/// the libraries: that digest is compared when a release is compiled, not at each change of a
/// library.
#[test]
fn there_is_a_profile_for_the_compiler_of_each_release() {
    let toolchain = text("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = "));
    let channel = channel.expect("a channel").trim_matches('"');
    let profiles = fs::read_dir(root().join("packaging/release/profiles")).expect("profiles");
    let profiles = profiles.map(|file| file.expect("a file").file_name().into_string());
    let profiles: Vec<String> = profiles.collect::<Result<_, _>>().expect("names");
    for arch in ["x86_64", "aarch64"] {
        let fitting = format!("{arch}-evenkeel-{VERSION}-rust-{channel}-libraries-");
        let found = profiles.iter().any(|name| name.starts_with(&fitting));
        assert!(found, "no {fitting}...: packaging/release/profile {arch} makes it");
    }
}

#[test]
fn the_workflows_call_scripts_that_there_are() {
    let mut seen = 0;
    for workflow in ["ci", "release"] {
        let workflow = text(&format!(".github/workflows/{workflow}.yml"));
        for word in workflow.split(|c: char| c.is_whitespace() || "\"()$".contains(c)) {
            if word.starts_with("packaging/") || word == ".ci/run" {
                assert!(root().join(word).is_file(), "{word}");
                seen += 1;
            }
        }
        let actions = workflow.lines().filter_map(|line| line.split_once("uses: "));
        for (_, action) in actions {
            let commit = action.split_once('@').map(|(_, rest)| rest.split(' ').next());
            let commit = commit.flatten().unwrap_or_default();
            let pinned = commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
            assert!(pinned, "{action} can change");
        }
    }
    assert!(seen >= 5, "{seen}");
}

#[test]
fn the_list_of_materials_names_every_library() {
    let script = root().join("packaging/release/materials");
    let mut command = Command::new(script);
    command.env("CARGO", env!("CARGO")).env("CARGO_NET_OFFLINE", "true");
    let said = command.env("SOURCE_DATE_EPOCH", "1700000000").output().expect("it runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let bill: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    let parts = bill["components"].as_array().expect("components");
    let named = |name: &str| parts.iter().find(|part| part["name"] == name);
    let crates = text("packaging/debian/crates.txt");
    for line in crates.lines().filter(|line| !line.starts_with("evenkeel v")) {
        let name = line.split(' ').next().unwrap_or_default();
        assert!(named(name).is_some(), "{name}");
    }
    for name in ["musl", "rust-std", "uPlot"] {
        assert!(named(name).is_some_and(|part| part["licenses"][0]["expression"].is_string()));
    }
    let tokio = named("tokio").expect("tokio");
    assert_eq!(tokio["hashes"][0]["content"].as_str().map(str::len), Some(64));
}

/// Both packages hand over sockets by the same lines, which their builds put in.
#[test]
fn scripts_of_both_packages_are_read_by_a_shell() {
    let shared = text("packaging/hand-over");
    let spec = text("packaging/rpm/evenkeel.spec");
    let post = spec.split("%post\n").nth(1).and_then(|rest| rest.split("%preun\n").next());
    for script in [text("packaging/debian/postinst"), post.expect("a script").to_owned()] {
        let whole = script.replace("@HAND_OVER@\n", &shared);
        assert!(whole.contains("upgrade() {") && whole.contains("restart() {"));
        let read = Command::new("sh").args(["-n", "-c", &whole]).output().expect("a shell");
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    }
}
