//! The program itself: compressed logs, standard input, errors, and the content of its reports.

use evenkeel_lab::replay::sample;
use evenkeel_testing::evenkeel;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

pub fn evenkeel(arguments: &[&str], input: Option<&[u8]>) -> Output {
    let mut command = evenkeel!();
    command.args(arguments).env_remove("EVENKEEL_CONFIG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // The program may end before it has read everything.
    let _ = stdin.write_all(input.unwrap_or_default());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

fn log(seed: u64) -> Vec<u8> {
    let mut log = Vec::new();
    sample::make(sample::SampleLogOptions { lines: 3_000, days: 1, seed }, &mut log)
        .expect("memory");
    log
}

pub fn json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(errors, "", "nothing but the report");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

pub fn save(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("a file");
    path.display().to_string()
}

#[test]
fn a_log_is_the_same_however_it_comes() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = log(1);
    let plain = save(folder.path(), "access.log", &whole);
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&whole).expect("memory");
    let packed = save(folder.path(), "access.log.1.gz", &packed.finish().expect("memory"));
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(&whole[..], level);
    let zstd = save(folder.path(), "access.log.2.zst", &zstd);
    let report = |log: &str, input: Option<&[u8]>| {
        let mut report = json(&evenkeel(&["replay", log, "--cpus", "4", "--json"], input));
        report["logs"][0]["name"] = Value::Null;
        report
    };
    let want = report(&plain, None);
    assert_eq!(want["schema"], 1);
    assert!(want["all"]["requests"].as_u64() > Some(2_000));
    assert_eq!(report(&packed, None), want);
    assert_eq!(report(&zstd, None), want);
    assert_eq!(report("-", Some(&whole)), want);
    // One log in two files, named in the wrong order.
    let (first, second) = halves(&whole);
    let first = save(folder.path(), "a.log", first);
    let second = save(folder.path(), "b.log", second);
    let both = json(&evenkeel(&["replay", &second, &first, "--cpus", "4", "--json"], None));
    for part in ["all", "clients", "swarms", "busiest", "series", "suggestion"] {
        assert_eq!(both[part], want[part], "{part}");
    }
}

#[test]
fn the_networks_of_clients_are_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let table = b"192.0.2.0\t192.0.2.255\t64500\tDE\tX\n";
    let table = save(folder, "asn.tsv", table);
    let limits = "limits: [{name: asn, by: asn, rate: 2/h, burst: 2}]";
    let config = format!("proxy: {{databases: {{asn: {table}}}, cpus: 1, {limits}}}");
    let config = save(folder, "evenkeel.yaml", config.as_bytes());
    let line = |(second, client): (usize, &str)| {
        format!("{client} - - [10/Oct/2026:13:55:3{second} +0000] \"GET / HTTP/1.1\" 200 5\n")
    };
    let clients = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1", "198.51.100.2"];
    let log: String = clients.into_iter().enumerate().map(line).collect();
    let log = save(folder, "access.log", log.as_bytes());
    let report = json(&evenkeel(&["replay", &log, "--config", &config, "--json"], None));
    assert_eq!(report["all"]["fate"]["refused"], 1, "the third of the network");
    assert_eq!(report["warnings"], serde_json::json!([]));
    let list = save(folder, "list.txt", b"192.0.2.0/31\n");
    let rule = format!("{{name: list, action: deny, when: {{ip_file: {list}}}}}");
    let listed = format!("proxy: {{cpus: 1, limits: [{rule}]}}");
    let listed = save(folder, "listed.yaml", listed.as_bytes());
    let report = json(&evenkeel(&["replay", &log, "--config", &listed, "--json"], None));
    assert_eq!(report["all"]["fate"]["refused"], 1, "one address is in the list");
    assert_eq!(report["warnings"], serde_json::json!([]));
    save(folder, "asn.tsv", b"nonsense\n");
    let output = evenkeel(&["replay", &log, "--config", &config], None);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("asn.tsv:1: `nonsense` is not a range"), "{told}");
}

#[test]
fn what_a_cut_file_still_has_is_played_and_said_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = log(1);
    let lines = whole.iter().filter(|b| **b == b'\n').count() as u64;
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(&whole[..], level);
    let cut = save(folder.path(), "access.log.zst", &zstd[..zstd.len() * 4 / 5]);
    let report = json(&evenkeel(&["replay", &cut, "--cpus", "4", "--json"], None));
    let read = report["logs"][0]["requests"].as_u64().expect("a figure");
    assert!(read > lines / 3 && read < lines, "{read} of {lines}");
    let fault = report["logs"][0]["fault"].as_str().expect("told of");
    assert!(fault.starts_with("its zstd data ends early"), "{fault}");
    let output = evenkeel(&["replay", &cut, "--cpus", "4"], None);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains(fault), "{shown}");
    assert!(
        !shown.contains("a second\n") && output.stderr.is_empty(),
        "no pace without a terminal"
    );
}

#[test]
fn limits_in_shadow_stop_nobody_and_say_whom_they_would_have_met() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = save(folder.path(), "access.log", &log(1));
    let config = |shadow: &str| {
        let limit = "{name: slow, by: ip/32, share: 1%, burst: 1s, action: reject";
        let text = format!("proxy: {{cpus: 4, action: reject, limits: [{limit}{shadow}}}]}}");
        save(folder.path(), "t.yaml", text.as_bytes())
    };
    let report =
        |shadow| json(&evenkeel(&["replay", &path, "--config", &config(shadow), "--json"], None));
    let enforced = report("");
    let refused = enforced["all"]["fate"]["refused"].as_u64().expect("a figure");
    assert!(refused > 10, "{refused}");
    assert_eq!(enforced["limits"][0]["would"], 0);
    let quiet = report(", shadow: true");
    assert_eq!(quiet["all"]["fate"]["refused"], 0);
    assert_eq!(quiet["all"]["passed"], quiet["all"]["requests"]);
    let limit = &quiet["limits"][0];
    assert_eq!((&limit["shadow"], limit["would"].as_u64() > Some(10)), (&true.into(), true));
    assert_eq!(limit["first"][0]["key"], enforced["limits"][0]["first"][0]["key"]);
    let note = quiet["warnings"].to_string();
    assert!(note.contains("in shadow, as in front of the site: slow"), "{note}");
    let page = folder.path().join("report.html").display().to_string();
    let config = config(", shadow: true");
    let output = evenkeel(&["replay", &path, "--config", &config, "--html", &page], None);
    let told = "in shadow: stopped no request, would have affected";
    assert!(String::from_utf8_lossy(&output.stdout).contains(told));
    assert!(std::fs::read_to_string(&page).expect("a page").contains(told));
}

/// Divides a log between two seconds, because entries of one second are spread over it.
fn halves(log: &[u8]) -> (&[u8], &[u8]) {
    let stamp = |line: &[u8]| {
        let text = String::from_utf8_lossy(line).into_owned();
        text.split(['[', ']']).nth(1).expect("a time").to_owned()
    };
    let (mut at, mut before) = (0, None);
    for line in log.split_inclusive(|b| *b == b'\n') {
        let now = stamp(line);
        if at > log.len() / 2 && before.as_ref() != Some(&now) {
            break;
        }
        (at, before) = (at + line.len(), Some(now));
    }
    log.split_at(at)
}

#[test]
fn lines_that_cannot_be_read_are_told_and_not_fatal() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bytes = log(2);
    let lines = bytes.iter().filter(|b| **b == b'\n').count() as u64;
    let cut = bytes.iter().position(|b| *b == b'\n').expect("a line") + 1;
    bytes.splice(cut..cut, b"not a \x1b[2J line\xff\n\n".iter().copied());
    // An impossible time, a century in the future.
    bytes.extend(
        b"192.0.2.1 - - [01/Oct/2126:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n",
    );
    bytes.extend(log(2).split_inclusive(|b| *b == b'\n').next_back().expect("a line"));
    let path = save(folder.path(), "access.log", &bytes);
    let report = json(&evenkeel(&["replay", &path, "/nowhere/a.log", "--json"], None));
    let read = report["logs"].as_array().expect("logs");
    let good = read.iter().find(|log| log["name"] == path.as_str()).expect("the log");
    assert_eq!((good["requests"].as_u64(), good["unread"].as_u64()), (Some(lines + 1), Some(2)));
    assert_eq!(good["example"][0], 2);
    let shown = good["example"][1].as_str().expect("text");
    assert!(shown.starts_with("not a \\u001b[2J line"), "{shown}");
    let gone = read.iter().find(|log| log["name"] == "/nowhere/a.log").expect("told of");
    assert!(gone["fault"].as_str().is_some_and(|why| why.contains("No such file")), "{gone}");
}

#[test]
fn what_cannot_be_played_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let junk = save(folder.path(), "junk.log", b"hello\nworld\n");
    let output = evenkeel(&["replay", &junk], None);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors.contains("not an access log of a known format: it begins with `hello`"),
        "{errors}"
    );
    let wrong = evenkeel(&["replay", &junk, "--cpus", "many"], None);
    assert_eq!(wrong.status.code(), Some(2), "{}", String::from_utf8_lossy(&wrong.stderr));
    let none = evenkeel(&["replay"], None);
    assert_eq!(none.status.code(), Some(2));
    let line = save(folder.path(), "line.yaml", b"line: {}\n");
    let output = evenkeel(&["replay", &junk, "--config", &line], None);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("has no section `proxy` or `check`"), "{errors}");
}

#[test]
fn without_durations_costs_are_estimated_and_every_output_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = String::from_utf8(log(3)).expect("text");
    let common: String = text
        .lines()
        .map(|line| format!("{}\"\n", line.rsplit_once('"').expect("an end").0))
        .collect();
    let path = save(folder.path(), "access.log", common.as_bytes());
    let page = folder.path().join("report.html").display().to_string();
    let config = b"proxy: {cpus: 4, limits: [{name: team, by: 'header:X-Team', share: 5%}]}";
    let config = save(folder.path(), "t.yaml", config);
    let output = evenkeel(&["replay", &path, "--config", &config, "--html", &page], None);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("ESTIMATED"), "{shown}");
    assert!(shown.contains("a log does not have the header `x-team`"), "{shown}");
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.contains("ESTIMATED"), "the page says so too");
    let report = json(&evenkeel(&["replay", &path, "--json"], None));
    assert_eq!(report["site"]["costs"], "estimated");
    assert_eq!(report["site"]["guessed"], report["all"]["requests"]);
}

#[test]
fn the_page_stands_on_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = String::from_utf8(log(4)).expect("text");
    let nasty = text.replacen("/search?q=", "/<script>alert(1)</script>?q=", 50);
    let nasty = nasty.replace("PlantedBot/1.0", "PlantedBot/1.0 <img src=x onerror=alert(1)>");
    let path = save(folder.path(), "access.log", nasty.as_bytes());
    let page = folder.path().join("report.html").display().to_string();
    let output = evenkeel(&["replay", &path, "--cpus", "4", "--html", &page], None);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let html = std::fs::read_to_string(&page).expect("a page");
    for never in ["<script", "<img", "<link", "http-equiv=\"refresh", "url(", "@import"] {
        assert!(!html.contains(never), "the page has {never}");
    }
    // The page loads nothing from elsewhere; names from the log appear as plain text.
    let elsewhere = html.matches("http").count() - html.matches("http-equiv").count();
    let in_names = html.matches("https://bot.example/").count();
    let namespace = html.matches("http://www.w3.org/2000/svg").count();
    assert_eq!(elsewhere, in_names + namespace, "addresses of elsewhere");
    assert!(html.contains("<svg") && html.contains("prefers-color-scheme: dark"));
    assert!(html.contains("PlantedBot/1.0 &lt;img"), "the name is there, as text");
    for (open, close) in [("<svg", "</svg>"), ("<table", "</table>"), ("<section", "</section>")] {
        assert_eq!(html.matches(open).count(), html.matches(close).count(), "{open}");
    }
    assert!(html.len() < 2_000_000, "{}", html.len());
}
