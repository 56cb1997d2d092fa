//! Gatekeepers and a master on a virtual clock: the real code of both, with a simulated network
//! that is slow or cut.

use super::*;
use crate::domains::tests::{MS, at, domain, h, k};
use crate::domains::{MasterDomain, RecordOutcome};
use evenkeel_config::settings::gatekeeper::MasterAddress;
use evenkeel_core::bucket::Algorithm;
use std::collections::VecDeque;

const FIVE: Nanos = Nanos::from_secs(5);

fn keeper_of(settings: &settings::GatekeeperSettings) -> Arc<GatekeeperEngine> {
    let clock = Clock::start();
    let watch = Arc::new(Watch::new(clock.now()));
    GatekeeperEngine::new(settings, KeySeed([7; 16]), clock, &watch)
}

fn settings() -> settings::GatekeeperSettings {
    let master = MasterAddress { host: "localhost".to_owned(), port: 1 };
    settings::GatekeeperSettings {
        control: master.next(),
        master,
        when: Condition::default(),
        domain: "d".to_owned(),
        identifier: vec![KeyPart::Ip { v4: 32, v6: 64 }],
        max_delay: FIVE,
        held_max: 100,
        keys_max: 1_000,
        log_info: Vec::new(),
        rejected_one_in: 1,
    }
}

/// A message on the way.
enum Mail {
    Told(RequestReport),
    Order(Box<[u8]>, Time),
}

/// A master, its gatekeepers, and the messages between them in the order of arrival.
struct Cluster {
    master: Option<MasterDomain>,
    keepers: Vec<Arc<GatekeeperEngine>>,
    latency: Nanos,
    mail: VecDeque<(Time, usize, Mail)>,
    messages: usize,
}

impl Cluster {
    fn new(rule: &Algorithm, keepers: usize, latency: u64) -> Cluster {
        let cluster = Cluster {
            master: Some(domain(std::slice::from_ref(rule))),
            keepers: (0..keepers).map(|_| keeper_of(&settings())).collect(),
            latency: Nanos::from_millis(latency),
            mail: VecDeque::new(),
            messages: 0,
        };
        cluster.connect(true);
        cluster
    }

    fn connect(&self, open: bool) {
        self.keepers.iter().for_each(|keeper| keeper.outbox.set_open(open, &keeper.counts));
    }

    /// Delivers all messages that have arrived by `now`.
    fn run(&mut self, now: Time) {
        loop {
            for (index, keeper) in self.keepers.iter().enumerate() {
                for note in keeper.outbox.take() {
                    keeper.outbox.release(std::slice::from_ref(&note));
                    self.messages += 1;
                    let arrives = note.came.plus(self.latency);
                    self.mail.push_back((arrives, index, Mail::Told(note)));
                }
            }
            self.mail.make_contiguous().sort_by_key(|(at, ..)| *at);
            let Some((at, index, mail)) = self.mail.pop_front_if(|(at, ..)| *at <= now) else {
                return;
            };
            match mail {
                Mail::Told(note) => self.hear(&note, at),
                Mail::Order(identifier, until) => {
                    assert!(self.keepers[index].learn(&identifier, until, at));
                }
            }
        }
    }

    fn hear(&mut self, note: &RequestReport, now: Time) {
        let at = match note.status {
            ReportedStatus::Accepted => note.came,
            ReportedStatus::Delayed(until) => until,
            ReportedStatus::Rejected => return,
        };
        let Some(master) = &self.master else { return };
        if let RecordOutcome::Until(until) = master.record_request(&note.identifier, at, now) {
            for index in 0..self.keepers.len() {
                let order = Mail::Order(note.identifier.clone(), until);
                self.mail.push_back((now.plus(self.latency), index, order));
            }
        }
    }

    /// The outcome of a request: `A`, `D` and until when, or `R`.
    fn ask(&mut self, keeper: usize, identifier: &[u8], ms: u64) -> String {
        self.run(at(ms));
        let judged = self.keepers[keeper].judge(identifier.to_vec(), false, at(ms));
        let said = match judged.refused() {
            Some(_) => {
                judged.refuse(None);
                "R".to_owned()
            }
            None => match judged.pass(None).until {
                None => "A".to_owned(),
                Some(until) => format!("D{}", until.since(at(0)).0 / MS),
            },
        };
        self.run(at(ms));
        said
    }

    fn all(&mut self, times: &[u64]) -> String {
        times.iter().map(|ms| self.ask(0, b"c", *ms)).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn s1_s2_ten_requests_under_both_algorithms() {
    let times = [0, 20, 40, 60, 80, 100, 120, 140, 3000, 6000];
    let history = Cluster::new(&h(500, 3), 1, 0).all(&times);
    assert_eq!(history, "A A A D540 D1040 D1540 D2040 D2540 D3040 A");
    let gcra = Cluster::new(&k(500, 3), 1, 0).all(&times);
    assert_eq!(gcra, "A A A A D500 D1000 D1500 D2000 A A");
}

#[test]
fn s3_s4_who_would_wait_longer_than_five_seconds_is_refused() {
    let times: Vec<u64> = (0..20).map(|n| n * 10).collect();
    let mut history = Cluster::new(&h(1000, 10), 1, 0);
    let delays = "D1090 D2090 D3090 D4090 D5090 R R R R R";
    assert_eq!(history.all(&times), format!("{}{delays}", "A ".repeat(10)));
    assert_eq!(history.messages, 20, "refused ones are told of, and change nothing (S11)");
    let gcra = Cluster::new(&k(1000, 10), 1, 0).all(&times);
    assert_eq!(gcra, format!("{}D1000 D2000 D3000 D4000 D5000 R R R R", "A ".repeat(11)));
}

#[test]
fn s5_who_keeps_to_the_rate_is_not_held() {
    let times: Vec<u64> = (0..10).map(|n| n * 500).collect();
    assert_eq!(Cluster::new(&h(500, 3), 1, 0).all(&times), "A ".repeat(10).trim());
    assert_eq!(Cluster::new(&k(500, 3), 1, 0).all(&times), "A ".repeat(10).trim());
    // A history is sensitive to a request that comes a moment too early.
    let early = [0, 500, 1000, 1499, 2000];
    assert_eq!(Cluster::new(&h(500, 3), 1, 0).all(&early), "A A A D1500 A");
}

#[test]
fn s6_s25_what_came_before_the_word_runs_and_only_gcra_has_it_paid_back() {
    // A round trip takes 200 ms: all six are admitted before the first order arrives.
    let times = [0, 0, 0, 0, 0, 0, 300, 300, 300];
    let history = Cluster::new(&h(500, 3), 1, 100).all(&times);
    assert_eq!(history, "A A A A A A D600 D600 D600", "the same time for all that wait");
    let gcra = Cluster::new(&k(500, 3), 1, 100).all(&times);
    assert_eq!(gcra, "A A A A A A D1600 D1600 D1600");
    // Requests that were released together delay those that follow.
    let released = [times.as_slice(), &[600]].concat();
    assert!(Cluster::new(&h(500, 3), 1, 100).all(&released).ends_with("D1100"), "until + I");
    assert!(Cluster::new(&k(500, 3), 1, 100).all(&released).ends_with("D3100"), "until + 3 I");
}

/// The number of passed and of refused requests of a client that sends `rate` requests a second for
/// a minute, in turns through all gatekeepers. The master is unreachable for ten seconds, beginning
/// at `away`.
fn flood(cluster: &mut Cluster, rate: u64, away: Option<u64>) -> (u64, u64) {
    let (mut passed, mut refused, mut put_aside) = (0, 0, None);
    for n in 0..60 * rate {
        let ms = 1_000 * n / rate;
        let gone = away.is_some_and(|away| (away..away + 10_000).contains(&ms));
        if gone && cluster.master.is_some() {
            cluster.run(at(ms));
            put_aside = cluster.master.take();
            cluster.connect(false);
        } else if !gone && let Some(master) = put_aside.take() {
            cluster.master = Some(master);
            cluster.connect(true);
        }
        let keeper = n as usize % cluster.keepers.len();
        let known = cluster.keepers[keeper].clone();
        match cluster.ask(keeper, b"c", ms).as_str() {
            "R" => refused += 1,
            _ => passed += 1,
        }
        // An order that a gatekeeper has is never later than the master's own state.
        let known = known.orders.until(known.orders.hash(b"c"));
        if let Some(master) = cluster.master.as_ref().filter(|_| known > at(ms)) {
            let mut said = Time::ZERO;
            master.in_force(at(ms), |_, until| {
                said = until;
                true
            });
            assert!(known <= said, "nobody is held for longer than the master says");
        }
    }
    (passed, refused)
}

/// 2/s with a burst of 3 for a minute, at 100 requests a second: 3 + 120 requests must pass, and
/// those that still wait up to five seconds at the end.
#[test]
fn what_passes_in_excess_is_what_comes_within_a_round_trip() {
    for (rule, name) in [(h(500, 3), "history"), (k(500, 3), "gcra")] {
        let (exact, _) = flood(&mut Cluster::new(&rule, 1, 0), 100, None);
        assert!((120..=134).contains(&exact), "{name}: {exact}");
        for (keepers, latency) in [(1, 1), (1, 5), (4, 5), (4, 25)] {
            let (passed, refused) = flood(&mut Cluster::new(&rule, keepers, latency), 100, None);
            assert_eq!(passed + refused, 6_000);
            // Each round trip admits the requests that arrive within it. A history forgives them.
            let trip = (2 * latency * 100).div_ceil(1_000);
            let most = if name == "gcra" { exact + trip } else { (1 + trip) * (exact + trip) };
            assert!(passed <= most, "{name}, {keepers} at {latency} ms: {passed} of {most}");
        }
    }
}

#[test]
fn a_master_that_is_away_for_ten_seconds_lets_no_more_pass_than_came() {
    let all = [h(500, 3), k(500, 3)].map(|rule| {
        let (exact, _) = flood(&mut Cluster::new(&rule, 1, 1), 100, None);
        let (passed, _) = flood(&mut Cluster::new(&rule, 1, 1), 100, Some(20_000));
        // The last order was in force for five more seconds, and requests that could wait for its
        // end did.
        assert!((exact..=exact + 1_000).contains(&passed), "{passed} {exact}");
        passed
    });
    let guide = include_str!("../../../../../docs/guide/gatekeeper.md");
    let row = format!("10 of the 60 seconds | {} | {} |", all[0], all[1]);
    assert!(guide.contains(&row), "the guide lacks: {row}");
}

#[test]
fn s7_s8_s9_orders_are_kept_to_the_millisecond_and_only_put_off() {
    let keeper = keeper_of(&settings());
    let word = |identifier: &[u8], ms| {
        let judged = keeper.judge(identifier.to_vec(), false, at(ms));
        (judged.refused().map(|wait| wait.0 / MS), judged.pass(None).until)
    };
    assert!(keeper.learn(b"c", at(5000), at(0)));
    assert_eq!(word(b"c", 0), (None, Some(at(5000))));
    assert!(keeper.learn(b"c", at(5001), at(0)));
    assert_eq!(word(b"c", 0).0, Some(5001), "the true Retry-After");
    assert!(keeper.learn(b"c", at(1500), at(0)));
    assert_eq!(word(b"c", 100), (None, Some(at(5001))), "S8");
    assert_eq!(word(b"c", 5000), (None, Some(at(5001))));
    assert_eq!(word(b"c", 5001), (None, None), "S9");
    assert_eq!(word(b"another", 0), (None, None));
    assert_eq!((keeper.orders.in_force(at(5000)), keeper.orders.in_force(at(5001))), (1, 0));
    assert!(!keeper.learn(b"mad", Time(u64::MAX), at(0)), "nobody is held for centuries");
    assert_eq!(word(b"mad", 0), (None, None));
}

#[test]
fn s16_identifiers_of_any_bytes_are_held_apart() {
    let mut cluster = Cluster::new(&h(500, 1), 1, 0);
    let long = vec![b'x'; IDENTIFIER_BYTES_MAX + 1];
    let names: [&[u8]; 7] =
        [b"", b"constructor", b"__proto__", b"a;b", b"a\0b", &[0xff; 300], &long];
    for name in names {
        assert_eq!(cluster.ask(0, name, 0), "A", "{}", name.escape_ascii());
        assert_eq!(cluster.ask(0, name, 1), "D500", "{}", name.escape_ascii());
    }
}

#[test]
fn s17_a_master_that_is_away_holds_nobody_and_hears_nothing_late() {
    let mut cluster = Cluster::new(&h(500, 3), 1, 1);
    assert_eq!(cluster.all(&[0, 0, 0, 10]), "A A A D501");
    cluster.run(at(20));
    let master = cluster.master.take();
    cluster.connect(false);
    // A known order is in force until it ends. Then all requests pass.
    let before = cluster.messages;
    let said = cluster.all(&[20, 1_000, 1_001, 1_002, 1_003, 1_004]);
    assert_eq!(said, "D1001 D1001 A A A A");
    cluster.run(at(2_000));
    assert_eq!(cluster.messages, before);
    assert_eq!(cluster.keepers[0].counts.away.get(), 6);
    cluster.master = master;
    cluster.connect(true);
    cluster.run(at(10_000));
    assert_eq!(cluster.messages, before, "requests of the outage are told of by nobody");
    assert_eq!(cluster.all(&[10_000, 10_010, 10_020, 10_030]), "A A A D10521");
}

#[test]
fn s18_s19_two_gatekeepers_of_one_domain() {
    let mut cluster = Cluster::new(&h(500, 3), 2, 10);
    let said: Vec<_> = [(0, 0), (0, 0), (1, 0), (1, 0), (0, 25), (1, 25)]
        .iter()
        .map(|(keeper, ms)| cluster.ask(*keeper, b"c", *ms))
        .collect();
    assert_eq!(said.join(" "), "A A A A D510 D510", "one more than three, within a round trip");
    // A gatekeeper that starts late has no orders until the next one, or until it subscribes.
    cluster.run(at(50));
    cluster.keepers.push(keeper_of(&settings()));
    cluster.connect(true);
    assert_eq!(cluster.ask(2, b"c", 60), "A");
    assert_eq!(cluster.ask(2, b"c", 100), "D1010");
    let late = keeper_of(&settings());
    let master = cluster.master.as_ref().expect("it is there");
    master.in_force(at(100), |identifier, until| late.learn(identifier, until, at(100)));
    assert_eq!(late.judge(b"c".to_vec(), false, at(100)).pass(None).until, Some(at(1010)));
}

#[test]
fn places_are_bounded_and_free_when_a_request_runs_or_its_client_goes() {
    let keeper = keeper_of(&settings::GatekeeperSettings { held_max: 2, ..settings() });
    keeper.learn(b"c", at(2_500), at(0));
    let judge = || keeper.judge(b"c".to_vec(), false, at(0));
    let (mut one, two) = (judge().pass(None), judge().pass(None));
    let three = judge();
    assert_eq!(three.refused(), Some(Nanos::from_millis(2_500)));
    three.refuse(None);
    assert_eq!(keeper.counts.held.get(), 2);
    one.end_delay();
    assert_eq!(judge().refused(), None, "it is judged and let go");
    let four = judge().pass(None);
    assert!(judge().refused().is_some());
    drop((one, two, four));
    assert_eq!((keeper.counts.held.get(), keeper.held.load(Relaxed)), (0, 0));
    assert!(judge().refused().is_none());
}

#[test]
fn in_shadow_everybody_passes_and_the_master_hears_what_was_so() {
    let keeper = keeper_of(&settings());
    keeper.outbox.set_open(true, &keeper.counts);
    keeper.learn(b"c", at(1_000), at(0));
    keeper.learn(b"far", at(60_000), at(0));
    for identifier in [&b"c"[..], b"far"] {
        let judged = keeper.judge(identifier.to_vec(), true, at(0));
        assert_eq!(judged.refused(), None);
        let passage = judged.pass(None);
        assert_eq!((passage.until, passage.held_up), (None, true));
    }
    let told: Vec<_> = keeper.outbox.take().iter().map(|note| note.status).collect();
    assert_eq!(told, [ReportedStatus::Accepted; 2]);
}

#[test]
fn refused_requests_are_told_of_as_often_as_asked_for() {
    for (one_in, expected) in [(0, 0), (1, 10), (4, 3)] {
        let keeper =
            keeper_of(&settings::GatekeeperSettings { rejected_one_in: one_in, ..settings() });
        keeper.outbox.set_open(true, &keeper.counts);
        keeper.learn(b"c", at(60_000), at(0));
        (0..10).for_each(|_| keeper.judge(b"c".to_vec(), false, at(0)).refuse(None));
        assert_eq!(keeper.outbox.take().len(), expected, "one in {one_in}");
    }
}

#[test]
fn a_full_table_forgets_those_whose_wait_is_over_first() {
    let keeper = keeper_of(&settings::GatekeeperSettings { keys_max: 2, ..settings() });
    for (name, until) in [(b"a", 1_000), (b"b", 3_000), (b"c", 2_000)] {
        keeper.learn(name, at(until), at(0));
    }
    let until = |name: &[u8]| keeper.judge(name.to_vec(), false, at(0)).pass(None).until;
    assert_eq!((until(b"a"), until(b"b"), until(b"c")), (None, Some(at(3_000)), Some(at(2_000))));
}

#[test]
fn a_secret_is_not_what_the_master_is_told() {
    let veiled = veil("session", b"s3cret");
    assert_eq!(veiled, "session#1ec1c26b50d5d3c58d9583181af80766");
    assert_eq!(shown(b"192.0.2.7\0Browser\x07"), "192.0.2.7 Browser\u{fffd}");
}

#[test]
fn fuzz_orders_in_any_order_hold_until_the_latest_of_them() {
    evenkeel_fuzz::fuzz().with_type::<Vec<(u8, u16)>>().for_each(|orders| {
        let keeper = keeper_of(&settings());
        let mut latest = [0_u64; 4];
        for (name, until) in orders {
            let name = name % 4;
            keeper.learn(&[name], at(u64::from(*until)), at(0));
            let latest = &mut latest[usize::from(name)];
            *latest = u64::from(*until).max(*latest);
        }
        for (name, latest) in (0_u8..).zip(latest) {
            let until = keeper.orders.until(keeper.orders.hash(&[name]));
            assert_eq!(until.since(at(0)).0 / MS, latest, "of {name}");
        }
    });
}
