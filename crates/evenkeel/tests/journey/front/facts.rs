//! What the check door knows of a client beside its address: whether its headers are those of the
//! browser that it claims to be, and which robot has signed its request.

use crate::client::Client;
use crate::door::Door;
use crate::front::Front;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use std::fs;
use std::path::Path;
use std::time::SystemTime;

const CLIENT: &str = "127.2.0.1";
const AGENT: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 \
                     Firefox/140.0\r\n";
const BASICS: &str = "Accept: text/html\r\nAccept-Language: de\r\nAccept-Encoding: gzip\r\n";
const DIFFERS: &str = "  limits: [{name: no, action: deny, when: {fetch: differs}}]\n";

fn pair() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[5; 32]).expect("a key")
}

/// The lines of a proxy that denies the requests that a robot has signed.
fn denied_robot(folder: &Path) -> String {
    let x = URL_SAFE_NO_PAD.encode(pair().public_key().as_ref());
    let keys = folder.join("robot.jwks.json");
    let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#);
    fs::write(&keys, set).expect("written");
    format!(
        "  signed_for: site.test\n  robots: [{{name: robot, keys: {}}}]\n  \
         limits: [{{name: no, action: deny, when: {{bot: robot}}}}]\n",
        keys.display()
    )
}

/// The lines of a signature of the components with these values.
fn signature(components: &[(&str, &str)], more: &str) -> String {
    let x = URL_SAFE_NO_PAD.encode(pair().public_key().as_ref());
    let members = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    let print = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, members.as_bytes());
    let print = URL_SAFE_NO_PAD.encode(print);
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    let names: Vec<String> = components.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let input = format!(
        "({});created={now};expires={};keyid=\"{print}\";tag=\"web-bot-auth\"{more}",
        names.join(" "),
        now + 60
    );
    let lines = components.iter().map(|(name, value)| format!("\"{name}\": {value}\n"));
    let base = format!("{}\"@signature-params\": {input}", lines.collect::<String>());
    let value = STANDARD.encode(pair().sign(base.as_bytes()));
    format!("Signature-Input: s={input}\r\nSignature: s=:{value}:\r\n")
}

/// A request for a target at `site.test`, with these lines.
fn status(client: &mut Client, target: &str, lines: &str) -> u16 {
    client.ask(&format!("GET {target} HTTP/1.1\r\nHost: site.test\r\n{lines}\r\n")).status
}

#[test]
fn the_headers_of_a_browser_reach_evenkeel_through_fronts_that_pass_on_all() {
    for front in [Front::nginx, Front::caddy] {
        let front = front(DIFFERS);
        let mut client = front.client(CLIENT);
        assert_eq!(status(&mut client, "/page?ms=1", &format!("{AGENT}{BASICS}")), 200);
        assert_eq!(status(&mut client, "/page?ms=1", AGENT), 403);
        assert_eq!(status(&mut client, "/page?ms=1", "User-Agent: curl/8\r\n"), 200);
        // The front speaks HTTP, whatever the client says, so no Sec-Fetch is expected.
        let forged = format!("{AGENT}{BASICS}X-Original-Proto: https\r\n");
        assert_eq!(status(&mut client, "/page?ms=1", &forged), 200);
    }
}

#[test]
fn a_door_that_gets_some_headers_does_not_judge_by_them() {
    let door = Door::start(DIFFERS);
    assert_eq!(door.ask_with(CLIENT, "/check", AGENT).status, 204);
    let door = Door::start_with(", headers: all", |_| DIFFERS.to_owned());
    assert_eq!(door.ask_with(CLIENT, "/check", AGENT).status, 403);
}

#[test]
fn a_signed_robot_is_known_behind_each_front() {
    for front in [Front::nginx, Front::haproxy, Front::caddy, Front::apache] {
        let folder = tempfile::tempdir().expect("a folder");
        let front = front(&denied_robot(folder.path()));
        let mut client = front.client(CLIENT);
        let path = "/page";
        let mut ask = |target: &str, lines: &str| status(&mut client, target, lines);
        let all = [
            ("@authority", "site.test"),
            ("@method", "GET"),
            ("@path", path),
            ("@query", "?ms=1"),
            ("@target-uri", "http://site.test/page?ms=1"),
        ];
        let signed = signature(&all, "");
        assert_eq!(ask("/page?ms=1", &signed), 403, "proven");
        assert_eq!(ask("/page?ms=2", &signed), 200, "signed for another target");
        assert_eq!(ask("/page?ms=1", ""), 200);
        let forged = "X-Original-Host: site.test\r\nX-Original-URI: /page?ms=1\r\n";
        assert_eq!(ask("/page?ms=2", &format!("{signed}{forged}")), 200, "the front says what is");
        let once = signature(&all[..1], ";nonce=\"AAAA\"");
        assert_eq!([ask("/page?ms=1", &once), ask("/page?ms=1", &once)], [403, 200], "replayed");
    }
}

#[test]
fn a_door_that_is_asked_without_a_front_verifies_what_it_is_told() {
    let door = Door::start_with("", denied_robot);
    let ask = |lines: &str| door.ask_with(CLIENT, "/check", lines).status;
    let about = "X-Forwarded-Host: site.test\r\nX-Forwarded-Proto: https\r\n\
                 X-Forwarded-Uri: /a?b\r\n";
    let all = [("@authority", "site.test"), ("@target-uri", "https://site.test/a?b")];
    assert_eq!(ask(&format!("{about}{}", signature(&all, ""))), 403);
    let elsewhere = about.replace("site.test", "other.test");
    let signed = signature(&[("@authority", "other.test")], "");
    assert_eq!(ask(&format!("{elsewhere}{signed}")), 204, "not signed for this site");
    let fault = [("fault", "wrong_authority")];
    assert_eq!(door.metric("evenkeel_signature_faults_total", &fault), 1.0);
}
