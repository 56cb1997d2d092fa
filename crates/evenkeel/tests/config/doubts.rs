//! Warnings about conditions and limits that are valid, but do not do what they seem to: those of a
//! start, with the place of the key, and those of `check`. Rules that do what they say cause none.

use super::conditions::limit;
use super::good;
use evenkeel_config::settings::Settings;
use evenkeel_config::{StartProblems, check};
use evenkeel_testing::evenkeel;
use std::fs;

#[test]
fn check_warns_of_an_agent_that_only_matches_as_a_whole() {
    let warned = |when: &str| {
        let text = limit(when);
        check("t.yaml", text.as_bytes(), 4.0, |_| StartProblems::default())
            .expect("good")
            .join("\n")
    };
    let told = warned("{user_agent: GPTBot}");
    assert!(
        told.contains(
            "`user_agent: GPTBot` matches only a header that is exactly this; write `*GPTBot*`"
        ),
        "{told}"
    );
    assert_eq!(warned("{user_agent: ['*GPTBot*', 'curl/8.5.0', absent]}"), "");
}

#[test]
fn a_condition_that_does_not_do_what_it_seems_to_is_a_warning_with_its_place() {
    for (text, told) in [
        ("{user_agent: /bot/i}", "is compared as text with its slashes; a regular expression is"),
        ("{ja4: chrome}", "`ja4: chrome` is no fingerprint"),
        (
            "{header: absent}",
            "one that a request does not have is written `header: {NAME: absent}`",
        ),
        ("{query: [diff, oldid]}", "write `any: [{query: diff}, {query: oldid}]`, for all of them"),
        ("{path: /a, not: {path: /a}}", "no request meets this condition: `not` has what"),
    ] {
        let config = good(&limit(text));
        let [warning] = config.warnings.as_slice() else { panic!("{text}: {config:?}") };
        assert!(warning.starts_with("t.yaml:1:") && warning.contains(told), "{text}: {warning}");
    }
    for text in [
        "{user_agent: ['/a/b', 're:/bot/i']}",
        "{ja4: [t13d1516h2_8daaf6152771_b0da82dd1658, 't13*', absent]}",
        "{header: {accept: absent, x: '*'}}",
        "{query: {diff: '*', oldid: '*'}}",
        "{path: /a, not: {path: /a/b}}",
    ] {
        assert_eq!(good(&limit(text)).warnings, [""; 0], "{text}");
    }
    let robot = "proxy: {robots: [{name: a, user_agent: Bot, host: '*.example.com'}], limits: []}";
    assert!(good(robot).warnings[0].contains("write `*Bot*`"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("groups.yaml");
    fs::write(&path, "a: {header: absent}\n").expect("written");
    let warned = good(&format!("group_files: {}\nproxy: {{limits: []}}", path.display())).warnings;
    assert!(warned[0].contains("groups.yaml:1:13: `header: absent` asks for"), "{warned:?}");
}

#[test]
fn check_warns_of_limits_that_leave_most_requests_without_one() {
    let warned = |limits: &str| {
        let text = format!("proxy: {{limits: [{limits}]}}");
        let none = |_: &_| StartProblems::default();
        check("t.yaml", text.as_bytes(), 4.0, none).expect("good").join("\n")
    };
    let deny = "{name: no, action: deny, when: {path: /x}}";
    let told = "t.yaml:1:17: all limits have a `when`, so no limit applies to any other request; \
                `limits` replaces the default limits by address (ip, net24, net16)";
    assert!(warned(deny).starts_with(told), "{}", warned(deny));
    let logins = "{name: logins, by: ip/32, rate: 1/s, when: {path: /login}}";
    assert!(warned(&format!("{deny}, {logins}")).starts_with(told));
    for general in [
        "{name: ip, by: ip/32, share: 10%}",
        "{name: ip, by: ip/32, share: 10%, when: {bot: absent}}",
        "{name: ip, by: ip/32, share: 10%, when: {not: {ip: 192.0.2.0/24}}}",
    ] {
        assert_eq!(warned(&format!("{deny}, {general}")), "", "{general}");
    }
    assert_eq!(warned(""), "");
}

#[test]
fn check_warns_of_limits_that_count_no_cpu_time() {
    let warned = |text: &str| {
        let none = |_: &_| StartProblems::default();
        check("t.yaml", text.as_bytes(), 4.0, none).expect("good").join("\n")
    };
    let of = |limits: &str| warned(&format!("proxy: {{limits: [{limits}]}}"));
    let rate = "{name: a, by: ip/32, rate: 5/m}";
    let told = of(rate);
    assert!(told.starts_with("t.yaml:1:17: no limit counts CPU time (`share`)"), "{told}");
    assert!(told.contains("write `default` as its first entry"), "{told}");
    for good in [
        format!("default, {rate}"),
        format!("{rate}, {{name: b, by: all, share: 50%}}"),
        format!("{rate}, {{name: b, by: all, window: 15s, max: 7%}}"),
        String::new(),
    ] {
        assert_eq!(of(&good), "", "{good}");
    }
    // External authorization never learns what a request has cost.
    let alone = format!("proxy: {{listen: off, limits: [{rate}]}}\next_authz: {{}}");
    assert_eq!(warned(&alone), "");
}

#[test]
fn check_warns_of_networks_with_bits_of_a_host() {
    let warned = |proxy: &str| {
        let none = |_: &_| StartProblems::default();
        let text = format!("proxy: {{{proxy}}}");
        check("t.yaml", text.as_bytes(), 4.0, none).expect("good").join("\n")
    };
    let told = "t.yaml:1:27: `192.168.1.5/24` is the network 192.168.1.0/24; write that, or \
                192.168.1.5 if you mean the address alone";
    assert_eq!(warned("trusted_proxies: [192.168.1.5/24, 10.0.0.0/8, ::1]"), told);
    let told = warned("exempt: 'ip:2001:db8::1/32'");
    assert!(told.contains("`2001:db8::1/32` is the network 2001:db8::/32"), "{told}");
    let told = warned("limits: [default, {name: a, action: deny, when: {ip: 192.0.2.1/24}}]");
    assert!(told.contains("`192.0.2.1/24` is the network 192.0.2.0/24"), "{told}");
    assert_eq!(warned("exempt: ['ip:192.0.2.1', 'ip:192.0.2.0/24', 'ip:192.0.2.1/32']"), "");
}

#[test]
fn check_warns_of_facts_that_no_connection_can_have() {
    let warned = |proxy: &str| {
        let text = format!("check: {{}}\nproxy:\n  listen: 127.0.0.1:0\n{proxy}\n");
        let text = text.replacen("  listen: 127.0.0.1:0\n  listen", "  listen", 1);
        let none = |_: &_| StartProblems::default();
        check("t.yaml", text.as_bytes(), 4.0, none).expect(proxy).join("\n")
    };
    let tls = "  tls: {cert: a.crt, key: a.key";
    let rule = "  limits: [{name: a, by: ip/32, share: 1%, when: {any: [{ja4: absent}]}}]";
    let by = |fact: &str| format!("  limits: [{{name: a, by: {fact}, share: 1%}}]");
    let no_tls = "is never known: the proxy ends no TLS (`proxy.tls`); remove it from the rules";
    assert_eq!(warned(rule), format!("t.yaml:4:11: `ja4` {no_tls}"));
    assert_eq!(warned(&by("rtt")), format!("t.yaml:4:11: `rtt` {no_tls}"));
    assert_eq!(warned(&by("h2")), "");
    assert_eq!(warned(&format!("{tls}}}\n{rule}")), "");
    assert_eq!(warned(&format!("{tls}, listen: 127.0.0.1:1}}\n{rule}")), "");
    for (proxy, told) in [
        (format!("  http2: false\n{}", by("h2")), "`h2` is never known: `http2` is `false`;"),
        (format!("  listen: off\n{}", by("h2")), "`h2` is never known: the proxy does not listen;"),
        (format!("  listen: off\n{}", by("fetch")), "`check` without `headers: all` does not know"),
        (format!("  listen: off\n{rule}"), "`ja4` is never known: the proxy does not listen;"),
        ("  exempt: [{ja4: t13*, ip: 192.0.2.1}]".to_owned(), "4:11: `ja4` is never known"),
        ("  limits: []\ngroups: {a: {rtt: relayed}}".to_owned(), "5:9: `rtt` is never known"),
        ("  limits: []\ngatekeeper: {log_info: ja4}".to_owned(), "5:13: `ja4` is never known"),
        (
            format!(
                "{tls}}}\n  trusted_proxies: 10.0.0.0/8\n  client_address: proxy-protocol\n{}",
                by("rtt")
            ),
            "`rtt` is never known: with `client_address: proxy-protocol` TCP does not end",
        ),
    ] {
        let seen = warned(&proxy);
        assert!(seen.contains(told) && seen.lines().count() == 1, "{proxy}: {seen}");
    }
    let swarm = good("proxy: {backend: 'http://127.0.0.1:1'}").settings;
    assert_eq!(evenkeel_config::unknown_facts(&swarm), [], "the queue uses what there is");
}

#[test]
fn warnings_are_shown_beside_errors() {
    let of_start = |_: &Settings| StartProblems {
        faults: vec![(&["proxy", "cpus"], "cannot be had".to_owned())],
        ..StartProblems::default()
    };
    let text = "proxy:\n  cpus: 1\n  trusted_proxies: 10.0.0.1/8\n";
    let found = check("t.yaml", text.as_bytes(), 4.0, of_start).expect_err("faulty");
    assert_eq!(found.to_string(), "t.yaml:2:9: cannot be had");
    let warned = found.warnings.join("\n");
    assert!(warned.contains("t.yaml:3:20: `10.0.0.1/8` is the network 10.0.0.0/8"), "{warned}");

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.yaml");
    let text = "proxy:\n  cpus: x\n  listen: ':81'\n  tls: {listen: ':444', acme: {domains: \
                intranet, terms_agreed: true}}\n";
    fs::write(&path, text).expect("written");
    let output = evenkeel!().arg("check").arg(&path).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("warning:") && told.contains("`intranet` is no name"), "{told}");
    assert!(told.contains(":2:9: `cpus` is `x`") && told.contains("1 error, 1 warning"), "{told}");
}
