//! The names of keys in the store.
//!
//! Names are readable, and no two counters have the same name: separators within parts are escaped.
//! Braces are escaped too, because they choose the node in a cluster, and clients choose the
//! values. A long name ends in a hash. With compatible keys, windows have the names that
//! envoyproxy/ratelimit gives them. These are joined without escaping, so two counters may share a
//! name, as they do there.

use aws_lc_rs::digest;
use evenkeel_core::bucket;
use evenkeel_core::windows::{CounterWindow, WindowAlgorithm, WindowLength};
use std::fmt::Write;

/// The longest name without a hash, in bytes.
const NAME_BYTES_MAX: usize = 400;

/// The rules for names.
#[derive(Clone, Debug)]
pub struct KeyNaming {
    /// The prefix of all names.
    pub prefix: String,
    /// Whether windows have the names that envoyproxy/ratelimit gives them.
    pub compatible: bool,
}

impl KeyNaming {
    /// The name of a counter of a domain's rules.
    #[must_use]
    pub fn counter<'a>(
        &self,
        domain: &str,
        algorithm: WindowAlgorithm,
        length: WindowLength,
        window: CounterWindow,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> String {
        let word = match algorithm {
            WindowAlgorithm::Fixed if self.compatible => {
                let mut name = format!("{}{domain}_", self.prefix);
                entries.for_each(|(key, value)| name.extend([key, "_", value, "_"]));
                let _ = write!(name, "{}", window.end.saturating_sub(window.seconds));
                return name;
            }
            WindowAlgorithm::Fixed => "window",
            WindowAlgorithm::Sliding => "sliding",
            WindowAlgorithm::Bucket => "bucket",
        };
        let mut name = match length {
            WindowLength::Seconds(count) => format!("{}{word}:{count}s:", self.prefix),
            WindowLength::Months(count) => format!("{}{word}:{count}mo:", self.prefix),
        };
        let head = name.len();
        escape(&mut name, domain);
        for (key, value) in entries {
            name.push(':');
            escape(&mut name, key);
            name.push('=');
            escape(&mut name, value);
        }
        shorten(&mut name, head);
        name
    }

    /// The name of a door's bucket. `id` identifies the bucket within its limit, and may be any
    /// bytes.
    #[must_use]
    pub fn account(
        &self,
        door: &str,
        algorithm: &bucket::Algorithm,
        limit: &str,
        id: &[u8],
    ) -> String {
        let word = match algorithm {
            bucket::Algorithm::Debt(_) | bucket::Algorithm::Quota(_) => "debt",
            bucket::Algorithm::Grid(_) => "grid",
            bucket::Algorithm::Sliding(_) => "sums",
            bucket::Algorithm::History(_) => "history",
            bucket::Algorithm::Fixed(_) => "fixed",
        };
        let mut name = format!("{}{word}:{door}:", self.prefix);
        escape(&mut name, limit);
        name.push(':');
        let head = name.len();
        for chunk in id.utf8_chunks() {
            // This is the last part, so separators in it need no escaping.
            escape_all(&mut name, chunk.valid(), "%#{}");
            // Bytes that are not UTF-8 are written as if escaped.
            chunk.invalid().iter().for_each(|byte| _ = write!(name, "%{byte:02X}"));
        }
        shorten(&mut name, head);
        name
    }
}

/// Replaces the part after the first `head` bytes by a hash if the name is too long.
fn shorten(name: &mut String, head: usize) {
    if name.len() > NAME_BYTES_MAX {
        let hash = digest::digest(&digest::SHA256, &name.as_bytes()[head..]);
        name.truncate(head);
        name.push('#');
        // Writing to a String cannot fail.
        hash.as_ref().iter().for_each(|byte| _ = write!(name, "{byte:02x}"));
    }
}

/// Escapes a part that is followed by others.
fn escape(name: &mut String, text: &str) {
    escape_all(name, text, "%:=#{}");
}

fn escape_all(name: &mut String, text: &str, these: &str) {
    for c in text.chars() {
        if c.is_control() || c.is_whitespace() || these.contains(c) {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                let _ = write!(name, "%{byte:02X}");
            }
        } else {
            name.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::units::Nanos;

    fn name(compatible: bool, domain: &str, entries: &[(&str, &str)]) -> String {
        let prefix = if compatible { "" } else { "evenkeel:" }.to_owned();
        let window = CounterWindow { end: 1_795_208_400, seconds: 3_600 };
        KeyNaming { prefix, compatible }.counter(
            domain,
            WindowAlgorithm::Fixed,
            WindowLength::Seconds(3_600),
            window,
            entries.iter().copied(),
        )
    }

    #[test]
    fn names_are_those_of_the_reference_where_it_is_asked_for() {
        assert_eq!(name(true, "t", &[("k", "seq")]), "t_k_seq_1795204800");
        assert_eq!(name(true, "t", &[("k", "")]), "t_k__1795204800");
        assert_eq!(name(true, "m", &[("sh", "f/*"), ("a", "b")]), "m_sh_f/*_a_b_1795204800");
    }

    #[test]
    fn no_two_buckets_have_one_name() {
        let naming = KeyNaming { prefix: "evenkeel:".to_owned(), compatible: false };
        let history = bucket::history::RequestHistory::new(3, Nanos(1)).expect("a history");
        let history = bucket::Algorithm::History(history);
        let name = |limit: &str, id: &[u8]| naming.account("master", &history, limit, id);
        assert_eq!(name("api 1", b"192.0.2.1"), "evenkeel:history:master:api%201:192.0.2.1");
        let long = [b'x'; 70_000];
        let ids: [&[u8]; 8] =
            [b"", b"%FF", b"\xff", b"\xc3\xbf", b"a:b", b"a\0b", &long[1..], &long];
        let names = ids.map(|id| name("l", id));
        for (index, one) in names.iter().enumerate() {
            assert!(one.len() <= NAME_BYTES_MAX && !one.contains(['{', '}']), "{one}");
            assert!(!names[..index].contains(one), "{one}");
        }
        assert_ne!(name("a", b"b:c"), name("a:b", b"c"));
    }

    #[test]
    fn no_two_counters_have_one_name() {
        assert_eq!(name(false, "t", &[("k", "v")]), "evenkeel:window:3600s:t:k=v");
        let names = [
            name(false, "t", &[("a", "b:c=d")]),
            name(false, "t", &[("a", "b"), ("c", "d")]),
            name(false, "t:a=b", &[("c", "d")]),
            name(false, "t", &[("a=b:c", "d")]),
            name(false, "t", &[("a", "b%3Ac%3Dd")]),
            name(false, "t", &[("a", &"x".repeat(500))]),
            name(false, "t", &[("a", &"x".repeat(501))]),
        ];
        for (index, one) in names.iter().enumerate() {
            assert!(one.len() <= NAME_BYTES_MAX && !one.contains(['{', '}']), "{one}");
            assert!(!names[..index].contains(one), "{one}");
        }
        assert!(!name(false, "t", &[("a", "{x}")]).contains(['{', '}']));
    }
}
