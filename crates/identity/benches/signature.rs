//! The cost of robots: to find that a request has no signature, to refuse a bad one, to verify a
//! good one, and to find out which robot a request claims to be.
//!
//! `cargo bench -p evenkeel-identity --bench signature`. The fastest of some rounds is shown,
//! because other work on the machine only adds time. A value is the time of one request.

#![allow(missing_docs)]

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_identity::hosts::HostPolicy;
use evenkeel_identity::robots::LiveRobots;
use evenkeel_identity::signature::{RobotKey, RobotKeys, SeenNonces, SignedRequest, verify};
use evenkeel_telemetry::registry::Registry;
use http::{HeaderMap, HeaderValue};
use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

const ROUNDS: usize = 20;
const CALLS: u32 = 500;
const NOW: u64 = 1_800_000_000;

fn measure(name: &str, mut call: impl FnMut()) {
    let round = |_| {
        let begun = Instant::now();
        (0..CALLS).for_each(|_| call());
        begun.elapsed().as_nanos() / u128::from(CALLS)
    };
    let fastest = (0..ROUNDS).map(round).min().unwrap_or_default();
    println!("{name:<48} {fastest:>6} ns");
}

/// Robots as in examples/good-robots.yaml, without files.
fn claims(now: Time) {
    let text = include_bytes!("../../../examples/good-robots.yaml");
    let config = evenkeel_config::parse("robots", text, 4.0).expect("valid");
    let mut settings = config.settings.proxy.expect("a proxy").robots;
    settings.list.iter_mut().for_each(|robot| robot.ip_file.clear());
    let live = LiveRobots::load(&settings, &Registry::default(), None).expect("no files");
    let robots = live.robots();
    let client = IpAddr::from([192, 0, 2, 7]);
    let chrome = b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
                   Chrome/140.0.0.0 Safari/537.36";
    let claim = b"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)";
    let google = Some(HostPolicy::default());
    for (name, agent) in [("14 robots, a browser", &chrome[..]), ("14 robots, an impostor", claim)]
    {
        measure(name, || {
            black_box(robots.standing(None, Some(black_box(agent)), client, now, || google));
        });
    }
}

/// What a client without a key can make this do: two signatures that cover as much as they may, and
/// fields and a query that are larger than that.
fn worst(key_id: &str, keys: &RobotKeys, now: Time) {
    let terms =
        format!(";created={NOW};expires={};keyid=\"{key_id}\";tag=\"web-bot-auth\"", NOW + 300);
    let names = |count: usize, form: &str| -> String {
        (0..31).map(|n| form.replace('#', &(count - 1 - n).to_string())).collect()
    };
    let value = |text: &str| HeaderValue::from_str(text).expect("a value");
    for count in [1_000, 7_000] {
        let query: Vec<_> = (0..count).map(|n| format!("p{n}=x")).collect();
        let members: Vec<_> = (0..count).map(|n| format!("k{n}=1")).collect();
        let (query, members) = (query.join("&"), members.join(","));
        for (what, form) in [
            ("31 members", " \"d\";key=\"k#\""),
            ("31 query parameters", " \"@query-param\";name=\"p#\""),
        ] {
            let input = format!("(\"@authority\"{}){terms}", names(count, form));
            let forged = STANDARD.encode([0; 64]);
            let mut headers = HeaderMap::new();
            headers.insert("d", value(&members));
            headers.insert("signature-input", value(&format!("a={input}, b={input}")));
            headers.insert("signature", value(&format!("a=:{forged}:, b=:{forged}:")));
            let request = SignedRequest {
                method: "GET",
                scheme: "https",
                authority: "example.com",
                path: "/",
                query: Some(&query),
                absolute: None,
                headers: &headers,
            };
            for (whose, keys) in [("a known", keys), ("an unknown", &RobotKeys::default())] {
                measure(&format!("2 x {what} of {count}, {whose} key"), || {
                    assert!(black_box(verify(&request, keys, now)).is_err());
                });
            }
        }
    }
}

fn main() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key");
    let key = RobotKey::new(pair.public_key().as_ref()).expect("a key");
    let terms = format!(
        "(\"@authority\" \"signature-agent\";key=\"sig1\");created={NOW};expires={};\
         keyid=\"{}\";alg=\"ed25519\";nonce=\"{}\";tag=\"web-bot-auth\"",
        NOW + 300,
        key.thumbprint(),
        STANDARD.encode([1; 64]),
    );
    let key_id = key.thumbprint().to_owned();
    let mut keys = RobotKeys::default();
    keys.add(0, key, None);
    let base = format!(
        "\"@authority\": example.com\n\"signature-agent\";key=\"sig1\": \"https://robots.test\"\n\
         \"@signature-params\": {terms}"
    );
    let value = |text: &str| HeaderValue::from_str(text).expect("a value");
    let mut good = HeaderMap::new();
    good.insert("user-agent", value("ExampleBot/1.0"));
    let none = good.clone();
    good.insert("signature-agent", value("sig1=\"https://robots.test\""));
    good.insert("signature-input", value(&format!("sig1={terms}")));
    let mut forged = good.clone();
    forged.insert("signature", value(&format!("sig1=:{}:", STANDARD.encode([0; 64]))));
    let signature = STANDARD.encode(pair.sign(base.as_bytes()));
    good.insert("signature", value(&format!("sig1=:{signature}:")));
    let now = Time::ZERO.plus(Nanos::from_secs(NOW));
    let request = |headers| SignedRequest {
        method: "GET",
        scheme: "https",
        authority: "example.com",
        path: "/",
        query: None,
        absolute: None,
        headers,
    };
    let (none, good, forged) = (request(&none), request(&good), request(&forged));
    measure("no signature", || assert!(black_box(verify(&none, &keys, now)) == Ok(None)));
    measure("a good signature", || assert!(black_box(verify(&good, &keys, now)).is_ok()));
    measure("a forged signature", || assert!(black_box(verify(&forged, &keys, now)).is_err()));
    let unknown = RobotKeys::default();
    measure("an unknown key", || assert!(black_box(verify(&good, &unknown, now)).is_err()));
    worst(&key_id, &keys, now);
    claims(now);
    let seen = SeenNonces::default();
    let robot = verify(&good, &keys, now).ok().flatten().expect("valid");
    measure("look up a nonce", || {
        let _ = black_box(robot.use_up(&seen, now));
    });
}
