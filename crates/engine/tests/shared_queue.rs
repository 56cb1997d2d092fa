//! Two engines that share one queue, connected by the test: their requests take turns for one slot,
//! and one continues alone when the other has ended.
//!
//! How instances agree is tested in `evenkeel_core::queue::shared`; here it is that an engine asks,
//! waits and wakes accordingly.

use evenkeel_config::settings::ProxySettings;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::key::KeySeed;
use evenkeel_core::queue::shared::{InstanceBeat, InstanceId, QueueMessage, RequestCounts};
use evenkeel_core::units::Nanos;
use evenkeel_engine::replicated::{Replicated, SharedAdmission};
use evenkeel_engine::{AskOutcome, Charge, Engine, QueueAdmission, QueueTurn};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use evenkeel_testing::wait::until;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The second and the last byte of an address.
struct Visitor(u8, u8);

impl RequestAttributes for Visitor {
    fn address(&self) -> IpAddr {
        IpAddr::from([10, self.0, 0, self.1])
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
        Pair::with("cost: 'header:x-cost', queue: {concurrency: 1, reserve: 0, known: off}")
    }

    fn with(proxy: &str) -> Pair {
        Pair::of([proxy, proxy])
    }

    fn of(proxies: [&str; 2]) -> Pair {
        let pair = Pair::apart(proxies);
        pair.connect();
        pair
    }

    /// Engines that do not share their queues yet.
    fn apart(proxies: [&str; 2]) -> Pair {
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(clock.now()));
        let engine = |proxy: &str| {
            let text = format!("{{proxy: {{{proxy}}}, peers: {{cpus_shared: true}}}}");
            let config = evenkeel_config::parse("t.yaml", text.as_bytes(), 4.0).expect("good");
            let mut proxy: ProxySettings = config.settings.proxy.expect("open");
            // The settings of peers, which it follows from, are not part of an engine.
            proxy.queue.shared = true;
            Engine::new(&proxy, 1, KeySeed([7; 16]), clock, Arc::clone(&watch))
        };
        Pair { engines: proxies.map(engine), woken: Arc::default() }
    }

    fn connect(&self) {
        for (node, _) in self.engines.iter().enumerate() {
            let woken = Arc::clone(&self.woken);
            let wake = Arc::new(move || {
                woken.fetch_add(1, Relaxed);
            });
            self.queue(node).start(id(node), wake);
        }
        self.queue(0).handle_link(id(1));
        self.queue(1).handle_link(id(0));
        self.relay();
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

    /// Waits until each knows the requests of the other.
    fn wait_for_counts(&self) {
        let report = |node: usize| self.engines[node].shared_queue_report().expect("shared");
        until("they have told each other", || {
            (0..2).for_each(|node| self.queue(node).handle_timeout());
            self.relay();
            let [a, b] = [report(0), report(1)];
            a.all == b.all && [a.others[0].counts, b.others[0].counts] == [b.counts, a.counts]
        });
    }

    fn ask(&self, node: usize, client: u8) -> Charge {
        self.ask_as(node, Visitor(client, 1))
    }

    fn ask_as(&self, node: usize, visitor: Visitor) -> Charge {
        match self.engines[node].lane(0).ask(&visitor) {
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
    pair.wait_for_counts();
    for (node, running) in [0, 1].into_iter().enumerate() {
        let report = pair.engines[node].shared_queue_report().expect("it is shared");
        assert_eq!((report.owner, report.instances(), report.slots), (0, 2, 1));
        assert_eq!(report.counts, RequestCounts { waiting: 1, running });
        assert_eq!(report.all, RequestCounts { waiting: 2, running: 1 });
        let other = report.others[0];
        let theirs = RequestCounts { waiting: 1, running: 1 - running };
        assert_eq!((other.id, other.counts), (id(1 - node), theirs));
    }
    // A client that goes away leaves its turn to the next one.
    drop(third_turn);
    end(second);
    pair.relay();
    assert!(takes(&mut fourth, &mut fourth_turn));
    end(fourth);
}

/// The networks of the next requests that get the slot, if these wait for it.
fn served(pair: &Pair, mut running: Charge, mut waiting: Vec<(u8, Charge, QueueTurn)>) -> Vec<u8> {
    let mut served = Vec::new();
    loop {
        // In less time it could not have cost what it says.
        let begun = Instant::now();
        until("the request has run", || begun.elapsed() >= Duration::from_millis(3));
        end(running);
        pair.relay();
        let next = waiting.iter_mut().position(|(_, charge, turn)| takes(charge, turn));
        let Some((network, charge, _)) = next.map(|next| waiting.swap_remove(next)) else {
            assert!(waiting.is_empty(), "one is always next");
            return served;
        };
        served.push(network);
        running = charge;
    }
}

/// The order and the number of the limits differ. A network that is in debt under a common limit
/// has one turn, wherever its clients ask.
#[test]
fn a_network_in_debt_has_one_turn_whatever_the_order_of_the_limits() {
    let proxy = |limits: &str| {
        let first = "{name: ip, by: ip/32, share: 50%, burst: 60s}";
        format!(
            "cost: 'header:x-cost', limits: [{first}, {limits}], \
             queue: {{concurrency: 1, reserve: 0, known: off, debt_max: 10s}}"
        )
    };
    let net = "{name: net, by: ip/16, share: 0.1%, burst: 1ms}";
    let more = "{name: more, by: ip/8, share: 50%, burst: 60s}";
    let both = [proxy(&format!("{net}, {more}")), proxy(&format!("{more}, {net}"))];
    let [ahead, behind] = both;
    // With the same settings, in another order, and with one limit more.
    for [a, b] in [[&ahead, &ahead], [&ahead, &behind], [&behind, &ahead], [&behind, &proxy(net)]] {
        let pair = Pair::of([a, b]);
        for network in [1, 2] {
            for node in [0, 1] {
                let mut charge = pair.ask(node, network);
                if let QueueAdmission::Waits(mut turn) = charge.enter() {
                    pair.relay();
                    assert!(takes(&mut charge, &mut turn));
                }
                end(charge);
                pair.relay();
            }
        }
        let mut running = pair.ask(0, 9);
        assert!(matches!(running.enter(), QueueAdmission::Room));
        let mut waiting = Vec::new();
        for (node, network) in [(0, 1), (1, 1), (0, 2)].into_iter().cycle().take(24) {
            let mut charge = pair.ask_as(node, Visitor(network, node as u8));
            let turn = waits(&mut charge);
            pair.relay();
            waiting.push((network, charge, turn));
        }
        let order = served(&pair, running, waiting);
        let early = order[..12].iter().filter(|network| **network == 1).count();
        assert!((5..=7).contains(&early), "{order:?}");
    }
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

/// Two requests on one processor at the same time cost half of their time each, at whichever
/// instance they are.
#[test]
fn requests_at_two_engines_share_the_processor() {
    let pair = Pair::with("cost: shared, cpus: 1, queue: {concurrency: 2, reserve: 0, known: off}");
    let mut first = pair.ask(0, 1);
    assert!(matches!(first.enter(), QueueAdmission::Room));
    let mut second = pair.ask(1, 2);
    let mut turn = waits(&mut second);
    until("the owner gives out all slots", || {
        pair.queue(0).handle_timeout();
        pair.relay();
        takes(&mut second, &mut turn)
    });
    pair.wait_for_counts();
    let costs = Arc::new(Mutex::new(Vec::new()));
    let clock = Clock::start();
    let mut charges = [first, second];
    let began = clock.now();
    for charge in &mut charges {
        let costs = Arc::clone(&costs);
        charge.tell(Box::new(move |cost, _, _| costs.lock().expect("no panic").push(cost)));
        charge.work();
    }
    let both = clock.now();
    until("time has passed", || clock.now().since(both) >= Nanos::from_millis(100));
    let shared = clock.now().since(both);
    charges.iter_mut().for_each(Charge::rest);
    let most = clock.now().since(began);
    drop(charges);
    for cost in costs.lock().expect("no panic").iter() {
        // Half of the time in which both run. One of them may run alone before and after that.
        let range = shared.0 / 4..=most.0 - shared.0 / 4;
        assert!(range.contains(&cost.work.0), "{cost:?} {shared:?} {most:?}");
    }
}

/// Only a request of the other engine waits behind one that hangs.
#[test]
fn a_request_that_hangs_does_not_hold_the_slot_of_another_engine() {
    let pair = Pair::with(
        "cost: 'header:x-cost', cpus: 1, queue: {concurrency: auto, reserve: 0, known: off}",
    );
    let mut hangs = pair.ask(0, 1);
    assert!(matches!(hangs.enter(), QueueAdmission::Room));
    let mut waiting = pair.ask(1, 2);
    let mut turn = waits(&mut waiting);
    pair.relay();
    until("it has waited for as long as a request may take", || {
        pair.engines[0].lane(0).expire();
        pair.relay();
        takes(&mut waiting, &mut turn)
    });
    end(waiting);
}

/// Its doors are open before it has found the others, which may use all slots. Afterwards it asks
/// for the requests that wait.
#[test]
fn an_engine_uses_one_slot_until_it_shares_its_queue() {
    let proxy = "cost: 'header:x-cost', queue: {concurrency: 2, reserve: 0, known: off}";
    let pair = Pair::apart([proxy; 2]);
    let mut first = pair.ask(1, 1);
    assert!(matches!(first.enter(), QueueAdmission::Room));
    let mut second = pair.ask(1, 2);
    let mut turn = waits(&mut second);
    pair.connect();
    until("it has the second slot", || {
        (0..2).for_each(|node| pair.queue(node).handle_timeout());
        pair.relay();
        takes(&mut second, &mut turn)
    });
    [first, second].into_iter().for_each(end);
}

/// Alerts about waits in credit are silent during a swarm, at each instance.
#[test]
fn pressure_is_seen_at_an_instance_that_does_not_own_the_queue() {
    let pair = Pair::connected();
    let pressure = || pair.engines[1].visitor_stats().expect("it queues").pressure_since;
    assert_eq!(pressure(), None);
    let beat = InstanceBeat {
        term: 0,
        is_owner: true,
        slots: 1,
        has_joined: true,
        pressure: Some(Nanos::from_secs(3)),
        own: RequestCounts::default(),
        all: RequestCounts::default(),
    };
    pair.queue(1).handle_messages(0, &[QueueMessage::Beat(beat)]);
    assert!(pressure().is_some());
}
