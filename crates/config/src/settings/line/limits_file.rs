//! The file that `limits_file` of the line door names: one rule per line.
//!
//! A line is a prefix, a rate and optionally a burst, separated by blanks; or a prefix and the word
//! `exempt`. Lines that begin with `#` are comments. A prefix that contains a blank must be in
//! `limits` of the configuration. The file is accepted as a whole or not at all.

use super::{LineSettings, prefix, rate};
use crate::fault::{ConfigFault, TextPlace, quoted};
use crate::settings::limits::{burst_of, requests_saved};
use crate::settings::tags::{RULES_MAX, RateNumbers, Refill, TagRule};

/// Maximum number of faults that are collected before reading stops.
const FAULTS_MAX: usize = 100;

/// Adds the rules of the file to those of the configuration.
///
/// # Errors
/// All faults of the file.
pub(crate) fn add(line: &mut LineSettings, bytes: &[u8]) -> Result<(), Vec<ConfigFault>> {
    let Some(refill) = line.limits_file.as_ref().map(|file| file.refill) else { return Ok(()) };
    let at = |row: usize| TextPlace::at(row, 1);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let row = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        vec![ConfigFault::new(at(row), "this is not UTF-8; a prefix must be UTF-8")]
    })?;
    let (mut rules, mut faults) = (line.written.clone(), Vec::new());
    for (row, text) in (1..).zip(text.lines()) {
        let words: Vec<&str> = text.split_ascii_whitespace().take(4).collect();
        if words.is_empty() || text.trim_start().starts_with('#') {
            continue;
        }
        let known = |prefix: &str| match rules.len() {
            _ if rules.has(prefix) => Err(format!("{} has a rule already", quoted(prefix))),
            0..=RULES_MAX => Ok(()),
            _ => Err(format!("there are more than {RULES_MAX} rules")),
        };
        let read = rule(&words, refill);
        let added =
            read.and_then(|rule| known(rule.0).map(|()| rule)).map(
                |(prefix, numbers)| match numbers {
                    Some(numbers) => rules.add_shared(prefix, numbers),
                    None => rules.add(prefix, TagRule::Exempt),
                },
            );
        let full = rules.len() > RULES_MAX;
        faults.extend(added.err().map(|what| ConfigFault::new(at(row), what)));
        if full && !faults.is_empty() || faults.len() >= FAULTS_MAX {
            break;
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    line.rules = rules.finish();
    Ok(())
}

type Rule<'t> = (&'t str, Option<RateNumbers>);

/// Parses a line into a prefix and its numbers; `None` for an exempt prefix.
fn rule<'t>(words: &[&'t str], refill: Refill) -> Result<Rule<'t>, String> {
    let form = || "a line is `PREFIX RATE`, `PREFIX RATE BURST` or `PREFIX exempt`".to_owned();
    let (of, pace, saved) = match *words {
        [of, "exempt"] => return Ok((of, prefix(of).map(|_| None)?)),
        [of, pace] => (of, pace, None),
        [of, pace, saved] => (of, pace, Some(saved)),
        _ => return Err(form()),
    };
    let named = |what: &str, text: &str, why: String| format!("{what} is {}: {why}", quoted(text));
    prefix(of).map_err(|why| named("the prefix", of, why))?;
    let pace = rate(pace).map_err(|why| named("the rate", pace, why))?.1;
    let burst = match saved {
        Some(text) => requests_saved(text).map_err(|why| named("the burst", text, why))?,
        None => burst_of(pace),
    };
    Ok((of, Some(RateNumbers { pace, burst, refill })))
}
