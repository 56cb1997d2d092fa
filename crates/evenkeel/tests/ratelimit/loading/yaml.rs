//! YAML as the reference server's library reads it: tags, numbers, metadata, and the end of a
//! document.

use super::faults;
use crate::ask::{Service, refused, rules};
use evenkeel_config::settings::RatelimitAnswers;
use evenkeel_ratelimit::json;

/// Without this error, the rules after the end would be missing silently.
#[test]
fn what_follows_an_implicit_end_of_the_document_is_a_fault() {
    let rule = "descriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n";
    let what = "not YAML: this has no parent; check the indentation";
    for (text, place) in [
        (format!("  domain: d\n{rule}"), "2:1"),
        (format!("{{domain: d}}\n{rule}"), "2:1"),
        ("{domain: d} {key: k}".to_owned(), "1:13"),
    ] {
        let told = faults(&text);
        assert_eq!(told, [format!("{place}: error loading config file: {what}")], "{text}");
    }
    for text in ["domain: d\n]", "domain: d\n  key: k"] {
        assert!(faults(text)[0].contains("error loading config file: not YAML"), "{text}");
    }
    for text in ["domain: d\n...\n[broken", "domain: d\n...\ndomain: e", "domain: d\n--- [broken"] {
        assert_eq!(faults(text), [""; 0], "after an end that is written: {text}");
    }
    assert_eq!(faults("\u{feff}# first\n\n---\ndomain: d\n\n# last\n"), [""; 0]);
}

#[test]
fn a_tab_before_a_key_is_a_fault() {
    for text in [
        "\tdomain: d",
        "\tdomain: d\ndescriptors: []",
        "# first\n\tdomain: d",
        "---\n\tdomain: d",
        "\t{domain: d}",
        " \tdomain: d",
        "domain: d\n\tdescriptors: []",
    ] {
        let told = faults(text);
        assert_eq!(told.len(), 1, "{text:?}");
        assert!(told[0].contains("error loading config file: not YAML"), "{text:?}: {told:?}");
    }
    assert_eq!(faults("domain:\td\t# a tab\n\t\n"), [""; 0]);
}

#[test]
fn metadata_that_is_no_map_is_refused() {
    let rule =
        |metadata: &str| format!("domain: d\ndescriptors:\n- key: k\n  metadata: {metadata}\n");
    let what = ": error loading config file: `metadata` must be a section with keys and values";
    for metadata in ["text", "[a]", "5", "''", "!!str x"] {
        let limited =
            format!("{}  rate_limit: {{unit: day, requests_per_unit: 1}}\n", rule(metadata));
        for text in [limited, rule(metadata)] {
            let told = faults(&text);
            assert!(told.len() == 1 && told[0].contains(what), "{text}: {told:?}");
        }
    }
    for metadata in ["null", "", "{}", "!!map {a: b}", "!own {a: b}"] {
        assert_eq!(faults(&rule(metadata)), [""; 0], "{metadata}");
    }
}

#[test]
fn metadata_is_read_as_yaml_1_1() {
    let rules = rules(
        "
domain: d
descriptors:
- key: k
  rate_limit: {unit: day, requests_per_unit: 1}
  metadata:
    a: [0x10, 010, 1_000, 08, 0b11, 0o17, +1, 1e3, .5]
    b: [yes, off, ~, 2001-01-01, '5', !!str 5, !!float 5, !!int '5', !own 7]
    c: {1: a, true: b, 1.50: c, 0x10: d, ~: e}
    yes: top
    0x1F: top
    d: !!binary aGVsbG8=
",
    );
    let mut read = None;
    rules.for_each(|rule| read = rule.metadata.as_ref().map(json::metadata));
    let expected = serde_json::json!({
        "a": [16.0, 8.0, 1000.0, 8.0, 3.0, 15.0, 1.0, 1000.0, 0.5],
        "b": [true, false, null, "2001-01-01", "5", "5", 5.0, 5.0, "7"],
        "c": {"1": "a", "true": "b", "1.5": "c", "16": "d", "<nil>": "e"},
        "yes": "top",
        "0x1F": "top",
        "d": "hello",
    });
    assert_eq!(read, Some(expected));
}

#[test]
fn infinite_metadata_is_carried_as_a_number() {
    let rules = "{domain: d, descriptors: [{key: k, metadata: {far: -.inf, not: .nan}, \
                 rate_limit: {unit: day, requests_per_unit: 1}}]}";
    let answers = RatelimitAnswers { dynamic_metadata: true, ..RatelimitAnswers::default() };
    let response = Service::answering(rules, answers).response("d: k=1");
    let told = format!("{:?}", response.dynamic_metadata.expect("there"));
    assert!(told.contains("NumberValue(-inf)") && told.contains("NumberValue(NaN)"), "{told}");
}

#[test]
fn tags_say_what_a_value_is() {
    let service = Service::new(
        "{domain: d, descriptors: [\
         {key: k, value: !!str null, rate_limit: {unit: day, requests_per_unit: 1}}, \
         {key: k, value: !!str 5, rate_limit: {unit: day, requests_per_unit: 2}}, \
         {key: k, value: !own 6, rate_limit: {unit: day, requests_per_unit: !!int '3'}}, \
         {key: k, value: !!binary aGVsbG8=, rate_limit: {unit: day, requests_per_unit: 010}}, \
         {!!str key: k, value: !!null '', shadow_mode: !!bool 'no', rate_limit: {unit: day, \
          requests_per_unit: 1_0}}]}",
    );
    for (value, told) in [
        ("null", "1/DAY 0"),
        ("5", "2/DAY 1"),
        ("6", "3/DAY 2"),
        ("hello", "8/DAY 7"),
        ("x", "10/DAY 9"),
    ] {
        assert_eq!(service.ask(&format!("d: k={value}")), format!("OK [{told}]"), "{value}");
    }
    for (value, told) in [
        ("value: !!int x", "the value is not a !!int"),
        ("value: !!null x", "the value is not a !!null"),
        ("value: !!binary x", "the value of !!binary is not base64"),
        ("value: !!float 5", "error checking config: `5.0` is a float; quote it"),
        ("value: 08", "error checking config: `08` is neither a whole number of 64 bits nor octal"),
        ("rate_limit: {unit: day, requests_per_unit: !!str 5}", "must be a whole number"),
        ("rate_limit: {unit: day, requests_per_unit: 1e3}", "`1e3` is a float"),
        ("shadow_mode: !!str true", "`shadow_mode` must be true or false"),
        ("!!int '5': x", "config error, key is not of type string: 5"),
        ("~: x", "config error, key is not of type string: ~"),
    ] {
        let text = format!("{{domain: d, descriptors: [{{key: k, {value}}}]}}");
        let told_here = refused(&[crate::ask::file("a.yaml", &text)], Default::default());
        assert!(told_here.iter().any(|line| line.contains(told)), "{value}: {told_here:?}");
    }
}
