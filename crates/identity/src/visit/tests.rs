//! Tickets and passes prove a visit, and everything else proves none.

use super::proof::{VisitToken, is_recent};
use super::*;
use evenkeel_core::queue::standing::{VisitPass, VisitTicket};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_fuzz::fuzz;
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const NOW: Time = Time(1_800_000_000_000_000_000);
const HOME: &str = "192.0.2.7";

fn keys() -> VisitKeys {
    VisitKeys::new(b"the secret of these tests", &[])
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn pass(client: &str) -> PassProof {
    PassProof::new(VisitPass { id: 7, stamp: NOW }, ip(client), NOW)
}

fn ticket(id: u64) -> VisitTicket {
    VisitTicket { id, first_came: NOW }
}

/// The proof in a request with this cookie.
fn shown(keys: &VisitKeys, token: &str, client: IpAddr, now: Time) -> VisitProof {
    let line = format!("a=b; evenkeel={token}; c=d");
    keys.proof([line.as_bytes()].into_iter(), client, now)
}

#[test]
fn the_text_of_a_token_is_golden() {
    let ticket = keys().ticket(VisitTicket { first_came: NOW, id: 0x0102_0304_0506_0708 });
    assert_eq!(ticket, "AQEhGPridpO0AAABAgMEBQYHCK8cKBjORMlXinm_91p2XQw");
    let pass = keys().pass(pass(HOME));
    assert_eq!(
        pass,
        "AQIhGPridpO0AAAY-uJ2k7QAAAAAAAAAAAAHAQAAwAAAAAAAAAAAAAAAAAAki0mlptRWNSP_UUJtCLC9"
    );
    assert_eq!((ticket.len(), pass.len()), (47, TOKEN_BYTES_MAX));
}

#[test]
fn a_ticket_is_good_for_ten_minutes_anywhere() {
    let (keys, ticket) = (keys(), ticket(9));
    let early = VisitTicket { first_came: NOW.minus(CLOCK_SKEW_MAX), ..ticket };
    let text = keys.ticket(ticket);
    let at = |now, client| shown(&keys, &text, ip(client), now);
    assert_eq!(at(NOW, HOME), VisitProof::Ticket(ticket));
    assert_eq!(at(NOW.plus(TICKET_AGE_MAX), "2001:db8::1"), VisitProof::Ticket(ticket));
    assert_eq!(at(NOW.plus(TICKET_AGE_MAX).plus(Nanos(1)), HOME), VisitProof::Nothing);
    assert_eq!(at(NOW.minus(CLOCK_SKEW_MAX), HOME), VisitProof::Ticket(early));
    assert_eq!(at(NOW.minus(CLOCK_SKEW_MAX).minus(Nanos(1)), HOME), VisitProof::Nothing);
}

#[test]
fn a_pass_is_good_for_hours_in_its_network() {
    let (keys, pass) = (keys(), pass(HOME));
    let text = keys.pass(pass);
    let at = |now, client| shown(&keys, &text, ip(client), now);
    assert_eq!(at(NOW.plus(PASS_AGE_MAX), "192.0.255.1"), VisitProof::Pass(pass.pass));
    assert_eq!(at(NOW, "::ffff:192.0.2.9"), VisitProof::Pass(pass.pass));
    assert_eq!(at(NOW.plus(PASS_AGE_MAX).plus(Nanos(1)), HOME), VisitProof::Nothing);
    assert!(matches!(at(NOW, "192.1.2.7"), VisitProof::Moved(_)));
    assert!(matches!(at(NOW, "2001:db8::1"), VisitProof::Moved(_)));
}

#[test]
fn a_pass_moves_three_times_and_returns_freely_and_waits_anew_each_time() {
    let (keys, mut pass) = (keys(), pass(HOME));
    let mut now = NOW;
    for there in ["2001:db8::1", "198.51.100.1", "203.0.113.1"] {
        now = now.plus(Nanos::from_secs(60));
        let VisitProof::Moved(moved) = shown(&keys, &keys.pass(pass), ip(there), now) else {
            panic!("{there} is one of few moves");
        };
        assert_eq!((moved.pass, moved.issued), (VisitPass { id: 7, stamp: now }, NOW));
        for place in [HOME, there] {
            let proof = shown(&keys, &keys.pass(moved), ip(place), now);
            assert_eq!(proof, VisitProof::Pass(moved.pass), "{place}");
        }
        pass = moved;
    }
    assert_eq!(shown(&keys, &keys.pass(pass), ip("100.64.0.1"), now), VisitProof::Nothing);
}

#[test]
fn a_move_leaves_a_place_in_line_that_is_later_than_now() {
    let later = NOW.plus(Nanos::from_secs(3));
    let pass = PassProof::new(VisitPass { id: 7, stamp: later }, ip(HOME), NOW);
    let VisitProof::Moved(moved) = shown(&keys(), &keys().pass(pass), ip("198.51.100.1"), NOW)
    else {
        panic!("a move");
    };
    assert_eq!(moved.pass.stamp, later);
}

#[test]
fn a_secret_is_replaced_without_a_loss() {
    let text = keys().ticket(ticket(1));
    let both = VisitKeys::new(b"the next secret", &[b"the secret of these tests"]);
    assert_ne!(shown(&both, &text, ip(HOME), NOW), VisitProof::Nothing);
    let next = both.ticket(ticket(2));
    let alone = VisitKeys::new(b"the next secret", &[]);
    assert_ne!(shown(&alone, &next, ip(HOME), NOW), VisitProof::Nothing);
    assert_eq!(shown(&alone, &text, ip(HOME), NOW), VisitProof::Nothing);
}

#[test]
fn the_first_cookie_that_proves_something_counts() {
    let (keys, ticket) = (keys(), ticket(1));
    let (text, pass) = (keys.ticket(ticket), keys.pass(pass(HOME)));
    let proof =
        |lines: &[String]| keys.proof(lines.iter().map(String::as_bytes), ip("198.51.100.1"), NOW);
    let other = "a=evenkeel=1;evenkeel2=x; evenkeel ; evenkeel=AQF-GP".to_owned();
    assert_eq!(proof(&[other.clone(), format!("evenkeel={text}")]), VisitProof::Ticket(ticket));
    let moved = format!("evenkeel={pass}; evenkeel={text}");
    assert_eq!(proof(std::slice::from_ref(&moved)), VisitProof::Ticket(ticket));
    assert!(matches!(proof(&[format!("evenkeel={pass}")]), VisitProof::Moved(_)));
    assert_eq!(proof(&["evenkeel=1; ".repeat(3) + &moved]), VisitProof::Nothing);
    assert_eq!(proof(&[format!("Evenkeel={text}")]), VisitProof::Nothing);
}

#[test]
fn the_backend_does_not_get_the_cookie() {
    let without = |line: &str| {
        cookie::without(line.as_bytes()).map(|line| String::from_utf8(line).expect("text"))
    };
    assert_eq!(without("a=b; evenkeel2=c"), None);
    assert_eq!(without("evenkeel=x").as_deref(), Some(""));
    assert_eq!(without("a=b; evenkeel=x;c=\"d\" ;evenkeel=").as_deref(), Some("a=b; c=\"d\""));
}

#[test]
fn the_cookie_is_for_the_proxy_alone() {
    let set = |secure| cookie::set("abc", TICKET_AGE_MAX, secure).expect("a value");
    let plain = "evenkeel=abc; Path=/; Max-Age=600; HttpOnly; SameSite=Lax";
    assert_eq!(set(false), plain);
    assert_eq!(set(true), format!("{plain}; Secure"));
}

fn any_time() -> impl Strategy<Value = Time> {
    prop_oneof![
        any::<u64>().prop_map(Time),
        (0..=PASS_AGE_MAX.0 * 2).prop_map(|back| NOW.minus(Nanos(back))),
    ]
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    let v4 = any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
    let v6 = any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)));
    prop_oneof![v4, v6]
}

fn any_token() -> impl Strategy<Value = (VisitToken, IpAddr)> {
    let pass = (any_time(), any_time(), any::<u64>(), vec(any_ip(), 1..=MOVES_MAX + 1));
    let pass = pass.prop_map(|(issued, stamp, id, homes)| {
        let list = PassNetworks::of(homes[0]);
        let more = homes[1..].iter().map(|home| networks::network_of(*home));
        let networks = more.fold(list, |list, one| list.with(one).expect("a place"));
        (VisitToken::Pass(PassProof { pass: VisitPass { id, stamp }, issued, networks }), homes[0])
    });
    let ticket = (any_time(), any::<u64>(), any_ip()).prop_map(|(first_came, id, client)| {
        (VisitToken::Ticket(VisitTicket { first_came, id }), client)
    });
    prop_oneof![ticket, pass]
}

fn written(keys: &VisitKeys, token: VisitToken) -> String {
    match token {
        VisitToken::Ticket(ticket) => keys.ticket(ticket),
        VisitToken::Pass(pass) => keys.pass(pass),
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read((token, client) in any_token()) {
        let text = written(&keys(), token);
        let (age, made) = match token {
            VisitToken::Ticket(ticket) => (TICKET_AGE_MAX, ticket.first_came),
            VisitToken::Pass(pass) => (PASS_AGE_MAX, pass.issued),
        };
        let ticket_at = |ticket: VisitTicket, now| {
            VisitProof::Ticket(VisitTicket { first_came: ticket.first_came.min(now), ..ticket })
        };
        let expected = match (is_recent(made, age, NOW), token) {
            (false, _) => VisitProof::Nothing,
            (true, VisitToken::Ticket(ticket)) => ticket_at(ticket, NOW),
            (true, VisitToken::Pass(pass)) => VisitProof::Pass(pass.pass),
        };
        prop_assert!(text.len() <= TOKEN_BYTES_MAX);
        prop_assert_eq!(shown(&keys(), &text, client, NOW), expected);
        prop_assert_eq!(shown(&keys(), &text, client, made), match token {
            VisitToken::Ticket(ticket) => VisitProof::Ticket(ticket),
            VisitToken::Pass(pass) => VisitProof::Pass(pass.pass),
        });
    }

    /// Every single character matters, and so does the length.
    #[test]
    fn a_changed_or_cut_token_proves_nothing(
        (token, client) in any_token(), at in any::<prop::sample::Index>(), new in 0..=255_u8,
    ) {
        let text = written(&keys(), token).into_bytes();
        let mut changed = text.clone();
        let at = at.index(text.len());
        changed[at] = new;
        let keys = keys();
        prop_assume!(changed != text && new != b';');
        prop_assert_eq!(keys.open(&changed), None);
        prop_assert_eq!(keys.open(&text[..at]), None);
        prop_assert_eq!(keys.open(&[&text[..], b"A"].concat()), None);
        prop_assert_eq!(keys.proof([&changed[..]].into_iter(), client, NOW), VisitProof::Nothing);
    }

    #[test]
    fn a_token_of_another_key_proves_nothing(
        (token, client) in any_token(), of in vec(any::<u8>(), 0..80),
    ) {
        let other = VisitKeys::new(&of, &[]);
        let text = written(&other, token);
        prop_assert_eq!(shown(&keys(), &text, client, NOW), VisitProof::Nothing);
    }

    /// A signed pass is accepted only where it names the network, whatever else it says.
    #[test]
    fn a_pass_elsewhere_is_no_pass((token, _) in any_token(), there in any_ip()) {
        let VisitToken::Pass(pass) = token else { return Ok(()) };
        let proof = shown(&keys(), &keys().pass(pass), there, pass.issued);
        match pass.networks.contains(networks::network_of(there)) {
            true => prop_assert_eq!(proof, VisitProof::Pass(pass.pass)),
            false if usize::from(pass.networks.count) > MOVES_MAX => {
                prop_assert_eq!(proof, VisitProof::Nothing);
            }
            false => prop_assert!(matches!(proof, VisitProof::Moved(moved)
                if moved.pass.id == pass.pass.id && moved.pass.stamp >= pass.issued)),
        }
    }
}

#[test]
fn fuzz_cookies_prove_nothing_unsigned() {
    let keys = keys();
    fuzz().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(one, other)| {
        let line = [&b"evenkeel="[..], one, b"; evenkeel=AQ", other].concat();
        let lines = [&line[..], one, other];
        assert_eq!(keys.proof(lines.into_iter(), ip(HOME), NOW), VisitProof::Nothing);
        let rest = cookie::without(&line).expect("it has one");
        assert!(cookie::without(&rest).is_none(), "one is left: {rest:?}");
    });
}

/// Fields behind a right tag, which only a holder of the key could write, do no harm.
#[test]
fn fuzz_signed_bytes_are_read_without_a_panic() {
    let keys = keys();
    fuzz().with_type::<(bool, Vec<u8>)>().for_each(|(is_pass, bytes)| {
        let token = match is_pass {
            true => VisitToken::Pass(pass(HOME)),
            false => VisitToken::Ticket(ticket(1)),
        };
        let text = keys.sign_changed(token, bytes);
        let proof = keys.proof([format!("evenkeel={text}").as_bytes()].into_iter(), ip(HOME), NOW);
        if let VisitProof::Moved(pass) = proof {
            assert!((1..=MOVES_MAX + 1).contains(&usize::from(pass.networks.count)));
        }
    });
}
