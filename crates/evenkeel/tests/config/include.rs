//! Configurations of several files: how they are joined, which file a fault names, and which
//! changes of the folder are seen.

use evenkeel_config::source::{ConfigChange, ConfigSource};
use evenkeel_config::{Config, StartProblems};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A folder with these files. The first one is the configuration.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("conf.d")).expect("created");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

fn load(folder: &Path) -> Result<Config, String> {
    let faults = ConfigSource::new(&folder.join("evenkeel.yaml")).load(4.0);
    // The name of the folder is of no interest.
    let folder = format!("{}/", folder.display());
    faults.map_err(|faults| faults.to_string().replace(&folder, ""))
}

/// What is wrong with a configuration that includes `conf.d/*.yaml`.
fn faults(main: &str, others: &[(&str, &str)]) -> String {
    let main = format!("include: conf.d/*.yaml\n{main}");
    let files: Vec<_> = [("evenkeel.yaml", &*main)].into_iter().chain(others.to_vec()).collect();
    let folder = folder(&files);
    match load(folder.path()) {
        Ok(config) => panic!("no fault in {files:?}\n{}", config.native),
        Err(told) => told,
    }
}

#[test]
fn sections_are_joined_and_lists_appended_in_the_order_of_the_names() {
    let folder = folder(&[
        (
            "evenkeel.yaml",
            "include: [conf.d/*.yaml, own.yml]\nproxy:\n  cpus: 2\n  exempt: ip:10.0.0.1\n  \
             limits: [default]\n",
        ),
        ("conf.d/b.yaml", "proxy: {exempt: ip:10.0.0.3, limits: {name: b, by: ip, rate: 2/s}}\n"),
        (
            "conf.d/a.yaml",
            "groups: {a: {path: /a}}\nproxy:\n  exempt: [ip:10.0.0.2]\n  limits:\n    \
             - {name: a, by: ip, rate: 1/s, when: {group: a}}\n  queue: {len_max: 7}\n",
        ),
        ("conf.d/none.txt", "not: read"),
        ("conf.d/.hidden.yaml", "not: read"),
        ("conf.d/empty.yaml", "# nothing\n"),
        ("own.yml", "groups: {b: [{path: /b}, {path: /c}]}\nproxy: {queue: {wait_max: 3s}}\n"),
    ]);
    let config = load(folder.path()).expect("good");
    let proxy = config.settings.proxy.as_ref().expect("open");
    let names: Vec<_> = proxy.limits.iter().map(|limit| &*limit.name).collect();
    assert_eq!(names[names.len() - 2..], ["a", "b"], "after the default ones: {names:?}");
    assert_eq!(proxy.cpus, 2.0);
    assert_eq!(proxy.exempt.len(), 3);
    let groups: Vec<_> = config.settings.groups.groups.iter().map(|group| &*group.name).collect();
    assert_eq!(groups, ["a", "b"]);
    // What `show` prints is the sum, in one file.
    assert!(!config.native.contains("include"), "{}", config.native);
    for part in ["len_max: 7", "wait_max: 3s", "ip:10.0.0.1, ip:10.0.0.2, ip:10.0.0.3"] {
        assert!(config.native.contains(part), "{part}: {}", config.native);
    }
    let again = evenkeel_config::parse("shown", config.native.as_bytes(), 4.0).expect("good");
    assert_eq!(again.native, config.native);
}

#[test]
fn a_fault_names_the_file_that_it_is_in() {
    let told = faults(
        "proxy:\n  cpus: x\n",
        &[
            ("conf.d/a.yaml", "proxy:\n  actoin: hold\n  backend: ${EVENKEEL_NONE}\n"),
            ("conf.d/b.yaml", "\nproxy:\n  limits:\n    - {name: b, by: ip, rate: fast}\n"),
        ],
    );
    let lines: Vec<&str> = told.lines().collect();
    for (line, start) in lines.iter().zip([
        "evenkeel.yaml:3:9: `cpus` is `x`",
        "conf.d/a.yaml:2:3: unknown key `actoin` in `proxy`; did you mean `action`?",
        "conf.d/a.yaml:3:12: the environment variable `EVENKEEL_NONE` is not set",
        "conf.d/b.yaml:4:31: `rate` is `fast`",
    ]) {
        assert!(line.starts_with(start), "{start}: {told}");
    }
    assert_eq!(lines.len(), 4, "{told}");
    let told = faults("", &[("conf.d/a.yaml", "proxy: [\n"), ("conf.d/b.yaml", "\n- a\n")]);
    assert!(told.starts_with("conf.d/a.yaml:"), "{told}");
    assert!(told.contains("not YAML") && told.contains("conf.d/b.yaml:2:1: an included"), "{told}");
}

#[test]
fn what_two_files_set_is_a_fault_that_names_both() {
    let told = faults(
        "admin: off\nproxy:\n  cpus: 2\ngroups:\n  g: {path: /}\n",
        &[
            ("conf.d/a.yaml", "proxy: {cpus: 3}\nlog: {level: warn}\n"),
            ("conf.d/b.yaml", "log: {level: info}\nadmin: {listen: 127.0.0.1:9}\n"),
            ("conf.d/c.yaml", "groups: {h: {path: /h}, g: {path: /g}}\nproxy: {cpus: 1, cpus: 2}"),
        ],
    );
    // The place of what is wrong differs in each file, so messages are compared as a whole.
    let expected = [
        "conf.d/a.yaml:1:9: `proxy.cpus` is already set in evenkeel.yaml:4:3; remove one",
        "conf.d/b.yaml:1:7: `log.level` is already set in conf.d/a.yaml:2:7; remove one",
        "conf.d/b.yaml:2:1: `admin` is already set in evenkeel.yaml:2:1; remove one",
        "conf.d/c.yaml:1:25: `g` is already set in evenkeel.yaml:6:3; remove one",
        "conf.d/c.yaml:2:9: `proxy.cpus` is already set in evenkeel.yaml:4:3; remove one",
        "conf.d/c.yaml:2:18: `proxy.cpus` is already set in evenkeel.yaml:4:3; remove one",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), expected, "{told}");
    let told = faults("", &[("conf.d/a.yaml", "proxy:\n  cpus: 1\n  cpus: 2\n")]);
    assert!(told.starts_with("conf.d/a.yaml:3:3: `cpus` occurs twice, first in line 2"), "{told}");
}

#[test]
fn what_cannot_be_included_is_told_at_its_entry() {
    for (main, told) in [
        ("include: none.yaml", "evenkeel.yaml:1:10: none.yaml: No such file"),
        ("include: [a.yaml, conf.d]", "evenkeel.yaml:1:19: conf.d: it is not a file"),
        ("include: conf.d/", "evenkeel.yaml:1:10: `include` is `conf.d/`: this is a folder; write"),
        ("include: none.d/*", "evenkeel.yaml:1:10: none.d: No such file"),
        ("include: {a: b}", "evenkeel.yaml:1:10: an entry of `include` must be the path"),
        ("include: a.yaml\ninclude: a.yaml", "evenkeel.yaml:2:1: `include` occurs twice"),
        ("include: b.yaml", "b.yaml:1:1: an included file includes no others; name them in"),
        ("include: big.yaml", "evenkeel.yaml:1:10: big.yaml: it has more than 1048576 bytes"),
    ] {
        let big = " ".repeat((1 << 20) + 1);
        let parts = [("a.yaml", "proxy:"), ("b.yaml", "include: a.yaml\n"), ("big.yaml", &*big)];
        let files: Vec<_> = [("evenkeel.yaml", main)].into_iter().chain(parts).collect();
        let folder = folder(&files);
        let found = load(folder.path()).expect_err(main);
        assert!(found.starts_with(told), "{main}: {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}

#[test]
fn a_pattern_may_match_nothing_one_file_twice_or_the_configuration_itself() {
    for main in ["conf.d/none*.yaml", "[conf.d/*, conf.d/a*, conf.d/../conf.d/a.yaml]", "'*.yaml'"]
    {
        let text = format!("include: {main}\nproxy: {{cpus: 2}}\n");
        let folder = folder(&[("evenkeel.yaml", &text), ("conf.d/a.yaml", "log: {level: warn}")]);
        load(folder.path()).unwrap_or_else(|told| panic!("{main}: {told}"));
    }
}

#[test]
fn too_many_files_and_too_much_text_are_refused() {
    let folder = folder(&[("evenkeel.yaml", "include: conf.d/*\n")]);
    let write = |number: usize, text: &str| {
        fs::write(folder.path().join(format!("conf.d/{number:03}")), text).expect("written");
    };
    (0..256).for_each(|number| write(number, "\n"));
    load(folder.path()).expect("as many as there may be");
    write(256, "\n");
    let told = load(folder.path()).expect_err("one more");
    assert!(told.contains("evenkeel.yaml:1:10: more than 256 included files"), "{told}");
    fs::remove_file(folder.path().join("conf.d/256")).expect("removed");
    (0..5).for_each(|number| write(number, &" ".repeat(1 << 20)));
    let told = load(folder.path()).expect_err("too large");
    assert!(told.contains("the included files have more than 4194304 bytes"), "{told}");
}

#[test]
fn changed_new_and_removed_files_are_seen() {
    let folder =
        folder(&[("evenkeel.yaml", "include: conf.d/*.yaml\nproxy: {limits: [default]}\n")]);
    let limit = |name: &str, rate: &str| {
        let text = format!("proxy: {{limits: [{{name: {name}, by: ip, rate: {rate}}}]}}\n");
        fs::write(folder.path().join(format!("conf.d/{name}.yaml")), text).expect("written");
    };
    let mut source = ConfigSource::new(&folder.path().join("evenkeel.yaml"));
    source.load(4.0).expect("good");
    let changed = |source: &mut ConfigSource| {
        (0..5).map(|_| source.look(4.0)).find(|change| *change != ConfigChange::None)
    };
    let limits = |change: Option<ConfigChange>| match change {
        Some(ConfigChange::Good(config)) => config.settings.limits(),
        other => panic!("no good change: {other:?}"),
    };
    assert_eq!(changed(&mut source), None);
    limit("a", "1/s");
    let with_one = limits(changed(&mut source));
    limit("b", "1/s");
    assert_eq!(limits(changed(&mut source)), with_one + 1);
    limit("b", "22/s");
    assert_eq!(limits(changed(&mut source)), with_one + 1);
    limit("b", "oops");
    let Some(ConfigChange::Faulty(told)) = changed(&mut source) else { panic!("a fault") };
    assert!(told.to_string().contains("conf.d/b.yaml:1:42: `rate` is `oops`"), "{told}");
    assert_eq!(changed(&mut source), None);
    fs::remove_file(folder.path().join("conf.d/b.yaml")).expect("removed");
    assert_eq!(limits(changed(&mut source)), with_one);
    assert_eq!(changed(&mut source), None);
    // A folder that is away may be about to be replaced, so it drops no limits.
    let (here, away) = (folder.path().join("conf.d"), folder.path().join("away"));
    fs::rename(&here, &away).expect("moved");
    let Some(ConfigChange::Faulty(told)) = changed(&mut source) else { panic!("a fault") };
    assert!(told.to_string().contains("conf.d: No such file"), "{told}");
    fs::rename(&away, &here).expect("moved back");
    assert_eq!(limits(changed(&mut source)), with_one);
    fs::remove_dir_all(&here).expect("removed");
    fs::write(folder.path().join("evenkeel.yaml"), "proxy: {cpus: 3}\n").expect("written");
    assert!(matches!(changed(&mut source), Some(ConfigChange::Good(_))), "no longer included");
}

#[test]
fn problems_of_a_start_and_warnings_name_the_included_file() {
    let folder = folder(&[
        ("evenkeel.yaml", "include: conf.d/*.yaml\nproxy:\n"),
        ("conf.d/a.yaml", "\nproxy: {trusted_proxies: 192.168.1.5/24}\nstate:\n  file: /no/x/y\n"),
        ("conf.d/b.yaml", "admin: {token_file: /no/token}\n"),
    ]);
    let source = ConfigSource::new(&folder.path().join("evenkeel.yaml"));
    let checked = source.check(4.0, |_| StartProblems::default());
    let told = checked.expect_err("there is no token");
    assert!(told.to_string().contains("conf.d/b.yaml:1:21: "), "{told}");
    let warnings = told.warnings.join("\n");
    assert!(warnings.contains("conf.d/a.yaml:2:26: `192.168.1.5/24` is the network"), "{warnings}");
    assert!(warnings.contains("conf.d/a.yaml:4:9: `y` needs the folder"), "{warnings}");
    assert!(source.names(&["state", "file"]));
}

/// Any two files are joined or refused.
#[test]
fn fuzz_any_parts_are_joined_or_refused() {
    const WORDS: [&str; 16] = [
        "proxy: ",
        "limits: ",
        "groups: ",
        "exempt: ",
        "pages: ",
        "include: ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "a: ",
        "b",
        "\n",
        "- ",
        "  ",
    ];
    let folder = folder(&[]);
    let main = folder.path().join("evenkeel.yaml");
    evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
        let words: Vec<&str> =
            bytes.iter().map(|byte| WORDS[usize::from(*byte) % WORDS.len()]).collect();
        let (part, whole) = words.split_at(words.len() / 2);
        fs::write(folder.path().join("conf.d/a.yaml"), part.concat()).expect("written");
        let text = format!("include: conf.d/a.yaml\n{}", whole.concat());
        let name = main.display().to_string();
        if let Ok(config) = evenkeel_config::parse(&name, text.as_bytes(), 4.0) {
            let again = evenkeel_config::parse("shown", config.native.as_bytes(), 4.0);
            assert_eq!(again.expect("what is shown is good").native, config.native);
        }
    });
}
