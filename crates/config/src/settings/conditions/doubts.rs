//! Warnings about conditions that are valid, but match no request or other requests than they seem
//! to.
//!
//! A request is compared with the text as it is written, so a name in place of a pattern is no
//! fault. Each warning names the way to write what was probably meant.

use super::words::is_pattern;
use super::{ABSENT, COOKIE, HEADER, JA4, QUERY, USER_AGENT};
use crate::fault::quoted;
use crate::reader::SectionReader;
use crate::tree::{YamlNode, YamlValue};
use evenkeel_core::condition::Clause;

/// Warns of what is written in a condition, which has been read as `clauses`.
pub(super) fn warn(section: &mut SectionReader<'_, '_>, clauses: &[Clause]) {
    agents(section);
    for item in items(section, JA4.name()) {
        let Some(text) = item.as_text().filter(|text| !is_fingerprint(text)) else { continue };
        let what = format!(
            "`ja4: {text}` is no fingerprint, such as t13d1516h2_8daaf6152771_b0da82dd1658, \
             and matches no client"
        );
        section.warn(item.place, what);
    }
    for key in [HEADER.name(), COOKIE.name(), QUERY.name()] {
        names(section, key);
    }
    let contradicts = |clause: &Clause| match clause {
        Clause::Not(inner) => inner.clauses.iter().all(|inner| clauses.contains(inner)),
        _ => false,
    };
    if clauses.iter().any(contradicts) {
        let what = "no request meets this condition: `not` has what its other keys ask for";
        section.warn(section.place_of("not"), what);
    }
}

/// Warns of patterns of `User-Agent` that only match a whole header.
pub(crate) fn agents(section: &mut SectionReader<'_, '_>) {
    let key = USER_AGENT.name();
    for item in items(section, key) {
        let Some(text) = item.as_text().filter(|text| *text != ABSENT) else { continue };
        let slashed = text.strip_prefix('/').and_then(|rest| {
            rest.strip_suffix('/').or(rest.strip_suffix("/i")).filter(|inner| !inner.is_empty())
        });
        let what = match slashed {
            Some(inner) => format!(
                "{} is compared as text with its slashes; a regular expression is written \
                 're:{inner}'",
                quoted(text)
            ),
            None if is_word(text) => format!(
                "`{key}: {text}` matches only a header that is exactly this; write `*{text}*`"
            ),
            None => continue,
        };
        section.warn(item.place, what);
    }
}

/// Warns of a list of names, all of which a request must have, and of a name that is `absent`.
fn names(section: &mut SectionReader<'_, '_>, key: &'static str) {
    let Some(node) = section.node(key) else { return };
    let texts: Vec<&str> = match &node.value {
        YamlValue::Map(_) => return,
        _ => node.items().iter().filter_map(YamlNode::as_text).collect(),
    };
    if texts.contains(&ABSENT) {
        let what = format!(
            "`{key}: absent` asks for a {key} of the name `absent`; one that a request does not \
             have is written `{key}: {{NAME: absent}}`"
        );
        section.warn(node.place, what);
    } else if let [first, second, ..] = texts.as_slice() {
        let what = format!(
            "`{key}` asks for all of these names; for one of them write `any: [{{{key}: {first}}}, \
             {{{key}: {second}}}]`, for all of them `{key}: {{{first}: \"*\", {second}: \"*\"}}`"
        );
        section.warn(node.place, what);
    }
}

fn items<'n>(section: &SectionReader<'n, '_>, key: &str) -> &'n [YamlNode] {
    section.node(key).map_or(&[], YamlNode::items)
}

/// Whether a text is a single word without a version, which a whole `User-Agent` never is.
fn is_word(text: &str) -> bool {
    text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Whether a text can match a JA4 fingerprint: three parts of 10, 12 and 12 characters.
fn is_fingerprint(text: &str) -> bool {
    text == ABSENT || is_pattern(text) || text.split('_').map(str::len).eq([10, 12, 12])
}
