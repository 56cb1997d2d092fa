//! The client side of the `proxy` section: TLS, HTTP/2, and configurations that are refused.

use super::{faults, good};
use evenkeel_config::settings::tls::AcmeChallenge;
use evenkeel_config::settings::{ClientAddress, ProxySettings};
use evenkeel_core::condition::patterns::{PathPatterns, Patterns};
use evenkeel_core::condition::{Clause, Condition};
use std::path::PathBuf;

fn proxy(text: &str) -> ProxySettings {
    good(&format!("proxy: {text}")).settings.proxy.expect("open")
}

fn pair(cert: &str, key: &str) -> (PathBuf, PathBuf) {
    (cert.into(), key.into())
}

#[test]
fn tls_is_for_all_addresses_or_for_its_own() {
    let all = proxy("{listen: ['127.0.0.1:1', '127.0.0.1:2'], tls: {cert: /a, key: /b}}");
    let tls = all.tls.expect("tls");
    assert_eq!((tls.plain, all.listen.len()), (0, 2));
    assert_eq!(tls.certificates, [pair("/a", "/b")]);
    assert!(tls.clients.is_none() && tls.tls12);

    let beside = "{listen: '127.0.0.1:1', tls: {listen: '127.0.0.1:2', cert: /a, key: /b, ca: /c, \
                  min_version: 1.3, certificates: [{cert: /d, key: /e}, {cert: /f, key: /g}]}}";
    let beside = proxy(beside);
    let tls = beside.tls.expect("tls");
    assert_eq!((tls.plain, beside.listen.len()), (1, 2));
    assert_eq!(tls.certificates, [pair("/a", "/b"), pair("/d", "/e"), pair("/f", "/g")]);
    assert!(tls.clients.is_some() && !tls.tls12);

    let listed = proxy("{tls: {certificates: {cert: /d, key: /e}}, http2: false}");
    assert_eq!(listed.tls.expect("tls").certificates, [pair("/d", "/e")]);
    assert!(!listed.http2 && proxy("{}").http2);
    let bounds = proxy("{bounds: {streams: 7, connections_per_address: 8}}").bounds;
    assert_eq!((bounds.streams, bounds.connections_per_address), (7, 8));
    let told = proxy("{client_address: proxy-protocol, trusted_proxies: 10.0.0.0/8}");
    assert_eq!(told.client_address, ClientAddress::ProxyProtocol);
}

#[test]
fn an_authority_issues_the_last_certificate() {
    let front = proxy(
        "{listen: ':81', tls: {listen: ':443', cert: /a, key: /b, acme: {domains: [A.example.com, \
         b.example.com], terms_agreed: true}}}",
    );
    let tls = front.tls.expect("tls");
    let issued = "/var/lib/evenkeel/acme/a.example.com.pem";
    assert_eq!(tls.certificates, [pair("/a", "/b"), pair(issued, issued)]);
    let acme = tls.acme.expect("an authority");
    assert_eq!(acme.domains, ["a.example.com", "b.example.com"]);
    assert_eq!(acme.challenge, AcmeChallenge::Http01);
    let tls_only = "{tls: {acme: {domains: a.com, terms_agreed: true, challenge: tls-alpn-01}}}";
    let acme = proxy(tls_only).tls.expect("tls").acme.expect("without a plain listener");
    assert_eq!(acme.challenge, AcmeChallenge::TlsAlpn01);
    assert_eq!(acme.directory, "https://acme-v02.api.letsencrypt.org/directory");
    let with = |domains: &str, more: &str| {
        let text = format!(
            "proxy: {{listen: ':81', tls: {{listen: ':443', acme: {{domains: [{domains}], \
             terms_agreed: true{more}}}}}}}"
        );
        good(&text).warnings.join("\n")
    };
    assert_eq!(with("example.com", ""), "");
    let warned = with("example.com, intranet", "");
    assert!(warned.contains("`intranet` is no name of the public DNS"), "{warned}");
    assert!(with("localhost", "").contains("is no name of the public DNS"));
    assert_eq!(with("intranet", ", directory: 'https://ca.internal/dir'"), "");
}

#[test]
fn a_redirect_names_the_port_of_the_listener_or_another_one() {
    let port = |value: &str| {
        let text = format!(
            "{{listen: ':81', tls: {{listen: ':8443', cert: /a, key: /b}}, redirect_to_https: \
             {value}, redirect_except: [/healthz, '/a*']}}"
        );
        proxy(&text).redirect.map(|to| (to.port, to.except.expect("patterns").given().len()))
    };
    assert_eq!(port("true"), Some((8443, 2)));
    assert_eq!(port("443"), Some((443, 2)));
    assert_eq!(proxy("{redirect_to_https: false}").redirect, None);
}

#[test]
fn what_is_shown_of_tls_runs_the_same() {
    for text in [
        "proxy: {listen: ':1', tls: {listen: ':2', acme: {domains: [a.com, b.com], email: \
         me@a.com, terms_agreed: true, ca: /c, folder: /d, directory: 'https://ca/dir'}}}",
        "proxy: {listen: ':1', tls: {listen: ':2', cert: /a, key: /b}, redirect_to_https: true, \
         redirect_except: [/healthz]}",
        "proxy: {tls: {cert: /a, key: /b}}",
        "proxy: {listen: ':1', tls: {listen: ':2', cert: /a, key: /b, certificates: [{cert: /c, \
         key: /d}], ca: /e, client_name: a.example, min_version: 1.3}}",
    ] {
        let first = good(text);
        let second = good(&first.native);
        assert_eq!(first.settings, second.settings, "{}", first.native);
    }
}

#[test]
fn faults_of_the_front() {
    for (text, what) in [
        ("{tls: {}}", "needs `cert` and `key`"),
        (
            "{tls: {acme: {domains: a.com, terms_agreed: true}}}",
            "`acme` needs a listener without TLS",
        ),
        (
            "{tls: {acme: {domains: a.com, terms_agreed: true}}}",
            "or write `challenge: tls-alpn-01`",
        ),
        (
            "{tls: {ca: /ca, acme: {domains: a.com, terms_agreed: true, challenge: tls-alpn-01}}}",
            "`tls-alpn-01` cannot be used with the `ca` of `tls`",
        ),
        (
            "{listen: ':1', tls: {listen: ':2', acme: {domains: a.com, terms_agreed: true, \
             challenge: dns-01}}}",
            "must be one of: http-01, tls-alpn-01",
        ),
        ("{listen: ':1', tls: {listen: ':2', acme: {}}}", "`acme` needs `domains`"),
        (
            "{listen: ':1', tls: {listen: ':2', acme: {domains: a.com}}}",
            "`acme` needs `terms_agreed: true`",
        ),
        (
            "{listen: ':1', tls: {listen: ':2', acme: {domains: '*.a.com', terms_agreed: true}}}",
            "a wildcard needs a challenge over DNS",
        ),
        (
            "{listen: ':1', tls: {listen: ':2', acme: {domains: 192.0.2.1, terms_agreed: true}}}",
            "is an address; write a name",
        ),
        (
            "{listen: ':1', tls: {listen: ':2', acme: {domains: a.com, email: me, terms_agreed: \
             true, directory: http://a.com}}}",
            "`email` is `me`: write an address",
        ),
        ("{redirect_to_https: true}", "`redirect_to_https` needs addresses with TLS beside"),
        ("{tls: {cert: a, key: b}, redirect_to_https: 443}", "needs addresses with TLS beside"),
        ("{redirect_to_https: yes}", "must be true, false, or a port from 1 to 65535"),
        ("{redirect_to_https: 0}", "must be true, false, or a port"),
        ("{redirect_except: /a}", "`redirect_except` needs `redirect_to_https`"),
        (
            "{listen: ':1', tls: {listen: ':2', cert: a, key: b}, redirect_to_https: true, \
             redirect_except: a}",
            "`redirect_except` is `a`: a path begins with / or *",
        ),
        ("{tls: {cert: a}}", "`cert` needs `key`"),
        ("{tls: {key: a}}", "`key` needs `cert`"),
        ("{tls: {cert: a, key: b, certificates: [{cert: c}]}}", "a certificate needs `key`"),
        ("{tls: {cert: a, key: b, client_name: c.example}}", "needs `ca`"),
        ("{tls: {cert: a, key: b, min_version: 1.1}}", "must be one of: 1.2, 1.3"),
        ("{listen: off, tls: {cert: a, key: b}}", "needs a proxy that listens"),
        ("{listen: ':1', tls: {listen: ':1', cert: a, key: b}}", "two listeners use"),
        ("{listen: ':81', tls: {listen: ':80', cert: a, key: b}}", "is the proxy itself"),
        ("{http2: maybe}", "must be one of: true, false"),
        ("{bounds: {streams: 0}}", "must be from 1 to 10000"),
    ] {
        let told = faults(&format!("proxy: {text}"));
        assert!(told.contains(what), "{text}: {told}");
    }
}

#[test]
fn backends_are_read_in_every_form() {
    let read = proxy("{backend: [http://a, https://b, 'https://[::1]:1', unix:///run/a.sock]}");
    let shown: Vec<String> = read.backends.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["http://a:80", "https://b:443", "https://[::1]:1", "unix:///run/a.sock"]);
    let hosts: Vec<&str> = read.backends.iter().map(|backend| backend.host()).collect();
    assert_eq!(hosts[..3], ["a", "b", "::1"]);
    assert!(read.backend_tls.verify);
    let read = proxy("{backend: https://b, backend_tls: {ca: /a, server_name: c.example}}");
    let client = read.backend_tls.client;
    assert_eq!((client.ca, client.name.as_deref()), (Some("/a".into()), Some("c.example")));
    let read =
        proxy("{backend: https://b, backend_tls: {verify: false}, upgrades: [WebSocket, x]}");
    assert!(!read.backend_tls.verify);
    assert_eq!(read.upgrades, ["websocket", "x"]);
    assert_eq!(proxy("{}").upgrades, ["websocket"]);
    assert!(proxy("{upgrades: []}").upgrades.is_empty());
    let many: Vec<String> = (0..65).map(|n| format!("http://a{n}")).collect();
    for (text, what) in [
        ("{backend: unix://a}", "not a path"),
        ("{backend: 'unix:///'}", "not a path"),
        ("{backend_tls: {verify: true}}", "needs a backend with https://"),
        ("{backend: https://b, backend_tls: {verify: false, ca: a}}", "does not use `ca`"),
        ("{backend: https://b, backend_tls: {cert: a}}", "`cert` needs `key`"),
        ("{backend: https://b, backend_tls: {protocol: h2}}", "one of: auto, http1, http2"),
        ("{backend: h2c://b, backend_tls: {protocol: http2}}", "needs a backend with https://"),
        ("{backend: []}", "`backend` is an empty list"),
        ("{bounds: {backend_streams: 0}}", "must be from 1 to 10000"),
        ("{upgrades: h2c}", "are not counted"),
        ("{timeouts: {tunnel: 2d}}", "must be from"),
        (&format!("{{backend: [{}]}}", many.join(", ")), "more than 64 backends"),
    ] {
        let told = faults(&format!("proxy: {text}"));
        assert!(told.contains(what), "{text}: {told}");
    }
}

#[test]
fn conditions_are_kept_in_the_form_that_is_compared() {
    let when = |when: &str| format!("{{limits: [{{name: a, by: all, share: 1%, when: {when}}}]}}");
    let paths = "[//a/./x/../b/, '/caf%c3%a9', /é, '/a%2fb', /]";
    let read = proxy(&when(&format!("{{path: {paths}, vhost: [WWW.example.com., '[::1]']}}")));
    let paths = ["/a/b", "/caf%C3%A9", "/%C3%A9", "/a/b", "/"];
    let hosts = Patterns::new(["www.example.com", "[::1]"]).expect("patterns");
    let expected = Condition::from(Clause::Vhost(hosts))
        .and(Clause::Path(PathPatterns::new(paths).expect("paths")));
    assert_eq!(read.limits[0].when, expected);
    for (path, told) in [
        ("/a;b=c", "a path is compared without `;parameters`"),
        ("/a/%2e%2e/b", "a path has no encoded `..`"),
        ("/a?b", "a path begins with / and has no query"),
    ] {
        let told_of = faults(&format!("proxy: {}", when(&format!("{{path: '{path}'}}"))));
        assert!(told_of.contains(told), "{told_of}");
    }
}

#[test]
fn a_door_for_envoy_without_an_address_is_an_error() {
    for door in ["ext_proc", "ext_authz"] {
        let with = |listen: &str| format!("{door}: {{listen: {listen}}}\nproxy: {{listen: off}}\n");
        good(&with("127.0.0.1:9002"));
        let told = faults(&with("[]"));
        assert!(told.contains(&format!("`{door}.listen` has no address")), "{told}");
    }
}

#[test]
fn backends_that_are_named_to_envoy_need_numeric_addresses() {
    let with =
        |backend: &str| format!("ext_proc: {{endpoint: true}}\nproxy:\n  listen: off\n{backend}");
    let door = |text: &str| good(text).settings.ext_proc.expect("a door").endpoint;
    assert!(!door("ext_proc: {}"));
    assert!(door(&with("  backend: http://10.0.0.1:8000\n")));
    assert!(door(&with("  backend: ['http://[2001:db8::1]:8000', 'https://10.0.0.2']\n")));
    let told = faults(&with("  backend: ['http://10.0.0.1:8000', 'http://models:8000']\n"));
    assert!(told.contains("t.yaml:4:37: http://models:8000 cannot be named to Envoy"), "{told}");
    let told = faults(&with("  backend: unix:///run/models\n"));
    assert!(told.contains("t.yaml:4:12: unix:///run/models cannot be named"), "{told}");
    let told = faults(&with(""));
    assert!(told.contains("t.yaml:1:22: `ext_proc.endpoint` needs the backends"), "{told}");
}
