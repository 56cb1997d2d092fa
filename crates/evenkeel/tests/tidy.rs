//! Checks the style of all sources: sizes, file headers, dependencies between modules, and banned
//! words.
//!
//! It is a plain-text scan of every Rust file of the workspace, after comments and strings are
//! blanked out (`tidy/source.rs`). It works as a ratchet: the figures in `tidy/size.rs` may be
//! lowered but not raised, and every exception is in `tidy/allowed.rs` with its reason. It does not
//! parse Rust and knows no types; rules that need types are left to clippy.

#[path = "tidy/allowed.rs"]
mod allowed;
#[path = "tidy/arrows.rs"]
mod arrows;
#[path = "tidy/banned.rs"]
mod banned;
#[path = "tidy/size.rs"]
mod size;
#[path = "tidy/source.rs"]
mod source;

use source::Source;

/// Fails with one line for each fault.
fn expect_none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn files_and_functions_are_small() {
    let sources = Source::all();
    let mut faults = size::files(&sources);
    faults.extend(size::lines(&sources));
    faults.extend(size::functions(&sources));
    expect_none(&faults);
}

#[test]
fn every_file_says_what_it_is() {
    expect_none(&size::headers(&Source::all()));
}

#[test]
fn arrows_between_modules_form_no_circle() {
    expect_none(&arrows::faults(&Source::all()));
    expect_none(&arrows::between_crates());
}

#[test]
fn the_core_needs_no_std() {
    expect_none(&arrows::std_in_core(&Source::all()));
}

#[test]
fn nothing_banned_is_used() {
    expect_none(&banned::faults(&Source::all()));
}

#[test]
fn every_exception_is_still_needed() {
    let sources = Source::all();
    expect_none(&allowed::stale(&sources));
}
