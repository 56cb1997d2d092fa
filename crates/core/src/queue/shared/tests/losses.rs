//! Instances with different clocks, over a network that delays and loses messages.
//!
//! A mesh loses no message while a connection lasts. If a message finds no room or is refused, the
//! connection ends and another one takes its place; messages in transit are lost.

use super::*;
use crate::queue::standing::{VisitPass, VisitTicket};
use crate::sim::random::SimRandom;

const HOUR: Nanos = Nanos::from_secs(3_600);
/// One message in this many ends its connection.
const LOST_OF: u64 = 1_000;
/// The longest time that a message takes.
const DELAY_MAX: Nanos = Nanos::from_millis(3);

/// A network in which each message takes a different time, and some end their connection.
pub(super) struct LossyNetwork {
    random: SimRandom,
    /// When the last message of each connection arrives: messages keep their order.
    last: BTreeMap<(usize, usize), Time>,
    lost: usize,
}

/// The message as the receiver reads it: its times count from the moment when it was sent.
pub(super) fn as_read_by(sender: Nanos, receiver: Nanos, message: QueueMessage) -> QueueMessage {
    let time = |time: Time| time.minus(sender).plus(receiver);
    let pass = |pass: VisitPass| VisitPass { stamp: time(pass.stamp), ..pass };
    match message {
        QueueMessage::Ask { id, arrival } => {
            let visit = match arrival.visit {
                Visit::Unknown => Visit::Unknown,
                Visit::Ticket(VisitTicket { id, first_came }) => {
                    Visit::Ticket(VisitTicket { id, first_came: time(first_came) })
                }
                Visit::Pass(own) => Visit::Pass(pass(own)),
            };
            QueueMessage::Ask { id, arrival: Arrival { visit, ..arrival } }
        }
        QueueMessage::Grant { id, visit } => {
            let (pass, newcomer_since) = (visit.pass.map(pass), visit.newcomer_since.map(time));
            QueueMessage::Grant { id, visit: GrantedVisit { pass, newcomer_since } }
        }
        QueueMessage::WaitingRoom(entry) => {
            let first_came = time(entry.first_came);
            QueueMessage::WaitingRoom(WaitingRoomEntry { first_came, ..entry })
        }
        _ => message,
    }
}

impl World {
    /// When a message arrives; `None` if it is lost, and its connection with it.
    pub(super) fn arrival_time(&mut self, from: usize, to: usize) -> Option<Time> {
        let Some(network) = &mut self.network else { return Some(self.now.plus(self.delay)) };
        if network.random.bits().is_multiple_of(LOST_OF) {
            network.lost += 1;
            self.lose_link(from, to);
            return None;
        }
        let delay = Nanos(network.random.bits() % DELAY_MAX.0);
        let last = network.last.entry((from, to)).or_insert(Time::ZERO);
        *last = self.now.plus(delay).max(*last);
        Some(*last)
    }

    /// A connection ends. Most often another one takes its place before anyone notices.
    fn lose_link(&mut self, closes: usize, other: usize) {
        let Some(network) = &mut self.network else { return };
        let pause = match network.random.bits() % 4 {
            0 => Nanos::from_millis(100 + network.random.bits() % 900),
            _ => Nanos::from_millis(5 + network.random.bits() % 30),
        };
        self.links.remove(&World::pair(closes, other));
        let noticed = self.now.plus(Nanos::from_millis(50));
        self.plan(noticed, Event::LinkEnd { node: closes, other, is_gone: false });
        // To the other it looks as if the instance had ended.
        self.plan(noticed, Event::LinkEnd { node: other, other: closes, is_gone: true });
        let (a, b) = World::pair(closes, other);
        self.plan(self.now.plus(pause), Event::Link { a, b });
    }
}

/// Clients at all instances. The clocks of the instances differ by up to an hour.
fn world(nodes: usize, seed: u64) -> World {
    let loads = [
        crawler(1, [0].to_vec(), 8),
        crawler(2, (0..nodes).collect(), 8 * nodes),
        person(nodes / 2),
    ];
    let mut random = SimRandom::new(seed, 0);
    let ahead = (0..nodes).map(|_| Nanos(random.bits() % HOUR.0)).collect();
    let settings = std::vec![(settings(2), false); nodes];
    let mut world = World::with_clocks(ahead, settings, 2, loads.to_vec());
    world.network = Some(LossyNetwork { random, last: BTreeMap::new(), lost: 0 });
    world
}

/// During this time instances end and start again.
#[test]
fn losses_delays_and_clocks_apart_refuse_no_request_and_take_no_turn() {
    for (nodes, seed, rounds) in [(2, 1, 20), (4, 2, 20), (4, 3, 20), (16, 4, 10), (50, 5, 4)] {
        let mut world = world(nodes, seed);
        world.run(Nanos::from_secs(5));
        world.reset();
        let mut pages = 0;
        for round in 0..rounds {
            let node = 1 + (round / 2) % (nodes - 1);
            match round % 2 {
                0 => world.kill(node),
                _ => world.start(node),
            }
            world.run(Nanos::from_secs(1));
            world.most = 0;
            let before = world.done.len();
            world.run(Nanos::from_secs(2));
            assert!(world.most <= 3, "{nodes} {seed} {round}: {}", world.most);
            pages += world.done.len() - before;
        }
        let ended = world.network.as_ref().expect("there").lost;
        let [(one, _), (spread, _), (_, p95)] = [0, 1, 2].map(|load| world.seen(load));
        println!(
            "{nodes}, seed {seed}: {pages} pages, {ended} connections lost, one {one}, all \
             {spread}, person's p95 {p95} ms"
        );
        assert!(ended > 0 && world.lost == 0, "{nodes} {seed}: {ended} {}", world.lost);
        assert_eq!(world.owners().len(), 1, "{nodes} {seed}");
        assert!(pages >= 2 * rounds * 47, "{nodes} {seed}: {pages}");
        let share = one as f64 / spread as f64;
        assert!((0.9..=1.1).contains(&share), "{nodes} {seed}: {one} {spread}");
        assert!(p95 <= 130.0, "{nodes} {seed}: {p95}");
    }
}
