//! Names of groups: both forms, their bounds, and that a condition holds for its group.

use super::*;
use evenkeel_core::classify::applies;
use std::borrow::Cow;
use std::net::IpAddr;

#[derive(Clone, Default)]
struct Stranger {
    user_agent: Option<Vec<u8>>,
    language: Option<Vec<u8>>,
    v6: bool,
}

impl RequestAttributes for Stranger {
    fn address(&self) -> IpAddr {
        let text = if self.v6 { "2001:db8:1::7" } else { "203.0.113.7" };
        text.parse().expect("an address")
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
        match name {
            "user-agent" => self.user_agent.as_deref(),
            "accept-language" => self.language.as_deref(),
            _ => None,
        }
    }

    fn fact(&self, fact: ClientFact) -> Option<Cow<'_, str>> {
        match fact {
            ClientFact::Asn => Some("AS64501".into()),
            ClientFact::Ja4 => Some("t13d1516h2_8daaf6152771_02713d6af862".into()),
            ClientFact::Fetch => Some("differs".into()),
            ClientFact::H2 => Some("1:65536;2:0|15663105|0|m,a,s,p".into()),
            ClientFact::Rtt => Some("relayed".into()),
            _ => None,
        }
    }
}

fn browser(user_agent: &[u8]) -> Stranger {
    Stranger { user_agent: Some(user_agent.to_vec()), ..Stranger::default() }
}

/// Whether a rule with this condition is about the request.
fn holds(when: &str, request: &Stranger) -> bool {
    let rule = format!("{{name: swarm, action: deny, when: {when}}}");
    let text = format!("proxy: {{databases: {{asn: asn.tsv}}, limits: [{rule}]}}");
    let config = evenkeel_config::parse("t.yaml", text.as_bytes(), 1.0);
    let config = config.unwrap_or_else(|faults| panic!("{when}: {faults}"));
    let proxy = config.settings.proxy.expect("open");
    applies(&proxy.denials[0].when, request)
}

#[test]
fn each_property_has_words_and_a_condition() {
    let request = browser(b"it's swarm/1");
    for (kind, said, key) in [
        (PropertyKind::Network, "203.0.0.0/16", "ip: '203.0.0.0/16'"),
        (PropertyKind::Fact(ClientFact::Asn), "AS64501", "asn: 'AS64501'"),
        (PropertyKind::Fact(ClientFact::Fetch), "fetch differs", "fetch: 'differs'"),
        (PropertyKind::UserAgent, "User-Agent 'it's swarm/1'", "user_agent: 'it''s swarm/1'"),
        (PropertyKind::AcceptLanguage, "no Accept-Language", "header: {accept-language: absent}"),
    ] {
        assert_eq!((words(kind, &request), condition(kind, &request)), (said.into(), key.into()));
    }
    let v6 = Stranger { v6: true, ..Stranger::default() };
    assert_eq!(condition(PropertyKind::Network, &v6), "ip: '2001:db8::/32'");
    assert_eq!(condition(PropertyKind::UserAgent, &v6), "user_agent: absent");
}

#[test]
fn a_condition_holds_for_the_request_that_it_is_made_from() {
    let long = "Mozilla/5.0 (X11; Linux) ".repeat(20);
    let texts: [&[u8]; 9] = [
        b"swarm/1",
        b"",
        b"absent",
        b"re:(",
        b"a'b\"c\\d: {e}, [f] #g *h & !i | %j @k ~",
        b" spaces ",
        b"tab\tand\xff\xfe bytes",
        "größe 日本 \u{202e}\u{2028}\u{feff}".as_bytes(),
        long.as_bytes(),
    ];
    for text in texts {
        for v6 in [false, true] {
            let request = Stranger { language: Some(text.to_vec()), v6, ..browser(text) };
            let all = KINDS.map(|kind| condition(kind, &request)).join(", ");
            assert!(holds(&format!("{{{all}}}"), &request), "{all}");
            let other = browser(b"another");
            assert!(!holds(
                &format!("{{{}}}", condition(PropertyKind::UserAgent, &request)),
                &other
            ));
        }
    }
}

#[test]
fn both_forms_show_what_differs_late_and_are_bounded() {
    let late = format!("Mozilla/5.0 ({}) Swarm/1.7", "X".repeat(120));
    let request = browser(late.as_bytes());
    assert!(words(PropertyKind::UserAgent, &request).contains("Swarm/1.7"));
    assert!(condition(PropertyKind::UserAgent, &request).contains("Swarm/1.7"));
    let endless = browser("ä\u{1b}".repeat(5_000).as_bytes());
    let (said, key) =
        (words(PropertyKind::UserAgent, &endless), condition(PropertyKind::UserAgent, &endless));
    assert!(said.ends_with("\u{2026}'") && said.chars().count() < SHOWN_CHARS_MAX + 20, "{said}");
    assert!(key.ends_with("*'") && key.chars().count() < SHOWN_CHARS_MAX + 20, "{key}");
    assert!(!said.contains('\u{1b}') && !key.contains('\u{1b}'));
}
