//! Maps a tag to the rule that counts it, and to its key under this rule.
//!
//! A tag is an arbitrary byte string that a program asks about. Each rule has a prefix. The longest
//! prefix of a tag wins, and the empty prefix matches every remaining tag. The caller defines what
//! a rule does, and what happens to a tag without a matching prefix.
//!
//! The prefixes are in a hash table. A lookup hashes the tag once from its start, and probes the
//! table at each length that some prefix has. So a lookup takes one probe for each different
//! length, however many prefixes there are. The empty prefix takes none.

use crate::key::{KeyHash, KeyHasher, KeySeed};
use alloc::vec::Vec;
use hashbrown::HashTable;

/// The maximum length of a prefix, in bytes.
pub const PREFIX_BYTES_MAX: usize = 256;

/// The prefixes of a door's rules.
#[derive(Clone, Debug, Default)]
pub struct PrefixTable {
    /// The rule of the empty prefix, if there is one.
    every_tag: Option<u32>,
    /// The bytes of all other prefixes, concatenated.
    bytes: Vec<u8>,
    entries: Vec<PrefixEntry>,
    /// Maps the hash of a prefix to its index in `entries`.
    index: HashTable<u32>,
    /// All lengths that occur, in ascending order without duplicates.
    lengths: Vec<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PrefixEntry {
    /// Offset of the prefix in `bytes`.
    start: u32,
    len: u16,
    /// Index of the rule in the caller's list.
    rule: u32,
}

impl PartialEq for PrefixTable {
    /// Compares only these fields; the others are derived from them.
    fn eq(&self, other: &PrefixTable) -> bool {
        self.every_tag == other.every_tag
            && self.bytes == other.bytes
            && self.entries == other.entries
    }
}

impl PrefixTable {
    /// Builds the table from prefixes, each with the index of its rule in the caller's list. Of
    /// equal prefixes the first one counts. Prefixes longer than [`PREFIX_BYTES_MAX`] bytes are
    /// ignored, and so is everything beyond 4 GiB in total.
    #[must_use]
    pub fn new<'a>(prefixes: impl IntoIterator<Item = (&'a [u8], u32)>) -> PrefixTable {
        let mut all = PrefixTable::default();
        for (prefix, rule) in prefixes {
            all.insert(prefix, rule);
        }
        all.lengths = all.entries.iter().map(|entry| entry.len).collect();
        all.lengths.sort_unstable();
        all.lengths.dedup();
        all
    }

    fn insert(&mut self, prefix: &[u8], rule: u32) {
        if prefix.is_empty() {
            self.every_tag.get_or_insert(rule);
            return;
        }
        let PrefixTable { bytes, entries, index, .. } = self;
        let (Ok(start), Ok(place), 0..=PREFIX_BYTES_MAX) =
            (u32::try_from(bytes.len()), u32::try_from(entries.len()), prefix.len())
        else {
            return;
        };
        let hash = spread(fold(FNV_OFFSET_BASIS, prefix));
        let is_it = |place: &u32| slice(bytes, &entries[*place as usize]) == prefix;
        if index.find(hash, is_it).is_some() {
            return;
        }
        bytes.extend_from_slice(prefix);
        entries.push(PrefixEntry { start, len: prefix.len() as u16, rule });
        let hash_of =
            |place: &u32| spread(fold(FNV_OFFSET_BASIS, slice(bytes, &entries[*place as usize])));
        index.insert_unique(hash, place, hash_of);
    }

    /// The index of the rule that counts `tag`; `None` if no prefix matches.
    #[must_use]
    pub fn find(&self, tag: &[u8]) -> Option<u32> {
        let (mut found, mut hash, mut at) = (self.every_tag, FNV_OFFSET_BASIS, 0);
        for len in self.lengths.iter().map(|len| usize::from(*len)) {
            let Some(more) = tag.get(at..len) else { break };
            hash = fold(hash, more);
            at = len;
            let is_it =
                |place: &u32| slice(&self.bytes, &self.entries[*place as usize]) == &tag[..len];
            let place = self.index.find(spread(hash), is_it);
            found = place.map(|place| self.entries[*place as usize].rule).or(found);
        }
        found
    }
}

/// Initial value of FNV-1a. With this hash, the hash of a prefix is an intermediate value of the
/// hash of a longer one. A tag crafted to collide with a prefix costs only one comparison.
const FNV_OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn fold(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Mixes a hash for the table, which uses the highest and the lowest bits. FNV leaves these bits
/// similar.
fn spread(hash: u64) -> u64 {
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn slice<'a>(bytes: &'a [u8], entry: &PrefixEntry) -> &'a [u8] {
    &bytes[entry.start as usize..][..usize::from(entry.len)]
}

/// The hash under which the bucket of a tag is stored.
#[must_use]
pub fn hash(tag: &[u8], seed: &KeySeed) -> KeyHash {
    let mut hasher = KeyHasher::new(seed);
    hasher.part(tag);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(all: &[&str]) -> PrefixTable {
        PrefixTable::new(all.iter().zip(0..).map(|(text, at)| (text.as_bytes(), at)))
    }

    #[test]
    fn the_longest_prefix_wins_whatever_the_order() {
        let some = prefixes(&["", "login:", "login:admin", "api", "login:"]);
        for (tag, rule) in [
            ("", 0),
            ("x", 0),
            ("login", 0),
            ("login:", 1),
            ("login:bob", 1),
            ("login:administrator", 2),
            ("apia", 3),
        ] {
            assert_eq!(some.find(tag.as_bytes()), Some(rule), "{tag}");
        }
    }

    #[test]
    fn without_the_empty_prefix_some_tags_have_no_rule() {
        let some = prefixes(&["a"]);
        assert_eq!((some.find(b"b"), some.find(b"ab"), some.find(b"")), (None, Some(0), None));
        assert_eq!(prefixes(&[]).find(b"a"), None);
    }

    #[test]
    fn a_hundred_thousand_prefixes_of_one_length_take_one_look() {
        let all: Vec<alloc::string::String> =
            (100_000..200_000).map(|token| alloc::format!("token-{token}:")).collect();
        let many = PrefixTable::new(all.iter().zip(0..).map(|(text, at)| (text.as_bytes(), at)));
        for (at, text) in all.iter().enumerate() {
            let tag = alloc::format!("{text}call");
            assert_eq!(many.find(tag.as_bytes()), Some(at as u32));
        }
        assert_eq!(many.lengths, ["token-100000:".len() as u16]);
    }

    #[test]
    fn tags_that_differ_in_any_byte_have_keys_of_their_own() {
        let seed = KeySeed([1; 16]);
        let keys = ["C", "C\r", " C", "c", "", "\0"].map(|tag| hash(tag.as_bytes(), &seed));
        let distinct: alloc::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}
