use super::*;
use evenkeel_fuzz::fuzz;

fn found(pattern: &str, text: &str) -> Option<Vec<String>> {
    let pattern = NameRegex::new(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
    pattern.find(text).map(|parts| parts.into_iter().map(str::to_owned).collect())
}

/// Pattern, text, and the groups that are found, the whole first.
const FOUND: [(&str, &str, &[&str]); 26] = [
    ("abc", "xabcx", &["abc"]),
    ("^ratelimit\\.(.*)$", "ratelimit.a.b", &["ratelimit.a.b", "a.b"]),
    (
        r"^r\.rate_limit\.(.*)_(\d+)\.hits$",
        "r.rate_limit.a_b_12.hits",
        &["r.rate_limit.a_b_12.hits", "a_b", "12"],
    ),
    ("(a+)(a*)", "aaa", &["aaa", "aaa", ""]),
    ("(a+?)(a*)", "aaa", &["aaa", "a", "aa"]),
    ("a|ab", "ab", &["a"]),
    ("(?:ab|a)(b?)", "ab", &["ab", ""]),
    ("(a)|(b)", "b", &["b", "", "b"]),
    ("(?P<key>[^.]+)\\.(?<rest>.+)", "k.v.w", &["k.v.w", "k", "v.w"]),
    ("[a-c_-]+", "x-a_c-d", &["-a_c-"]),
    ("[]x]+", "a]x]", &["]x]"]),
    ("[^]]+", "]ab]", &["ab"]),
    (r"[\d.]{2,3}", "a1.2.3", &["1.2"]),
    (r"[^\D5]+", "5a12", &["12"]),
    (r"[\W]+", "a.-b", &[".-"]),
    ("[[:alpha:][:digit:]]+", "-a1-", &["a1"]),
    ("x{3}", "xxxx", &["xxx"]),
    ("x{2,}y", "xxxy", &["xxxy"]),
    ("x{0,2}?y", "xxy", &["xxy"]),
    ("(a*)*b", "aab", &["aab", "aa"]),
    (r"\bv\d", "av1 v2", &["v2"]),
    (r"\.\*\\", "a.*\\b", &[".*\\"]),
    ("ä.ö", "xäüö", &["äüö"]),
    ("(?i)HITS", "a.Hits", &["Hits"]),
    ("x**y", "xxy", &["xxy"]),
    ("", "any", &[""]),
];

#[test]
fn names_are_found_as_the_references_language_finds_them() {
    for (pattern, text, parts) in FOUND {
        assert_eq!(found(pattern, text).expect(pattern), parts, "{pattern} in {text}");
    }
    for (pattern, text) in [("^a$", "ab"), ("[^a]", "a"), ("a.c", "a\nc"), ("x{2}", "x")] {
        assert_eq!(found(pattern, text), None, "{pattern} in {text}");
    }
}

#[test]
fn what_is_not_read_is_refused_and_never_taken_for_something_else() {
    for (pattern, told) in [
        ("(a", "found open group without closing"),
        ("a)", "found closing ')' without matching"),
        ("[a", "no closing bracket"),
        ("[z-a]", "invalid range"),
        ("*a", "must be applied to a sub-expression"),
        ("a{3,2}", "a min bigger than its max"),
        ("a{x}", "expected decimal number"),
        ("(?y)a", "unrecognized inline flag"),
        (r"\pL", "Unicode character classes are not supported"),
        (r"\Q.\E", "unrecognized escape sequence"),
        ("a\\", "end of pattern"),
        ("[[:what:]]", "nested character classes are not supported"),
        ("[a-z&&[^b]]", "not supported"),
        ("(?=a)", "look-around is not supported"),
        (r"(a)\1", "backreferences are not supported"),
        ("((a{1000}){1000}){1000}", "exceeded size limit"),
        ("(?:(?:(?:){1000}){1000}){1000}", "exceeded size limit"),
    ] {
        let why = NameRegex::new(pattern).expect_err(pattern);
        assert!(why.contains(told), "{pattern}: {why}");
    }
    let deep = format!("{}a{}", "(".repeat(51), ")".repeat(51));
    assert!(NameRegex::new(&deep).expect_err("deep").contains("too much nesting"));
    assert!(NameRegex::new(&"a".repeat(BYTES_MAX + 1)).is_err());
    assert!(NameRegex::new("(a{1000}){5}").is_ok());
}

/// A backtracking engine would take exponential time for this pattern. Here every way is followed
/// once per character.
#[test]
fn no_name_takes_long() {
    let name = "a".repeat(2_000);
    assert_eq!(found("(a*)*(a*)*(a|a)*b", &name), None);
}

#[test]
fn fuzz_patterns() {
    fuzz().for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let (pattern, name) = text.split_once('\n').unwrap_or((&text, "ratelimit.a_b.hits"));
        if let Ok(pattern) = NameRegex::new(pattern)
            && let Some(parts) = pattern.find(&name[..name.floor_char_boundary(200)])
        {
            assert_eq!(parts.len(), pattern.groups());
            assert!(parts.iter().all(|part| name.contains(part)));
        }
    });
}
