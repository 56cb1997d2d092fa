//! The scanner beside serde_json, on texts of all kinds, however they are cut.

use super::{Container, JsonScanner, JsonSink, Key};
use proptest::collection::{btree_map, vec};
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, proptest,
};
use proptest::{prop_oneof, sample::Index};
use serde_json::{Map, Value};

/// Rebuilds the value from the scanner's reports.
#[derive(Default)]
struct Rebuilt {
    open: Vec<Value>,
    names: Vec<String>,
    text: Vec<u8>,
    value: Option<Value>,
    /// The places of scalars, and the scalars.
    scalars: Vec<(usize, Vec<u8>)>,
    depth: usize,
}

impl Rebuilt {
    fn add(&mut self, value: Value) {
        match self.open.last_mut() {
            None => self.value = Some(value),
            Some(Value::Array(items)) => items.push(value),
            Some(Value::Object(members)) => {
                members.insert(self.names.pop().expect("a name"), value);
            }
            Some(_) => panic!("no container"),
        }
    }
}

impl JsonSink for Rebuilt {
    fn key(&mut self, path: &[Key], name: &[u8]) -> Key {
        assert_eq!(path.len() + 1, self.open.len());
        self.names.push(String::from_utf8(name.to_vec()).expect("a name"));
        Key::of(name)
    }

    fn open(&mut self, path: &[Key], kind: Container, _: u64) -> bool {
        assert_eq!(path.len(), self.open.len());
        self.depth = self.depth.max(path.len());
        self.open.push(match kind {
            Container::Object => Value::Object(Map::new()),
            Container::Array => Value::Array(Vec::new()),
        });
        true
    }

    fn close(&mut self, _: &[Key], _: u64) {
        let value = self.open.pop().expect("a container");
        self.add(value);
    }

    fn begin_text(&mut self, _: &[Key]) {
        self.text.clear();
    }

    fn text(&mut self, _: &[Key], piece: &[u8]) {
        self.text.extend(piece);
    }

    fn end_text(&mut self, _: &[Key]) {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.text)).into_owned();
        self.add(Value::String(text));
    }

    fn scalar(&mut self, _: &[Key], token: &[u8], at: u64) {
        self.scalars.push((at as usize, token.to_vec()));
        self.add(serde_json::from_slice(token).unwrap_or(Value::Null));
    }
}

/// Reads `text` in pieces that end at `cuts`. Returns what was read, and whether it is complete.
fn read(text: &[u8], cuts: &[usize]) -> (Rebuilt, bool) {
    let (mut scanner, mut sink) = (JsonScanner::new(), Rebuilt::default());
    let mut cuts: Vec<_> = cuts.iter().copied().filter(|cut| *cut <= text.len()).collect();
    cuts.sort_unstable();
    cuts.push(text.len());
    let mut begin = 0;
    for end in cuts {
        scanner.read(&text[begin..end], &mut sink);
        begin = end;
    }
    (sink, scanner.is_done())
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("usage".to_string()),
        "[a-z]{0,6}",
        "[\"\\\\/\u{0}-\u{20}é€😀a]{0,6}",
        any::<String>().prop_map(|text| text.chars().take(20).collect()),
    ]
}

fn values() -> impl Strategy<Value = Value> {
    let leaves = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        texts().prop_map(Value::from),
    ];
    leaves.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            btree_map("[a-z\u{1}\"é]{0,5}", inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Writes all characters of strings as `\u`.
fn escaped(text: &str) -> String {
    let (mut out, mut is_text, mut chars) = (String::new(), false, text.chars());
    while let Some(one) = chars.next() {
        match one {
            '"' => is_text = !is_text,
            '\\' => {
                let escape = chars.next().expect("an escape");
                out.extend(['\\', escape]);
                out.extend(chars.by_ref().take(if escape == 'u' { 4 } else { 0 }));
                continue;
            }
            one if is_text => {
                for unit in one.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04X}"));
                }
                continue;
            }
            _ => {}
        }
        out.push(one);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn values_are_read_as_serde_reads_them(
        value in vec(values(), 1..4).prop_map(Value::from),
        form in 0..3,
        cuts in vec(any::<Index>(), 0..6),
    ) {
        let text = match form {
            0 => value.to_string(),
            1 => serde_json::to_string_pretty(&value).expect("a text"),
            _ => escaped(&value.to_string()),
        };
        // Some floats are read as their neighbours.
        let value: Value = serde_json::from_str(&text).expect("JSON");
        let cuts: Vec<_> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        let (read, is_done) = read(text.as_bytes(), &cuts);
        prop_assert!(is_done);
        prop_assert_eq!(read.value, Some(value));
        for (at, token) in read.scalars {
            prop_assert_eq!(&text.as_bytes()[at..at + token.len()], &token[..]);
        }
    }

    #[test]
    fn a_beginning_is_not_complete(value in values(), cut in any::<Index>()) {
        let text = Value::from(vec![value]).to_string();
        let (_, is_done) = read(&text.as_bytes()[..cut.index(text.len())], &[]);
        prop_assert!(!is_done);
    }
}

#[test]
fn what_is_no_json_ends_the_reading() {
    for text in [
        "{",
        "}",
        "]",
        "{]",
        "[}",
        "[1 2]",
        "{\"a\" 1}",
        "{\"a\":}x",
        "{1:2}",
        "[,]",
        "[1,]",
        "{\"a\":1,}",
        "{,}",
        "[\"\\x\"]",
        "[\"\\u12g4\"]",
        "[1\"]",
        "'a'",
        "\u{1}",
    ] {
        let (_, is_done) = read(text.as_bytes(), &[]);
        assert!(!is_done, "{text}");
        assert!(serde_json::from_str::<Value>(text).is_err(), "{text}");
    }
}

#[test]
fn half_a_pair_of_surrogates_is_replaced() {
    let cases = [
        (r#"["\ud83d\ude00"]"#, "😀"),
        (r#"["\ud83d"]"#, "\u{fffd}"),
        (r#"["\ud83dx"]"#, "\u{fffd}x"),
        (r#"["\ud83d\n"]"#, "\u{fffd}\n"),
        (r#"["\ude00\ud83d\ud83d\ude00"]"#, "\u{fffd}\u{fffd}😀"),
        (r#"["\ud83dé"]"#, "\u{fffd}é"),
    ];
    for (text, read_as) in cases {
        for cut in 0..text.len() {
            let (read, _) = read(text.as_bytes(), &[cut]);
            assert_eq!(read.value, Some(serde_json::json!([read_as])), "{text} {cut}");
        }
    }
}

#[test]
fn what_is_too_deep_is_skipped() {
    let text = format!("{}\"x\"{}", "[".repeat(100_000), "]".repeat(100_000));
    let (read, is_done) = read(text.as_bytes(), &[]);
    assert!(is_done);
    assert_eq!(read.depth, super::DEPTH_MAX);
}

/// Looks into no array.
#[derive(Default)]
struct ObjectsOnly(Vec<u8>);

impl JsonSink for ObjectsOnly {
    fn open(&mut self, _: &[Key], kind: Container, _: u64) -> bool {
        kind == Container::Object
    }

    fn scalar(&mut self, _: &[Key], token: &[u8], _: u64) {
        self.0.extend(token);
    }
}

#[test]
fn what_is_not_wanted_is_skipped() {
    let text = br#"{"a":[1,{"b":2},"]\"]\\",[[]]],"c":3,"d":[],"e":4}"#;
    for cut in 0..text.len() {
        let (mut scanner, mut sink) = (JsonScanner::new(), ObjectsOnly::default());
        scanner.read(&text[..cut], &mut sink);
        scanner.read(&text[cut..], &mut sink);
        assert!(scanner.is_done());
        assert_eq!(sink.0, b"34");
    }
}

#[test]
fn fuzz_json() {
    evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, u8)>().for_each(|(bytes, cut)| {
        let bytes = [b"[{\"a\":", &bytes[..]].concat();
        let whole = read_pieces(&bytes, bytes.len());
        assert_eq!(read_pieces(&bytes, usize::from(*cut) + 1), whole);
        if let Ok(value) = serde_json::from_slice::<Value>(&bytes) {
            assert!(whole.0, "{value}");
        }
    });
}

/// Whether the text is complete, and everything that was reported.
fn read_pieces(bytes: &[u8], length: usize) -> (bool, Vec<u8>) {
    let (mut scanner, mut sink) = (JsonScanner::new(), Told::default());
    for piece in bytes.chunks(length.max(1)) {
        scanner.read(piece, &mut sink);
    }
    (scanner.is_done(), sink.0)
}

/// Records all reports, as bytes.
#[derive(Default)]
struct Told(Vec<u8>);

impl JsonSink for Told {
    fn key(&mut self, _: &[Key], name: &[u8]) -> Key {
        self.0.extend(name);
        self.0.push(b':');
        Key::of(name)
    }

    fn open(&mut self, path: &[Key], kind: Container, at: u64) -> bool {
        self.0.push(if kind == Container::Array { b'[' } else { b'{' });
        self.0.extend(at.to_le_bytes());
        path.len() < 3
    }

    fn close(&mut self, _: &[Key], at: u64) {
        self.0.push(b'}');
        self.0.extend(at.to_le_bytes());
    }

    fn begin_text(&mut self, _: &[Key]) {
        self.0.push(b'"');
    }

    fn text(&mut self, _: &[Key], piece: &[u8]) {
        self.0.extend(piece);
    }

    fn end_text(&mut self, _: &[Key]) {
        self.0.push(b'"');
    }

    fn scalar(&mut self, _: &[Key], token: &[u8], at: u64) {
        self.0.extend(token);
        self.0.extend(at.to_le_bytes());
    }
}
