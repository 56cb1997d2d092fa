//! The content of `packaging` matches the program: the unit starts an existing command, the initial
//! configurations of packages, images and clusters are accepted, and the guide names the right
//! places.
//!
//! Units and scripts are read as text here; `packaging/debian/test` runs them on a clean Debian,
//! and `ci/long` checks the manifests against the schemas of Kubernetes.

use super::{below, links, root};
use evenkeel_config::{Config, parse};
use evenkeel_testing::evenkeel;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

const UNIT: &str = include_str!("../../../../packaging/evenkeel.service");
const SOCKET: &str = include_str!("../../../../packaging/evenkeel.socket");
const MANIFESTS: &str = include_str!("../../../../packaging/kubernetes/evenkeel.yaml");
const DEBIAN: &str = include_str!("../../../../packaging/debian/evenkeel.yaml");
const IMAGE: &str = include_str!("../../../../packaging/container/evenkeel.yaml");
const CONTAINER: &str = include_str!("../../../../packaging/container/Containerfile");

fn setting(name: &str) -> &'static str {
    let mut lines = UNIT.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.next().unwrap_or_else(|| panic!("no {name}"))
}

fn good(name: &str, text: &str) -> Config {
    parse(name, text.as_bytes(), 4.0).unwrap_or_else(|faults| panic!("{name}:\n{faults}"))
}

fn listens(config: &Config) -> Vec<SocketAddr> {
    config.settings.proxy.as_ref().expect("open").listen.clone()
}

/// The configuration in the manifests' ConfigMap, without its indentation.
fn config_map() -> String {
    let (_, rest) = MANIFESTS.split_once("  evenkeel.yaml: |\n").expect("a ConfigMap");
    let lines = rest.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    lines.map(|line| format!("{}\n", line.get(4..).unwrap_or_default())).collect()
}

#[test]
fn the_unit_starts_a_command_that_there_is() {
    let mut words = setting("ExecStart").split(' ');
    assert!(words.next().is_some_and(|path| path.ends_with("/evenkeel")));
    let arguments: Vec<&str> = words.collect();
    assert_eq!(arguments, ["serve", "--config", "/etc/evenkeel/evenkeel.yaml"]);
    let help = evenkeel!().args(["serve", "--help"]).output();
    let help = help.expect("it runs");
    assert!(String::from_utf8_lossy(&help.stdout).contains("--config <FILE>"));
    assert!(setting("ExecReload").contains("-HUP $MAINPID"));
}

#[test]
fn the_unit_leaves_time_to_drain_and_descriptors_for_every_connection() {
    let proxy = good("empty", "proxy:").settings.proxy.expect("open");
    let number = |name| setting(name).parse::<u64>().expect("a number");
    assert!(number("TimeoutStopSec") > proxy.timeouts.drain.as_secs());
    assert!(number("LimitNOFILE") > 2 * proxy.bounds.connections as u64);
}

#[test]
fn the_guide_names_the_unit() {
    let guide = include_str!("../../../../docs/guide/installing.md");
    assert!(guide.contains("packaging/evenkeel.service"));
    assert!(guide.contains(setting("ExecStart").split(' ').next().unwrap_or_default()));
}

#[test]
fn the_socket_listens_where_the_packaged_configuration_does() {
    let listens = listens(&good("packaging/debian/evenkeel.yaml", DEBIAN));
    let socket = SOCKET.lines().filter_map(|line| line.strip_prefix("ListenStream="));
    let socket: Vec<SocketAddr> = socket.map(|at| at.parse().expect("an address")).collect();
    assert_eq!(listens, socket);
}

#[test]
fn the_image_and_the_manifests_open_the_ports_that_their_configurations_name() {
    let image = listens(&good("packaging/container/evenkeel.yaml", IMAGE));
    assert!(image.iter().all(|at| CONTAINER.contains(&format!("EXPOSE {}", at.port()))));
    let cluster = good("packaging/kubernetes/evenkeel.yaml", &config_map());
    let settings = &cluster.settings;
    let admin = settings.admin.as_ref().expect("open").listen.clone();
    for at in listens(&cluster).into_iter().chain(admin) {
        assert!(at.ip().is_unspecified(), "{at} is not reached from outside of a pod");
        assert!(MANIFESTS.contains(&format!("containerPort: {}}}", at.port())), "{at}");
    }
    assert!(settings.peers.is_some());
    assert!(settings.proxy.as_ref().is_some_and(|proxy| proxy.queue.shared));
    // Kubernetes waits for the longest drain and for the steps before it.
    let drain = settings.drain().as_secs();
    let grace = MANIFESTS.split("terminationGracePeriodSeconds: ").nth(1).expect("grace");
    let grace: u64 = grace.lines().next().unwrap_or_default().parse().expect("seconds");
    assert!(grace > drain + 5, "{grace} s for a drain of {drain} s");
}

/// The Debian package contains some documents of the repository. If one of them links to another
/// file, that file is in the package too.
#[test]
fn links_of_packaged_documents_stay_within_the_package() {
    let list = include_str!("../../../../packaging/debian/documents");
    let parts: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    let root = root().canonicalize().expect("the sources");
    let files = parts.iter().flat_map(|part| {
        let path = root.join(part);
        assert!(path.exists(), "{part} is not there");
        if path.is_dir() { below(&path) } else { vec![path] }
    });
    let files: Vec<PathBuf> = files.collect();
    let packed = |path: &Path| files.iter().any(|file| file == path || file.starts_with(path));
    let mut seen = 0;
    for page in files.iter().filter(|path| path.extension().is_some_and(|kind| kind == "md")) {
        // This README is for readers without the sources; its links lead to the web.
        if page.ends_with("README.md") && !page.starts_with(root.join("docs")) {
            continue;
        }
        let text = fs::read_to_string(page).expect("text");
        for target in links(&text) {
            seen += 1;
            let at = page.parent().expect("a folder").join(target).canonicalize();
            let at = at.unwrap_or_else(|_| panic!("{} links to {target}", page.display()));
            assert!(packed(&at), "{} links to {target}, which is not packed", page.display());
        }
    }
    assert!(seen > 100, "only {seen} links were found");
}

/// What a script in `packaging` prints.
fn printed(script: &str) -> String {
    let script = root().join("packaging").join(script);
    let said = Command::new(script).env("CARGO", env!("CARGO")).output().expect("it runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).expect("text")
}

#[test]
fn the_list_of_libraries_is_what_cargo_says() {
    let kept = include_str!("../../../../packaging/debian/crates.txt");
    let mend = "packaging/debian/crates >packaging/debian/crates.txt";
    assert_eq!(printed("debian/crates"), kept, "run {mend}");
    assert!(kept.lines().count() > 100 && kept.contains("tokio v"), "{kept}");
}

/// Whoever is handed a binary is handed the licences of all that it contains.
#[test]
fn the_notices_are_those_of_the_libraries() {
    let kept = include_str!("../../../../packaging/notices.txt");
    let is = printed("notices") == kept;
    assert!(is, "run packaging/notices >packaging/notices.txt");
    for name in [
        "tokio",
        "aws-lc-sys",
        "async-nats",
        "uPlot, which draws the charts of the page",
        "musl, the C library of the static program",
    ] {
        assert!(kept.lines().any(|line| line == name), "{name}");
    }
}

/// What comes from elsewhere is what its origin says, byte for byte.
#[test]
fn the_charts_script_is_that_of_its_release() {
    let folder = root().join("crates/evenkeel/src/admin/page/uplot");
    let origin = fs::read_to_string(folder.join("ORIGIN")).expect("text");
    let version = origin.lines().find_map(|line| line.strip_prefix("version: ")).expect("one");
    let script = fs::read_to_string(folder.join("uPlot.iife.min.js")).expect("text");
    assert!(script.contains(&format!("(v{version})")), "{version}");
    let mut compared = 0;
    for line in origin.lines() {
        let Some((sum, name)) = line.split_once("  ") else { continue };
        let bytes = fs::read(folder.join(name)).expect(name);
        let is = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes);
        let is: String = is.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(is, sum, "{name}");
        compared += 1;
    }
    assert_eq!(compared, 3);
}
