//! Several instances with one queue before a simulated backend, over a network with delays and
//! cuts.

mod report;

use super::*;
use crate::key::KeyHash;
use crate::queue::concurrency::ConcurrencySearch;
use crate::queue::standing::{KnownClients, Visit};
use crate::queue::{QueuePlace, QueueSettings, WorkUnit};
use crate::sim::backend::{SimBackend, SimScheduling};
use crate::units::Weight;
use alloc::collections::BTreeSet;
use std::println;
use std::vec::Vec;

mod bounds;
mod false_claims;
mod liar;
mod losses;
mod progress;
mod settings;
mod stopped;
mod visitors;

const MILLI: u64 = 1_000_000;
const PAGE: Nanos = Nanos::from_millis(20);

fn settings(concurrency: usize) -> QueueSettings {
    QueueSettings {
        concurrency,
        reserve: 0,
        len_max: 1_000,
        wait_max: Nanos::from_secs(60),
        known: KnownClients::Off,
        cpus_milli: 1_000,
        unit: WorkUnit::CpuTime,
        workers: None,
    }
}

fn arrival(client: u64) -> Arrival {
    Arrival {
        client: KeyHash::from_bits(client),
        place: QueuePlace::Credit,
        estimate: Cost(PAGE.0),
        is_guess: false,
        route: None,
        own: None,
        weight: Weight::ONE,
        visit: Visit::Unknown,
        accepts_waiting_page: false,
        burns: false,
    }
}

/// A client that asks one instance after the other, in a closed loop on each of its connections.
#[derive(Clone)]
struct Load {
    client: u64,
    /// The instances that it asks.
    at: Vec<usize>,
    connections: usize,
    pause: Nanos,
}

#[derive(Clone, Copy)]
struct Flight {
    load: usize,
    node: usize,
    id: RequestId,
    asked: Time,
    started: Option<Time>,
}

enum Event {
    Ask { load: usize, node: usize },
    Message { from: usize, to: usize, link: u64, message: QueueMessage },
    Link { a: usize, b: usize },
    LinkEnd { node: usize, other: usize, is_gone: bool },
    Lie,
}

/// The instances, the network and the backend.
struct World {
    nodes: Vec<Option<SharedQueue>>,
    lives: u64,
    loads: Vec<Load>,
    backend: SimBackend,
    flights: BTreeMap<u64, Flight>,
    last: u64,
    now: Time,
    agenda: BTreeMap<(Time, u64), Event>,
    planned: u64,
    delay: Nanos,
    /// The number of each connection; a message of an earlier one is lost.
    links: BTreeMap<(usize, usize), u64>,
    /// Instances that do nothing, and the messages that they have not read.
    stopped: BTreeSet<usize>,
    unread: Vec<(usize, Event)>,
    done: Vec<(usize, Nanos, Time)>,
    lost: usize,
    /// The largest number of requests with the backend, since it was reset.
    most: usize,
    messages: u64,
    /// The settings of each instance, and whether it searches for the number of slots.
    settings: Vec<(QueueSettings, bool)>,
    liar: Option<liar::Liar>,
    /// How far the clock of each instance is ahead.
    ahead: Vec<Nanos>,
    network: Option<losses::LossyNetwork>,
}

impl World {
    fn new(nodes: usize, slots: usize, workers: usize, loads: Vec<Load>, search: bool) -> World {
        World::with(std::vec![(settings(slots), search); nodes], workers, loads)
    }

    fn with(settings: Vec<(QueueSettings, bool)>, workers: usize, loads: Vec<Load>) -> World {
        let ahead = std::vec![Nanos::ZERO; settings.len()];
        World::with_clocks(ahead, settings, workers, loads)
    }

    fn with_clocks(
        ahead: Vec<Nanos>,
        settings: Vec<(QueueSettings, bool)>,
        workers: usize,
        loads: Vec<Load>,
    ) -> World {
        let nodes = settings.len();
        let mut world = World {
            nodes: Vec::new(),
            lives: 0,
            loads,
            backend: SimBackend::new(1.0, workers, SimScheduling::Shared),
            flights: BTreeMap::new(),
            last: 0,
            now: Time(1_000 * 1_000 * MILLI),
            agenda: BTreeMap::new(),
            planned: 0,
            delay: Nanos(MILLI / 4),
            links: BTreeMap::new(),
            stopped: BTreeSet::new(),
            unread: Vec::new(),
            done: Vec::new(),
            lost: 0,
            most: 0,
            messages: 0,
            settings,
            liar: None,
            ahead,
            network: None,
        };
        (0..nodes).for_each(|_| world.nodes.push(None));
        (0..nodes).for_each(|node| world.start(node));
        for load in 0..world.loads.len() {
            for connection in 0..world.loads[load].connections {
                let at = &world.loads[load].at;
                let node = at[connection % at.len()];
                let wait = Nanos(world.loads[load].pause.0 * connection as u64 / 7 + MILLI);
                world.plan(world.now.plus(wait), Event::Ask { load, node });
            }
        }
        world
    }

    fn plan(&mut self, at: Time, event: Event) {
        self.planned += 1;
        self.agenda.insert((at, self.planned), event);
    }

    /// Starts an instance and connects it to all others.
    fn start(&mut self, node: usize) {
        self.start_alone(node);
        for other in 0..self.nodes.len() {
            if other != node && self.nodes[other].is_some() {
                self.link(node, other);
            }
        }
    }

    fn start_alone(&mut self, node: usize) {
        self.lives += 1;
        let (settings, searches) = self.settings[node];
        let search = searches.then(|| ConcurrencySearch::new(1.0));
        let admission = Admission::new(settings, search);
        // An instance is as old as it says.
        let own = InstanceId { life: self.lives + self.ahead[node].0, node: node as u64 };
        let mut queue = SharedQueue::new(admission);
        queue.start(own, self.clock(node));
        self.nodes[node] = Some(queue);
    }

    /// The time by the clock of an instance.
    fn clock(&self, node: usize) -> Time {
        self.now.plus(self.ahead[node])
    }

    fn link(&mut self, a: usize, b: usize) {
        let at = self.now.plus(self.delay);
        self.plan(at, Event::Link { a, b });
    }

    fn pair(a: usize, b: usize) -> (usize, usize) {
        (a.min(b), a.max(b))
    }

    /// Kills an instance. Its requests are lost, and its clients ask the next instance.
    fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
        let gone: Vec<u64> =
            self.flights.iter().filter(|(_, one)| one.node == node).map(|(id, _)| *id).collect();
        for id in gone {
            let flight = self.flights.remove(&id).expect("there");
            if flight.started.is_some() {
                self.backend.handle_cancel(id, self.now);
            }
            let next = (node + 1) % self.nodes.len();
            self.plan(self.now.plus(PAGE), Event::Ask { load: flight.load, node: next });
        }
        for other in 0..self.nodes.len() {
            self.links.remove(&World::pair(node, other));
            self.end_link(other, node, true);
        }
    }

    /// An instance notices that its connection to another has ended.
    fn end_link(&mut self, node: usize, other: usize, is_gone: bool) {
        let now = self.clock(node);
        if let Some(queue) = &mut self.nodes[node] {
            queue.handle_link_end(other as u64, is_gone, now);
        }
    }

    /// A stopped instance continues, and reads its messages.
    fn resume(&mut self, node: usize) {
        self.stopped.remove(&node);
        let (read, rest) = self.unread.drain(..).partition(|(to, _)| *to == node);
        self.unread = rest;
        let read: Vec<_> = read;
        read.into_iter().for_each(|(_, message)| self.plan(self.now, message));
    }

    /// Cuts the connections between two instances, without either of them hearing of it.
    fn cut(&mut self, a: usize, b: usize) {
        self.links.remove(&World::pair(a, b));
    }

    fn run(&mut self, length: Nanos) {
        let end = self.now.plus(length);
        loop {
            self.settle();
            let timers = self.nodes.iter().enumerate();
            let timers = timers.filter(|(node, _)| !self.stopped.contains(node));
            let timer = timers.filter_map(|(node, one)| {
                let at = one.as_ref()?.poll_timeout()?;
                Some(at.minus(self.ahead[node]))
            });
            let timer = timer.min();
            let event = self.agenda.keys().next().map(|(at, _)| *at);
            let next = [timer, event, self.backend.poll_timeout()].into_iter().flatten().min();
            let next = next.unwrap_or(end).max(self.now);
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
            self.backend.handle_timeout(self.now);
            while let Some(done) = self.backend.poll_finished() {
                self.finish(done.id);
            }
            while let Some(entry) = self.agenda.first_entry().filter(|one| one.key().0 <= self.now)
            {
                let event = entry.remove();
                self.handle(event);
            }
            for node in 0..self.nodes.len() {
                let now = self.clock(node);
                if let (false, Some(queue)) = (self.stopped.contains(&node), &mut self.nodes[node])
                {
                    queue.handle_timeout(now);
                }
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ask { load, mut node } => {
                while self.nodes[node].is_none() {
                    node = (node + 1) % self.nodes.len();
                }
                let arrival = arrival(self.loads[load].client);
                let now = self.clock(node);
                let queue = self.nodes[node].as_mut().expect("up");
                let id = queue.handle_arrival(arrival, now);
                self.last += 1;
                let flight = Flight { load, node, id, asked: self.now, started: None };
                self.flights.insert(self.last, flight);
            }
            Event::Link { a, b } => {
                let ids = [a, b].map(|one| self.nodes[one].as_ref().and_then(|queue| queue.own));
                let [Some(first), Some(second)] = ids else { return };
                let number = self.planned;
                self.links.insert(World::pair(a, b), number);
                for (node, other) in [(a, second), (b, first)] {
                    let now = self.clock(node);
                    self.nodes[node].as_mut().expect("up").handle_link(other, now);
                }
            }
            Event::LinkEnd { node, other, is_gone } => {
                if !self.links.contains_key(&World::pair(node, other)) {
                    self.end_link(node, other, is_gone);
                }
            }
            Event::Lie => self.lie(),
            Event::Message { from, to, link, message } => {
                self.show_liar(to, &message);
                if self.links.get(&World::pair(from, to)) != Some(&link) {
                    return;
                }
                if self.stopped.contains(&to) {
                    return self.unread.push((to, Event::Message { from, to, link, message }));
                }
                let now = self.clock(to);
                if let Some(queue) = &mut self.nodes[to] {
                    queue.handle_message(from as u64, message, now);
                }
            }
        }
    }

    /// Carries out what the instances want.
    fn settle(&mut self) {
        for node in 0..self.nodes.len() {
            if self.stopped.contains(&node) {
                continue;
            }
            let now = self.clock(node);
            while let Some(outcome) = self.nodes[node].as_mut().and_then(|queue| queue.poll(now)) {
                let id = outcome.id();
                let found =
                    self.flights.iter_mut().find(|(_, one)| (one.node, one.id) == (node, id));
                let Some((flight, known)) = found else { panic!("{node}: {outcome:?}") };
                match outcome {
                    AdmissionOutcome::Slot(_) => {
                        assert!(known.started.is_none(), "twice: {outcome:?}");
                        known.started = Some(self.now);
                        self.backend.handle_request(*flight, PAGE, self.now);
                    }
                    _ => self.lost += usize::from(!self.is_of_liar(node)),
                }
            }
            while let Some((to, message)) =
                self.nodes[node].as_mut().and_then(SharedQueue::poll_message)
            {
                self.messages += 1;
                let Some(link) = self.links.get(&World::pair(node, to as usize)).copied() else {
                    continue;
                };
                self.send(node, to as usize, link, message);
            }
        }
        let running = self.flights.values().filter(|one| one.started.is_some()).count();
        self.most = self.most.max(running);
    }

    fn send(&mut self, from: usize, to: usize, link: u64, message: QueueMessage) {
        let message = losses::as_read_by(self.ahead[from], self.ahead[to], message);
        if let Some(at) = self.arrival_time(from, to) {
            self.plan(at, Event::Message { from, to, link, message });
        }
    }

    fn finish(&mut self, id: u64) {
        let flight = self.flights.remove(&id).expect("there");
        let elapsed = self.now.since(flight.started.expect("started"));
        let route = RouteHash::UNKNOWN;
        let now = self.clock(flight.node);
        let queue = self.nodes[flight.node].as_mut().expect("up");
        queue.handle_done(flight.id, Cost(PAGE.0), Some((route, elapsed)), now);
        queue.handle_estimate(route, Cost(PAGE.0));
        self.done.push((flight.load, self.now.since(flight.asked), flight.asked));
        let load = &self.loads[flight.load];
        let next = self.now.plus(Nanos(load.pause.0.max(MILLI / 10)));
        self.plan(next, Event::Ask { load: flight.load, node: flight.node });
    }

    fn reset(&mut self) {
        self.done.clear();
        (self.most, self.messages) = (0, 0);
    }

    /// The number of pages that a client got, and their 95th percentile in milliseconds.
    fn seen(&self, load: usize) -> (usize, f64) {
        let mut took: Vec<f64> = self
            .done
            .iter()
            .filter(|(one, ..)| *one == load)
            .map(|(_, took, _)| took.as_secs_f64() * 1e3)
            .collect();
        took.sort_by(f64::total_cmp);
        let p95 = took.get(took.len() * 95 / 100).copied().unwrap_or(f64::NAN);
        (took.len(), p95)
    }

    fn owners(&self) -> Vec<u64> {
        let alive = self.nodes.iter().flatten();
        let owners: BTreeSet<u64> = alive.filter_map(SharedQueue::owner).collect();
        owners.into_iter().collect()
    }
}

fn crawler(client: u64, at: Vec<usize>, connections: usize) -> Load {
    Load { client, at, connections, pause: Nanos(0) }
}

fn person(at: usize) -> Load {
    Load { client: 10_000, at: [at].to_vec(), connections: 1, pause: Nanos::from_millis(500) }
}

const SECONDS: u64 = 20;

#[test]
fn a_client_has_one_turn_wherever_it_asks() {
    let mut alone = f64::NAN;
    for nodes in [1, 2, 4, 16, 50] {
        let all: Vec<usize> = (0..nodes).collect();
        let connections = 8 * nodes;
        let loads =
            [crawler(1, [nodes - 1].to_vec(), 8), crawler(2, all, connections), person(nodes / 2)];
        let mut world = World::new(nodes, 2, 2, loads.to_vec(), false);
        world.run(Nanos::from_secs(3));
        world.reset();
        world.run(Nanos::from_secs(SECONDS));
        let [(one, _), (spread, _), (pages, p95)] = [0, 1, 2].map(|load| world.seen(load));
        println!(
            "{nodes}: one {one}, all {spread}, person {pages} pages p95 {p95} ms, most {}, \
             {} messages/s",
            world.most,
            world.messages / SECONDS
        );
        assert_eq!(world.owners().len(), 1);
        assert!(world.most <= 3, "{nodes}: {}", world.most);
        let share = one as f64 / spread as f64;
        assert!((0.9..=1.1).contains(&share), "{nodes}: {one} {spread}");
        if nodes == 1 {
            alone = p95;
        }
        assert!(p95 <= 1.2 * alone, "{nodes}: {p95} {alone}");
        // 50 pages a second are all that the backend can do.
        assert!((one + spread + pages) as u64 >= 47 * SECONDS, "{nodes}");
        assert_eq!(world.lost, 0);
    }
}

/// Four instances: crawlers on three, a person on the fourth, and a client on all.
fn four(search: bool) -> World {
    let loads = [
        crawler(1, [0].to_vec(), 8),
        crawler(2, [1].to_vec(), 8),
        crawler(3, (0..4).collect(), 8),
        person(3),
    ];
    let slots = if search { 1 } else { 2 };
    let mut world = World::new(4, slots, 2, loads.to_vec(), search);
    world.run(Nanos::from_secs(5));
    world.reset();
    world
}

/// The pages of all clients in the seconds that follow, and the person's 95th percentile.
fn figures(world: &mut World, secs: u64) -> (usize, f64) {
    let before = world.done.len();
    world.run(Nanos::from_secs(secs));
    let took = world.done[before..].iter().filter(|(load, ..)| *load == 3);
    let mut took: Vec<f64> = took.map(|(_, took, _)| took.as_secs_f64() * 1e3).collect();
    took.sort_by(f64::total_cmp);
    let p95 = took.get(took.len() * 95 / 100).copied().unwrap_or(f64::NAN);
    (world.done.len() - before, p95)
}

#[test]
fn slots_make_up_for_the_time_that_messages_take() {
    for (delay, least) in [(1, 900), (10, 600), (20, 600)] {
        let loads = [crawler(1, [1].to_vec(), 8), crawler(2, [2].to_vec(), 8)];
        let mut world = World::new(3, 1, 4, loads.to_vec(), true);
        world.delay = Nanos::from_millis(delay);
        world.run(Nanos::from_secs(30));
        world.reset();
        world.run(Nanos::from_secs(SECONDS));
        let pages = world.done.len();
        println!("{delay} ms: {pages} pages, at most {} at once", world.most);
        assert!(pages >= least, "{delay} ms: {pages}");
    }
}

#[test]
fn connections_that_replace_each_other_give_no_slot_twice() {
    let loads = [crawler(1, [0].to_vec(), 8), crawler(2, [1].to_vec(), 8), person(1)];
    let mut world = World::new(2, 4, 8, loads.to_vec(), false);
    world.run(Nanos::from_secs(3));
    world.reset();
    for _ in 0..50 {
        world.link(0, 1);
        world.run(Nanos::from_millis(190));
    }
    let pages = world.done.len();
    println!("{pages} pages, at most {} at once", world.most);
    assert!(world.most <= 5 && world.lost == 0, "{}", world.most);
    assert!(pages >= 45 * 95 / 10, "{pages}");
    let all = world.nodes[0].as_ref().expect("up").counts_of_all();
    assert!((16..=17).contains(&(all.waiting + all.running)), "{all:?}");
}

#[test]
fn every_instance_knows_the_requests_of_all() {
    let mut world = four(false);
    // 24 connections of the crawlers, and maybe the person.
    let told = world.nodes.iter().flatten().map(SharedQueue::counts_of_all);
    for RequestCounts { waiting, running } in told {
        assert!((22..=23).contains(&waiting) && running <= 2, "{waiting} {running}");
    }
    let own = world.nodes.iter().flatten().map(SharedQueue::counts);
    let sum = own.fold(RequestCounts::default(), RequestCounts::plus);
    assert_eq!(sum.waiting as usize + sum.running as usize, world.flights.len());
    world.kill(0);
    world.kill(1);
    world.run(Nanos::from_secs(1));
    let all = world.nodes[3].as_ref().expect("up").counts_of_all();
    assert!((22..=23).contains(&all.waiting), "{all:?}");
}

#[test]
fn the_queue_is_handed_on_when_its_owner_dies() {
    for search in [false, true] {
        let mut world = four(search);
        let calm = figures(&mut world, 10);
        assert_eq!(world.owners(), [0]);
        world.kill(0);
        world.kill(1);
        let after = figures(&mut world, 2);
        assert_eq!(world.owners(), [2]);
        let later = figures(&mut world, 10);
        println!("search {search}: {calm:?}, {after:?}, {later:?}, most {}", world.most);
        assert!(after.0 >= 90 && later.0 >= 480, "{after:?} {later:?}");
        assert!(later.1 <= 1.3 * calm.1, "{calm:?} {later:?}");
        assert!(world.most <= 4, "{}", world.most);
        world.start(0);
        world.start(1);
        world.most = 0;
        let back = figures(&mut world, 10);
        assert_eq!(world.owners(), [2]);
        assert!(back.0 >= 480 && world.most <= 4, "{back:?} {}", world.most);
        assert_eq!(world.lost, 0);
    }
}

#[test]
fn both_parts_of_a_network_that_is_cut_go_on_with_a_part_of_the_slots() {
    let mut world = four(false);
    for (a, b) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        world.cut(a, b);
    }
    world.run(Nanos::from_secs(4));
    world.most = 0;
    let during = figures(&mut world, 26);
    assert_eq!(world.owners(), [0, 2]);
    assert!(during.0 >= 47 * 26 && world.most <= 3, "{during:?} {}", world.most);
    for (a, b) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        world.link(a, b);
    }
    world.run(Nanos::from_secs(1));
    world.most = 0;
    let later = figures(&mut world, 10);
    println!("cut: {during:?}, {later:?}");
    assert_eq!(world.owners().len(), 1);
    assert!(later.0 >= 480 && world.most <= 3, "{later:?} {}", world.most);
    assert_eq!(world.lost, 0);
}

#[test]
fn no_message_is_needed_while_no_request_waits() {
    let calm = |at| Load {
        client: at as u64 + 1,
        at: [at].to_vec(),
        connections: 1,
        pause: Nanos::from_millis(200),
    };
    let mut world = World::new(4, 8, 8, [calm(1), calm(2), calm(3)].to_vec(), false);
    world.run(Nanos::from_secs(3));
    world.reset();
    world.run(Nanos::from_secs(SECONDS));
    println!("calm: {} messages/s, {:?}", world.messages / SECONDS, world.seen(0));
    // Three instances and the owner tell each other ten times a second that they are there.
    assert!(world.messages / SECONDS <= 70, "{}", world.messages / SECONDS);
    // As long as three pages at once take.
    assert!(world.seen(0).1 <= 61.0, "{:?}", world.seen(0));
}

/// Instances come and go each ten seconds.
#[test]
fn instances_that_come_and_go_lose_no_request() {
    let loads = [crawler(1, [0].to_vec(), 8), crawler(2, (0..8).collect(), 16), person(3)];
    let mut world = World::new(8, 2, 2, loads.to_vec(), true);
    world.run(Nanos::from_secs(5));
    let mut chance = 12_345_u64;
    for round in 0..60 {
        chance =
            chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let node = (chance >> 33) as usize % 8;
        if world.nodes[node].is_some() && world.nodes.iter().flatten().count() > 2 {
            world.kill(node);
        } else if world.nodes[node].is_none() {
            world.start(node);
        }
        world.run(Nanos::from_millis(800));
        world.most = 0;
        let before = world.done.len();
        world.run(Nanos::from_secs(4));
        assert_eq!(world.owners().len(), 1, "{round}");
        assert!(world.done.len() - before >= 180, "{round}: {}", world.done.len() - before);
        assert!(world.most <= 4, "{round}: {}", world.most);
    }
    assert_eq!(world.lost, 0);
}
