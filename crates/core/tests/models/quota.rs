//! The quota with reservations, against a log of all charges and a list of what is reserved.

use super::secs;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::quota::QuotaBucket;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::condition::Condition;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit, UnitCosts};
use evenkeel_core::limiter::{Limiter, LimiterPolicy, Ticket, Verdict};
use evenkeel_core::units::{Cost, Nanos, Rate, Time, Weight};
use proptest::prelude::*;

const START: Time = Time(1_000_000_000_000);
/// Tokens that are refilled in a second, and saved up.
const PER_SECOND: u64 = 10;
const BURST: u64 = 600;

struct OnlyClient;

impl RequestAttributes for OnlyClient {
    fn address(&self) -> std::net::IpAddr {
        std::net::IpAddr::from([192, 0, 2, 1])
    }
    fn method(&self) -> &'static str {
        "POST"
    }
    fn path(&self) -> &'static str {
        "/"
    }
    fn vhost(&self) -> &'static str {
        ""
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

fn limiter() -> Limiter {
    let rate = Rate::per(Cost::tokens(PER_SECOND), Nanos::from_secs(1)).expect("a rate");
    let bucket = DebtBucket::new(rate, Cost::tokens(BURST));
    let limit = Limit {
        name: "quota".into(),
        by: vec![KeyPart::All],
        when: Condition::default(),
        unit: LimitUnit::Tokens,
        algorithm: Algorithm::Quota(QuotaBucket::new(bucket)),
        action: None,
        weight: Weight::ONE,
        keys_max: 8,
        shadow: false,
    };
    let policy = LimiterPolicy { action: LimitAction::Queue, max_delay: secs(30.0) };
    Limiter::new(policy, vec![limit], KeySeed([7; 16]))
}

fn tokens(count: u64) -> UnitCosts {
    UnitCosts { tokens: Cost::tokens(count), ..UnitCosts::default() }
}

/// An event in the life of one tenant.
#[derive(Clone, Debug)]
enum Event {
    /// Time passes, in milliseconds.
    Pass(u64),
    /// A request arrives that may use this many tokens.
    Ask(u64),
    /// One of the running requests has used this part, in hundredths, of its reservation.
    Runs { which: usize, hundredths: u64 },
    /// One of the running requests ends, having used this part of its reservation.
    Ends { which: usize, hundredths: u64 },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (0..20_000_u64).prop_map(Event::Pass),
        5 => (0..400_u64).prop_map(Event::Ask),
        2 => (any::<usize>(), 0..=100_u64)
            .prop_map(|(which, hundredths)| Event::Runs { which, hundredths }),
        4 => (any::<usize>(), 0..=100_u64)
            .prop_map(|(which, hundredths)| Event::Ends { which, hundredths }),
    ];
    prop::collection::vec(event, 1..120)
}

struct Running {
    ticket: Ticket,
    reserved: u64,
    used: u64,
}

/// The quota, and the log of everything that was used.
struct QuotaModel {
    limiter: Limiter,
    now: Time,
    /// The time and the number of tokens of each charge.
    log: Vec<(Time, u64)>,
    running: Vec<Running>,
}

impl QuotaModel {
    /// What is left: the burst, less what was charged, plus what was refilled. Counted afresh.
    fn left(&self) -> f64 {
        let (mut level, mut at) = (BURST as f64, START);
        for (when, used) in &self.log {
            level = (level + when.since(at).as_secs_f64() * PER_SECOND as f64).min(BURST as f64);
            level -= *used as f64;
            at = *when;
        }
        let level =
            (level + self.now.since(at).as_secs_f64() * PER_SECOND as f64).min(BURST as f64);
        let open = self.running.iter().map(|one| one.reserved.saturating_sub(one.used));
        level - open.sum::<u64>() as f64
    }

    fn handle(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match *event {
            Event::Pass(millis) => self.now = self.now.plus(Nanos::from_millis(millis)),
            Event::Ask(reserved) => {
                let keys = self.limiter.keys(&OnlyClient);
                let left = self.left();
                let (verdict, ticket) = self.limiter.ask(&keys, tokens(reserved), self.now);
                let admits = verdict == Verdict::Allow;
                prop_assert!(admits == (left > 0.0) || left.abs() < 1e-3, "{left} {verdict:?}");
                if admits {
                    self.running.push(Running { ticket, reserved, used: 0 });
                }
            }
            Event::Runs { which, hundredths } if !self.running.is_empty() => {
                let which = which % self.running.len();
                let one = &mut self.running[which];
                let used = (one.reserved * hundredths / 100).max(one.used);
                self.limiter.charge_so_far(&mut one.ticket, tokens(used), self.now);
                self.log.push((self.now, used - one.used));
                one.used = used;
            }
            Event::Ends { which, hundredths } if !self.running.is_empty() => {
                let one = self.running.swap_remove(which % self.running.len());
                let used = (one.reserved * hundredths / 100).max(one.used);
                self.limiter.settle(&one.ticket, tokens(used), self.now);
                self.log.push((self.now, used - one.used));
            }
            Event::Runs { .. } | Event::Ends { .. } => {}
        }
        Ok(())
    }

    fn level(&self) -> f64 {
        let keys = self.limiter.keys(&OnlyClient);
        let hash = keys.as_slice()[0].hash;
        let level = self.limiter.standing_of(0, hash, self.now).level.expect("a level");
        level as f64 / Cost::tokens(1).0 as f64
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// However long requests run, and in whatever order they end.
    #[test]
    fn what_is_left_is_what_was_not_used_or_reserved(events in events()) {
        let (log, running) = (Vec::new(), Vec::new());
        let mut model = QuotaModel { limiter: limiter(), now: START, log, running };
        for event in &events {
            model.handle(event)?;
            let (level, left) = (model.level(), model.left());
            prop_assert!((level - left).abs() < 0.01, "{level} instead of {left}");
            // What is used never exceeds the quota by more than one request.
            prop_assert!(left > -400.0, "{left}");
        }
    }
}
