//! The Stonehenge throttle, case by case: 7 % of one CPU over 15 seconds, with costs in hundredths
//! of a CPU-second, through the whole limiter in virtual time.
//!
//! Each case is a script with a line for each event: the second, the host, the action and its
//! result. The cases that involve the front or the name server (exempt names, internal redirects, a
//! missing throttle) are tested there, under the same names.

use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::sliding::SlidingWindow;
use evenkeel_core::classify::{LimitKeys, RequestAttributes};
use evenkeel_core::condition::Condition;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::limiter::{Limiter, LimiterPolicy, Ticket, Verdict};
use evenkeel_core::units::{Cost, Nanos, SECOND, Time, Weight};
use std::collections::HashMap;
use std::net::IpAddr;

/// `passes COST -> SUM [blocks]` is a request that ends at once; `refused` is a refused request;
/// `begins` starts a request and `ends COST -> SUM` ends it later; `owes SUM` only reads the sum;
/// `forgotten` means that no state is left. Costs are in hundredths, with a point for finer ones.
const CASES: [(&str, &str); 12] = [
    (
        "P1 below the limit nobody is blocked",
        "100 a passes 40 -> 40
         104 a passes 40 -> 80
         108 a passes 24 -> 104
         109 a owes 104",
    ),
    (
        "P2 the sum that reaches the limit blocks",
        "100 a passes 40 -> 40
         104 a passes 40 -> 80
         108 a passes 24 -> 104
         109 a passes 1 -> 105 blocks",
    ),
    (
        "P3 P4 a block is not extended by those who keep asking",
        "109 a passes 105 -> 105 blocks
         110 a refused
         117 a refused
         123 a refused
         124 a passes 0 -> 105 blocks
         140 a passes 0 -> 0",
    ),
    (
        "P4 at age 15 it passes, and the window begins at 109",
        "100 a passes 40 -> 40
         104 a passes 40 -> 80
         108 a passes 24 -> 104
         109 a passes 1 -> 105 blocks
         123 a refused
         124 a passes 3 -> 4",
    ),
    (
        "P5 who comes back to the second is blocked again",
        "100 a passes 200 -> 200 blocks
         114 a refused
         115 a passes 1 -> 201 blocks
         116 a refused
         129 a refused
         130 a passes 1 -> 2",
    ),
    (
        "P5 who comes back a second later is not",
        "100 a passes 200 -> 200 blocks
         116 a passes 1 -> 1
         117 a passes 1 -> 2",
    ),
    (
        "P6 after 16 seconds of silence the first sum is gone",
        "100 a passes 104 -> 104
         116 a passes 104 -> 104",
    ),
    (
        "P6 after exactly 15 it is not",
        "100 a passes 104 -> 104
         115 a passes 104 -> 208 blocks",
    ),
    (
        "P7 costs are rounded to hundredths, a half upwards",
        "100 a passes .5 -> 1
         101 a passes .49 -> 1
         102 a passes 1.49 -> 2
         103 a passes 1.5 -> 4
         104 a passes 104.5 -> 109 blocks",
    ),
    (
        "P8 hosts with one confirmed domain share one sum",
        "100 x.googlebot.com passes 60 -> 60
         101 y.googlebot.com passes 45 -> 105 blocks
         102 x.googlebot.com refused
         102 y.googlebot.com refused
         102 a passes 1 -> 1",
    ),
    (
        "P9 what ends during a block is only recorded",
        "108 a begins
         109 a passes 105 -> 105 blocks
         112 a ends 50 -> 155
         123 a refused
         124 a passes 0 -> 155 blocks",
    ),
    (
        "P10 P12 each host has a sum of its own, and an idle one is forgotten",
        "100 a passes 105 -> 105 blocks
         101 b passes 1 -> 1
         110 a refused
         110 b passes 1 -> 2
         461 a forgotten",
    ),
];

fn hundredths(text: &str) -> Cost {
    let number: f64 = text.parse().expect("hundredths of a CPU-second");
    Cost((number * SECOND as f64 / 100.0).round() as u64)
}

/// A host by its name in the scripts.
struct Host<'a>(&'a str);

impl RequestAttributes for Host<'_> {
    fn address(&self) -> IpAddr {
        let letter = self.0.bytes().next().expect("a name");
        IpAddr::from([192, 0, 2, letter])
    }
    fn method(&self) -> &str {
        "GET"
    }
    fn path(&self) -> &str {
        "/"
    }
    fn vhost(&self) -> &str {
        ""
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
    fn group(&self) -> Option<&str> {
        self.0.ends_with(".googlebot.com").then_some("googlebot.com")
    }
}

struct Throttle {
    limiter: Limiter,
    running: HashMap<String, Ticket>,
}

impl Throttle {
    fn new() -> Throttle {
        let window = SlidingWindow::new(Nanos::from_secs(15), hundredths("105")).expect("a window");
        let limit = Limit {
            name: "host".into(),
            by: vec![KeyPart::Host],
            when: Condition::default(),
            unit: LimitUnit::Cpu,
            algorithm: Algorithm::Sliding(window.rounded(hundredths("1"))),
            action: None,
            weight: Weight::ONE,
            keys_max: 64,
            shadow: false,
        };
        let policy = LimiterPolicy { action: LimitAction::Hold, max_delay: Nanos::from_secs(30) };
        Throttle {
            limiter: Limiter::new(policy, vec![limit], KeySeed([1; 16])),
            running: HashMap::new(),
        }
    }

    fn keys(&self, host: &str) -> LimitKeys {
        self.limiter.keys(&Host(host))
    }

    fn sum(&self, host: &str, now: Time) -> Cost {
        let Algorithm::Sliding(window) = &self.limiter.limits()[0].algorithm else {
            panic!("the limit is a window")
        };
        let hash = self.keys(host).as_slice()[0].hash;
        self.limiter.tables()[0].take(hash).with(|state| window.sum(state, now))
    }

    fn begin(&self, host: &str, now: Time) -> Ticket {
        let (verdict, ticket) = self.limiter.ask(&self.keys(host), Cost::ZERO, now);
        assert_eq!(verdict, Verdict::Allow);
        ticket
    }

    fn refused(&self, host: &str, now: Time) {
        let (verdict, _) = self.limiter.ask(&self.keys(host), Cost::ZERO, now);
        let Verdict::Deny { retry_after, .. } = verdict else { panic!("{verdict:?}") };
        assert_eq!(retry_after.retry_after_secs(), 15, "always the window");
    }

    /// Ends a request: `COST -> SUM [blocks]`.
    fn end(&self, host: &str, ticket: &Ticket, words: &[&str], now: Time) {
        let [cost, "->", sum, rest @ ..] = words else { panic!("{words:?}") };
        let mut told = Vec::new();
        self.limiter.settle_and(ticket, hundredths(cost), now, |blocked| told.push(blocked.sum));
        let expected = if rest == ["blocks"] { vec![hundredths(sum)] } else { vec![] };
        assert_eq!(told, expected, "the notice, once, with its sum");
        assert_eq!(self.sum(host, now), hundredths(sum));
    }

    fn step(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [second, host, what, rest @ ..] = words.as_slice() else { panic!("{line}") };
        let now = Time(second.parse::<u64>().expect("a second") * SECOND);
        match *what {
            "passes" => {
                let ticket = self.begin(host, now);
                self.end(host, &ticket, rest, now);
            }
            "begins" => drop(self.running.insert((*host).to_owned(), self.begin(host, now))),
            "ends" => {
                let ticket = self.running.remove(*host).expect("it runs");
                self.end(host, &ticket, rest, now);
            }
            "refused" => self.refused(host, now),
            "owes" => assert_eq!(self.sum(host, now), hundredths(rest[0])),
            "forgotten" => {
                let hash = self.keys(host).as_slice()[0].hash;
                let limit = &self.limiter.limits()[0];
                let worth =
                    self.limiter.tables()[0].take(hash).with(|s| limit.algorithm.worth(s, now));
                assert_eq!(worth, 0);
            }
            what => panic!("what is `{what}`?"),
        }
    }
}

#[test]
fn every_case() {
    for (name, script) in CASES {
        let mut throttle = Throttle::new();
        for line in script.lines() {
            println!("{name}: {}", line.trim());
            throttle.step(line);
        }
    }
}

#[test]
fn p7_a_thousand_requests_of_half_a_hundredth_or_less_never_block() {
    let mut throttle = Throttle::new();
    (0..1_000).for_each(|_| throttle.step("100 a passes .49 -> 0"));
}

#[test]
fn without_rounding_they_do() {
    let window = SlidingWindow::new(Nanos::from_secs(15), hundredths("105")).expect("a window");
    let mut state = vec![0; window.words()];
    let blocks = |_: &u64| window.record(&mut state, hundredths(".49"), Time(100 * SECOND));
    // 105 / 0.49, rounded up.
    assert_eq!((1..=1_000).find(blocks), Some(215));
}

/// A client's name becomes known between two requests, and its debt moves to the name.
#[test]
fn the_level_moves_when_a_name_becomes_known() {
    let mut throttle = Throttle::new();
    throttle.step("100 x passes 60 -> 60");
    throttle.step("101 y.googlebot.com passes 40 -> 40");
    let (from, to) = (throttle.keys("x"), throttle.keys("x.googlebot.com"));
    let (from, to) = (from.as_slice()[0].hash, to.as_slice()[0].hash);
    throttle.limiter.merge(0, from, to, Time(102 * SECOND));
    throttle.step("102 x owes 0");
    throttle.step("102 x.googlebot.com owes 100");
    throttle.step("103 x.googlebot.com passes 5 -> 105 blocks");
    throttle.step("116 y.googlebot.com refused");
    throttle.step("118 y.googlebot.com passes 0 -> 5");
}

#[test]
fn a_block_moves_too() {
    let mut throttle = Throttle::new();
    throttle.step("100 x passes 105 -> 105 blocks");
    let (from, to) = (throttle.keys("x"), throttle.keys("x.googlebot.com"));
    let (from, to) = (from.as_slice()[0].hash, to.as_slice()[0].hash);
    throttle.limiter.merge(0, from, to, Time(102 * SECOND));
    throttle.step("103 x passes 1 -> 1");
    throttle.step("114 y.googlebot.com refused");
    throttle.step("116 y.googlebot.com passes 1 -> 1");
}
