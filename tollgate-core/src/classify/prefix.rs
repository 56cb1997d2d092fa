//! From a tag to the limit that counts it, and its key there.
//!
//! A tag is whatever bytes a program asks about. One limit may be named for each prefix; the
//! longest prefix that a tag begins with wins, and the empty one takes what is left. Which limits
//! there are is the caller's business; so is what happens to a tag that none of them counts.

use super::Key;
use crate::key::{KeyHasher, Seed};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The prefixes of a door's limits.
#[derive(Clone, Debug, Default)]
pub struct Prefixes {
    /// The longest first; none is empty.
    sorted: Vec<(Box<[u8]>, u8)>,
    /// Whose prefix is empty: it takes what is left.
    rest: Option<u8>,
}

impl Prefixes {
    /// Prefixes, each with the place of its limit in the door's list. Of equal ones the first
    /// counts.
    #[must_use]
    pub fn new(prefixes: impl IntoIterator<Item = (Box<[u8]>, u8)>) -> Prefixes {
        let (rest, mut sorted): (Vec<_>, Vec<_>) =
            prefixes.into_iter().partition(|(prefix, _)| prefix.is_empty());
        sorted.sort_by_key(|(prefix, _)| core::cmp::Reverse(prefix.len()));
        Prefixes { sorted, rest: rest.first().map(|(_, limit)| *limit) }
    }

    /// The place of the limit that counts `tag`; `None`: no limit does.
    #[must_use]
    pub fn limit(&self, tag: &[u8]) -> Option<u8> {
        let found = self.sorted.iter().find(|(prefix, _)| tag.starts_with(prefix));
        found.map(|(_, limit)| *limit).or(self.rest)
    }

    /// The key of `tag` under the limit that counts it.
    #[must_use]
    pub fn key(&self, tag: &[u8], seed: &Seed) -> Option<Key> {
        let limit = self.limit(tag)?;
        let mut hasher = KeyHasher::new(seed);
        hasher.part(tag);
        Some(Key { limit, hash: hasher.finish() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(all: &[&str]) -> Prefixes {
        Prefixes::new(all.iter().zip(0..).map(|(text, at)| (text.as_bytes().into(), at)))
    }

    #[test]
    fn the_longest_prefix_wins_whatever_the_order() {
        let some = prefixes(&["", "login:", "login:admin", "api"]);
        for (tag, limit) in [
            ("", 0),
            ("x", 0),
            ("login", 0),
            ("login:", 1),
            ("login:bob", 1),
            ("login:administrator", 2),
            ("apia", 3),
        ] {
            assert_eq!(some.limit(tag.as_bytes()), Some(limit), "{tag}");
        }
    }

    #[test]
    fn without_the_empty_prefix_some_tags_are_nobodys() {
        let some = prefixes(&["a"]);
        assert_eq!((some.limit(b"b"), some.limit(b"ab")), (None, Some(0)));
        assert!(some.key(b"", &Seed([1; 16])).is_none());
    }

    #[test]
    fn tags_that_differ_in_any_byte_have_keys_of_their_own() {
        let (some, seed) = (prefixes(&[""]), Seed([1; 16]));
        let keys = ["C", "C\r", " C", "c", "", "\0"].map(|tag| some.key(tag.as_bytes(), &seed));
        let distinct: alloc::collections::BTreeSet<_> = keys.iter().flatten().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}
