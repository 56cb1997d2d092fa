//! Signatures of the draft's examples and of a robot made for these tests; forged, expired and
//! otherwise bad ones, each with its name; and that no bytes in these fields do harm.

use super::fields::signatures;
use super::*;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use evenkeel_config::settings::hosts::HostPattern;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_fuzz::fuzz;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::collections::HashSet;

/// The public key of RFC 9421, B.1.4, and its thumbprint.
const RFC_KEY: &str = "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs";
const RFC_THUMBPRINT: &str = "poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U";
const NOW: u64 = 1_735_689_700;

fn at(second: u64) -> Time {
    Time::ZERO.plus(Nanos::from_secs(second))
}

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        let name: HeaderName = name.parse().expect("a name");
        map.append(name, HeaderValue::from_str(value).expect("a value"));
    }
    map
}

fn request(headers: &HeaderMap) -> SignedRequest<'_> {
    SignedRequest {
        method: "GET",
        scheme: "https",
        authority: "example.com",
        path: "/path/to/resource",
        query: Some("a=b%20c&d=e+f"),
        absolute: None,
        headers,
    }
}

fn rfc_keys(directory: Option<&str>) -> RobotKeys {
    let public = URL_SAFE_NO_PAD.decode(RFC_KEY).expect("base64");
    let mut keys = RobotKeys::default();
    keys.add(3, RobotKey::new(&public).expect("a key"), directory);
    keys
}

fn base_of(request: &SignedRequest<'_>, input: &sfv::InnerList) -> String {
    let base = super::base::base(&mut super::sources::Sources::new(request), input);
    String::from_utf8(base.expect("covered")).expect("text")
}

/// A robot that signs.
struct Signer {
    pair: Ed25519KeyPair,
    keys: RobotKeys,
    key_id: String,
}

fn signer(hosts: &[&str]) -> Signer {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key");
    let key = RobotKey::new(pair.public_key().as_ref()).expect("a key");
    let hosts: Vec<_> =
        hosts.iter().map(|host| HostPattern::parse(host).expect("a pattern")).collect();
    let mut keys = RobotKeys::new(&hosts);
    let key_id = key.thumbprint().to_owned();
    keys.add(1, key, None);
    Signer { pair, keys, key_id }
}

impl Signer {
    fn terms(&self, created: u64, expires: u64, more: &str) -> String {
        let key = &self.key_id;
        format!(";created={created};expires={expires};keyid=\"{key}\"{more};tag=\"web-bot-auth\"")
    }

    /// The verdict on a request that is signed over `lines`, its components with their values.
    fn verdict(
        &self,
        lines: &[(&str, &str)],
        terms: &str,
        more: &[(&str, &str)],
    ) -> Result<Option<VerifiedRobot>, SignatureFault> {
        let components: Vec<_> = lines.iter().map(|(component, _)| *component).collect();
        let input = format!("({}){terms}", components.join(" "));
        let mut base: String =
            lines.iter().map(|(component, value)| format!("{component}: {value}\n")).collect();
        base.push_str(&format!("\"@signature-params\": {input}"));
        let signature = STANDARD.encode(self.pair.sign(base.as_bytes()));
        let mut fields = more.to_vec();
        let (input, signature) = (format!("s={input}"), format!("s=:{signature}:"));
        fields.extend([("signature-input", &*input), ("signature", &*signature)]);
        verify(&request(&headers(&fields)), &self.keys, at(NOW))
    }

    /// The verdict on a request signed for the host only.
    fn plain(&self, terms: &str) -> Result<Option<VerifiedRobot>, SignatureFault> {
        self.verdict(&[("\"@authority\"", "example.com")], terms, &[])
    }
}

const AUTHORITY: (&str, &str) = ("\"@authority\"", "example.com");

#[test]
fn a_thumbprint_is_that_of_the_rfc() {
    let key = RobotKey::new(&URL_SAFE_NO_PAD.decode(RFC_KEY).expect("base64")).expect("a key");
    assert_eq!(key.thumbprint(), RFC_THUMBPRINT);
}

/// The example of the draft with a bare string as `Signature-Agent`, which has a short lifetime.
#[test]
fn the_signature_of_the_drafts_older_example_is_valid() {
    let input = format!(
        "sig2=(\"@authority\" \"signature-agent\");created=1735689600;keyid=\"{RFC_THUMBPRINT}\"\
         ;alg=\"ed25519\";expires=1735693200;nonce=\"e8N7S2MFd/qrd6T2R3tdfAuuANngKI7LFtKYI/\
         vowzk4lAZYadIX6wW25MwG7DCT9RUKAJ0qVkU0mEeLElW1qg==\";tag=\"web-bot-auth\""
    );
    let fields = headers(&[
        ("signature-agent", "\"https://signature-agent.test\""),
        ("signature-input", &input),
        (
            "signature",
            "sig2=:jdq0SqOwHdyHr9+r5jw3iYZH6aNGKijYp/EstF4RQTQdi5N5YYKrD+mCT1HA1nZDsi6nJKuHxUi/\
             5Syp3rLWBA==:",
        ),
    ]);
    let verdict = |keys: &RobotKeys| verify(&request(&fields), keys, at(NOW));
    let robot = verdict(&rfc_keys(None)).expect("valid").expect("signed");
    assert_eq!((robot.robot, robot.expires, &*robot.key_id), (3, 1_735_693_200, RFC_THUMBPRINT));
    assert!(verdict(&rfc_keys(Some("Signature-Agent.test"))).is_ok());
    let elsewhere = verdict(&rfc_keys(Some("other.test")));
    assert_eq!(elsewhere, Err(SignatureFault::UnknownKey), "listed by another directory");
}

/// The example of the draft with a dictionary. It is good for a century, which is refused.
#[test]
fn the_signature_of_the_drafts_newer_example_fits_but_lives_too_long() {
    let input = format!(
        "sig2=(\"@authority\" \"signature-agent\";key=\"agent2\");created=1735689600;keyid=\"\
         {RFC_THUMBPRINT}\";alg=\"ed25519\";expires=4889289600;nonce=\"n9p433xm+NJ3ph3upfBIGmsuwHw\
         387YV7Q/F+6BSpGCVjYCqQw6rznNA8PVVLySrAWsv0hQtFioQb6E1YsauiA==\";tag=\"web-bot-auth\""
    );
    let fields = headers(&[
        ("signature-agent", "agent2=\"https://signature-agent.test\""),
        ("signature-input", &input),
        (
            "signature",
            "sig2=:RdNFx5Bj6au3YgAMQL/RzmUlZE8QZLIaXGRpw985hWnwPfMxT228NMk6ehRS1PSl4e8PhbNZACSanGd\
             hEwYCCg==:",
        ),
    ]);
    let verdict = verify(&request(&fields), &rfc_keys(None), at(NOW));
    assert_eq!(verdict, Err(SignatureFault::LifetimeTooLong));
    let signed = &signatures(&fields).expect("well-formed")[0];
    let base = base_of(&request(&fields), &signed.input);
    let key = RobotKey::new(&URL_SAFE_NO_PAD.decode(RFC_KEY).expect("base64")).expect("a key");
    assert!(key.key.verify_sig(base.as_bytes(), &signed.value).is_ok());
}

#[test]
fn every_component_of_a_request_can_be_signed() {
    let signer = signer(&[]);
    let lines = [
        ("\"@method\"", "GET"),
        ("\"@target-uri\"", "https://example.com/path/to/resource?a=b%20c&d=e+f"),
        ("\"@scheme\"", "https"),
        ("\"@request-target\"", "/path/to/resource?a=b%20c&d=e+f"),
        ("\"@path\"", "/path/to/resource"),
        ("\"@query\"", "?a=b%20c&d=e+f"),
        ("\"@query-param\";name=\"a\"", "b%20c"),
        ("\"@query-param\";name=\"d\"", "e%20f"),
        ("\"accept\"", "text/html, text/plain"),
        ("\"signature-agent\";key=\"x\"", "\"https://robots.test\";type=directory"),
    ];
    let more = [
        ("accept", " text/html"),
        ("accept", "text/plain "),
        ("signature-agent", "x=\"https://robots.test\";type=directory, y=\"https://other.test\""),
    ];
    let terms = signer.terms(NOW, NOW + 60, "");
    let robot = signer.verdict(&lines, &terms, &more).expect("valid").expect("signed");
    assert_eq!((robot.robot, robot.nonce), (1, None));
}

#[test]
fn a_target_is_compared_in_the_form_in_which_it_was_sent() {
    let signer = signer(&[]);
    let base = |absolute| {
        let lines = [("\"@request-target\"", ""), ("\"@authority\"", "")];
        let names: Vec<_> = lines.iter().map(|(name, _)| *name).collect();
        let fields = headers(&[
            ("signature-input", &format!("s=({}){}", names.join(" "), signer.terms(NOW, NOW, ""))),
            ("signature", "s=:AAAA:"),
        ]);
        let input = &signatures(&fields).expect("well-formed")[0].input;
        let request = SignedRequest { absolute, ..request(&fields) };
        base_of(&request, input).lines().next().expect("a line").to_owned()
    };
    let target = "/path/to/resource?a=b%20c&d=e+f";
    assert_eq!(base(None), format!("\"@request-target\": {target}"));
    let absolute = base(Some(("http", "Example.com:80")));
    assert_eq!(absolute, format!("\"@request-target\": http://Example.com:80{target}"));
}

#[test]
fn an_authority_is_compared_in_its_normal_form() {
    let fields = HeaderMap::new();
    let normal = |scheme, authority| {
        let input = sfv::InnerList::new(vec![sfv::Item::new(sfv::string_ref("@authority"))]);
        let request = SignedRequest { scheme, authority, ..request(&fields) };
        base_of(&request, &input).lines().next().expect("a line").replace("\"@authority\": ", "")
    };
    assert_eq!(normal("https", "Example.COM:443"), "example.com");
    assert_eq!(normal("http", "example.com:80"), "example.com");
    assert_eq!(normal("http", "example.com:443"), "example.com:443");
    let host = |authority| SignedRequest { authority, ..request(&fields) }.host().to_owned();
    assert_eq!((host("a.test:8080"), host("[::1]:80")), ("a.test".into(), "[::1]".into()));
}

#[test]
fn each_fault_has_its_name() {
    let signer = signer(&["example.com"]);
    let good = signer.terms(NOW, NOW + 60, "");
    assert!(signer.plain(&good).expect("valid").is_some());
    let fault = |verdict: Result<Option<VerifiedRobot>, SignatureFault>| {
        verdict.expect_err("a fault").name()
    };
    let plain = |terms: String| fault(signer.plain(&terms));
    assert_eq!(plain(signer.terms(NOW - 61, NOW - 1, "")), "expired");
    assert_eq!(plain(signer.terms(NOW + 31, NOW + 60, "")), "not_yet_valid");
    assert!(signer.plain(&signer.terms(NOW + 30, NOW + 60, "")).is_ok(), "clocks differ");
    assert_eq!(plain(signer.terms(NOW, NOW + 86_401, "")), "lifetime_too_long");
    assert!(signer.plain(&signer.terms(NOW, NOW + 86_400, "")).is_ok());
    assert_eq!(plain(good.replace("keyid=\"", "keyid=\"x")), "unknown_key");
    assert_eq!(plain(signer.terms(NOW, NOW, "")), "malformed");
    assert_eq!(plain(good.replace(";created=", ";craeted=")), "missing_component");
    assert_eq!(plain(good.replace(";keyid=", ";id=")), "missing_component");
    assert_eq!(plain(signer.terms(NOW, NOW + 60, ";alg=\"hmac-sha256\"")), "unsupported");
    assert!(signer.plain(&signer.terms(NOW, NOW + 60, ";alg=\"ed25519\"")).is_ok());
    let of =
        |lines: &[(&str, &str)], more: &[(&str, &str)]| fault(signer.verdict(lines, &good, more));
    assert_eq!(of(&[("\"@authority\"", "other.test")], &[]), "bad_signature");
    assert_eq!(of(&[("\"@path\"", "/path/to/resource")], &[]), "missing_component");
    assert_eq!(of(&[AUTHORITY, ("\"accept\"", "*/*")], &[]), "missing_component");
    assert_eq!(of(&[AUTHORITY, ("\"accept\"", "*/*")], &[("accept", "text/*")]), "bad_signature");
    assert_eq!(of(&[AUTHORITY, AUTHORITY], &[]), "malformed");
    assert_eq!(of(&[AUTHORITY, ("\"@status\"", "200")], &[]), "unsupported");
    assert_eq!(of(&[AUTHORITY, ("\"accept\";bs", "")], &[("accept", "*/*")]), "unsupported");
    assert_eq!(of(&[AUTHORITY, ("\"Accept\"", "*/*")], &[("accept", "*/*")]), "malformed");
    let agent = ("signature-agent", "s=\"https://robots.test\"");
    assert_eq!(of(&[AUTHORITY], &[agent]), "missing_component", "the agent is not signed");
    assert_eq!(of(&[AUTHORITY], &[("signature-agent", "s=(")]), "malformed");
}

/// Neither a client without a key nor one with an old signature chooses how much is read.
#[test]
fn the_request_is_read_after_all_else_is_good() {
    let signer = signer(&["example.com"]);
    let missing = [AUTHORITY, ("\"accept\"", "*/*")];
    let name = |terms: &str| signer.verdict(&missing, terms, &[]).expect_err("a fault").name();
    let good = signer.terms(NOW, NOW + 60, "");
    assert_eq!(name(&good), "missing_component");
    assert_eq!(name(&good.replace("keyid=\"", "keyid=\"x")), "unknown_key");
    assert_eq!(name(&signer.terms(NOW - 61, NOW - 1, "")), "expired");
    assert_eq!(name(&signer.terms(NOW + 31, NOW + 60, "")), "not_yet_valid");
    assert_eq!(name(&signer.terms(NOW, NOW + 86_401, "")), "lifetime_too_long");
    let elsewhere = Signer { keys: self::signer(&["other.test"]).keys, ..signer };
    let verdict = elsewhere.verdict(&missing, &good, &[]);
    assert_eq!(verdict.expect_err("a fault").name(), "wrong_authority");
}

#[test]
fn signatures_cover_a_bounded_part_of_a_request() {
    let signer = signer(&[]);
    let good = signer.terms(NOW, NOW + 60, "");
    let name = |lines: &[(&str, &str)], more: &[(&str, &str)]| {
        signer.verdict(lines, &good, more).map_or_else(SignatureFault::name, |_| "valid")
    };
    let members = |count: usize| (0..count).map(|n| format!("k{n:04}=1")).collect::<Vec<_>>();
    let (small, large) = (members(1024).join(","), members(1025).join(","));
    assert_eq!((small.len(), large.len()), (8191, 8199));
    let lines = [AUTHORITY, ("\"d\";key=\"k0001\"", "1"), ("\"d\";key=\"k0999\"", "1")];
    assert_eq!(name(&lines, &[("d", &small)]), "valid", "the field counts once");
    assert_eq!(name(&lines, &[("d", &large)]), "covers_too_much");
    assert_eq!(name(&lines[..1], &[("d", &large)]), "valid", "it is not covered");
    let text = "x".repeat(4097);
    let two = [AUTHORITY, ("\"a\"", &*text), ("\"b\"", &*text)];
    assert_eq!(name(&two[..2], &[("a", &text), ("b", &text)]), "valid");
    assert_eq!(name(&two, &[("a", &text), ("b", &text)]), "covers_too_much");
    assert_eq!(name(&two[..2], &[("a", &text), ("a", &text)]), "covers_too_much", "two lines");
}

#[test]
fn targets_that_signatures_cover_are_bounded() {
    let signer = signer(&[]);
    let verdict = |component: &str, query: &str| {
        let terms = signer.terms(NOW, NOW + 60, "");
        let fields = headers(&[
            ("signature-input", &format!("s=(\"@authority\" {component}){terms}")),
            ("signature", "s=:AAAA:"),
        ]);
        let request = SignedRequest { query: Some(query), ..request(&fields) };
        verify(&request, &signer.keys, at(NOW)).expect_err("no signature").name()
    };
    let long = format!("a=1&b=2&b=3&c%2f%20d=4&{}", "x".repeat(8192));
    for component in ["\"@path\"", "\"@query\"", "\"@request-target\"", "\"@target-uri\""] {
        assert_eq!(verdict(component, "a=1"), "bad_signature", "{component}");
        assert_eq!(verdict(component, &long), "covers_too_much", "{component}");
    }
    let parameter =
        |name: &str, query: &str| verdict(&format!("\"@query-param\";name=\"{name}\""), query);
    assert_eq!(parameter("a", &long), "covers_too_much");
    assert_eq!(parameter("a", &long[..22]), "bad_signature");
    assert_eq!(parameter("b", &long[..22]), "malformed", "it occurs twice");
    assert_eq!(parameter("c%2F%20d", &long[..22]), "bad_signature");
    assert_eq!(parameter("c%2f%20d", &long[..22]), "missing_component");
}

#[test]
fn a_signature_for_another_site_proves_nothing() {
    let signer = signer(&["*.example.net"]);
    let terms = signer.terms(NOW, NOW + 60, "");
    assert_eq!(signer.plain(&terms), Err(SignatureFault::WrongAuthority));
}

#[test]
fn a_nonce_is_used_once() {
    let signer = signer(&[]);
    let terms = signer.terms(NOW, NOW + 60, ";nonce=\"abc\"");
    let robot = signer.plain(&terms).expect("valid").expect("signed");
    let seen = SeenNonces::default();
    assert_eq!(robot.use_up(&seen, at(NOW)), Ok(()));
    assert_eq!(robot.use_up(&seen, at(NOW)), Err(SignatureFault::Replayed));
    let without = VerifiedRobot { nonce: None, ..robot };
    assert_eq!(without.use_up(&seen, at(NOW)), Ok(()));
    assert_eq!(without.use_up(&seen, at(NOW)), Ok(()), "nonces are optional");
}

#[test]
fn other_signatures_have_a_fault_of_their_own_and_bounds_hold() {
    let signer = signer(&[]);
    let verdict =
        |fields: &[(&str, &str)]| verify(&request(&headers(fields)), &signer.keys, at(NOW));
    assert_eq!(verdict(&[]), Ok(None));
    assert_eq!(verdict(&[("signature", "s=:AAAA:")]), Ok(None));
    assert_eq!(
        verdict(&[("signature-input", "s=();tag=\"other\"")]),
        Err(SignatureFault::OtherTag)
    );
    let malformed = Err(SignatureFault::Malformed);
    assert_eq!(verdict(&[("signature-input", "s=();tag=\"web-bot-auth\"")]), malformed);
    assert_eq!(verdict(&[("signature-input", "s=1;tag=\"web-bot-auth\"")]), malformed);
    assert_eq!(verdict(&[("signature-input", &"a".repeat(4097))]), malformed);
    let many: Vec<_> = (0..9).map(|n| format!("s{n}=()")).collect();
    assert_eq!(verdict(&[("signature-input", &many.join(", "))]), malformed);
    let tagged: Vec<_> = (0..3).map(|n| format!("s{n}=();tag=\"web-bot-auth\"")).collect();
    let values: Vec<_> = (0..3).map(|n| format!("s{n}=:AA==:")).collect();
    let three = [("signature-input", &*tagged.join(", ")), ("signature", &*values.join(", "))];
    assert_eq!(verdict(&three), malformed, "each costs a verification");
}

#[test]
fn one_valid_signature_of_two_is_enough() {
    let signer = signer(&[]);
    let terms = signer.terms(NOW, NOW + 60, "");
    let base =
        format!("\"@authority\": example.com\n\"@signature-params\": (\"@authority\"){terms}");
    let value = STANDARD.encode(signer.pair.sign(base.as_bytes()));
    let forged = STANDARD.encode([0; 64]);
    let fields = headers(&[
        ("signature-input", &format!("a=(\"@authority\"){terms}, b=(\"@authority\"){terms}")),
        ("signature", &format!("a=:{forged}:")),
        ("signature", &format!("b=:{value}:")),
    ]);
    assert!(verify(&request(&fields), &signer.keys, at(NOW)).expect("valid").is_some());
}

#[test]
fn key_sets_are_read_and_their_faults_told() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key");
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    let set = |keys: &str| RobotKey::read_set(format!("{{\"keys\":[{keys}]}}").as_bytes());
    let key = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"any","exp":1735689800}}"#);
    let others = r#"{"kty":"RSA","n":"AQ","e":"AQAB"}, {"kty":"OKP","crv":"X25519","x":"AA"}"#;
    let read = set(&format!("{others}, {key}")).expect("a key");
    assert_eq!(read[0].thumbprint(), signer(&[]).key_id);
    assert_eq!(read[0].expires, Some(1_735_689_800));
    assert_eq!(set(others).expect_err("none"), KeyFault::NoKey);
    let bad = set(r#"{"kty":"OKP","crv":"Ed25519","x":"AAAA"}"#);
    assert_eq!(bad.expect_err("too short"), KeyFault::BadKey(1));
    let some = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"AAAA"}}, {key}]}}"#);
    assert_eq!(RobotKey::read_directory(some.as_bytes()).expect("a set").len(), 1);
    assert!(RobotKey::read_directory(br#"{"keys":[]}"#).expect("a set").is_empty());
    assert!(RobotKey::read_directory(b"<html>").is_err());
    let test = set(&format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{RFC_KEY}"}}"#));
    assert_eq!(test.expect_err("public"), KeyFault::TestKey(1));
    assert_eq!(set(&vec!["{}"; 65].join(",")).expect_err("many"), KeyFault::TooMany);
    for text in ["", "[]", "{\"keys\":{}}", "{"] {
        assert!(matches!(RobotKey::read_set(text.as_bytes()), Err(KeyFault::NoSet(_))), "{text}");
    }
    let mut ended = RobotKeys::default();
    let mut last = read[0].clone();
    last.expires = Some(NOW - 1);
    ended.add(0, last, None);
    let signer = Signer { keys: ended, ..signer(&[]) };
    let verdict = signer.plain(&signer.terms(NOW, NOW + 60, ""));
    assert_eq!(verdict, Err(SignatureFault::UnknownKey), "the key has ended");
}

#[test]
fn names_of_faults_are_unique() {
    let names: HashSet<_> = SignatureFault::ALL.iter().map(|fault| fault.name()).collect();
    assert_eq!(names.len(), SignatureFault::ALL.len());
}

#[test]
fn fuzz_signatures() {
    let signer = signer(&[]);
    fuzz().with_type::<(Vec<u8>, Vec<u8>, u8)>().for_each(|(input, agent, shape)| {
        let mut map = HeaderMap::new();
        let mut put = |name: &'static str, value: Vec<u8>| {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                map.append(name, value);
            }
        };
        let text = String::from_utf8_lossy(input).replace('\0', "\"@authority\"");
        let terms = signer.terms(NOW, NOW + 60, "");
        let shaped = match shape % 4 {
            0 => input.clone(),
            1 => format!("s=({text}){terms}").into_bytes(),
            2 => {
                format!("s=(\"@authority\" \"signature-agent\";key=\"{text}\"){terms}").into_bytes()
            }
            _ => format!("s=(\"@authority\"){terms}{text}").into_bytes(),
        };
        put("signature-input", shaped);
        put("signature", format!("s=:{}:", STANDARD.encode(agent)).into_bytes());
        if shape & 4 != 0 {
            put("signature-agent", agent.clone());
        }
        let verdict = verify(&request(&map), &signer.keys, at(NOW));
        assert!(!matches!(verdict, Ok(Some(_))), "forged");
    });
}

#[test]
fn fuzz_key_sets() {
    fuzz().for_each(|bytes: &[u8]| {
        let _ = RobotKey::read_set(bytes);
        let text = String::from_utf8_lossy(bytes).replace(['"', '\\'], "");
        let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{text}"}}]}}"#);
        let _ = RobotKey::read_set(set.as_bytes());
        let _ = RobotKey::read_directory(set.as_bytes());
    });
}
