//! Which facts prove a robot, and the effect of a change of its files.

use super::*;
use crate::networks::LIST_BYTES_MAX;
use crate::signature::{RobotKey, SignedRequest};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use evenkeel_config::settings::RobotSettings;
use evenkeel_config::settings::hosts::HostPattern;
use evenkeel_config::settings::robots::Robot;
use evenkeel_core::units::Nanos;
use evenkeel_telemetry::registry::Registry;
use http::{HeaderMap, HeaderValue};
use std::fs;
use std::path::{Path, PathBuf};

const SECOND: u64 = 1_800_000_000;

fn now() -> Time {
    Time::ZERO.plus(Nanos::from_secs(SECOND))
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn robot(name: &str, agent: &[&str]) -> Robot {
    Robot {
        name: name.into(),
        user_agent: Patterns::new(agent).expect("patterns"),
        host: Vec::new(),
        ip_file: Vec::new(),
        keys: None,
        directory: None,
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("written");
    path
}

fn pair() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key")
}

fn key_set() -> String {
    key_set_of(&pair())
}

fn key_set_of(pair: &Ed25519KeyPair) -> String {
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#)
}

/// `list` by address, `named` by host, `signer` by key, and `fetched` by keys of a directory.
fn settings(folder: &Path) -> RobotSettings {
    let list = write(folder, "list", "192.0.2.0/24\n");
    let keys = write(folder, "keys", &key_set());
    let host = vec![HostPattern::parse("*.bot.test").expect("a pattern")];
    RobotSettings {
        list: vec![
            Robot { ip_file: vec![list], ..robot("list", &["*ListBot*", "list/1"]) },
            Robot { host, ..robot("named", &["*NamedBot*"]) },
            Robot { keys: Some(keys), ..robot("signer", &["*SignBot*"]) },
            Robot { directory: Some("keys.test".into()), ..robot("fetched", &["*FetchBot*"]) },
        ],
        signed_for: vec![HostPattern::parse("site.test").expect("a pattern")],
    }
}

fn load(settings: &RobotSettings, registry: &Registry) -> LiveRobots {
    LiveRobots::load(settings, registry, None).expect("good files")
}

/// The result for a request while the name of its host is not known.
fn standing<'a>(robots: &'a Robots, agent: &str, client: &str) -> RobotStanding<'a> {
    robots.standing(None, Some(agent.as_bytes()), ip(client), now(), || None)
}

#[test]
fn an_address_proves_only_what_is_claimed() {
    let folder = tempfile::tempdir().expect("a folder");
    let live = load(&settings(folder.path()), &Registry::default());
    let robots = live.robots();
    let is = |agent, client| standing(&robots, agent, client);
    assert_eq!(is("x ListBot/2", "192.0.2.7"), RobotStanding::Proven("list"));
    assert_eq!(is("LIST/1", "192.0.2.7"), RobotStanding::Proven("list"));
    assert_eq!(is("x listbot/2", "198.51.100.7"), RobotStanding::Impostor("list"));
    assert_eq!(is("Mozilla/5.0", "192.0.2.7"), RobotStanding::None);
    assert_eq!(robots.standing(None, None, ip("192.0.2.7"), now(), || None), RobotStanding::None);
    let report = &robots.reports()[0];
    assert_eq!((report.proven, report.impostors), ([0, 2, 0], 1));
    let last = Impostor { client: ip("198.51.100.7"), came: now() };
    assert_eq!((report.last_impostor, report.networks), (Some(last), 1));
    let mut all = settings(folder.path());
    all.list[0].user_agent = Patterns::default();
    let robots = load(&all, &Registry::default()).robots();
    assert_eq!(standing(&robots, "any", "192.0.2.7"), RobotStanding::Proven("list"));
    assert_eq!(standing(&robots, "any", "198.51.100.7"), RobotStanding::None);
}

#[test]
fn a_name_proves_once_it_is_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let robots = load(&settings(folder.path()), &Registry::default()).robots();
    let of = |agent: &str, known| {
        robots.standing(None, Some(agent.as_bytes()), ip("192.0.2.7"), now(), || known)
    };
    let host = |robots| {
        let mut known = HostPolicy::default();
        known.robots = robots;
        Some(known)
    };
    assert_eq!(of("NamedBot", None), RobotStanding::None, "the lookup has not ended");
    assert_eq!(of("NamedBot", host(0b10)), RobotStanding::Proven("named"));
    assert_eq!(of("NamedBot", host(0b01)), RobotStanding::Impostor("named"));
    assert_eq!(of("Mozilla/5.0", host(0b10)), RobotStanding::None);
    let unasked = robots.standing(None, Some(&b"SignBot"[..]), ip("192.0.2.7"), now(), || {
        panic!("no name is needed")
    });
    assert_eq!(unasked, RobotStanding::Impostor("signer"));
    assert_eq!(of("FetchBot", host(0)), RobotStanding::None, "its keys have not arrived");
}

/// The backend gets all lines, and may read any of them.
#[test]
fn a_claim_in_any_line_is_a_claim() {
    let folder = tempfile::tempdir().expect("a folder");
    let robots = load(&settings(folder.path()), &Registry::default()).robots();
    let of = |lines: [&'static str; 2], client| {
        robots.standing(None, lines.map(str::as_bytes), ip(client), now(), || None)
    };
    for lines in [["Mozilla", "ListBot"], ["ListBot", "Mozilla"]] {
        assert_eq!(of(lines, "203.0.113.1"), RobotStanding::Impostor("list"), "{lines:?}");
        assert_eq!(of(lines, "192.0.2.7"), RobotStanding::Proven("list"), "{lines:?}");
    }
    assert_eq!(of(["Mozilla", "curl/8"], "203.0.113.1"), RobotStanding::None);
}

fn signed(nonce: &str) -> HeaderMap {
    let key = RobotKey::new(pair().public_key().as_ref()).expect("a key");
    let input = format!(
        "(\"@authority\");created={SECOND};expires={};keyid=\"{}\";nonce=\"{nonce}\"\
         ;tag=\"web-bot-auth\"",
        SECOND + 60,
        key.thumbprint()
    );
    let base = format!("\"@authority\": site.test\n\"@signature-params\": {input}");
    let value = STANDARD.encode(pair().sign(base.as_bytes()));
    let field = |text: String| HeaderValue::from_str(&text).expect("a value");
    let mut headers = HeaderMap::new();
    headers.insert("signature-input", field(format!("s={input}")));
    headers.insert("signature", field(format!("s=:{value}:")));
    headers
}

fn signer(robots: &Robots, headers: &HeaderMap, authority: &str) -> Option<String> {
    let request = SignedRequest {
        method: "GET",
        scheme: "https",
        authority,
        path: "/",
        query: None,
        absolute: None,
        headers,
    };
    robots.signed(&request, now()).map(str::to_owned)
}

#[test]
fn a_signature_proves_from_anywhere_and_its_faults_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = Registry::default();
    let robots = load(&settings(folder.path()), &registry).robots();
    let headers = signed("one");
    assert_eq!(signer(&robots, &headers, "other.test"), None);
    assert_eq!(signer(&robots, &headers, "site.test"), Some("signer".to_owned()));
    assert_eq!(signer(&robots, &headers, "site.test"), None, "replayed");
    let counted =
        |fault| evenkeel_telemetry::counts::robots::signature_fault(&registry, fault).get();
    assert_eq!((counted("wrong_authority"), counted("replayed")), (1, 1));
    let by = |agent: &[u8]| {
        robots.standing(Some("signer"), Some(agent), ip("203.0.113.9"), now(), || None)
    };
    assert_eq!(by(b"Mozilla/5.0"), RobotStanding::Proven("signer"));
    assert_eq!(robots.reports()[2].proven, [1, 0, 0]);
}

#[test]
fn changed_files_are_applied_and_faulty_ones_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    let registry = Registry::default();
    let mut live = load(&settings, &registry);
    let headers = signed("two");
    assert!(signer(&live.robots(), &headers, "site.test").is_some());
    assert_eq!(standing(&live.robots(), "ListBot", "198.51.100.7").bot(), None);
    let mut change = |name: &str, text: &str| {
        write(folder.path(), name, text);
        (0..3).any(|_| live.look(Time::ZERO)).then(|| live.robots())
    };
    let changed = change("list", "198.51.100.0/24\n").expect("changed");
    assert_eq!(standing(&changed, "ListBot", "198.51.100.7").bot(), Some("list"));
    assert_eq!(changed.reports()[0].impostors, 1, "counts stay");
    assert_eq!(signer(&changed, &headers, "site.test"), None, "nonces stay");
    assert!(change("list", "not a network\n").is_none());
    assert!(change("keys", "{}").is_none());
    assert_eq!(standing(&live.robots(), "ListBot", "198.51.100.7").bot(), Some("list"));
    let again = LiveRobots::load(&settings, &registry, Some(&live));
    let why = again.err().expect("a faulty list").to_string();
    assert!(why.contains("list:1: "), "{why}");
    write(folder.path(), "list", "192.0.2.0/24\n");
    let why = LiveRobots::load(&settings, &registry, None).err().expect("faulty").to_string();
    assert!(why.ends_with("keys: not a JSON Web Key Set: no list `keys`"), "{why}");
}

/// A key that was stolen is replaced while a list is being downloaded, or cannot be.
#[test]
fn a_faulty_file_holds_up_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    let mut live = load(&settings, &Registry::default());
    let path = folder.path().join("list");
    let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).expect("a key");
    let other = key_set_of(&other);
    type Fault<'a> = &'a dyn Fn();
    let faults: [Fault<'_>; 4] = [
        &|| fs::remove_file(&path).expect("removed"),
        &|| fs::write(&path, "not a network\n").expect("written"),
        &|| {
            let file = fs::File::create(&path).expect("made");
            file.set_len(LIST_BYTES_MAX + 1).expect("too large");
        },
        &|| {
            fs::remove_file(&path).expect("removed");
            fs::create_dir(&path).expect("no file");
        },
    ];
    let mut follow = || (0..3).any(|_| live.look(Time::ZERO)).then(|| live.robots());
    for (number, fault) in faults.into_iter().enumerate() {
        fault();
        assert!(follow().is_none(), "fault {number} changes nothing");
        write(folder.path(), "keys", &other);
        let changed = follow().expect("other keys");
        assert_eq!(signer(&changed, &signed("three"), "site.test"), None, "fault {number}");
        assert_eq!(standing(&changed, "ListBot", "192.0.2.7").bot(), Some("list"), "{number}");
        write(folder.path(), "keys", &key_set());
        assert!(follow().is_some());
    }
    fs::remove_dir(&path).expect("removed");
    write(folder.path(), "list", "198.51.100.0/24\n");
    let changed = follow().expect("a good list");
    assert_eq!(standing(&changed, "ListBot", "198.51.100.7").bot(), Some("list"));
}

#[test]
fn keys_of_a_directory_count_for_signatures_that_name_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    let mut live = load(&settings, &Registry::default());
    let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).expect("a key");
    let key = RobotKey::new(other.public_key().as_ref()).expect("a key");
    live.learn("keys.test", vec![key.clone()]);
    let robots = live.robots();
    assert_eq!(standing(&robots, "FetchBot", "192.0.2.7"), RobotStanding::Impostor("fetched"));
    assert_eq!((robots.reports()[3].keys, robots.reports()[3].awaits_keys), (1, false));
    let by = |agent: &str| {
        let field = |text: &str| HeaderValue::from_str(text).expect("a value");
        let input = format!(
            "(\"@authority\" \"signature-agent\";key=\"s\");created={SECOND};expires={};\
             keyid=\"{}\";tag=\"web-bot-auth\"",
            SECOND + 60,
            key.thumbprint()
        );
        let base = format!(
            "\"@authority\": site.test\n\"signature-agent\";key=\"s\": \"{agent}\"\n\
             \"@signature-params\": {input}"
        );
        let value = STANDARD.encode(other.sign(base.as_bytes()));
        let mut headers = HeaderMap::new();
        headers.insert("signature-agent", field(&format!("s=\"{agent}\"")));
        headers.insert("signature-input", field(&format!("s={input}")));
        headers.insert("signature", field(&format!("s=:{value}:")));
        signer(&robots, &headers, "site.test")
    };
    assert_eq!(by("https://keys.test"), Some("fetched".to_owned()));
    assert_eq!(by("https://other.test"), None, "another host may list the same key");
    let again = LiveRobots::load(&settings, &Registry::default(), Some(&live)).expect("good files");
    assert_eq!(again.robots().reports()[3].keys, 1, "a reload keeps them");
    live.learn("keys.test", Vec::new());
    assert_eq!(live.robots().reports()[3].keys, 0, "it lists none any more");
}
