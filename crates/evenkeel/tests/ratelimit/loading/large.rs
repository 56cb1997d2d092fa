//! Many rules in one file, and files beyond the bounds.

use crate::ask::{Service, request};
use evenkeel_config::source::folder::{BYTES_MAX, WatchedFolder};
use evenkeel_config::tree::{self, YamlDialect};
use evenkeel_ratelimit::rules::read::RULES_DIALECT;
use evenkeel_ratelimit::wire::ProtoPackage;
use std::fmt::Write;

const RULES: usize = 110_000;

#[test]
fn a_file_of_110_000_rules_is_read() {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for n in 0..RULES {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "- key: api_key\n  value: client-{n:06}\n  rate_limit:\n    unit: day\n    \
             requests_per_unit: {}\n",
            n + 1
        );
    }
    assert!(text.len() > 9 << 20, "{} bytes", text.len());
    let service = Service::new(&text);
    for n in [0, RULES / 2, RULES - 1] {
        let asked = request(&format!("d: api_key=client-{n:06}"));
        let response = service.decide(&asked, ProtoPackage::V3).expect("an answer");
        assert_eq!(response.statuses[0].limit_remaining as usize, n);
    }
}

#[test]
fn too_many_keys_and_values_are_a_fault() {
    let few = YamlDialect { nodes_max: 1_000, ..RULES_DIALECT };
    let text = |n| format!("descriptors: [{}]", "~,".repeat(n));
    assert!(tree::parse_as(text(997).as_bytes(), few).is_ok());
    let told = tree::parse_as(text(998).as_bytes(), few).expect_err("too many").what;
    assert_eq!(told, "more than 1000 keys and values");
}

#[test]
fn a_folder_that_is_too_large_is_refused_before_it_is_parsed() {
    let folder = tempfile::tempdir().expect("a folder");
    for n in 0..5 {
        let file = std::fs::File::create(folder.path().join(format!("{n}.yaml"))).expect("made");
        file.set_len(60 << 20).expect("a length");
    }
    let told = WatchedFolder::new(folder.path(), false).read().expect_err("too large").to_string();
    assert!(told.starts_with(&format!("more than {BYTES_MAX} bytes in the files below")), "{told}");
}
