//! Two engines that share one queue, connected by the test: their requests take turns for one slot,
//! and one goes on alone when the other has ended.
//!
//! How instances agree is tested in `evenkeel_core::queue::shared`; here it is that an engine asks,
//! waits and wakes accordingly.

use evenkeel_config::settings::ProxySettings;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::key::KeySeed;
use evenkeel_core::queue::shared::InstanceId;
use evenkeel_engine::replicated::{Replicated, SharedAdmission};
use evenkeel_engine::{AskOutcome, Charge, Engine, QueueAdmission, QueueTurn};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

struct Visitor(u8);

impl RequestAttributes for Visitor {
    fn address(&self) -> IpAddr {
        IpAddr::from([10, self.0, 0, 1])
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

    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

/// The engines, each with its number as its node.
struct Pair {
    engines: [Arc<Engine>; 2],
    woken: Arc<AtomicUsize>,
}

impl Pair {
    fn connected() -> Pair {
        let text =
            "proxy: {cost: 'header:x-cost', queue: {concurrency: 1, reserve: 0, known: off}}";
        let config = evenkeel_config::parse("t.yaml", text.as_bytes(), 4.0).expect("good");
        let proxy: ProxySettings = config.settings.proxy.expect("open");
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(clock.now()));
        let engine = || Engine::new(&proxy, 1, KeySeed([7; 16]), clock, Arc::clone(&watch));
        let pair = Pair { engines: [engine(), engine()], woken: Arc::default() };
        for (node, _) in pair.engines.iter().enumerate() {
            let woken = Arc::clone(&pair.woken);
            let wake = Arc::new(move || {
                woken.fetch_add(1, Relaxed);
            });
            pair.queue(node).start(id(node), wake);
        }
        pair.queue(0).handle_link(id(1));
        pair.queue(1).handle_link(id(0));
        pair.relay();
        pair
    }

    fn queue(&self, node: usize) -> &dyn SharedAdmission {
        self.engines[node].shared_queue().expect("it queues").1
    }

    /// Brings all messages to where they belong.
    fn relay(&self) {
        loop {
            let mut all = Vec::new();
            for from in 0..2 {
                let mut take = |to: u64, message| all.push((from, to as usize, message));
                self.queue(from).poll_messages(&mut take);
            }
            if all.is_empty() {
                return;
            }
            for (from, to, message) in all {
                self.queue(to).handle_messages(from as u64, &[message]);
            }
        }
    }

    fn ask(&self, node: usize, client: u8) -> Charge {
        match self.engines[node].lane(0).ask(&Visitor(client)) {
            AskOutcome::Pass(charge) => charge,
            _ => panic!("nothing is refused"),
        }
    }
}

fn id(node: usize) -> InstanceId {
    InstanceId { life: node as u64, node: node as u64 }
}

fn waits(charge: &mut Charge) -> QueueTurn {
    match charge.enter() {
        QueueAdmission::Waits(turn) => turn,
        _ => panic!("it does not wait"),
    }
}

/// Takes the slot, if the turn has come.
fn takes(charge: &mut Charge, turn: &mut QueueTurn) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    match Pin::new(turn).poll(&mut context) {
        Poll::Ready(result) => charge.accept_turn(result).is_ok(),
        Poll::Pending => false,
    }
}

fn end(mut charge: Charge) {
    charge.work();
    charge.head(Some(b"20ms"));
}

#[test]
fn requests_of_two_engines_take_turns_for_one_slot() {
    let pair = Pair::connected();
    let mut first = pair.ask(0, 1);
    assert!(matches!(first.enter(), QueueAdmission::Room));
    let mut second = pair.ask(1, 2);
    let mut second_turn = waits(&mut second);
    assert!(pair.woken.load(Relaxed) > 0, "there are messages");
    pair.relay();
    let mut third = pair.ask(0, 3);
    let mut third_turn = waits(&mut third);
    let mut fourth = pair.ask(1, 4);
    let mut fourth_turn = waits(&mut fourth);
    pair.relay();
    assert!(!takes(&mut second, &mut second_turn));
    end(first);
    pair.relay();
    assert!(takes(&mut second, &mut second_turn));
    assert!(!takes(&mut third, &mut third_turn));
    // A client that goes away leaves its turn to the next one.
    drop(third_turn);
    end(second);
    pair.relay();
    assert!(takes(&mut fourth, &mut fourth_turn));
    end(fourth);
}

#[test]
fn an_engine_whose_owner_has_ended_goes_on() {
    let pair = Pair::connected();
    let mut first = pair.ask(0, 1);
    assert!(matches!(first.enter(), QueueAdmission::Room));
    let mut second = pair.ask(1, 2);
    let mut second_turn = waits(&mut second);
    pair.relay();
    assert!(!takes(&mut second, &mut second_turn));
    pair.queue(1).handle_link_end(0, true);
    assert!(takes(&mut second, &mut second_turn));
    let stats = pair.engines[1].admission_stats().expect("it queues");
    assert_eq!((stats.waiting, stats.running, stats.concurrency), (0, 1, 1));
    end(second);
}
