//! Errors in rule files, and several files that form one set: cases 72 and 83 to 85.

mod examples;
mod large;
mod xds;
mod yaml;

use crate::ask::{C1, Service, file, refused, rules};
use evenkeel_ratelimit::rules::read::{RULES_DIALECT, RuleOptions, read};
use evenkeel_ratelimit::tally::RuleTallies;
use evenkeel_testing::evenkeel;

/// The errors of one file, without its name.
fn faults(text: &str) -> Vec<String> {
    let told = refused(&[file("a.yaml", text)], RuleOptions::default());
    told.iter().map(|line| line.replacen("a.yaml:", "", 1)).collect()
}

fn limited(limit: &str) -> String {
    format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {limit}\n")
}

#[test]
fn c83_every_fault_of_a_rule_is_told_with_its_place() {
    let unit = "{unit: day, requests_per_unit: 1";
    for (text, told) in [
        (String::new(), "1:1: config file cannot have empty domain"),
        ("descriptors: []".into(), "1:1: config file cannot have empty domain"),
        ("domain: ''".into(), "1:9: config file cannot have empty domain"),
        ("domain: d\ndescriptors:\n- value: v".into(), "3:3: descriptor has empty key"),
        (
            "domain: d\ndescriptors:\n- {key: k, value: v}\n- {key: k, value: v}".into(),
            "4:3: duplicate descriptor composite key 'd.k_v'",
        ),
        (
            "domain: d\ndescriptors:\n- key: a\n  descriptors: [{key: k}, {key: k, value: ''}]"
                .into(),
            "4:27: duplicate descriptor composite key 'd.a.k'",
        ),
        (limited("{unit: fortnight}"), "4:22: invalid rate limit unit 'fortnight'"),
        (limited("{requests_per_unit: 5}"), "4:15: invalid rate limit unit ''"),
        (limited("{unit: unknown}"), "4:22: invalid rate limit unit 'unknown'"),
        (
            limited("{unlimited: true, unit: day}"),
            "4:39: should not specify rate limit unit when unlimited",
        ),
        (
            limited(&format!("{unit}, replaces: [{{name: ''}}]}}")),
            "4:60: should not have an empty replaces entry",
        ),
        (
            limited(&format!("{unit}, name: n, replaces: [{{name: n}}]}}")),
            "4:69: replaces should not contain name of same descriptor",
        ),
        (
            "domain: d\ndescriptors:\n- {key: k, value: v, share_threshold: true}".into(),
            "3:39: share_threshold can only be used with wildcard values (containing '*'), but \
             found key 'k_v'",
        ),
    ] {
        assert_eq!(faults(&text), [told], "{text}");
    }
}

#[test]
fn c83_every_fault_of_keys_and_values_is_told_with_its_place() {
    let unit = "{unit: day, requests_per_unit: 1";
    for (text, told) in [
        ("domain: d\nips: []".into(), "2:1: config error, unknown key 'ips'"),
        (
            "domain: d\ndescriptors:\n- {key: k, rate_limits: {}}".into(),
            "3:12: config error, unknown key 'rate_limits'; did you mean `rate_limit`?",
        ),
        ("domain: d\n404: x".into(), "2:1: config error, key is not of type string: 404"),
        (
            "domain: d\ndescriptors: [text]".into(),
            "2:15: config error, yaml file contains list of type other than map: text",
        ),
        (
            "domain: d\ndescriptors:\n- {key: k}\n-".into(),
            "4:2: config error, yaml file contains list of type other than map: <nil>",
        ),
        ("domain: d\nlevel: null".into(), "2:1: config error, unknown key 'level'"),
        (
            limited(&format!("{unit}, replaces: [null]}}")),
            "4:60: config error, yaml file contains list of type other than map: <nil>",
        ),
        (
            "domain: d\ndescriptors: [{key: k, value: 1.5}]".into(),
            "2:31: error checking config: `1.5` is a float; quote it",
        ),
        (
            limited("{unit: day, requests_per_unit: -1}"),
            "4:46: error loading config file: `requests_per_unit` must be a whole number from 0 \
             to 4294967295, not -1",
        ),
        (
            limited("{unit: day, requests_per_unit: 4294967296}"),
            "4:46: error loading config file: `requests_per_unit` must be a whole number from 0 \
             to 4294967295, not 4294967296",
        ),
        (
            limited(&format!("{unit}, unit_multiplier: 0}}")),
            "4:66: `unit_multiplier` must be at least 1, and the window at most 30 years",
        ),
        (
            limited(&format!("{unit}, calendar: true}}")),
            "4:59: `calendar` can be used only with the units month and year; remove it",
        ),
        (
            limited(&format!("{unit}, algorithm: leaky}}")),
            "4:60: unknown algorithm `leaky`; known are fixed_window, sliding_window, token_bucket",
        ),
    ] {
        assert_eq!(faults(&text), [told], "{text}");
    }
    let broken = faults("domain: [");
    assert_eq!(broken.len(), 1);
    assert!(broken[0].contains("error loading config file: not YAML"), "{broken:?}");
}

#[test]
fn all_faults_of_all_files_are_told_at_once() {
    let files = [file("a.yaml", "domain: d\nx: 1\ny: 2"), file("b.yaml", "z: 1")];
    let told = refused(&files, RuleOptions::default());
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[0].starts_with("a.yaml:2:1: ") && told[3].starts_with("b.yaml:1:1: "));
}

/// The bound holds for the keys and for the values; a part that repeats by an alias counts once.
#[test]
fn the_first_hundred_faults_of_a_file_are_told_and_the_others_counted() {
    let keys: String = (0..60).map(|n| format!("unknown{n}: 1\n")).collect();
    let values: String =
        (0..60).map(|n| format!("- {{key: k{n}, shadow_mode: perhaps}}\n")).collect();
    let told = faults(&format!("domain: d\n{keys}descriptors:\n{values}"));
    assert_eq!(told.len(), 101, "{told:?}");
    assert_eq!(told[100], " and 20 more errors");
    let aliases: String = (0..200).map(|n| format!("- {{key: k{n}, <<: *f}}\n")).collect();
    let told = faults(&format!(
        "domain: d\ndescriptors:\n- &f {{key: k, shadow_mode: perhaps}}\n{aliases}"
    ));
    assert_eq!(told, ["3:28: error loading config file: `shadow_mode` must be true or false"]);
}

#[test]
fn c83_c84_files_of_one_domain_are_refused_unless_they_are_to_be_merged() {
    let one = file("a.yaml", "{domain: d, descriptors: [{key: a}]}");
    let two = file("b.yaml", "{domain: d, descriptors: [{key: b}]}");
    let told = refused(&[one.clone(), two.clone()], RuleOptions::default());
    assert_eq!(told, ["b.yaml:1:10: duplicate domain 'd' in config file"]);
    let merge = RuleOptions { merge_domains: true, ..RuleOptions::default() };
    assert_eq!(refused(&[one.clone(), two], merge), [""; 0]);
    let again = file("b.yaml", "{domain: d, descriptors: [{key: a}]}");
    let told = refused(&[one, again], merge);
    assert_eq!(told, ["b.yaml:1:27: duplicate descriptor composite key 'd.a'"]);
}

#[test]
fn c83_joined_keys_are_duplicates_with_the_switch_only() {
    let text = "{domain: d, descriptors: [{key: a_b}, {key: a, value: b}]}";
    assert_eq!(refused(&[file("a.yaml", text)], RuleOptions::default()), [""; 0]);
    let compat = RuleOptions { compat_keys: true, ..RuleOptions::default() };
    let told = refused(&[file("a.yaml", text)], compat);
    assert_eq!(told, ["a.yaml:1:39: duplicate descriptor composite key 'd.a_b'"]);
}

#[test]
fn c85_of_several_documents_only_the_first_is_read() {
    let service = Service::new(&format!("{C1}---\ndomain: other\n---\n[broken"));
    assert_eq!(service.ask("t: k=v"), "OK [5/HOUR 4]");
    assert_eq!(service.ask("other: k=v"), "OK [-]");
}

#[test]
fn values_are_the_text_that_is_written() {
    let service = Service::new(
        "{domain: d, descriptors: [\
         {key: code, value: 404, rate_limit: {unit: day, requests_per_unit: 4}}, \
         {key: code, value: true, rate_limit: {unit: day, requests_per_unit: 5}}, \
         {key: code, value: null, rate_limit: {unit: day, requests_per_unit: 6}}, \
         {key: twice, key: last, rate_limit: {unit: day, requests_per_unit: 0x10}}]}",
    );
    assert_eq!(service.ask("d: code=404"), "OK [4/DAY 3]");
    assert_eq!(service.ask("d: code=true"), "OK [5/DAY 4]");
    assert_eq!(service.ask("d: code=else"), "OK [6/DAY 5]");
    assert_eq!(service.ask("d: last=1"), "OK [16/DAY 15]", "of two equal keys the last counts");
}

#[test]
fn what_is_nothing_is_as_if_it_were_not_there() {
    let service = Service::new(
        "{domain: d, descriptors: [\
         {key: a, value: null, rate_limit: {unit: day, requests_per_unit: 1, name: ~, \
          replaces: null}, descriptors: null, shadow_mode: null, metadata: null}, \
         {key: b, rate_limit: null}]}",
    );
    assert_eq!(service.ask("d: a=x"), "OK [1/DAY 0]");
    assert_eq!(service.ask("d: b=x"), "OK [-]");
    assert_eq!(Service::new("{domain: d, descriptors: null}").ask("d: b=x"), "OK [-]");
}

#[test]
fn aliases_and_merge_keys_are_read() {
    let service = Service::new(
        "
domain: d
descriptors:
- key: a
  rate_limit: &five {unit: day, requests_per_unit: 5}
- {key: b, rate_limit: *five}
- {key: c, rate_limit: {<<: *five, requests_per_unit: 6}}
",
    );
    assert_eq!(service.ask("d: b=1"), "OK [5/DAY 4]");
    assert_eq!(service.ask("d: c=1"), "OK [6/DAY 5]");
}

#[test]
fn aliases_that_grow_are_refused_in_bounded_memory() {
    let mut text = String::from("domain: d\ndescriptors:\n- metadata:\n    a0: &a0 [x, x, x]\n");
    for n in 1..40 {
        let before = n - 1;
        text += &format!("    a{n}: &a{n} [*a{before}, *a{before}, *a{before}, *a{before}]\n");
    }
    let told = faults(&text);
    assert!(told[0].contains("aliases repeat more than 500000 keys and values"), "{told:?}");
    let deep = format!("domain: d\ndescriptors: {}", "[".repeat(10_000));
    let told = faults(&deep);
    assert!(told.len() == 1 && told[0].contains("error loading config file: "), "{told:?}");
    let deep =
        format!("domain: d\ndescriptors:\n- metadata: {}1{}", "[".repeat(200), "]".repeat(200));
    assert!(faults(&deep)[0].contains("nested deeper than 100 levels"));
    let large = " ".repeat(RULES_DIALECT.bytes_max + 1);
    assert!(faults(&large)[0].contains("bytes are too many; at most 67108864 are read"));
}

#[test]
fn c72_rules_are_shown_one_a_line() {
    let shown = rules(C1).dump();
    for line in [
        "t.k: unit=HOUR requests_per_unit=5, shadow_mode: false, quota_mode: false",
        "t.mid_x.leaf: unit=HOUR requests_per_unit=3, shadow_mode: false, quota_mode: false",
        // The reference server's form, followed by the meaning.
        "t.un: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, \
         unlimited: true",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
    }
    assert!(!shown.contains("whitelisted"), "a descriptor without a limit is no rule");
    let none =
        read(&[], RuleOptions::default(), &RuleTallies::default()).expect("no files are sound");
    assert_eq!(none.dump(), "");
}

/// The exit code of `evenkeel check` for a path, and both of its outputs.
fn checked(path: &std::path::Path) -> (Option<i32>, String) {
    let output = evenkeel!().arg("check").arg(path).output().expect("it runs");
    let all = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&all).into_owned())
}

#[test]
fn check_takes_rules_and_folders_of_them() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/envoy/rules");
    let (code, told) = checked(examples.as_ref());
    assert_eq!((code, told.contains("Fencer")), (Some(0), false), "{told}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.yaml");
    std::fs::write(&path, C1).expect("written");
    let (code, told) = checked(folder.path());
    assert_eq!(code, Some(0), "{told}");
    for (line, what) in [
        ("5:3", "neither a limit nor descriptors"),
        ("13:3", "a limit and descriptors in one node"),
        ("8:46", "a unit other than second, minute, hour and day"),
    ] {
        let warning = format!("a.yaml:{line}: Fencer would refuse this: {what}");
        assert!(told.contains(&warning), "{warning}\n{told}");
    }
    std::fs::write(&path, "domain: d\nnonsense: 1").expect("written");
    for path in [folder.path(), &path] {
        let (code, told) = checked(path);
        assert_eq!(code, Some(1));
        assert!(told.contains("a.yaml:2:1: config error, unknown key 'nonsense'"), "{told}");
    }
}
