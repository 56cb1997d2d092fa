//! The exceptions, each with its reason, in one place.
//!
//! A path ending in a slash stands for everything below it. An exception that is no longer needed
//! is a fault.

use crate::banned;
use crate::source::Source;

/// The rule, the path, the reason.
const ALLOWED: [(&str, &str, &str); 13] = [
    ("clock", "crates/client/src/lib.rs", "it brings nothing of the program, not even its clock"),
    ("clock", "crates/fair-queue/src/", "it brings nothing of the program but the core"),
    ("clock", "crates/runtime/src/clock.rs", "it is the clock"),
    ("sleep", "crates/testing/src/wait.rs", "it is `wait_for`: between two checks"),
    (
        "sleep",
        "crates/evenkeel/tests/serve/handover/together.rs",
        "its backend takes time for each request, so that some wait; nothing depends on how much",
    ),
    ("spawn", "crates/runtime/src/thread.rs", "whoever has one waits for its end"),
    (
        "spawn",
        "crates/telemetry/src/log/queue.rs",
        "standard error may be stuck: the end of its thread is waited for a second at most",
    ),
    ("spawn", "crates/lab/src/replay/reader.rs", "logs are unpacked and read while others play"),
    ("outside", "crates/store/src/snapshot/", "the file of the snapshot"),
    ("outside", "crates/acme/src/files.rs", "the account and the certificate that it writes"),
    ("outside", "crates/lab/src/replay/files.rs", "the logs that are played, and the report"),
    ("outside", "crates/evenkeel/src/cli/turn.rs", "the CPU time that its command has used"),
    ("outside", "crates/config/src/", "it is what reads files and the environment"),
];

/// Whether `path` has an exception from `rule`.
pub fn allowed(rule: &str, path: &str) -> bool {
    ALLOWED.iter().any(|(name, allowed, _)| *name == rule && matches(path, allowed))
}

fn matches(path: &str, allowed: &str) -> bool {
    path == allowed || (allowed.ends_with('/') && path.starts_with(allowed))
}

/// The exceptions that are no longer needed.
pub fn stale(sources: &[Source]) -> Vec<String> {
    let needed = |rule: &str, allowed: &str| {
        let mut below = sources.iter().filter(|s| matches(&s.path, allowed));
        let scanned = !["file-size", "arrow"].contains(&rule);
        below.any(|s| !scanned || banned::occurs(rule, s))
    };
    let unneeded = ALLOWED.iter().filter(|(rule, path, _)| !needed(rule, path));
    unneeded.map(|(rule, path, _)| format!("{path} [{rule}] needs no exception")).collect()
}
