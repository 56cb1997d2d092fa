//! The cost of a ticket or a pass: to sign one, and to find out what the cookies of a request
//! prove.
//!
//! `cargo bench -p evenkeel-identity --bench visit`. The fastest of some rounds is shown, because
//! other work on the machine only adds time. A value is the time that one thread needs for one
//! request. The page is rendered for each waiting visitor.

#![allow(missing_docs)]

use evenkeel_core::queue::standing::{VisitPass, VisitTicket};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_identity::visit::{PassProof, VisitKeys, VisitProof, cookie};
use evenkeel_identity::waiting_page::WaitingPage;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

const ROUNDS: usize = 20;
const CALLS: u32 = 20_000;

fn measure(name: &str, mut call: impl FnMut()) {
    let round = |_| {
        let begun = Instant::now();
        (0..CALLS).for_each(|_| call());
        begun.elapsed().as_nanos() / u128::from(CALLS)
    };
    let fastest = (0..ROUNDS).map(round).min().unwrap_or_default();
    println!("{name:<48} {fastest:>6} ns");
}

fn main() {
    let now = Time(1_800_000_000_000_000_000);
    let client = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
    let keys = VisitKeys::new(b"the secret of this benchmark", &[]);
    let other = VisitKeys::new(b"another secret", &[]);
    let ticket = VisitTicket { id: 7, first_came: now };
    let pass = PassProof::new(VisitPass { id: 7, stamp: now }, client, now);
    let others = "session=0123456789abcdef0123456789abcdef; theme=dark; lang=en";
    let line = |token: &str| format!("{others}; {}={token}", cookie::NAME);
    let mut forged = keys.ticket(ticket);
    forged.replace_range(20..22, "xx");
    for (name, line) in [
        ("no cookie", String::new()),
        ("other cookies", others.to_owned()),
        ("a ticket", line(&keys.ticket(ticket))),
        ("a pass", line(&keys.pass(pass))),
        ("a forged ticket", line(&forged)),
        ("a ticket of another key", line(&other.ticket(ticket))),
        ("no token", line("0123456789abcdef0123456789abcdef")),
    ] {
        let lines = || Some(line.as_bytes()).filter(|line| !line.is_empty()).into_iter();
        measure(name, || {
            let proof = keys.proof(lines(), client, now);
            assert!(!matches!(black_box(proof), VisitProof::Moved(_)));
        });
    }
    measure("sign a ticket, with its Set-Cookie", || {
        let token = keys.ticket(black_box(ticket));
        black_box(cookie::set(&token, Nanos::from_secs(600), true));
    });
    let page = WaitingPage::default();
    measure("render the page", || {
        black_box(page.render(black_box(Nanos::from_secs(120)), black_box(Nanos::from_secs(12))));
    });
}
