//! The real binary on the command line: exit codes, and the output on each stream.

#[path = "cli/replay/mod.rs"]
mod replay;
#[path = "cli/verdict.rs"]
mod verdict;

use evenkeel_testing::evenkeel;
use std::fs;
use std::path::Path;
use std::process::Output;

fn evenkeel(arguments: &[&str]) -> Output {
    let mut command = evenkeel!();
    command.args(arguments).env_remove("EVENKEEL_CONFIG").output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn file(folder: &Path, text: &str) -> String {
    let path = folder.join("t.yaml");
    fs::write(&path, text).expect("saved");
    path.display().to_string()
}

#[test]
fn a_wrong_command_line_ends_with_2_and_help_with_0() {
    let address = &["doctor", "--admin", "foo"];
    for wrong in [&["nonsense"][..], &["check", "--no"], &["show", "--no"], &[], address] {
        let output = evenkeel(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(!output.stderr.is_empty());
    }
    for asked in [&["--help"][..], &["check", "--help"], &["--version"], &["help", "show"]] {
        let output = evenkeel(asked);
        assert_eq!(output.status.code(), Some(0), "{asked:?}");
        assert!(!output.stdout.is_empty());
    }
}

#[test]
fn check_names_every_fault_and_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = file(folder.path(), "proxy: {backend: http://127.0.0.1:8080}");
    let output = evenkeel(&["check", &good]);
    let told = text(&output.stdout);
    assert_eq!(
        (output.status.code(), told.lines().last()),
        (Some(0), Some(&*format!("{good}: good")))
    );

    let groups = file(folder.path(), "crawlers: {user_agent: '*bot*'}");
    let output = evenkeel(&["check", &groups]);
    assert_eq!(output.status.code(), Some(0));
    let told = text(&output.stderr);
    assert!(told.contains("has 1 group;") && told.contains("`group_files`"), "{told}");

    let bad = file(folder.path(), "proxy:\n  actoin: hold\n  cpus: x\n");
    let output = evenkeel(&["check", &bad]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    let unknown = "unknown key `actoin` in `proxy`; did you mean `action`?";
    assert!(told.contains(&format!("{bad}:2:3: {unknown}")));
    assert!(told.contains(&format!("{bad}:3:9: `cpus` is `x`: not a number of CPUs")));

    let excerpt = " 3 |   cpus: x\n   |         ^\n2 errors\n";
    assert!(told.ends_with(excerpt) && !told.contains('\x1b'), "{told}");
    // A start prints the same.
    assert_eq!(text(&evenkeel(&["serve", "--config", &bad]).stderr), told);

    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, "domain: a\ndescriptors: [{}]\n").expect("saved");
    let named = file(folder.path(), "{gatekeper: {}, store: {redis: 'rdis://ann:secret@h'}}");
    let told = text(&evenkeel(&["check", &named]).stderr);
    assert!(told.contains("unknown key `gatekeper`; did you mean `gatekeeper`?"), "{told}");
    assert!(told.contains("`rdis://***@h`") && !told.contains("secret"), "{told}");
    let named = file(folder.path(), &format!("ratelimit: {{rules: {}}}", rules.display()));
    let output = evenkeel(&["check", &named]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("rules.yaml:2:"), "{told}");

    let output = evenkeel(&["check", "/nowhere/t.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("/nowhere/t.yaml: cannot be read: No such file"));
}

/// The count has the errors and warnings of all files.
#[test]
fn check_counts_what_it_finds() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let open = "proxy: {listen: '127.0.0.1:0', trusted_proxies: 0.0.0.0/0}\nadmin: off\n";
    fs::write(at("open.yaml"), open).expect("saved");
    fs::write(at("bad.yaml"), "admin: {listn: 1}\nlog: {level: loud}\n").expect("saved");
    let output = evenkeel(&["check", &at("open.yaml"), &at("bad.yaml")]);
    let told = text(&output.stderr);
    let warned = told.lines().filter(|line| line.starts_with("warning: ")).count();
    let noun = if warned == 1 { "warning" } else { "warnings" };
    assert!(warned > 0 && told.ends_with(&format!("\n2 errors, {warned} {noun}\n")), "{told}");
    assert!(told.contains("\n 1 | proxy: {listen: '127.0.0.1:0', trusted_proxies: 0.0.0.0/0}\n"));
}

#[test]
fn show_prints_what_would_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(folder.path(), "{\"proxy\": {\"cpus\": 2}}");
    let shown = evenkeel(&["show", "--config", &path]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(text(&shown.stdout).contains("  cpus: 2\n"));
    let mut command = evenkeel!();
    let same = command.arg("show").env("EVENKEEL_CONFIG", &path).output().expect("it runs");
    assert_eq!(same.stdout, shown.stdout);
}

/// Other names of commands and flags are accepted, but only one is in the help.
#[test]
fn commands_and_flags_have_other_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(folder.path(), "proxy: {listen: '127.0.0.1:0'}\nadmin: off\n");
    let shown = evenkeel(&["show", "-c", &path]);
    assert_eq!((shown.status.code(), shown.stderr.len()), (Some(0), 0));
    for same in [&["validate", &path][..], &["validate", "-c", &path], &["check", "-c", &path]] {
        let output = evenkeel(same);
        assert_eq!(output.status.code(), Some(0), "{same:?}: {}", text(&output.stderr));
        assert!(text(&output.stdout).ends_with(": good\n"));
    }
    let mut command = evenkeel!();
    let checked = command.arg("check").env("EVENKEEL_CONFIG", &path).output().expect("it runs");
    assert_eq!(checked.status.code(), Some(0));
    let bad = file(folder.path(), "proxy: {cpus: x}");
    for same in [&["run", "-c", &bad][..], &["serve", "-c", &bad]] {
        assert!(text(&evenkeel(same).stderr).contains("not a number of CPUs"), "{same:?}");
    }
    let told = text(&evenkeel(&["proxy", "-b", "a:1", "-l", "nine", "--shadow"]).stderr);
    assert!(told.contains("`--backend` is `a:1`: write it as http://a:1"), "{told}");
    assert!(told.contains("`--listen` is `nine`"), "{told}");
    let told = text(&evenkeel(&["doctor", "--admin", "127.0.0.1:1"]).stdout);
    assert!(
        told.contains("problem  server            no server answers at 127.0.0.1:1: "),
        "{told}"
    );
    for command in ["clients", "status"] {
        let told = text(&evenkeel(&[command, "--admin", "127.0.0.1:1"]).stderr);
        assert!(told.contains("no server answers at 127.0.0.1:1: "), "{told}");
    }
    assert_eq!(evenkeel(&["version"]).stdout, evenkeel(&["--version"]).stdout);
    let help = text(&evenkeel(&["--help"]).stdout);
    for other in ["validate", "test", "run", "start", "status", "version"] {
        assert!(!help.contains(&format!("\n  {other} ")), "{other}: {help}");
    }
}

/// Words that other programs have as commands are answered with what to do here.
#[test]
fn unknown_commands_get_advice_and_help_ends_with_examples() {
    for (word, says) in [
        ("stop", "for `stop`: systemctl stop evenkeel"),
        ("restart", "for `restart`: evenkeel upgrade"),
        ("logs", "journalctl -u evenkeel"),
        ("relod", "'reload'"),
        ("nonsense", "commands: serve, proxy, check, "),
    ] {
        let output = evenkeel(&[word]);
        assert_eq!(output.status.code(), Some(2), "{word}");
        let told = text(&output.stderr);
        assert!(told.contains(says), "{word}: {told}");
    }
    for command in ["serve", "proxy", "check", "show", "upgrade", "doctor", "clients", "replay"] {
        let help = text(&evenkeel(&[command, "--help"]).stdout);
        assert!(
            help.contains("\nExample") && help.contains(&format!("evenkeel {command}")),
            "{help}"
        );
        assert!(!help.contains("--version"), "{help}");
        let version = text(&evenkeel(&[command, "--version"]).stdout);
        assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    }
    assert!(text(&evenkeel(&["--help"]).stdout).contains("\nExamples:\n"));
}

#[test]
fn completions_and_manual_are_printed() {
    for (arguments, word) in [
        (&["completions", "bash"][..], "complete -F"),
        (&["completions", "zsh"], "#compdef evenkeel"),
        (&["man"], ".TH evenkeel"),
        (&["licences"], "Copyright (c) 2022 Leon Sorokin"),
    ] {
        let output = evenkeel(arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains(word), "{arguments:?}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let output = evenkeel(&["man", "--into", &folder.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(folder.path().join("evenkeel-check.1").exists());
    let output = evenkeel(&["man", "--into", "/nonexistent/man"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nonexistent/man: No such file"));
}

#[test]
fn check_refuses_what_serve_refuses() {
    let folder = tempfile::tempdir().expect("a folder");
    let empty = file(folder.path(), "");
    let output = evenkeel(&["check", &empty]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.starts_with(&format!("{empty}:1:1: no door to open")), "{told}");
}

#[test]
fn check_prints_the_number_of_keys_that_the_memory_gives() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = evenkeel_config::machine::Machine::here().keys_max();
    let said = |more: &str| {
        let file =
            file(folder.path(), &format!("{more}proxy: {{backend: 'http://127.0.0.1:1'}}\n"));
        text(&evenkeel(&["check", &file]).stdout)
    };
    let told = said("");
    assert!(told.contains("`keys_max` of a limit") && told.contains(&format!(": {keys}, up to")));
    assert!(!said("state: {keys_max: 9}\n").contains("keys_max"));
}

#[test]
fn doctor_says_what_is_wrong_with_an_address_and_a_token_file() {
    for wrong in ["foo", "foo:", ":1", "127.0.0.1:0", "::1:80", "https://a:80", "a:99999"] {
        for command in ["doctor", "clients", "top"] {
            let told = text(&evenkeel(&[command, "--admin", wrong]).stderr);
            assert!(told.contains("not an address; write HOST:PORT"), "{wrong}: {told}");
        }
    }
    let told = text(&evenkeel(&["clients", "--admin", "http://127.0.0.1:1/"]).stderr);
    assert!(told.contains("no server answers at 127.0.0.1:1: "), "{told}");
    let output = evenkeel(&["doctor", "--admin", "[::1]:1", "--token-file", "/nonexistent/key"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot read the token in /nonexistent/key"));
}

/// All files that cannot be used are told at once, each at the place that names it.
#[test]
fn check_names_the_place_of_each_file_that_cannot_be_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("bad.txt"), "nonsense\n").expect("written");
    fs::write(at("groups.yaml"), format!("g: {{ip_file: {}}}\n", at("none-d"))).expect("written");
    let main = format!(
        "group_files: {}\n\
         proxy:\n  listen: 127.0.0.1:0\n  robots:\n    \
         - {{name: a, ip_file: {}}}\n    \
         - {{name: b, ip_file: {}}}\n  limits:\n    \
         - {{name: x, action: deny, when: {{path: /, ip_file: [{}]}}}}\n    \
         - {{name: y, action: deny, when: {{group: g}}}}\n",
        at("groups.yaml"),
        at("none-a"),
        at("none-b"),
        at("bad.txt")
    );
    fs::write(at("evenkeel.yaml"), main).expect("written");
    let ran = evenkeel(&["check", &at("evenkeel.yaml")]);
    let told = text(&ran.stdout) + &text(&ran.stderr);
    for (place, file) in
        [("5:26", "none-a"), ("6:26", "none-b"), ("8:57", "bad.txt:1"), ("1:14", "none-d")]
    {
        let start = format!("{}:{place}: ", at("evenkeel.yaml"));
        let line = told.lines().find(|line| line.contains(file)).expect(&told);
        assert!(line.contains(&start), "{place}: {told}");
    }
}

/// The faults of a part are shown with the line of the part, also if only the part is named.
#[test]
fn check_examines_all_files_and_explains_a_part() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(at("conf.d")).expect("created");
    let main = "include: conf.d/*.yaml\nadmin: off\nproxy: {listen: 127.0.0.1:0}\n";
    fs::write(at("evenkeel.yaml"), main).expect("written");
    fs::write(at("conf.d/a.yaml"), "proxy:\n  cpus: 2\n").expect("written");
    let ran = evenkeel(&["check", &at("evenkeel.yaml"), &at("conf.d/a.yaml")]);
    let (out, told) = (text(&ran.stdout), text(&ran.stderr));
    assert_eq!(ran.status.code(), Some(0), "{told}");
    assert!(out.contains("conf.d/a.yaml: good"), "{out}");
    let part = format!("note: {} is included by ", at("conf.d/a.yaml"));
    assert!(told.contains(&part) && told.contains("evenkeel.yaml, and is checked as"), "{told}");
    let shown = text(&evenkeel(&["show", "--config", &at("evenkeel.yaml")]).stdout);
    assert!(shown.contains("\n  cpus: 2\n") && !shown.contains("include"), "{shown}");

    fs::write(at("conf.d/a.yaml"), "proxy:\n  cpus: 2x\n").expect("written");
    for named in ["evenkeel.yaml", "conf.d/a.yaml", "conf.d"] {
        let ran = evenkeel(&["check", &at(named)]);
        let told = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{named}: {told}");
        let place = ["evenkeel.yaml", "conf.d/a.yaml"]
            .map(|name| told.contains(&(at(name) + ":2:9: `cpus`")));
        assert_eq!(place, [false, true], "{named}: {told}");
        assert!(told.contains(" 2 |   cpus: 2x\n   |         ^\n1 error"), "{named}: {told}");
    }
}
