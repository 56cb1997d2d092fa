//! The accounts of several logs, and what the logs have in common.

use super::*;
use evenkeel_config::settings::ClientAddress;
use std::fs;
use std::path::{Path, PathBuf};

const COMMON: &str = "192.0.2.1 - - [10/Oct/2025:13:55:36 +0000] \"GET / HTTP/1.1\" 200 12\n";
const COMBINED: &str = "192.0.2.1 - - [10/Oct/2025:13:55:36 +0000] \"GET / HTTP/1.1\" 200 12 \
                        \"-\" \"agent\"\n";

/// Writes these logs into `folder`, and returns their merge and their paths.
fn merge(folder: &Path, logs: &[&str]) -> (LogMerge, Vec<PathBuf>) {
    let path = |at: usize| folder.join(format!("{at}.log"));
    let paths: Vec<PathBuf> = (0..logs.len()).map(path).collect();
    for (path, log) in paths.iter().zip(logs) {
        fs::write(path, log).expect("written");
    }
    let places: Vec<LogSource> = paths.iter().map(|path| LogSource::of(path)).collect();
    let trust = ProxyTrust::new(&[], &ClientAddress::XForwardedFor);
    (LogMerge::new(&places, trust, Arc::default()), paths)
}

#[test]
fn a_log_that_is_gone_when_its_time_comes_has_a_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut merge, paths) = merge(folder.path(), &[COMMON]);
    fs::remove_file(&paths[0]).expect("removed");
    assert!(merge.next().is_none());
    let names: Vec<&str> = merge.accounts.iter().map(|account| &*account.name).collect();
    assert_eq!(names, [paths[0].display().to_string()]);
    assert!(merge.accounts[0].fault.is_some());
}

#[test]
fn logs_tell_what_each_of_them_has() {
    let folder = tempfile::tempdir().expect("a folder");
    for (logs, agent) in [
        (vec![COMBINED, COMBINED], true),
        (vec![COMBINED, COMMON], false),
        (vec![COMBINED, "rubbish\n"], true),
        (vec![], false),
    ] {
        let (mut merge, _) = merge(folder.path(), &logs);
        while merge.next().is_some() {}
        assert_eq!(merge.tells().agent, agent, "{logs:?}");
    }
}
