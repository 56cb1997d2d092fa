//! Conditions apply however a request is spelled: if a real backend serves a spelling as the
//! limited resource, the limit has counted it.
//!
//! nginx decodes everything, merges slashes and resolves dots. The Node site reports which
//! frameworks would serve a target as `/login`; each reads targets in its own way (`readings.js`).
//! A spelling was counted if a plain request for the same resource is refused afterwards.

use crate::client::Client;
use crate::door::Door;
use crate::gate::Gate;
use crate::site::{Site, program, start_nginx};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use std::fs;
use std::process::Command;

/// Targets, most of which some backend serves as `/login`.
const TARGETS: [&str; 44] = [
    "/login",
    "/login/",
    "/login/reset",
    "/login?a=b",
    "/login?/../x",
    "//login",
    "///login",
    "/./login",
    "/login/.",
    "/x/../login",
    "/x/../../login",
    "/x//../login",
    "/%6cogin",
    "/%6Cogin",
    "/%6c%6f%67%69%6e",
    "/%2flogin",
    "/%2Flogin",
    "/.%2flogin",
    "/%2e%2flogin",
    "/x%2f..%2flogin",
    "/x/..%2flogin",
    "/x%2f../login",
    "/x/%2e%2e/login",
    "/x/.%2e/login",
    "/x%2f%2e%2e%2flogin",
    "/login%2f",
    "/login%2freset",
    "/login;a=b",
    "/login;a=b/reset",
    "/;a=b/login",
    "/.;a=b/login",
    "/x/..;a=b/login",
    "/x%2f..;a=b/login",
    "/x;a=b/..%2flogin",
    "/login/..;/x",
    "/login/../x",
    "/login/..%2fx",
    "/x;%2f../login",
    "/x//../../login",
    "/\\login",
    "/x\\..\\login",
    "/%5clogin",
    "/LOGIN",
    "http://site/%2flogin",
];

/// A limit that admits one request for each address.
fn one_for(when: &str) -> String {
    format!(
        "  limits:\n    - {{name: logins, by: ip/32, when: {{{when}}}, rate: 1/h, burst: 1, \
         action: reject}}\n"
    )
}

/// Sends each head from an address of its own. If it is served as the limited resource, a plain
/// head must be refused afterwards. Returns the heads that were served but not counted, and the
/// number of those served.
fn uncounted<'a>(
    port: u16,
    plain: &str,
    heads: impl IntoIterator<Item = &'a String>,
) -> (Vec<&'a str>, usize) {
    let (mut escaped, mut served) = (Vec::new(), 0);
    for (index, head) in heads.into_iter().enumerate() {
        let address = format!("127.9.{}.{}", index / 250, 1 + index % 250);
        let answer = Client::new(&address, port).ask(head);
        if answer.status == 200 && answer.text().contains("limited") {
            served += 1;
            let next = Client::new(&address, port).ask(plain);
            assert!([200, 429].contains(&next.status), "{next:?}");
            if next.status == 200 {
                escaped.push(head.as_str());
            }
        }
    }
    (escaped, served)
}

fn head(target: &str, host: &str, more: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n")
}

/// nginx with these servers, and Evenkeel in front of it.
fn before_nginx(site: &Site, servers: &str, when: &str) -> (Program, Gate) {
    let port = free_port();
    let http = servers.replace("PORT", &port.to_string());
    let http = format!("access_log off;\ndefault_type text/plain;\n{http}");
    let nginx = start_nginx(site.folder.path(), "readings", &http, port);
    let gate = Gate::start_with(site, "readings.yaml", |own, admin| {
        format!(
            "admin: {{listen: 127.0.0.1:{admin}}}\nproxy:\n  listen: 127.0.0.1:{own}\n  \
             backend: http://127.0.0.1:{port}\n{}",
            one_for(when)
        )
    });
    (nginx, gate)
}

#[test]
fn what_nginx_serves_below_a_path_has_been_counted() {
    let site = Site::start(1);
    let servers = "server {\nlisten 127.0.0.1:PORT;\nlocation /login { return 200 limited; }\n\
                   location / { return 200 free; }\n}\n";
    let (_nginx, gate) = before_nginx(&site, servers, "path: /login");
    let heads = TARGETS.map(|target| head(target, "site", ""));
    let (escaped, served) = uncounted(gate.port, &head("/login", "site", ""), &heads);
    assert!(served >= 25, "nginx serves more: {served}");
    assert!(escaped.is_empty(), "{escaped:#?}");
}

#[test]
fn what_a_framework_serves_below_a_path_has_been_counted() {
    let site = Site::start(1);
    let port = free_port();
    let program_text = site.folder.path().join("readings.js");
    fs::write(&program_text, include_str!("readings.js")).expect("a program");
    let mut command = Command::new(program("node"));
    command.arg(&program_text).arg(port.to_string());
    let _node = Program::listening(command, port);
    let gate = Gate::start_with(&site, "readings.yaml", |own, admin| {
        format!(
            "admin: {{listen: 127.0.0.1:{admin}}}\nproxy:\n  listen: 127.0.0.1:{own}\n  \
             backend: http://127.0.0.1:{port}\n{}",
            one_for("path: /login")
        )
    });
    let heads = TARGETS.map(|target| head(target, "site", ""));
    let (escaped, served) = uncounted(gate.port, &head("/login", "site", ""), &heads);
    assert!(served >= 35, "frameworks serve more: {served}");
    assert!(escaped.is_empty(), "{escaped:#?}");
}

#[test]
fn what_nginx_serves_for_a_host_has_been_counted() {
    let site = Site::start(1);
    let servers = "server {\nlisten 127.0.0.1:PORT default_server;\nserver_name other;\n\
                   return 200 free;\n}\n\
                   server {\nlisten 127.0.0.1:PORT;\nserver_name shop.example;\n\
                   return 200 limited;\n}\n";
    let (_nginx, gate) = before_nginx(&site, servers, "vhost: shop.example");
    let hosts = [
        "shop.example",
        "SHOP.example",
        "shop.example.",
        "shop.example.:80",
        "shop.example:80",
        "shop.example:",
        "shop.example:0x",
        "shop.example:80x",
        "shop.example:80.",
        "shop.example:80:80",
        "shop.example..",
    ];
    let mut heads: Vec<String> = hosts.iter().map(|host| head("/", host, "")).collect();
    heads.push(head("http://shop.example./", "other", ""));
    heads.push(head("http://shop.example.:80/x", "other", ""));
    let (escaped, served) = uncounted(gate.port, &head("/", "shop.example", ""), &heads);
    assert!(served >= 8, "nginx serves more: {served}");
    assert!(escaped.is_empty(), "{escaped:#?}");
    for faulty in ["shop.example:0x", "shop.example:80:80", "shop.example:80.", "[::1]x", "::1"] {
        let status = gate.client("127.9.9.9").ask(&head("/", faulty, "")).status;
        assert_eq!(status, 400, "{faulty}");
    }
}

#[test]
fn what_nginx_serves_for_a_cookie_has_been_counted() {
    let site = Site::start(1);
    let servers = "server {\nlisten 127.0.0.1:PORT;\n\
                   if ($cookie_session) { return 200 limited; }\nreturn 200 free;\n}\n";
    let (_nginx, gate) = before_nginx(&site, servers, "cookie: session");
    let heads = [
        "Cookie: session=1\r\n",
        "Cookie: a=b\r\nCookie: session=1\r\n",
        "Cookie: a=b;session=1\r\n",
        "Cookie: a=b\r\nCookie: c=d\r\nCookie: session=1; e=f\r\n",
        "Cookie:\r\nCookie: session=1\r\n",
    ];
    let heads = heads.map(|lines| head("/", "site", lines));
    let plain = head("/", "site", "Cookie: session=1\r\n");
    let (escaped, served) = uncounted(gate.port, &plain, &heads);
    assert_eq!(served, heads.len());
    assert!(escaped.is_empty(), "{escaped:#?}");
}

/// A front asks about the same requests. The tests above show what nginx would serve.
#[test]
fn the_check_door_counts_the_same_spellings() {
    let limits = "  limits:\n    \
        - {name: logins, by: ip/32, when: {path: /login}, rate: 1/h, burst: 1, \
           action: reject}\n    \
        - {name: shop, by: ip/32, when: {vhost: shop.example}, rate: 1/h, burst: 1, \
           action: reject}\n    \
        - {name: known, by: ip/32, when: {cookie: session}, rate: 1/h, burst: 1, \
           action: reject}\n";
    let door = Door::start(limits);
    let mut asked: Vec<(String, &str)> = TARGETS
        .iter()
        .map(|target| (format!("X-Original-URI: {target}\r\n"), "X-Original-URI: /login\r\n"))
        .collect();
    for uri in ["/login?a=\u{e9}", "/login/\u{e9}", "/login?a=\u{e9}/../x"] {
        asked.push((
            format!("X-Original-URI: {uri}\r\nX-Forwarded-Uri: /else\r\n"),
            "X-Original-URI: /login\r\n",
        ));
    }
    for host in ["shop.example.", "SHOP.example.:80", "shop.example:0x", "shop.example:"] {
        asked.push((format!("X-Original-Host: {host}\r\n"), "X-Original-Host: shop.example\r\n"));
    }
    asked.push(("Cookie: a=b\r\nCookie: session=1\r\n".into(), "Cookie: session=1\r\n"));
    let mut escaped = Vec::new();
    for (index, (lines, plain)) in asked.iter().enumerate() {
        let client = format!("192.0.2.{}", index + 1);
        assert_eq!(door.ask_with(&client, "/check", lines).status, 204);
        if door.ask_with(&client, "/check", plain).status == 204 {
            escaped.push(lines);
        }
    }
    assert!(escaped.is_empty(), "{escaped:#?}");
}
