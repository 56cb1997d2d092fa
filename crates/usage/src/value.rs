//! One value of a JSON text, by its JSON pointer (RFC 6901): the key of a limit `by: json:/user`.
//!
//! The text may be cut, because only the beginning of a body is read. Only scalars are found. Of
//! members with the same name the last one counts, as in most parsers.

use crate::json::{Container, JsonScanner, JsonSink, Key};
use crate::text::ShortText;
use xxhash_rust::xxh64::Xxh64;

/// The longest value that is returned unchanged, in bytes. Of a longer string the first bytes are
/// returned with a hash of the whole, so that two long values remain different.
pub const VALUE_BYTES_MAX: usize = 256;
/// The length that a hash adds to a truncated value: `#` and 16 digits.
const HASH_BYTES: usize = 17;

/// The string, number, `true` or `false` at `pointer` in `body`, the beginning of a JSON text.
///
/// A number is returned as it is written. `None` if there is no such value, if it is `null`, an
/// object or an array, or if it is not complete in `body`. At most [`VALUE_BYTES_MAX`] bytes: of a
/// longer string the beginning and a hash of the whole.
#[must_use]
pub fn value_at(body: &[u8], pointer: &str) -> Option<String> {
    let mut finder = ValueFinder::new(pointer)?;
    JsonScanner::new().read(body, &mut finder);
    finder.found
}

/// One step of a pointer: the name of a member, and the index of an element if it is a number.
struct PointerStep {
    name: String,
    index: Option<u64>,
}

impl PointerStep {
    fn new(step: &str) -> PointerStep {
        let name = step.replace("~1", "/").replace("~0", "~");
        let index = name.parse().ok().filter(|index: &u64| index.to_string() == name);
        PointerStep { name, index }
    }
}

/// Enters only containers on the way to the value, so each report is about the next step or about
/// one of its siblings.
struct ValueFinder {
    steps: Vec<PointerStep>,
    /// The index of the next element, if the container that is being read is an array.
    index: u64,
    /// Whether the string that is being read is the value.
    is_taking: bool,
    text: ShortText<VALUE_BYTES_MAX>,
    hash: Xxh64,
    found: Option<String>,
}

/// An index that no step has: the element that was wanted has been read.
const INDEX_NONE: u64 = u64::MAX / 2;

impl ValueFinder {
    fn new(pointer: &str) -> Option<ValueFinder> {
        let steps = match pointer.strip_prefix('/') {
            Some(rest) => rest.split('/').map(PointerStep::new).collect(),
            None if pointer.is_empty() => Vec::new(),
            None => return None,
        };
        Some(ValueFinder {
            steps,
            index: 0,
            is_taking: false,
            text: ShortText::new(),
            hash: Xxh64::new(0),
            found: None,
        })
    }

    /// Counts the value that begins at `path`. Returns whether it is on the way.
    fn pass(&mut self, path: &[Key]) -> bool {
        match path {
            // What `key` returns for the next step.
            [] | [.., Key::Name] => true,
            [before @ .., Key::Item] => {
                let wanted = self.steps.get(before.len()).and_then(|step| step.index);
                let index = self.index;
                self.index += 1;
                wanted == Some(index)
            }
            _ => false,
        }
    }

    /// Handles the beginning of a value. Returns whether it is the wanted one. If so, it replaces
    /// the value of an earlier member with the same name.
    fn begin(&mut self, path: &[Key]) -> bool {
        let is_wanted = self.pass(path) && path.len() == self.steps.len();
        if is_wanted {
            self.found = None;
        }
        is_wanted
    }

    /// The string that was read.
    fn string(&self) -> String {
        if self.text.whole().is_some() {
            return self.text.to_text();
        }
        let mut begin = self.text.to_text();
        begin.truncate(begin.floor_char_boundary(VALUE_BYTES_MAX - HASH_BYTES));
        format!("{begin}#{:016x}", self.hash.digest())
    }
}

impl JsonSink for ValueFinder {
    fn key(&mut self, path: &[Key], name: &[u8]) -> Key {
        let step = self.steps.get(path.len());
        match step.is_some_and(|step| step.name.as_bytes() == name) {
            true => Key::Name,
            false => Key::Other,
        }
    }

    fn open(&mut self, path: &[Key], kind: Container, _: u64) -> bool {
        if !self.pass(path) {
            return false;
        }
        self.found = None;
        if kind == Container::Array {
            self.index = 0;
        }
        path.len() < self.steps.len()
    }

    fn close(&mut self, _: &[Key], _: u64) {
        self.index = INDEX_NONE;
    }

    fn begin_text(&mut self, path: &[Key]) {
        self.is_taking = self.begin(path);
        if self.is_taking {
            self.text.clear();
            self.hash.reset(0);
        }
    }

    fn text(&mut self, _: &[Key], piece: &[u8]) {
        if self.is_taking {
            self.text.push(piece);
            self.hash.update(piece);
        }
    }

    fn end_text(&mut self, _: &[Key]) {
        if self.is_taking {
            self.found = Some(self.string());
        }
    }

    fn scalar(&mut self, path: &[Key], token: &[u8], _: u64) {
        if self.begin(path) && token != b"null" {
            self.found = Some(String::from_utf8_lossy(token).into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{VALUE_BYTES_MAX, value_at};

    const BODY: &str = r#"{"model":"m","us\u0065r":"\u00e9 \"x\"","n":12.50,"yes":true,"none":null,
        "list":[[1],{"a":[]},["x",{"b/c":"slash","d~e":"tilde"}],3,4],"":"empty",
        "twice":1,"twice":"two","gone":1,"gone":{},"0":"zero","cut":"begun"#;

    #[test]
    fn scalars_are_found_by_their_pointer() {
        for (pointer, value) in [
            ("/model", Some("m")),
            ("/user", Some("é \"x\"")),
            ("/n", Some("12.50")),
            ("/yes", Some("true")),
            ("/none", None),
            ("/list", None),
            ("/list/0/0", Some("1")),
            ("/list/1/a", None),
            ("/list/2/0", Some("x")),
            ("/list/2/1/b~1c", Some("slash")),
            ("/list/2/1/d~0e", Some("tilde")),
            ("/list/3", Some("3")),
            ("/list/03", None),
            ("/list/9", None),
            ("/list/-", None),
            ("/", Some("empty")),
            ("/0", Some("zero")),
            ("/twice", Some("two")),
            ("/gone", None),
            ("/cut", None),
            ("/absent", None),
            ("", None),
            ("model", None),
        ] {
            assert_eq!(value_at(BODY.as_bytes(), pointer).as_deref(), value, "{pointer}");
        }
    }

    #[test]
    fn a_number_without_an_end_is_cut() {
        assert_eq!(value_at(br#"{"a": 12"#, "/a"), None);
        assert_eq!(value_at(br#"{"a": 12,"#, "/a").as_deref(), Some("12"));
    }

    #[test]
    fn long_values_are_bounded_and_stay_different() {
        let value = |text: &str| value_at(format!("{{\"a\":\"{text}\"}}").as_bytes(), "/a");
        let long = "é".repeat(VALUE_BYTES_MAX / 2);
        assert_eq!(value(&long).as_deref(), Some(&long[..]));
        let (one, two) = (value(&format!("{long}1")), value(&format!("{long}2")));
        assert_ne!(one, two);
        let one = one.expect("a value");
        assert!(one.len() <= VALUE_BYTES_MAX && one.starts_with(&long[..200]), "{one}");
    }

    #[test]
    fn fuzz_value_at() {
        evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, String)>().for_each(|(body, pointer)| {
            for body in [&body[..], &[b"{\"a\":", &body[..]].concat()] {
                let found = value_at(body, pointer).or_else(|| value_at(body, "/a"));
                assert!(found.is_none_or(|value| value.len() <= 3 * VALUE_BYTES_MAX));
            }
        });
    }
}
