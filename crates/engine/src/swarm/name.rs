//! The name of a group of strangers: in words, and as a condition of the configuration.
//!
//! An operator copies the condition into a rule, so it holds for the requests of the group: text
//! that a condition cannot contain becomes `*`, and so does what is cut off. Both are made of
//! untrusted text of a limited length.

use super::{KINDS, NETWORK_BITS, PropertyKind, own_network};
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::condition::patterns::EXPRESSION;
use evenkeel_core::fact::ClientFact;
use evenkeel_core::swarm::SwarmGroup;

/// The part of a text that a name shows, in characters.
const SHOWN_CHARS_MAX: usize = 200;
/// The word of a condition for an attribute that a request does not have.
const ABSENT: &str = "absent";

/// The common properties of the requests of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupName {
    /// In words: `User-Agent 'swarm/1', no Accept-Language`.
    pub(super) words: String,
    /// As a value of `when`: `{user_agent: 'swarm/1', header: {accept-language: absent}}`.
    pub(super) when: String,
}

impl GroupName {
    /// The name of a group that `request` belongs to.
    pub(super) fn new(group: &SwarmGroup, request: &impl RequestAttributes) -> GroupName {
        let kinds: Vec<_> = group.kinds().filter_map(|kind| KINDS.get(kind)).collect();
        let words: Vec<_> = kinds.iter().map(|kind| words(**kind, request)).collect();
        let keys: Vec<_> = kinds.iter().map(|kind| condition(**kind, request)).collect();
        GroupName { words: words.join(", "), when: format!("{{{}}}", keys.join(", ")) }
    }
}

fn words(kind: PropertyKind, request: &impl RequestAttributes) -> String {
    match kind {
        PropertyKind::Network => own_range(request),
        PropertyKind::Fact(fact) => {
            let text = shown(request.fact(fact).unwrap_or_default().as_bytes());
            if fact == ClientFact::Asn { text } else { format!("{fact} {text}") }
        }
        PropertyKind::UserAgent => header("User-Agent", request.header("user-agent")),
        PropertyKind::AcceptLanguage => {
            header("Accept-Language", request.header("accept-language"))
        }
    }
}

fn header(name: &str, value: Option<&[u8]>) -> String {
    match value {
        Some(value) => format!("{name} '{}'", shown(value)),
        None => format!("no {name}"),
    }
}

/// A key of a condition with its value.
fn condition(kind: PropertyKind, request: &impl RequestAttributes) -> String {
    match kind {
        PropertyKind::Network => format!("ip: '{}'", own_range(request)),
        PropertyKind::Fact(fact) => {
            format!("{fact}: {}", pattern(request.fact(fact).as_deref().map(str::as_bytes)))
        }
        PropertyKind::UserAgent => {
            format!("user_agent: {}", pattern(request.header("user-agent")))
        }
        PropertyKind::AcceptLanguage => {
            format!("header: {{accept-language: {}}}", pattern(request.header("accept-language")))
        }
    }
}

fn own_range(request: &impl RequestAttributes) -> String {
    let network = own_network(request);
    let bits = if network.is_ipv4() { NETWORK_BITS.0 } else { NETWORK_BITS.1 };
    format!("{network}/{bits}")
}

/// The beginning of untrusted text in readable form.
fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let mut chars =
        text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
    let mut short: String = chars.by_ref().take(SHOWN_CHARS_MAX).collect();
    if chars.next().is_some() {
        short.push('\u{2026}');
    }
    short
}

/// A pattern in single quotes that matches the value, or the word for an absent one.
fn pattern(value: Option<&[u8]>) -> String {
    let Some(value) = value else { return ABSENT.to_owned() };
    let text = String::from_utf8_lossy(value);
    let is_word = text.eq_ignore_ascii_case(ABSENT) || text.starts_with(EXPRESSION);
    let mut pattern = String::from("'");
    for (at, c) in text.chars().enumerate() {
        let is_plain = c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric();
        match c {
            _ if at == SHOWN_CHARS_MAX => {
                pattern.push('*');
                break;
            }
            '\'' => pattern.push_str("''"),
            c if is_plain && !(is_word && at == 0) => pattern.push(c),
            _ => pattern.push('*'),
        }
    }
    pattern.push('\'');
    pattern
}

#[cfg(test)]
mod tests;
