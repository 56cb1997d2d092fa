//! Values of conditions of which there are few, so that a wrong one is found when it is read:
//! methods, countries, robots, and the words of facts. Patterns are accepted where a list cannot
//! be complete.

use super::{ABSENT, GroupSettings, pattern};
use crate::fault::{nearest, quoted};
use crate::reader::SectionReader;
use crate::tree::YamlNode;
use crate::values::Read;
use evenkeel_core::condition::patterns::{EXPRESSION, Patterns};

/// The methods in the registry of IANA, and those of caches and of UPnP.
const METHODS: [&str; 46] = [
    "ACL",
    "BAN",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "M-SEARCH",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "NOTIFY",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "SUBSCRIBE",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UNSUBSCRIBE",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// Whether a text has wildcards or is a regular expression.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains('*') || text.starts_with(EXPRESSION)
}

/// Reads a method or a pattern of methods.
pub(super) fn method(text: &str) -> Read<Box<str>> {
    let upper = text.to_ascii_uppercase();
    if is_pattern(text) || METHODS.contains(&&*upper) {
        return pattern(text);
    }
    let own = "a method of your own is a pattern: 're:^NAME$'";
    Err(match nearest(&upper, &METHODS) {
        Some(near) => format!("no known method; did you mean {near}? ({own})"),
        None => format!("no known method; {own}"),
    })
}

/// Reads the code of a country, or a pattern of codes.
pub(super) fn country(text: &str) -> Read<Box<str>> {
    if text == ABSENT || is_pattern(text) {
        return pattern(text);
    }
    if text.eq_ignore_ascii_case("UK") {
        return Err("no country; the United Kingdom is GB".to_owned());
    }
    let is_code = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_code.then(|| text.into()).ok_or_else(|| "a country has two letters, such as DE".to_owned())
}

/// Reports names and patterns of robots that match no robot of the configuration.
pub(super) fn refuse_unknown_robots(
    section: &mut SectionReader<'_, '_>,
    key: &str,
    groups: &GroupSettings,
) {
    // A file of groups that is checked alone does not know the robots.
    if groups.is_incomplete {
        return;
    }
    let known: Vec<&str> = groups.robots.iter().map(|name| &**name).collect();
    let node = section.node(key);
    for text in node.map_or(&[][..], YamlNode::items).iter().filter_map(YamlNode::as_text) {
        let Ok(pattern) = Patterns::new([text]) else { continue };
        if text == ABSENT || known.iter().any(|name| pattern.matches(name.as_bytes())) {
            continue;
        }
        let hint = match nearest(text, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => "`proxy.robots` names none".to_owned(),
            None => format!("`proxy.robots` names {}", known.join(", ")),
        };
        section.fault_of(key, format!("names no robot: {}; {hint}", quoted(text)));
    }
}

pub(super) fn rtt(text: &str) -> Read<Box<str>> {
    word(text, &["direct", "relayed"])
}

pub(super) fn fetch(text: &str) -> Read<Box<str>> {
    word(text, &["agrees", "differs", "other"])
}

/// Reads one of the values that a fact has, or `absent`.
fn word(text: &str, words: &[&str]) -> Read<Box<str>> {
    let is_known = text == ABSENT || words.contains(&text);
    is_known.then(|| text.into()).ok_or_else(|| format!("{} or {ABSENT}", words.join(", ")))
}
