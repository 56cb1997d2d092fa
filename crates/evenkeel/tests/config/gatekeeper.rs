//! The `gatekeeper` section: its defaults and its errors.
//!
//! How addresses are parsed is tested beside their parser (`config/settings/gatekeeper.rs`).

use super::{faults, good};
use evenkeel_core::fact::ClientFact;

#[test]
fn a_gatekeeper_needs_a_gate_and_says_what_runs() {
    let config = good("proxy: {}\ngatekeeper: {master: master.example, domain: api}");
    for shown in [
        "master: master.example",
        "control: tcp://master.example:10005",
        "identifier: [ip/32]",
        "max_delay: 5s",
        "held_max: 1024",
        "rejected_one_in: 1",
    ] {
        assert!(config.native.contains(shown), "{shown}:\n{}", config.native);
    }
    assert_eq!(good(&config.native).native, config.native);
    let several = "check: {}\ngatekeeper: [{domain: a, when: {path: /a}}, {domain: b}]";
    let config = good(several);
    let gates = &config.settings.gatekeepers;
    assert_eq!(gates.iter().map(|gate| &*gate.domain).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(good(&config.native).settings, config.settings);
    for (text, what) in [
        ("gatekeeper: {}", "needs a section `proxy` or `check`; add one"),
        ("check: {}\ngatekeeper: {master: 'udp://h:1'}", "only TCP is supported"),
        ("check: {}\ngatekeeper: {control: 'tcp://127.0.0.1:10004'}", "need different ports"),
        ("check: {}\ngatekeeper: {domain: ''}", "1 to 255 bytes"),
        ("check: {}\ngatekeeper: {identifier: ip/33}", "an IPv4 network has 0 to 32 bits"),
        ("check: {}\ngatekeeper: {identifier: [ip/32, ip/24]}", "two networks of one kind"),
        ("check: {}\ngatekeeper: {max_delay: 2d}", "must be from"),
        ("check: {}\ngatekeeper: {log_info: [method, cookies]}", "must be ip/N"),
        ("check: {}\ngatekeeper: []", "0 gates; write 1 to 64"),
        ("gatekeeper: [{}]", "needs a section `proxy` or `check`; add one"),
        ("check: {}\ngatekeeper: [{domain: a}, {domain: b}]", "an earlier gate has no `when`"),
        (
            "check: {}\ngatekeeper: [{domain: a, when: {path: /a}}, {domain: a}]",
            "two gates have the domain `a`; remove one",
        ),
        ("check: {}\ngatekeeper: [{domain: a, when: {path: a}}]", "a path begins with /"),
        ("check: {}\ngatekeeper: {mastr: h}", "did you mean `master`?"),
    ] {
        let told = faults(text);
        assert!(told.contains(what), "{text}: {told}");
    }
}

#[test]
fn the_proxy_finds_the_facts_that_a_gate_names() {
    let text = "{proxy: {limits: [], queue: {known: off}}, \
                gatekeeper: {identifier: ja4, when: {fetch: differs}}}";
    let facts = good(text).settings.proxy.expect("open").facts;
    assert!(facts.contains(ClientFact::Ja4) && facts.contains(ClientFact::Fetch));
    assert!(!facts.contains(ClientFact::H2));
}
