//! Instances that count together, over a network that loses, delays, doubles and cuts.
//!
//! Limiter and replica are the real ones, joined as the program joins them: what passes here is
//! charged and told, what is told is charged there. Over a mesh each two nodes have a connection,
//! on which frames come in order or not at all; a cut is noticed after some seconds, and a
//! connection is made again when it can be. Over a group every datagram takes its chance. The same
//! seed gives the same run. Nothing decides here: whoever simulates asks, and cuts, and looks.

use super::random::{Length, Random};
use super::{SEED, START};
use crate::classify::Key;
use crate::key::KeyHash;
use crate::limit::Limit;
use crate::limiter::{Limiter, Policy};
use crate::replica::{BOUNDS, Event, Replica, Settings, Shared, Told};
use crate::units::{Cost, Nanos, Time};
use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// What the network does to frames.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// How many in a thousand are lost.
    pub lost: u32,
    /// How many in a thousand come twice; over a group only.
    pub twice: u32,
    /// How long a frame takes.
    pub delay: Length,
    /// How long it takes until a connection that is cut is known to be.
    pub noticed: Length,
    /// How long it takes to connect.
    pub connect: Length,
}

impl Weather {
    /// Nothing is lost and nothing takes time.
    pub const FINE: Weather = Weather {
        lost: 0,
        twice: 0,
        delay: Length::ZERO,
        noticed: Length::ZERO,
        connect: Length::ZERO,
    };
}

/// Everything that a cluster depends on.
pub struct Plan {
    /// How many nodes there are.
    pub nodes: usize,
    /// Whether they are connected two by two; else they speak to a group.
    pub mesh: bool,
    /// How often each reports.
    pub period: Nanos,
    /// How long after the start each node's periods begin: they are not aligned.
    pub offset: Length,
    /// The longest frame.
    pub frame_max: usize,
    /// What all count by.
    pub limits: Vec<Limit>,
    /// The network.
    pub weather: Weather,
    /// What chance depends on.
    pub seed: u64,
}

/// One instance.
pub struct Node {
    /// Its buckets.
    pub limiter: Limiter,
    /// What it tells and hears.
    pub replica: Replica,
    /// What others have told it of each key of each limit, by what it was charged.
    pub heard: BTreeMap<(usize, KeyHash), Cost>,
    life: u64,
    up: bool,
}

/// Something that is going to happen.
enum Due {
    Tick { node: usize, life: u64 },
    Frame { to: usize, life: u64, link: u64, frame: Arc<[u8]> },
    Connect { a: usize, b: usize },
    Down { node: usize, life: u64, link: u64 },
}

/// A connection between two nodes, of which each has an end.
struct Line {
    ends: [usize; 2],
    /// When the last frame arrives at each end: none comes before it.
    last: [Time; 2],
    whole: bool,
}

/// The link that is the group of all.
const GROUP: u64 = 0;

/// A running simulation.
pub struct Cluster {
    plan: Plan,
    nodes: Vec<Node>,
    lines: Vec<Line>,
    /// Pairs that cannot reach each other, the lower first.
    cuts: BTreeSet<(usize, usize)>,
    chance: Random,
    now: Time,
    agenda: BinaryHeap<Reverse<(Time, u64)>>,
    planned: u64,
    due: BTreeMap<u64, Due>,
    /// What a reading of the levels needs of a limit.
    events: Vec<(usize, Event)>,
}

impl Cluster {
    /// All nodes start at [`START`]; their periods begin when the plan says.
    #[must_use]
    pub fn new(plan: Plan) -> Cluster {
        let mut chance = Random::new(plan.seed, 0xc1);
        let starts: Vec<Time> =
            (0..plan.nodes).map(|_| START.plus(chance.length(plan.offset))).collect();
        let nodes = (0..plan.nodes).map(|index| node(&plan, index, 1, starts[index])).collect();
        let mut cluster = Cluster {
            plan,
            nodes,
            lines: Vec::new(),
            cuts: BTreeSet::new(),
            chance,
            now: START,
            agenda: BinaryHeap::new(),
            planned: 0,
            due: BTreeMap::new(),
            events: Vec::new(),
        };
        (0..cluster.nodes.len()).for_each(|index| cluster.joins(index));
        cluster.run_until(START);
        cluster
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// One node.
    #[must_use]
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// What nodes had to say for people, since this was last asked.
    pub fn events(&mut self) -> Vec<(usize, Event)> {
        core::mem::take(&mut self.events)
    }

    /// Asks a node whether `hits` pass, which charges and tells them.
    pub fn ask(&mut self, index: usize, limit: usize, key: KeyHash, hits: u64) -> bool {
        let node = &mut self.nodes[index];
        if !node.up {
            return false;
        }
        let wait = node.limiter.hit(Key { limit: limit as u8, hash: key }, hits, self.now);
        let passes = wait == Nanos::ZERO;
        if passes {
            node.replica.charge(limit, 0, key, Cost::hits(hits), self.now);
        }
        passes
    }

    /// A node charges a key whatever its level, as it does for a request that has ended.
    pub fn charge(&mut self, index: usize, limit: usize, key: KeyHash, amount: Cost) {
        let node = &mut self.nodes[index];
        if node.up {
            node.limiter.absorb(limit, key, amount, self.now, self.now);
            node.replica.charge(limit, 0, key, amount, self.now);
        }
    }

    /// What a node has left for a key, in nano-units.
    #[must_use]
    pub fn level(&self, index: usize, limit: usize, key: KeyHash) -> i64 {
        self.nodes[index].limiter.standing_of(limit, key, self.now).level.unwrap_or(0)
    }

    /// Two nodes cannot reach each other from here on.
    pub fn cut(&mut self, a: usize, b: usize) {
        self.cuts.insert((a.min(b), a.max(b)));
        let broken: Vec<usize> = (0..self.lines.len())
            .filter(|at| {
                let Line { ends, whole, .. } = &self.lines[*at];
                *whole && (*ends == [a, b] || *ends == [b, a])
            })
            .collect();
        broken.into_iter().for_each(|line| self.break_line(line));
    }

    /// Two nodes can reach each other again.
    pub fn heal(&mut self, a: usize, b: usize) {
        self.cuts.remove(&(a.min(b), a.max(b)));
    }

    /// A node dies, with all it knows.
    pub fn kill(&mut self, index: usize) {
        self.nodes[index].up = false;
        let broken: Vec<usize> = (0..self.lines.len())
            .filter(|at| self.lines[*at].whole && self.lines[*at].ends.contains(&index))
            .collect();
        broken.into_iter().for_each(|line| self.break_line(line));
    }

    /// A node that died starts again and knows nothing.
    pub fn start(&mut self, index: usize) {
        let life = self.nodes[index].life + 1;
        self.nodes[index] = node(&self.plan, index, life, self.now);
        self.joins(index);
    }

    /// Hands a node a frame as if it came from the network.
    pub fn inject(&mut self, index: usize, link: u64, frame: &[u8]) {
        self.take(index, link, frame);
    }

    /// Lets everything happen until `end`.
    pub fn run_until(&mut self, end: Time) {
        while let Some(Reverse((at, number))) = self.agenda.peek().copied() {
            if at > end {
                break;
            }
            self.agenda.pop();
            self.now = self.now.max(at);
            if let Some(due) = self.due.remove(&number) {
                self.happens(due);
            }
        }
        self.now = self.now.max(end);
    }

    /// Lets so much time pass.
    pub fn run_for(&mut self, length: Nanos) {
        self.run_until(self.now.plus(length));
    }

    fn happens(&mut self, due: Due) {
        let lives = |node: usize, life| self.nodes[node].up && self.nodes[node].life == life;
        match due {
            Due::Tick { node, life } if lives(node, life) => {
                self.nodes[node].replica.handle_timeout(self.now);
                let next = self.nodes[node].replica.poll_timeout();
                self.plan_at(next, Due::Tick { node, life });
                self.pump(node);
            }
            Due::Frame { to, life, link, frame } if lives(to, life) => self.take(to, link, &frame),
            Due::Down { node, life, link } if lives(node, life) => {
                self.nodes[node].replica.handle_down(link, self.now);
                self.pump(node);
            }
            Due::Connect { a, b } => self.connect(a, b),
            Due::Tick { .. } | Due::Frame { .. } | Due::Down { .. } => {}
        }
    }

    /// A node is there: its periods begin, and it reaches the others or the group.
    fn joins(&mut self, index: usize) {
        let life = self.nodes[index].life;
        let first = self.nodes[index].replica.poll_timeout();
        self.plan_at(first, Due::Tick { node: index, life });
        if self.plan.mesh {
            for other in 0..self.nodes.len() {
                // At the start the later of two connects; a node that comes back does it all.
                if other < index || (self.nodes[index].life > 1 && other != index) {
                    let at = self.now.plus(self.chance.length(self.plan.weather.connect));
                    self.plan_at(at, Due::Connect { a: index, b: other });
                }
            }
        } else {
            self.nodes[index].replica.handle_up(GROUP, self.now);
            self.pump(index);
        }
    }

    /// Connects two nodes if they can be and are not; else tries again in a second.
    fn connect(&mut self, a: usize, b: usize) {
        let up = self.nodes[a].up && self.nodes[b].up;
        let joins = |line: &Line| line.whole && line.ends.contains(&a) && line.ends.contains(&b);
        if !up || self.lines.iter().any(joins) {
            // Whoever starts again connects by itself.
            return;
        }
        if self.cuts.contains(&(a.min(b), a.max(b))) {
            self.plan_at(self.now.plus(Nanos::from_secs(1)), Due::Connect { a, b });
            return;
        }
        let line = self.lines.len();
        self.lines.push(Line { ends: [a, b], last: [self.now; 2], whole: true });
        for (end, node) in [a, b].into_iter().enumerate() {
            self.nodes[node].replica.handle_up(link_of(line, end), self.now);
            self.pump(node);
        }
    }

    fn break_line(&mut self, line: usize) {
        self.lines[line].whole = false;
        let [a, b] = self.lines[line].ends;
        for (end, node) in [a, b].into_iter().enumerate() {
            let at = self.now.plus(self.chance.length(self.plan.weather.noticed));
            let life = self.nodes[node].life;
            self.plan_at(at, Due::Down { node, life, link: link_of(line, end) });
        }
        let at = self.now.plus(self.chance.length(self.plan.weather.connect));
        self.plan_at(at, Due::Connect { a, b });
    }

    /// A node takes a frame.
    fn take(&mut self, index: usize, link: u64, frame: &[u8]) {
        let (now, node) = (self.now, &mut self.nodes[index]);
        let Node { limiter, replica, heard, .. } = node;
        let mut told = |told: Told<'_>| match told {
            Told::Charge { limit, key, amount, age, .. } => {
                limiter.absorb(limit, key, amount, now.minus(age), now);
                let sum = heard.entry((limit, key)).or_default();
                *sum = sum.plus(amount);
            }
            Told::Short { limit, key, missing } => limiter.absorb_state(limit, key, missing, now),
            Told::Name { .. } => {}
        };
        // A frame that is refused is counted by the replica.
        let _ = replica.handle_frame(link, frame, now, &mut told);
        self.pump(index);
    }

    /// Takes from a node what it has to send and to say.
    fn pump(&mut self, index: usize) {
        while let Some(event) = self.nodes[index].replica.poll_event() {
            if let Event::Wanted { node } = event {
                self.give_state(index, node);
            } else {
                self.events.push((index, event));
            }
        }
        while let Some((link, frame)) = self.nodes[index].replica.poll_transmit() {
            if self.plan.mesh {
                self.carry(index, link, frame);
            } else {
                self.spread(index, &frame);
            }
        }
    }

    fn give_state(&mut self, index: usize, to: u64) {
        let Node { limiter, replica, .. } = &mut self.nodes[index];
        let limits = 0..limiter.limits().len();
        let buckets = limits.flat_map(|limit| {
            let short = limiter.short(limit, BOUNDS.state_max[0], self.now);
            short.into_iter().map(move |(key, missing)| (limit, key, missing))
        });
        let buckets: Vec<_> = buckets.collect();
        replica.give_state(to, buckets, self.now);
    }

    /// Over a connection: in order, unless it is cut. What is lost was dropped on the way to it.
    fn carry(&mut self, from: usize, link: u64, frame: Arc<[u8]>) {
        let (line, end) = ((link / 2) as usize, (link % 2) as usize);
        let lost = self.happens_to(self.plan.weather.lost);
        let at = self.now.plus(self.chance.length(self.plan.weather.delay));
        let Line { ends, last, whole } = &mut self.lines[line];
        debug_assert!(ends[end] == from, "a link has one owner");
        if !*whole || lost {
            return;
        }
        let to = ends[1 - end];
        last[1 - end] = last[1 - end].max(at);
        let (at, life) = (last[1 - end], self.nodes[to].life);
        self.plan_at(at, Due::Frame { to, life, link: link_of(line, 1 - end), frame });
    }

    /// To everybody, the sender too; each copy takes its own chance.
    fn spread(&mut self, from: usize, frame: &Arc<[u8]>) {
        for to in 0..self.nodes.len() {
            let cut = self.cuts.contains(&(from.min(to), from.max(to)));
            let copies = 1 + u32::from(self.happens_to(self.plan.weather.twice));
            for _ in 0..copies {
                let lost = self.happens_to(self.plan.weather.lost);
                let at = self.now.plus(self.chance.length(self.plan.weather.delay));
                if !cut && !lost {
                    let (life, frame) = (self.nodes[to].life, Arc::clone(frame));
                    self.plan_at(at, Due::Frame { to, life, link: GROUP, frame });
                }
            }
        }
    }

    /// Whether something befalls a frame that befalls so many in a thousand.
    fn happens_to(&mut self, in_a_thousand: u32) -> bool {
        in_a_thousand > 0 && self.chance.unit() * 1_000.0 < f64::from(in_a_thousand)
    }

    fn plan_at(&mut self, at: Time, due: Due) {
        self.planned += 1;
        self.agenda.push(Reverse((at, self.planned)));
        self.due.insert(self.planned, due);
    }
}

/// A line's end, as the node that has it calls it.
fn link_of(line: usize, end: usize) -> u64 {
    2 * line as u64 + end as u64
}

fn node(plan: &Plan, index: usize, life: u64, now: Time) -> Node {
    let policy = Policy { action: crate::limit::Action::Reject, max_delay: Nanos::ZERO };
    let limiter = Limiter::new(policy, plan.limits.clone(), SEED);
    let settings = Settings {
        node: index as u64 + 1,
        life,
        name: format!("node {index}"),
        period: plan.period,
        frame_max: plan.frame_max,
        reliable: plan.mesh,
        cpus_milli: 1_000,
        nodes_max: plan.nodes.max(2) + 1,
    };
    let shared = (0..).zip(&plan.limits).map(|(at, limit)| shared(at, limit)).collect();
    let replica = Replica::new(settings, shared, now);
    Node { limiter, replica, heard: BTreeMap::new(), life, up: true }
}

/// A limit as it is told; here all nodes have the same.
fn shared(at: u64, limit: &Limit) -> Shared {
    let hits = limit.unit == crate::limit::Unit::Hits;
    Shared {
        fingerprint: at + 1,
        name: limit.name.clone(),
        numbers: format!("{:?}", limit.algorithm).into(),
        unit: if hits { crate::units::SECOND } else { 1 },
        per_second: limit.algorithm.per_second().unwrap_or_default(),
    }
}
