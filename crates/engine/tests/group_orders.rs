//! Orders of an operator about a group of strangers that burns: which requests are refused or wait
//! behind all others, when, and which are not affected.

use evenkeel_config::settings::ProxySettings;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::RefusalKind;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::view::EngineView;
use evenkeel_engine::view::overrides::{Override, OverrideEffect, StrangerGroup};
use evenkeel_engine::{AskOutcome, Charge, Engine, EngineLane, QueueAdmission, QueueTurn};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const SWARM: &str = "swarm/1";
const PERSON: &str = "browser/1";
/// The number of returning clients, and of the first requests of a swarm.
const CLIENTS: u8 = 60;

/// The address, the user agent and the path.
struct Client([u8; 4], &'static str, &'static str);

impl RequestAttributes for Client {
    fn address(&self) -> IpAddr {
        IpAddr::from(self.0)
    }

    fn method(&self) -> &'static str {
        "GET"
    }

    fn path(&self) -> &'static str {
        self.2
    }

    fn vhost(&self) -> &'static str {
        ""
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        (name == "user-agent").then_some(self.1.as_bytes())
    }
}

type Waiting = (&'static str, Charge, Pin<Box<QueueTurn>>);

/// An engine with one slot, and the time at which its lane stands.
struct Stage {
    engine: Arc<Engine>,
    lane: EngineLane,
    now: Time,
}

fn settings(more: &str) -> ProxySettings {
    let text = format!(
        "proxy: {{cost: 'header:x-cost', cpus: 1, {more} limits: [{{name: ip, by: ip/32, share: \
         '50%', burst: 60s}}], exempt: [ip:192.0.2.200]}}"
    );
    let config = evenkeel_config::parse("t.yaml", text.as_bytes(), 1.0).expect("good");
    config.settings.proxy.expect("open")
}

fn one_slot(known: &str) -> ProxySettings {
    settings(&format!("queue: {{concurrency: 1, reserve: 0, known: {known}}},"))
}

impl Stage {
    fn new() -> Stage {
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(clock.now()));
        let engine = Engine::new(&one_slot("auto"), 1, KeySeed([7; 16]), clock, watch);
        let (lane, now) = (engine.lane(0), clock.now());
        lane.stand_at(now);
        Stage { engine, lane, now }
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now.plus(Nanos::from_millis(millis));
        self.lane.stand_at(self.now);
    }

    fn ask(&self, address: [u8; 4], agent: &'static str) -> AskOutcome {
        self.lane.ask(&Client(address, agent, "/page"))
    }

    fn is_denied(&self, address: [u8; 4], agent: &'static str) -> bool {
        match self.ask(address, agent) {
            AskOutcome::Pass(_) => false,
            AskOutcome::Refused(refusal) => {
                assert_eq!(refusal.kind, RefusalKind::Denied);
                assert_eq!((&*refusal.limit, refusal.retry_after_secs), ("override 1", 0));
                true
            }
        }
    }

    fn charge(&self, address: [u8; 4], agent: &'static str) -> Charge {
        let AskOutcome::Pass(charge) = self.ask(address, agent) else { panic!("it passes") };
        charge
    }

    fn serve(&mut self, client: &Client, cost: &str) {
        let AskOutcome::Pass(mut charge) = self.lane.ask(client) else { panic!("it passes") };
        assert!(matches!(charge.enter(), QueueAdmission::Room), "the backend is idle");
        charge.work();
        self.pass(1);
        charge.head(Some(cost.as_bytes()));
    }

    fn wait(&self, address: [u8; 4], agent: &'static str) -> Waiting {
        let mut charge = self.charge(address, agent);
        match charge.enter() {
            QueueAdmission::Waits(turn) => (agent, charge, Box::pin(turn)),
            _ => panic!("there is room for one"),
        }
    }

    /// Keeps the only slot busy with a page that is known to take long. Until the result is
    /// dropped, others wait.
    fn busy(&mut self) -> Charge {
        self.serve(&Client([198, 51, 100, 1], PERSON, "/page"), "9s");
        let mut holder = self.charge([198, 51, 100, 2], PERSON);
        assert!(matches!(holder.enter(), QueueAdmission::Room));
        holder.work();
        holder
    }

    /// Lets the swarm come, until it burns. Returns an override for its group.
    fn burn(&mut self) -> Override {
        for _ in 0..3 {
            for n in 0..CLIENTS {
                let agent = ["a", "b", "c", "d"][usize::from(n % 4)];
                self.serve(&Client([10, n, 0, 1], agent, "/light"), "1ms");
            }
        }
        let holder = self.busy();
        let mut gone = Vec::new();
        for n in 0..CLIENTS {
            self.pass(20);
            gone.push(self.wait([100 + n, 16, 0, 1], SWARM));
        }
        let burning = self.engine.burning();
        let found = burning.iter().find(|one| one.name.contains(SWARM)).expect("it burns");
        let strangers = StrangerGroup { group: found.group, pressure: found.pressure };
        drop((gone, holder));
        Override {
            id: 0,
            limit: None,
            key: found.name.clone(),
            hash: found.key(),
            effect: OverrideEffect::Deny(strangers),
            since: self.now,
            until: self.now.plus(Nanos::from_secs(3_600)),
            by: "127.0.0.1".to_owned(),
        }
    }
}

#[test]
fn strangers_of_a_denied_group_are_refused_and_returning_clients_and_others_are_not() {
    let mut stage = Stage::new();
    let deny = stage.burn();
    assert!(!stage.is_denied([172, 31, 0, 1], SWARM), "a group that burns is not refused");
    let denied = stage.engine.set_override(deny).expect("room");
    // A minute later there is no pressure, and the order still holds.
    for _ in 0..2 {
        assert!(stage.is_denied([172, 31, 0, 1], SWARM));
        assert!(
            stage.is_denied([172, 31, 0, 1], SWARM),
            "it is not served, so it stays a stranger"
        );
        assert!(!stage.is_denied([172, 31, 0, 2], PERSON));
        assert!(!stage.is_denied([10, 7, 0, 1], SWARM), "it was here before the swarm");
        assert!(!stage.is_denied([192, 0, 2, 200], SWARM), "it is exempt");
        let asked =
            stage.engine.lane_without_slots(0).ask(&Client([172, 31, 0, 1], SWARM, "/page"));
        assert!(matches!(asked, AskOutcome::Pass(_)), "no client of such a door is known");
        stage.pass(60_000);
    }
    // A client that is first served after the swarm came is a stranger of the group.
    for _ in 0..3 {
        stage.serve(&Client([172, 31, 0, 3], PERSON, "/light"), "1ms");
    }
    assert!(stage.is_denied([172, 31, 0, 3], SWARM));
    assert!(!stage.is_denied([172, 31, 0, 3], PERSON));

    for (settings, applies) in [
        (settings("shadow: true,"), false),
        (settings("action: hold,"), false),
        // No client is known as one that was here before.
        (one_slot("off"), false),
        (one_slot("always"), true),
    ] {
        stage.engine.reload(&settings);
        assert_eq!(stage.is_denied([172, 31, 0, 1], SWARM), applies);
    }
    assert_eq!(stage.engine.remove_override(denied.id).map(|said| said.id), Some(denied.id));
    assert!(!stage.is_denied([172, 31, 0, 1], SWARM));
}

#[test]
fn a_denied_group_is_served_when_the_time_is_over() {
    let mut stage = Stage::new();
    let deny = stage.burn();
    stage.engine.set_override(deny).expect("room");
    stage.pass(3_599_000);
    assert!(stage.is_denied([172, 31, 0, 1], SWARM));
    stage.pass(1_000);
    assert!(!stage.is_denied([172, 31, 0, 1], SWARM));
}

/// In which order three strangers get their turns who come to a busy backend: two of the swarm,
/// then a person.
fn turns(stage: &mut Stage) -> Vec<&'static str> {
    let mut holder = stage.busy();
    let mut waiting = vec![
        stage.wait([172, 31, 0, 1], SWARM),
        stage.wait([172, 31, 0, 2], SWARM),
        stage.wait([172, 31, 0, 3], PERSON),
    ];
    let mut order = Vec::new();
    while !waiting.is_empty() {
        stage.pass(1_000);
        holder.head(Some(b"1s"));
        drop(holder);
        let mut cx = Context::from_waker(Waker::noop());
        let ready = waiting.iter_mut().enumerate().find_map(|(at, (_, _, turn))| {
            match turn.as_mut().poll(&mut cx) {
                Poll::Ready(turned) => Some((at, turned)),
                Poll::Pending => None,
            }
        });
        let (at, turned) = ready.expect("a turn");
        let (agent, mut charge, _) = waiting.remove(at);
        charge.accept_turn(turned).expect("room");
        charge.work();
        order.push(agent);
        holder = charge;
    }
    order
}

#[test]
fn strangers_of_a_slowed_group_wait_behind_others_though_it_no_longer_burns() {
    let mut stage = Stage::new();
    let deny = stage.burn();
    let OverrideEffect::Deny(strangers) = deny.effect else { panic!("so it was made") };
    let slow = Override { effect: OverrideEffect::Slow(strangers), ..deny };
    stage.pass(60_000);
    assert_eq!(turns(&mut stage), [SWARM, SWARM, PERSON], "nothing burns");
    let slowed = stage.engine.set_override(slow).expect("room");
    stage.pass(60_000);
    assert!(stage.engine.burning().is_empty());
    // The two of the swarm were served, and are strangers all the same.
    assert_eq!(turns(&mut stage), [PERSON, SWARM, SWARM]);
    stage.engine.remove_override(slowed.id).expect("it was there");
}
