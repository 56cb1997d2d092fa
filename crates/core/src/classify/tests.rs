//! Tests the keys and conditions of requests, and their readable names. `tests/fuzz.rs` checks that
//! arbitrary input causes no panic.

use super::*;
use crate::bucket::Algorithm;
use crate::bucket::fixed::FixedWindow;
use crate::condition::patterns::{PathPatterns, Patterns};
use crate::condition::{AddressSet, Clause, Group, Values};
use crate::limit::LimitUnit;
use crate::units::Weight;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

const SEED: KeySeed = KeySeed([7; 16]);

#[derive(Clone)]
struct Request {
    address: &'static str,
    method: &'static str,
    path: &'static str,
    vhost: &'static str,
    headers: Vec<(&'static str, &'static str)>,
}

impl RequestAttributes for Request {
    fn address(&self) -> IpAddr {
        self.address.parse().expect("an address")
    }

    fn method(&self) -> &str {
        self.method
    }

    fn path(&self) -> &str {
        self.path
    }

    fn vhost(&self) -> &str {
        self.vhost
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(header, _)| *header == name);
        found.map(|(_, value)| value.as_bytes())
    }
}

fn request() -> Request {
    Request {
        address: "192.0.2.77",
        method: "GET",
        path: "/shop/cart",
        vhost: "Example.org",
        headers: vec![("user-agent", "Browser/1"), ("cookie", "a=1; session=s3cret;b=2")],
    }
}

fn limit(by: Vec<KeyPart>) -> Limit {
    Limit {
        name: "a limit".into(),
        by,
        when: Condition::default(),
        unit: LimitUnit::Hits,
        algorithm: Algorithm::Fixed(FixedWindow::new(1, 1).expect("a window")),
        action: None,
        weight: Weight::ONE,
        keys_max: 1,
        shadow: false,
    }
}

/// Whether two requests share a bucket.
fn together(part: KeyPart, a: &Request, b: &Request) -> bool {
    let limit = limit(vec![part]);
    hash(&limit, &SEED, a) == hash(&limit, &SEED, b)
}

fn named(part: KeyPart, request: &Request) -> String {
    name(&[part], request, KeyHash::from_bits(0xab_cdef))
}

fn path(path: &'static str) -> Request {
    Request { path, ..request() }
}

fn from(address: &'static str) -> Request {
    Request { address, ..request() }
}

fn header(name: &'static str, value: &'static str) -> Request {
    Request { headers: vec![(name, value)], ..request() }
}

#[test]
fn t9_networks_share_what_their_addresses_do_not() {
    let (one, neighbour) = (from("1.2.3.4"), from("1.2.3.5"));
    let ip = |v4, v6| KeyPart::Ip { v4, v6 };
    assert!(!together(ip(32, 64), &one, &neighbour));
    assert!(together(ip(24, 48), &one, &neighbour));
    assert!(!together(ip(24, 48), &one, &from("1.2.4.4")));
    assert!(together(ip(16, 32), &one, &from("1.2.4.4")));
    assert!(together(ip(32, 64), &from("2001:db8::1"), &from("2001:db8::2:1")));
    assert!(!together(ip(32, 64), &from("2001:db8::1"), &from("2001:db8:0:1::1")));
    assert!(together(ip(32, 64), &one, &from("::ffff:1.2.3.4")));
}

#[test]
fn a_host_without_a_confirmed_name_is_its_address() {
    assert!(!together(KeyPart::Host, &from("2001:db8::1"), &from("2001:db8::2")));
    assert_eq!(named(KeyPart::Host, &from("2001:db8::1")), "2001:db8::1");
}

#[test]
fn an_absent_header_counts_as_an_empty_one() {
    let absent = Request { headers: vec![], ..request() };
    for (part, empty, other) in [
        (KeyPart::UserAgent, header("user-agent", ""), header("user-agent", "x")),
        (KeyPart::Header("x-key".into()), header("x-key", ""), header("x-key", "x")),
        (KeyPart::Cookie("session".into()), header("cookie", "session="), request()),
    ] {
        assert!(together(part.clone(), &absent, &empty), "{part:?}");
        assert!(!together(part.clone(), &absent, &other), "{part:?}");
    }
}

#[test]
fn a_cookie_is_found_among_others_and_by_its_whole_name() {
    let session = |value| header("cookie", value);
    let part = || KeyPart::Cookie("session".into());
    assert!(together(part(), &request(), &session("session=s3cret")));
    assert!(together(part(), &request(), &session("xsession=no;\t session=s3cret ")));
    assert!(!together(part(), &request(), &session("Session=s3cret")));
    assert!(!together(part(), &request(), &session("xsession=s3cret")));
    assert!(together(part(), &session("session=a=b"), &session("session=a=b; c=d")));
    assert!(!together(part(), &session("session=a=b"), &session("session=a")));
}

#[test]
fn hosts_are_one_in_any_case_and_methods_are_not() {
    let vhost = |vhost| Request { vhost, ..request() };
    assert!(together(KeyPart::Vhost, &request(), &vhost("example.ORG")));
    assert!(!together(KeyPart::Vhost, &request(), &vhost("example.net")));
    let head = Request { method: "HEAD", ..request() };
    assert!(!together(KeyPart::Method, &request(), &head));
    assert!(together(KeyPart::All, &head, &path("/elsewhere")));
}

#[test]
fn the_parts_of_a_composite_key_all_count() {
    let limit =
        limit(vec![KeyPart::Ip { v4: 24, v6: 48 }, KeyPart::Method, KeyPart::Path(Some(1))]);
    let same = Request { address: "192.0.2.1", path: "/shop/other", ..request() };
    assert_eq!(hash(&limit, &SEED, &request()), hash(&limit, &SEED, &same));
    for other in [from("192.0.3.77"), path("/"), Request { method: "POST", ..request() }] {
        assert_ne!(hash(&limit, &SEED, &request()), hash(&limit, &SEED, &other));
    }
    assert_eq!(name(&limit.by, &request(), KeyHash::from_bits(1)), "192.0.2.0/24 GET /shop");
    assert_ne!(hash(&limit, &SEED, &request()), hash(&limit, &KeySeed([8; 16]), &request()));
}

#[test]
fn paths_have_one_normal_form() {
    for (sent, normal) in [
        ("/", "/"),
        ("", "/"),
        ("login", "/login"),
        ("*", "/*"),
        ("/login", "/login"),
        ("/login/", "/login"),
        ("//login", "/login"),
        ("/%6cogin", "/login"),
        ("/./login/.", "/login"),
        ("/.well-known/x", "/.well-known/x"),
        ("/...", "/..."),
        ("/a%2fb", "/a/b"),
        ("/a\\b%5Cc", "/a/b/c"),
        ("/%2flogin%2F", "/login"),
        ("/login;a=b", "/login"),
        ("/;a=b/login;c/x;", "/login/x"),
        ("/.;a=b/login", "/login"),
        ("/a%3bb", "/a%3Bb"),
        ("/%c3%a9", "/%C3%A9"),
        ("/\u{e9}%7e", "/%C3%A9~"),
        ("/a%3Ab%40c%21", "/a:b@c!"),
        ("/%3F%23%20", "/%3F%23%20"),
        ("/%252e%252e/x", "/%252e%252e/x"),
        ("/100%", "/100%25"),
        ("/%zz/%4", "/%25zz/%254"),
        ("/%+1", "/%25+1"),
        ("/%%361", "/%2561"),
        ("/x/../login", "/.."),
        ("/..", "/.."),
        ("/x/%2e%2E/login", "/.."),
        ("/x%2f..%5clogin", "/.."),
        ("/x/..;a=b/login", "/.."),
        ("/x;a=%2flogin", "/.."),
    ] {
        assert_eq!(normal_path(sent), normal, "{sent}");
        assert_eq!(normal_path(normal), normal, "again: {sent}");
    }
    for plain in ["/", "/plain/path.html", "/plain/", "/A_(b)@c:~!$&'*+,="] {
        assert!(matches!(normal_path(plain), Cow::Borrowed(_)), "{plain}");
    }
}

#[test]
fn hosts_have_one_normal_form() {
    for (sent, name) in [
        ("", ""),
        ("shop.example", "shop.example"),
        ("shop.example:80", "shop.example"),
        ("shop.example:", "shop.example"),
        ("shop.example.", "shop.example"),
        ("shop.example.:80", "shop.example"),
        ("shop.example:0x", "shop.example"),
        ("shop.example:80:80", "shop.example"),
        ("shop.example..", "shop.example"),
        ("[::1]", "[::1]"),
        ("[::1]:80", "[::1]"),
        ("2001:db8::1", "2001:db8::1"),
        ("[", "["),
        (":80", ""),
    ] {
        assert_eq!(host_name(sent), name, "{sent}");
        let when = vhost(name);
        assert!(applies(&when, &Request { vhost: sent, ..request() }), "{sent}");
        let other = Request { vhost: name, ..request() };
        assert!(together(KeyPart::Vhost, &Request { vhost: sent, ..request() }, &other), "{sent}");
    }
}

#[test]
fn paths_are_counted_by_their_first_segments() {
    for (segments, expected) in
        [(None, "/a/b/c"), (Some(0), ""), (Some(1), "/a"), (Some(2), "/a/b"), (Some(9), "/a/b/c")]
    {
        assert_eq!(named(KeyPart::Path(segments), &path("/a//b/c/")), expected, "{segments:?}");
    }
    for part in [KeyPart::Path(None), KeyPart::Path(Some(1))] {
        for (one, other) in [
            ("/%61", "/a"),
            ("/a;1", "/a;2"),
            ("/a/", "//a"),
            ("/x/../a", "/y/../a"),
            ("/a/..%2fx", "/a/..;/y"),
        ] {
            assert!(together(part.clone(), &path(one), &path(other)), "{one} {other}");
        }
    }
    assert!(!together(KeyPart::Path(None), &path("/a"), &path("/a/b")));
}

fn patterns(of: &str) -> Patterns {
    Patterns::new([of]).expect("a pattern")
}

fn values(of: &str) -> Values {
    Values { absent: false, patterns: patterns(of) }
}

fn method(of: &str) -> Condition {
    Clause::Method(patterns(of)).into()
}

fn vhost(of: &str) -> Condition {
    Clause::Vhost(patterns(of)).into()
}

fn below(prefix: &str) -> Condition {
    Clause::Path(PathPatterns::new([prefix]).expect("a path")).into()
}

fn not(condition: Condition) -> Condition {
    Clause::Not(condition).into()
}

fn truth(when: &Condition, request: &Request) -> Truth {
    RequestReading::new(request).truth(when)
}

#[test]
fn every_part_of_a_condition_must_hold() {
    let holds = |when: Condition| applies(&when, &request());
    assert!(holds(Condition::default()));
    for (text, expected) in [("get", true), ("POST", false)] {
        assert_eq!(holds(method(text)), expected, "{text}");
    }
    // Backends differ in how they treat a method in lower case.
    let small = Request { method: "get", ..request() };
    for text in ["GET", "POST"] {
        assert_eq!(truth(&method(text), &small), Truth::Maybe, "{text}");
        assert_eq!(truth(&not(method(text)), &small), Truth::Maybe, "not {text}");
    }
    for (text, expected) in [("example.org", true), ("www.example.org", false), ("*.org", true)] {
        assert_eq!(holds(vhost(text)), expected, "{text}");
    }
    for (text, expected) in [("user-agent", true), ("x-key", false)] {
        assert_eq!(holds(Clause::has_header(text).into()), expected, "{text}");
    }
    for (text, expected) in [("session", true), ("a", true), ("c", false)] {
        assert_eq!(holds(Clause::has_cookie(text).into()), expected, "{text}");
    }
    let all = method("GET")
        .and(Clause::Vhost(patterns("example.org")))
        .and(Clause::has_header("user-agent"))
        .and(Clause::has_cookie("a"));
    assert!(holds(all.clone()));
    assert!(holds(all.clone().and(Clause::has_cookie("session"))));
    assert!(!holds(all.and(Clause::has_header("x-key"))));
    let either = Clause::Any(vec![below("/login"), below("/shop")]);
    assert!(holds(either.into()));
    assert!(!holds(Clause::Any(vec![below("/login"), method("POST")]).into()));
}

#[test]
fn a_condition_may_say_what_is_not_there() {
    let cookie = |name: &str| Condition::from(Clause::has_cookie(name));
    let request = request();
    for name in ["session", "nothing"] {
        let (there, absent) = (cookie(name), not(cookie(name)));
        assert_ne!(applies(&there, &request), applies(&absent, &request), "{name}");
    }
    let both = cookie("session").and(Clause::Method(patterns("BREW")));
    assert!(applies(&not(both), &request), "not all of it is there");
}

#[test]
fn values_addresses_and_facts_are_compared() {
    struct Full(Request);
    impl RequestAttributes for Full {
        fn address(&self) -> IpAddr {
            self.0.address()
        }
        fn method(&self) -> &str {
            self.0.method
        }
        fn path(&self) -> &str {
            self.0.path
        }
        fn vhost(&self) -> &str {
            self.0.vhost
        }
        fn header(&self, name: &str) -> Option<&[u8]> {
            self.0.header(name)
        }
        fn query(&self) -> &str {
            "diff=17&action=Edit%20it&title=a+b&empty&x=1&x=2&%64ouble=1"
        }
        fn is_listed(&self, list: &str) -> bool {
            list == "offices"
        }
        fn fact(&self, fact: ClientFact) -> Option<Cow<'_, str>> {
            (fact == ClientFact::Asn).then_some(Cow::Borrowed("AS64500"))
        }
    }
    let full = Full(request());
    let truth = |clause: Clause| RequestReading::new(&full).truth(&clause.into());
    let header = |name: &str, value| Clause::Header(name.into(), values(value));
    let query = |name: &str, value| Clause::Query(name.into(), values(value));
    let cookie = |name: &str, value| Clause::Cookie(name.into(), values(value));
    let net = |text: &str, bits| {
        Clause::Address(AddressSet::new([(text.parse().expect("an address"), bits)]))
    };
    let absent = |name: &str| Clause::Header(name.into(), Values::absent());
    for (clause, expected) in [
        (header("user-agent", "*browser*"), Truth::Yes),
        (header("user-agent", "browser"), Truth::No),
        (absent("accept-language"), Truth::Yes),
        (absent("user-agent"), Truth::No),
        (query("diff", "*"), Truth::Yes),
        (query("action", "edit it"), Truth::Yes),
        (query("title", "a b"), Truth::Yes),
        (query("empty", ""), Truth::Yes),
        (query("x", "1"), Truth::Maybe),
        (query("double", "1"), Truth::Yes),
        (query("oldid", "*"), Truth::No),
        (cookie("session", "s3cr*"), Truth::Yes),
        (cookie("session", "x"), Truth::No),
        (net("192.0.2.0", 24), Truth::Yes),
        (net("198.51.100.0", 24), Truth::No),
        (Clause::Listed(vec!["homes".into(), "offices".into()]), Truth::Yes),
        (Clause::Listed(vec!["homes".into()]), Truth::No),
        (Clause::Fact(ClientFact::Asn, values("AS64500")), Truth::Yes),
        (Clause::Fact(ClientFact::Ja4, values("*")), Truth::No),
        (Clause::Fact(ClientFact::Ja4, Values::absent()), Truth::Yes),
    ] {
        assert_eq!(truth(clause.clone()), expected, "{clause:?}");
    }
}

#[test]
fn groups_hold_as_their_conditions_do_however_they_are_nested() {
    let group = |index: u8, condition| {
        let name = "a group".into();
        Clause::Group(Arc::new(Group::new(name, index, condition).expect("small")))
    };
    let inner = group(1, below("/shop"));
    let outer = group(0, Condition::from(inner.clone()).and(Clause::has_cookie("session")));
    let all = Condition::from(outer.clone()).and(inner.clone()).and(outer.clone());
    assert_eq!(truth(&all, &request()), Truth::Yes);
    assert_eq!(truth(&all, &path("/SHOP")), Truth::Maybe);
    assert_eq!(truth(&not(all.clone()), &path("/SHOP")), Truth::Maybe);
    assert_eq!(truth(&all, &path("/other")), Truth::No);
    assert_eq!(truth(&not(all), &path("/other")), Truth::Yes);
}

#[test]
fn a_condition_on_a_path_holds_below_it_however_it_is_written() {
    for (prefix, sent, expected) in [
        ("/login", "/login", true),
        ("/login", "/login/x", true),
        ("/login/", "/login", true),
        ("/login", "/loginx", false),
        ("/login", "/x/..//%6Cogin", true),
        ("/login", "/x%2f..%2flogin", true),
        ("/login", "/%5clogin;a=b", true),
        ("/login", "/x/..;a/login", true),
        ("/login", "/x;%2flogin", true),
        ("/a/login", "/a/x//../../login", true),
        ("/login", "/x/../loginx", false),
        ("/a/login", "/login/../a", false),
        // Not resolved, as in frameworks that match the start of the path.
        ("/login", "/login/../x", true),
        ("/", "/anything", true),
        ("/", "/../x", true),
        ("/login", "/LOGIN", true),
        ("/login", "/%4cogin", true),
        ("/login", "/lo", false),
        ("/login", "/\u{e9}", false),
        ("/caf%C3%A9", "/caf\u{e9}/x", true),
        ("/a:b", "/a%3ab", true),
    ] {
        assert_eq!(applies(&below(prefix), &path(sent)), expected, "{sent} below {prefix}");
    }
}

/// A weight above 1 is an advantage. A client must not get it through a spelling that the backend
/// reads differently.
#[test]
fn a_doubtful_path_gives_no_advantage_and_takes_none_away() {
    let weighing =
        |when, times| Limit { weight: Weight::new(times), when, ..limit(vec![KeyPart::All]) };
    let limits = [weighing(below("/fast"), 4_000), weighing(below("/slow"), 500)];
    let of = |sent| {
        let keys = keys(&limits, &SEED, &RequestReading::new(&path(sent)));
        (keys.as_slice().len(), weight(&limits, &keys))
    };
    for (sent, expected) in [
        ("/fast", (1, Weight::new(4_000))),
        ("/fast/%20x/", (1, Weight::new(4_000))),
        ("/slow", (1, Weight::new(500))),
        ("/slow%2fx", (1, Weight::new(500))),
        ("/fast/../x", (1, Weight::ONE)),
        ("/fast%2fx", (1, Weight::ONE)),
        ("/fast;x", (1, Weight::ONE)),
        ("//fast", (1, Weight::ONE)),
        ("/%2e/fast", (1, Weight::ONE)),
        ("/FAST", (1, Weight::ONE)),
        ("/slow/../fast", (2, Weight::new(500))),
        ("/x", (0, Weight::ONE)),
    ] {
        assert_eq!(of(sent), expected, "{sent}");
    }
}

#[test]
fn a_cookie_is_found_on_whichever_line() {
    struct Lines(&'static [&'static str]);
    impl RequestAttributes for Lines {
        fn address(&self) -> IpAddr {
            IpAddr::from([192, 0, 2, 1])
        }
        fn method(&self) -> &'static str {
            "GET"
        }
        fn path(&self) -> &'static str {
            "/"
        }
        fn vhost(&self) -> &'static str {
            ""
        }
        fn header(&self, name: &str) -> Option<&[u8]> {
            self.0.first().filter(|_| name == "cookie").map(|line| line.as_bytes())
        }
        fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]> {
            self.0.iter().filter(move |_| name == "cookie").map(|line| line.as_bytes())
        }
    }
    let when = Clause::has_cookie("session").into();
    let by = limit(vec![KeyPart::Cookie("session".into())]);
    let one = hash(&by, &SEED, &header("cookie", "session=1"));
    for lines in [&["session=1"][..], &["a=b", "session=1"], &["", "a=b", "c; session=1"]] {
        assert!(applies(&when, &Lines(lines)), "{lines:?}");
        assert_eq!(hash(&by, &SEED, &Lines(lines)), one, "{lines:?}");
    }
    assert!(!applies(&when, &Lines(&["a=b", "c=session"])));
}

#[test]
fn keys_come_in_the_order_of_the_limits_that_apply() {
    let by = || vec![KeyPart::All];
    let posts = method("POST");
    let limits = [limit(by()), Limit { when: posts, ..limit(by()) }, limit(vec![KeyPart::Method])];
    let of = |request: &Request| -> Vec<u8> {
        keys(&limits, &SEED, &RequestReading::new(request))
            .as_slice()
            .iter()
            .map(|key| key.limit)
            .collect()
    };
    assert_eq!(of(&request()), [0, 2]);
    assert_eq!(of(&Request { method: "POST", ..request() }), [0, 1, 2]);
    assert!(keys(&[], &SEED, &RequestReading::new(&request())).as_slice().is_empty());
    let many = vec![limit(by()); LIMITS_MAX + 3];
    assert_eq!(keys(&many, &SEED, &RequestReading::new(&request())).as_slice().len(), LIMITS_MAX);
}

#[test]
fn the_weights_of_all_limits_that_apply_are_multiplied() {
    let by = || vec![KeyPart::All];
    let posts = method("POST");
    let weighing = |times| Limit { weight: Weight::new(times), ..limit(by()) };
    let limits = [weighing(4_000), Limit { when: posts, ..weighing(250) }, limit(by())];
    let of =
        |request: &Request| weight(&limits, &keys(&limits, &SEED, &RequestReading::new(request)));
    assert_eq!(of(&request()), Weight::new(4_000));
    assert_eq!(of(&Request { method: "POST", ..request() }), Weight::ONE);
    assert_eq!(weight(&[], &keys(&limits, &SEED, &RequestReading::new(&request()))), Weight::ONE);
}

#[test]
fn names_are_readable_short_and_tell_no_secret() {
    assert_eq!(named(KeyPart::Ip { v4: 32, v6: 64 }, &request()), "192.0.2.77");
    assert_eq!(named(KeyPart::Ip { v4: 24, v6: 48 }, &request()), "192.0.2.0/24");
    assert_eq!(named(KeyPart::Ip { v4: 32, v6: 64 }, &from("2001:db8::1")), "2001:db8::/64");
    assert_eq!(named(KeyPart::UserAgent, &request()), "Browser/1");
    assert_eq!(named(KeyPart::UserAgent, &header("x", "y")), "-");
    assert_eq!(named(KeyPart::Cookie("session".into()), &request()), "session#abcdef");
    assert_eq!(named(KeyPart::Header("authorization".into()), &request()), "authorization#abcdef");
    assert_eq!(named(KeyPart::All, &request()), "all");
    assert_eq!(
        named(KeyPart::UserAgent, &header("user-agent", "a\r\nb\x1b[2J"))
            .matches('\u{fffd}')
            .count(),
        3
    );
}

#[test]
fn a_name_is_cut_between_characters() {
    let long: &'static str = "ä".repeat(200).leak();
    for by in 1..=3 {
        let agent = header("user-agent", long);
        let parts = [vec![KeyPart::Method; by], vec![KeyPart::UserAgent]].concat();
        let name = name(&parts, &agent, KeyHash::from_bits(1));
        let expected = format!("{}ää", "GET ".repeat(by));
        assert!(name.starts_with(&expected) && name.len() <= NAME_BYTES_MAX, "{name}");
        assert!(name.len() > NAME_BYTES_MAX - 2, "{name}");
    }
}

#[test]
fn identifiers_are_bytes_that_no_part_can_forge() {
    let veil = |name: &str, value: &[u8]| format!("{name}#{}", value.len());
    let of = |by: &[KeyPart]| String::from_utf8(identifier(by, &request(), veil)).expect("text");
    assert_eq!(of(&[KeyPart::Ip { v4: 32, v6: 64 }]), "192.0.2.77");
    assert_eq!(of(&[KeyPart::Ip { v4: 24, v6: 48 }]), "192.0.2.0/24");
    let several = [
        KeyPart::Host,
        KeyPart::UserAgent,
        KeyPart::Method,
        KeyPart::Path(Some(1)),
        KeyPart::Vhost,
        KeyPart::All,
    ];
    assert_eq!(of(&several), "192.0.2.77\0Browser/1\0GET\0/shop\0example.org\0");
    let secrets = [KeyPart::Cookie("session".into()), KeyPart::Header("cookie".into())];
    assert_eq!(of(&secrets), "session#6\0cookie#23");
    assert_eq!(
        of(&[KeyPart::Cookie("none".into()), KeyPart::Header("authorization".into())]),
        "\0"
    );
}

#[test]
fn a_parameter_counts_as_each_backend_names_it() {
    struct Asked(&'static str);
    impl RequestAttributes for Asked {
        fn address(&self) -> IpAddr {
            IpAddr::from([192, 0, 2, 1])
        }
        fn method(&self) -> &'static str {
            "GET"
        }
        fn path(&self) -> &'static str {
            "/"
        }
        fn vhost(&self) -> &'static str {
            ""
        }
        fn header(&self, _: &str) -> Option<&[u8]> {
            None
        }
        fn query(&self) -> &str {
            self.0
        }
    }
    let truth = |sent: &'static str, name: &str, values: Values| {
        RequestReading::new(&Asked(sent)).truth(&Clause::Query(name.into(), values).into())
    };
    for (sent, name, expected) in [
        ("diff=2", "diff", Truth::Yes),
        ("diff[]=2", "diff", Truth::Maybe),
        ("diff%5ba%5d[]=2", "diff", Truth::Maybe),
        ("+diff=2", "diff", Truth::Maybe),
        ("%20%20Diff", "diff", Truth::Maybe),
        ("x=1&diff[]=2&diff=1", "diff", Truth::Yes),
        ("diff[]=2", "diff[]", Truth::Yes),
        ("my.page=2", "my_page", Truth::Maybe),
        ("my+page=2", "my_page", Truth::Maybe),
        ("my.page=2", "my.page", Truth::Yes),
        ("diff%00x=2", "diff", Truth::Maybe),
        ("different=2", "diff", Truth::No),
        ("[diff]=2", "diff", Truth::No),
        ("diff+=2", "diff", Truth::No),
    ] {
        assert_eq!(truth(sent, name, Values::present()), expected, "{sent} as {name}");
        let absent = truth(sent, name, Values::absent());
        assert_eq!(absent, expected.not(), "{sent} without {name}");
    }
    let two = || Values { absent: false, patterns: Patterns::new(["2"]).expect("patterns") };
    assert_eq!(truth("diff[]=2", "diff", two()), Truth::Maybe);
    assert_eq!(truth("diff=1&diff[]=2", "diff", two()), Truth::Maybe);
    assert_eq!(truth("diff=2&diff[]=1", "diff", two()), Truth::Maybe);
    assert_eq!(truth("diff[]=1", "diff", two()), Truth::No);
}
