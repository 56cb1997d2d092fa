//! Drivers of two instances in one process, over a mesh on this machine, with queues that only note
//! the events that they get.

use super::*;
use evenkeel_config::settings::peers::PeerTarget;
use evenkeel_core::queue::shared::QueueMessage;
use evenkeel_core::replica::ReplicatedLimit;
use evenkeel_engine::replicated::SharedAdmission;
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::until;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const QUEUE: u64 = 7;
const LIMIT: u64 = 5;
const BUCKET: KeyHash = KeyHash::from_bits(1 << 40);

#[derive(Default)]
struct Noted {
    own: Option<InstanceId>,
    wake: Option<Arc<dyn Fn() + Send + Sync>>,
    /// The other instance, while there is a connection.
    other: Option<InstanceId>,
    /// How connections have ended: whether the other instance has.
    ends: Vec<bool>,
    out: Vec<(u64, QueueMessage)>,
    heard: Vec<(Instant, QueueMessage)>,
    /// The charges for each collection.
    charges: u64,
    /// What its bucket is short of, and how much of that was not collected yet.
    missing: u64,
    uncollected: u64,
    /// The number of further readings of the bucket after which it is charged at once.
    charged_readings: u64,
    /// Whether a reload has ended the sharing, and how often the engine has heard of it.
    is_apart: bool,
    ends_of_sharing: usize,
}

/// An engine that notes the events that its queue gets.
#[derive(Default)]
struct NotingEngine(Mutex<Noted>);

impl NotingEngine {
    fn send(&self, message: QueueMessage) {
        let mut noted = self.0.lock();
        let other = noted.other.expect("connected").node;
        noted.out.push((other, message));
        let wake = noted.wake.clone();
        drop(noted);
        wake.expect("started")();
    }

    /// The ids of this instance and of the other.
    fn ids(&self) -> [Option<InstanceId>; 2] {
        let noted = self.0.lock();
        [noted.own, noted.other]
    }

    fn has_other(&self) -> bool {
        self.0.lock().other.is_some()
    }

    fn read_bucket(&self) -> Cost {
        let mut noted = self.0.lock();
        let missing = noted.missing;
        if noted.charged_readings > 0 {
            noted.charged_readings -= 1;
            noted.missing += 1;
            noted.uncollected += 1;
        }
        Cost(missing)
    }
}

impl Replicated for NotingEngine {
    fn start_sharing(&self) {}

    fn shared(&self) -> Vec<ReplicatedLimit> {
        let (name, numbers) = ("hits".into(), "1/s".into());
        let (unit, per_second) = (1, Cost::ZERO);
        vec![ReplicatedLimit { fingerprint: LIMIT, name, numbers, unit, per_second }]
    }

    fn spent(&self, each: &mut dyn FnMut(u64, u128, KeyHash, Cost)) -> u64 {
        let charges = self.0.lock().charges;
        let uncollected = std::mem::take(&mut self.0.lock().uncollected);
        if uncollected > 0 {
            each(LIMIT, 0, BUCKET, Cost(uncollected));
        }
        // Hashes are random; the table of charges is slow with others.
        let key = |n: u64| KeyHash::from_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (1..=charges).for_each(|n| each(LIMIT, 0, key(n), Cost(1)));
        0
    }

    fn apply_delta(&self, _: u64, _: u128, _: KeyHash, amount: Cost, _: Nanos) {
        self.0.lock().missing += amount.0;
    }

    fn apply_deficit(&self, _: u64, _: KeyHash, amount: Cost) {
        self.0.lock().missing += amount.0;
    }

    fn short(&self, _: usize) -> Vec<(u64, KeyHash, Cost)> {
        vec![(LIMIT, BUCKET, self.read_bucket())]
    }

    fn missing(&self, _: u64, _: KeyHash) -> Option<Cost> {
        Some(self.read_bucket())
    }

    fn shared_queue(&self) -> Option<(u64, &dyn SharedAdmission)> {
        (!self.0.lock().is_apart).then_some((QUEUE, self as &dyn SharedAdmission))
    }

    fn end_sharing(&self) {
        let mut noted = self.0.lock();
        (noted.ends_of_sharing, noted.other) = (noted.ends_of_sharing + 1, None);
    }
}

impl SharedAdmission for NotingEngine {
    fn start(&self, own: InstanceId, wake: Arc<dyn Fn() + Send + Sync>) {
        let mut noted = self.0.lock();
        (noted.own, noted.wake) = (Some(own), Some(wake));
    }

    fn handle_link(&self, id: InstanceId) {
        self.0.lock().other = Some(id);
    }

    fn handle_link_end(&self, node: u64, is_gone: bool) {
        let mut noted = self.0.lock();
        assert_eq!(noted.other.take().map(|id| id.node), Some(node));
        noted.ends.push(is_gone);
    }

    fn handle_messages(&self, from: u64, messages: &[QueueMessage]) {
        let mut noted = self.0.lock();
        assert_eq!(noted.other.map(|id| id.node), Some(from));
        noted.heard.extend(messages.iter().map(|message| (Instant::now(), *message)));
    }

    fn poll_messages(&self, each: &mut dyn FnMut(u64, QueueMessage)) {
        let out = std::mem::take(&mut self.0.lock().out);
        out.into_iter().for_each(|(to, message)| each(to, message));
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&self) {}
}

/// Starts an instance on a port, which joins those on the others.
fn instance(port: u16, join: &[u16]) -> (Arc<NotingEngine>, PeersThread) {
    let settings = PeersSettings {
        via: PeerTransport::Mesh {
            listen: SocketAddr::from(([127, 0, 0, 1], port)),
            join: join.iter().map(|one| PeerTarget::One(format!("127.0.0.1:{one}"))).collect(),
            mdns: false,
        },
        cluster: "test".to_owned(),
        secret_file: None,
        tls: None,
        period: Duration::from_millis(200),
        cpus_shared: true,
        nodes_max: 8,
    };
    let (engine, clock) = (Arc::new(NotingEngine::default()), Clock::start());
    let watch = Arc::new(Watch::new(clock.now()));
    let engines = vec![Arc::clone(&engine) as Arc<dyn Replicated>];
    let all = PeerExchange::All { is_restored: false };
    let thread = start(&settings, all, engines, None, clock, &watch).expect("the peers start");
    (engine, thread)
}

#[test]
fn messages_arrive_in_order_and_the_end_of_an_instance_is_told() {
    let ports = [free_port(), free_port()];
    let (a, _a) = instance(ports[0], &[]);
    let (b, b_thread) = instance(ports[1], &ports[..1]);
    until("they share the queue", || a.has_other() && b.has_other());
    assert_eq!([a.ids()[1], a.ids()[0]], b.ids());
    for round in 0..200 {
        a.send(QueueMessage::Join { running: round });
        b.send(QueueMessage::Take { slots: round });
    }
    until("all have arrived", || a.0.lock().heard.len() == 200 && b.0.lock().heard.len() == 200);
    let heard = |one: &NotingEngine| -> Vec<QueueMessage> {
        one.0.lock().heard.iter().map(|(_, message)| *message).collect()
    };
    assert_eq!(heard(&a), (0..200).map(|slots| QueueMessage::Take { slots }).collect::<Vec<_>>());
    assert_eq!(
        heard(&b),
        (0..200).map(|running| QueueMessage::Join { running }).collect::<Vec<_>>()
    );
    assert_eq!((a.0.lock().ends.len(), b.0.lock().ends.len()), (0, 0));
    drop(b_thread);
    until("the end is told", || !a.has_other());
    assert_eq!(a.0.lock().ends, [true]);
    until("it goes on alone", || !b.has_other());
}

#[test]
fn an_instance_that_joins_gets_what_is_charged_while_buckets_are_read() {
    let ports = [free_port(), free_port()];
    let (a, _a) = instance(ports[0], &[]);
    {
        let mut noted = a.0.lock();
        (noted.missing, noted.uncollected, noted.charged_readings) = (100, 100, 9);
    }
    let (b, _b) = instance(ports[1], &ports[..1]);
    until("all charges are known", || {
        let [a, b] = [a.0.lock(), b.0.lock()];
        a.charged_readings == 0 && a.missing == 109 && b.missing == 109
    });
}

#[test]
fn an_engine_hears_that_its_queue_is_shared_no_longer_and_again() {
    let ports = [free_port(), free_port()];
    let (a, _a) = instance(ports[0], &[]);
    let (b, _b) = instance(ports[1], &ports[..1]);
    until("they share a queue", || a.has_other() && b.has_other());
    a.0.lock().is_apart = true;
    until("both hear of it", || !a.has_other() && !b.has_other());
    assert_eq!((a.0.lock().ends_of_sharing, &b.0.lock().ends[..]), (1, &[true][..]));
    a.0.lock().is_apart = false;
    until("they share it again", || a.has_other() && b.has_other());
    assert_eq!(b.0.lock().ends_of_sharing, 0);
}

#[test]
fn two_connections_that_replace_each_other_end_nothing() {
    let ports = [free_port(), free_port()];
    let (a, _a) = instance(ports[0], &ports[1..]);
    let (b, _b) = instance(ports[1], &ports[..1]);
    until("they share the queue", || a.has_other() && b.has_other());
    // For longer than the driver waits for a connection to be replaced.
    let began = Instant::now();
    until("time has passed", || began.elapsed() >= Duration::from_millis(500));
    assert!(a.has_other() && b.has_other());
    assert_eq!((a.0.lock().ends.len(), b.0.lock().ends.len()), (0, 0));
}

/// Prints how long messages take from one engine to the other, without and with charges that are
/// collected at the same time.
#[test]
fn a_message_does_not_wait_for_a_period() {
    let ports = [free_port(), free_port()];
    let (a, _a) = instance(ports[0], &[]);
    let (b, _b) = instance(ports[1], &ports[..1]);
    until("they share the queue", || a.has_other() && b.has_other());
    for charges in [0, 2_000] {
        a.0.lock().charges = charges;
        let mut took: Vec<Duration> = Vec::new();
        for _ in 0..200 {
            b.0.lock().heard.clear();
            let sent = Instant::now();
            a.send(QueueMessage::Keep(true));
            until("it has arrived", || !b.0.lock().heard.is_empty());
            took.push(b.0.lock().heard[0].0 - sent);
        }
        took.sort();
        let [median, late, last] = [took[100], took[190], took[199]];
        println!("{charges} charges: median {median:?}, 95 % {late:?}, longest {last:?}");
        assert!(median < Duration::from_millis(200), "median {median:?}");
    }
}
