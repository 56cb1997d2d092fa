//! The keys of a request under limits that use its path: two conditions, and one limit that counts
//! by the path itself.

use super::super::quickest;
use core::net::{IpAddr, Ipv4Addr};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::classify::{self, RequestAttributes, RequestReading};
use evenkeel_core::condition::Clause;
use evenkeel_core::condition::patterns::PathPatterns;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::{KeyPart, Limit, LimitUnit};
use evenkeel_core::units::{Cost, Nanos, Rate, Weight};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 15;
const REQUESTS: u32 = 200_000;

struct Request(&'static str);

impl RequestAttributes for Request {
    fn address(&self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    }
    fn method(&self) -> &str {
        "GET"
    }
    fn path(&self) -> &str {
        self.0
    }
    fn vhost(&self) -> &str {
        "shop.example"
    }
    fn header(&self, _name: &str) -> Option<&[u8]> {
        None
    }
}

fn limit(by: KeyPart, paths: &[&str]) -> Limit {
    let rate = Rate::per(Cost::hits(5), Nanos::from_secs(60)).expect("a rate");
    Limit {
        name: "a limit".into(),
        by: vec![by],
        when: Clause::Path(PathPatterns::new(paths).expect("paths")).into(),
        unit: LimitUnit::Hits,
        algorithm: Algorithm::Debt(DebtBucket::new(rate, Cost::hits(5))),
        action: None,
        weight: Weight::ONE,
        keys_max: 1_000,
        shadow: false,
    }
}

pub fn measure() {
    let ip = || KeyPart::Ip { v4: 32, v6: 64 };
    let limits = [
        limit(ip(), &["/login", "/account"]),
        limit(ip(), &["/search"]),
        limit(KeyPart::Path(Some(2)), &[]),
    ];
    println!("\nkeys of three limits that look at the path, ns per request");
    for path in [
        "/",
        "/shop/articles/spring/index.html",
        "/Shop/Articles/spring/summer/autumn/winter/a-rather-long-name-of-a-page-2026.html",
        "/shop/caf%C3%A9",
        "/shop/x%2f..%2flogin",
    ] {
        let times = (0..ROUNDS).map(|_| {
            let started = Instant::now();
            for _ in 0..REQUESTS {
                let request = black_box(Request(path));
                let reading = RequestReading::new(&request);
                black_box(classify::keys(&limits, &KeySeed([7; 16]), &reading));
            }
            started.elapsed().as_nanos() as f64 / f64::from(REQUESTS)
        });
        println!("{path:<84}{:>6.0}", quickest(times.collect()));
    }
}
