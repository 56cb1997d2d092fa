//! One of four instances says what is not true, beside what it would say otherwise.

use super::*;
use crate::queue::standing::{VisitPass, VisitTicket};
use crate::queue::{QueuePlace, RefusalCause};
use crate::sim::random::SimRandom;

/// An instance that lies, in ways that depend on the seed.
pub(super) struct Liar {
    node: usize,
    random: SimRandom,
    /// Requests that have asked it, of which it grants some.
    asked: Vec<RequestId>,
    term: u64,
    refuses: bool,
}

const WEEK: u64 = 7 * 24 * 3_600 * 1_000 * MILLI;

impl World {
    /// An instance lies from now on; if it `refuses`, it refuses requests, too.
    fn begin_to_lie(&mut self, node: usize, seed: u64, refuses: bool) {
        let random = SimRandom::new(seed, 0);
        self.liar = Some(Liar { node, random, asked: Vec::new(), term: 0, refuses });
        self.plan(self.now, Event::Lie);
    }

    /// Whether the requests of this instance are those of the liar, or it is their owner, which may
    /// refuse them.
    pub(super) fn is_of_liar(&self, node: usize) -> bool {
        let owner = self.nodes[node].as_ref().and_then(SharedQueue::owner);
        let is_liar = |liar: &Liar| liar.node == node || owner == Some(liar.node as u64);
        self.liar.as_ref().is_some_and(is_liar)
    }

    /// The liar sees the messages that it gets.
    pub(super) fn show_liar(&mut self, to: usize, message: &QueueMessage) {
        let Some(liar) = self.liar.as_mut().filter(|liar| liar.node == to) else { return };
        match message {
            QueueMessage::Ask { id, .. } if liar.asked.len() < 1_000 => liar.asked.push(*id),
            QueueMessage::Beat(beat) if beat.term < u64::MAX / 4 => {
                liar.term = liar.term.max(beat.term);
            }
            _ => {}
        }
    }

    /// The liar tells another instance something.
    pub(super) fn lie(&mut self) {
        let Some(mut liar) = self.liar.take() else { return };
        if self.nodes[liar.node].is_some() {
            let to = (liar.node + 1 + liar.below(3) as usize) % 4;
            let message = liar.lie(self.now);
            if let Some(link) = self.links.get(&World::pair(liar.node, to)).copied() {
                let event = Event::Message { from: liar.node, to, link, message };
                self.plan(self.now.plus(self.delay), event);
            }
            let pause = liar.below(20) * MILLI;
            self.plan(self.now.plus(Nanos(pause + MILLI / 10)), Event::Lie);
        }
        self.liar = Some(liar);
    }

    /// The number of records that the instances keep because of others.
    fn remembered(&self) -> usize {
        let one = |queue: &SharedQueue| {
            let asked = queue.instances.values().map(|other| other.requests.len()).sum::<usize>();
            asked + queue.foreign.len() + queue.admission.queue().remembered()
        };
        self.nodes.iter().flatten().map(one).sum()
    }
}

impl Liar {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.bits() % bound
    }

    fn one_of<const N: usize>(&mut self, all: [u64; N]) -> u64 {
        all[self.below(N as u64) as usize]
    }

    fn time(&mut self, now: Time) -> Time {
        Time(self.one_of([0, 1, now.0 / 2, now.0, now.0 + WEEK, u64::MAX]))
    }

    fn id(&mut self) -> RequestId {
        let asked = (self.below(2) == 0).then(|| self.asked.pop()).flatten();
        asked.unwrap_or_else(|| RequestId(self.one_of([1, 2, 3, u64::MAX])))
    }

    fn slots(&mut self) -> u32 {
        self.one_of([0, 1, 2, 1_000, 1 << 16, u32::MAX.into()]) as u32
    }

    fn arrival(&mut self, now: Time) -> Arrival {
        // In the name of a client that exists it can use up the turns of that.
        let stranger = self.random.bits();
        let client = self.one_of([20_000, 20_001, stranger]);
        let key = KeyHash::from_bits(client);
        let (id, time) = (self.below(3), self.time(now));
        let visit = match self.below(3) {
            0 => Visit::Unknown,
            1 => Visit::Ticket(VisitTicket { id, first_came: time }),
            _ => Visit::Pass(VisitPass { id, stamp: time }),
        };
        let bucket = crate::queue::DebtFlow { limit: 255, hash: key };
        Arrival {
            place: if self.below(2) == 0 { QueuePlace::Debt(bucket) } else { QueuePlace::Credit },
            estimate: Cost(self.one_of([0, 1, PAGE.0, WEEK, u64::MAX])),
            route: Some(RouteHash::from_hash(KeyHash::from_bits(client))),
            weight: Weight::new(self.one_of([1, 1_000, 1_000_000]) as u32),
            visit,
            burns: self.below(2) == 0,
            ..arrival(client)
        }
    }

    fn beat(&mut self) -> QueueMessage {
        let most = TERM_MAX;
        let later = [self.term, self.term + 1, self.term + 1, self.term + 1];
        let far = [0, most - 1, most, most + 1, u64::MAX];
        let term = if self.below(200) == 0 { self.one_of(far) } else { self.one_of(later) };
        let pressure = self.one_of([0, 1, WEEK, u64::MAX]);
        let slots = self.slots();
        let counts = RequestCounts { waiting: slots, running: slots };
        QueueMessage::Beat(InstanceBeat {
            term,
            is_owner: self.below(3) > 0,
            slots,
            has_joined: self.below(2) == 0,
            pressure: (pressure > 0).then_some(Nanos(pressure)),
            own: counts,
            all: counts,
        })
    }

    fn lie(&mut self, now: Time) -> QueueMessage {
        let (id, slots) = (self.id(), self.slots());
        let time = Nanos(self.one_of([0, 1, WEEK, u64::MAX]));
        let route = RouteHash::from_hash(KeyHash::from_bits(self.one_of([1, 2, u64::MAX])));
        match self.below(if self.refuses { 13 } else { 12 }) {
            0 | 1 => self.beat(),
            2 => QueueMessage::Join { running: slots },
            3 | 4 => QueueMessage::Ask { id, arrival: self.arrival(now) },
            5 => QueueMessage::Cancel { id },
            6 => {
                let (worked, keeps) = (Some((route, time)), self.below(2) == 0);
                QueueMessage::Done { id, cost: Cost(time.0), worked, keeps }
            }
            7 => QueueMessage::Estimate { route, cost: Cost(time.0) },
            8 => QueueMessage::Take { slots },
            9 => QueueMessage::Return { slots },
            10 => {
                let pass = Some(VisitPass { id: slots.into(), stamp: self.time(now) });
                let newcomer_since = Some(self.time(now));
                QueueMessage::Grant { id, visit: GrantedVisit { pass, newcomer_since } }
            }
            11 => QueueMessage::Keep(self.below(2) == 0),
            _ => {
                let cause = RefusalCause::LenMax;
                QueueMessage::Refuse(RefusedRequest { id, retry_after: time, cause })
            }
        }
    }
}

/// The bars hold with each seed.
#[test]
fn an_instance_that_lies_stops_the_others_only_while_it_lies() {
    for seed in 0..24 {
        let (node, search) = (seed as usize % 4, seed % 8 >= 4);
        let loads = [
            crawler(1, [0].to_vec(), 8),
            crawler(2, [1].to_vec(), 8),
            crawler(3, (0..4).collect(), 8),
            person(3),
        ];
        let own = QueueSettings { wait_max: Nanos::from_secs(5), ..settings(2) };
        let mut world = World::with(std::vec![(own, search); 4], 2, loads.to_vec());
        world.run(Nanos::from_secs(5));
        world.reset();
        world.begin_to_lie(node, seed, false);
        world.run(Nanos::from_secs(60));
        let (during, remembered) = (world.done.len(), world.remembered());
        world.kill(node);
        world.liar = None;
        world.run(Nanos::from_secs(10));
        let (owners, before) = (world.owners(), world.done.len());
        world.most = 0;
        world.run(Nanos::from_secs(20));
        let after = world.done.len() - before;
        println!(
            "{seed}: node {node}, search {search}: {during} pages, {remembered} remembered; \
             {owners:?} {after} pages, most {}",
            world.most
        );

        assert!(during >= 60 * 25 && remembered < 1_000, "{seed}");
        assert_eq!(world.lost, 0, "{seed}");
        assert_eq!(world.owners().len(), 1, "{seed}");
        assert!(after >= 20 * 46 && world.most <= 4, "{seed}: {after} {}", world.most);
    }
}

/// An owner may refuse requests. It is no worse than that.
#[test]
fn an_instance_that_refuses_requests_without_need_causes_no_other_harm() {
    for seed in 0..8 {
        let mut world = four(false);
        world.begin_to_lie(seed as usize % 4, seed, true);
        world.run(Nanos::from_secs(30));
        assert!(world.remembered() < 1_000, "{seed}");
    }
}
