//! Instances that count together, over a network that loses, delays, duplicates and cuts off
//! frames.
//!
//! Limiter and replica are the real code, connected as in the program: each node reports what it
//! charges, and charges what others report. In a mesh every two nodes have a connection, which
//! delivers frames in order or not at all. Nodes detect a cut after some seconds and reconnect when
//! they can. Over a group each datagram is lost, delayed or duplicated independently. The same seed
//! gives the same run. The cluster takes no decisions: the test sends requests, cuts connections
//! and reads levels.

use super::random::{RandomDuration, SimRandom};
use super::{SEED, SIM_START};
use crate::classify::LimitKey;
use crate::key::KeyHash;
use crate::limit::Limit;
use crate::limiter::{Limiter, LimiterPolicy};
use crate::replica::{
    REPLICA_BOUNDS, Replica, ReplicaEvent, ReplicaSettings, ReplicaUpdate, ReplicatedLimit,
};
use crate::units::{Cost, Nanos, Time};
use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// The faults and delays of the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkConditions {
    /// Frames that are lost, out of a thousand.
    pub lost: u32,
    /// Frames that arrive twice, out of a thousand; over a group only.
    pub twice: u32,
    /// Transmission time of a frame.
    pub delay: RandomDuration,
    /// Time until a node detects that a connection is cut.
    pub noticed: RandomDuration,
    /// Time to connect.
    pub connect: RandomDuration,
}

impl NetworkConditions {
    /// A network without losses and delays.
    pub const PERFECT: NetworkConditions = NetworkConditions {
        lost: 0,
        twice: 0,
        delay: RandomDuration::ZERO,
        noticed: RandomDuration::ZERO,
        connect: RandomDuration::ZERO,
    };
}

/// The complete input of a cluster simulation.
pub struct ClusterPlan {
    /// Number of nodes.
    pub nodes: usize,
    /// Whether every two nodes have a connection (a mesh); else all send to a group.
    pub mesh: bool,
    /// Interval between two reports of a node.
    pub period: Nanos,
    /// Time from the start to the first period of each node, so that periods are not aligned.
    pub offset: RandomDuration,
    /// The maximum length of a frame, in bytes.
    pub frame_max: usize,
    /// The limits of all nodes.
    pub limits: Vec<Limit>,
    /// The faults and delays of the network.
    pub weather: NetworkConditions,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// One instance.
pub struct ClusterNode {
    /// The buckets of the node.
    pub limiter: Limiter,
    /// The replica, which exchanges charges with the other nodes.
    pub replica: Replica,
    /// Sum of the charges that other nodes have reported, by limit and key.
    pub heard: BTreeMap<(usize, KeyHash), Cost>,
    life: u64,
    up: bool,
}

/// A planned event of the network or a node.
enum ClusterEvent {
    Tick { node: usize, life: u64 },
    Frame { to: usize, life: u64, link: u64, frame: Arc<[u8]> },
    Connect { a: usize, b: usize },
    Down { node: usize, life: u64, link: u64 },
}

/// A connection between two nodes, with one end at each.
struct ClusterConnection {
    ends: [usize; 2],
    /// Arrival time of the last frame at each end; later frames never arrive before it.
    last: [Time; 2],
    whole: bool,
}

/// The number of the link to the group.
const GROUP_LINK: u64 = 0;

/// A running simulation.
pub struct Cluster {
    plan: ClusterPlan,
    nodes: Vec<ClusterNode>,
    lines: Vec<ClusterConnection>,
    /// Pairs of nodes that cannot reach each other, with the lower index first.
    cuts: BTreeSet<(usize, usize)>,
    chance: SimRandom,
    now: Time,
    agenda: BinaryHeap<Reverse<(Time, u64)>>,
    planned: u64,
    due: BTreeMap<u64, ClusterEvent>,
    /// Events for operators that the nodes have returned since the last call of
    /// [`Cluster::events`].
    events: Vec<(usize, ReplicaEvent)>,
}

impl Cluster {
    /// A cluster at [`SIM_START`]. The periods of each node start after the plan's offset.
    #[must_use]
    pub fn new(plan: ClusterPlan) -> Cluster {
        let mut chance = SimRandom::new(plan.seed, 0xc1);
        let starts: Vec<Time> =
            (0..plan.nodes).map(|_| SIM_START.plus(chance.length(plan.offset))).collect();
        let nodes = (0..plan.nodes).map(|index| node(&plan, index, 1, starts[index])).collect();
        let mut cluster = Cluster {
            plan,
            nodes,
            lines: Vec::new(),
            cuts: BTreeSet::new(),
            chance,
            now: SIM_START,
            agenda: BinaryHeap::new(),
            planned: 0,
            due: BTreeMap::new(),
            events: Vec::new(),
        };
        (0..cluster.nodes.len()).for_each(|index| cluster.join(index));
        cluster.run_until(SIM_START);
        cluster
    }

    /// The current simulated time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// The node with this index.
    #[must_use]
    pub fn node(&self, index: usize) -> &ClusterNode {
        &self.nodes[index]
    }

    /// Events of all nodes, with the index of the node, since the last call.
    pub fn events(&mut self) -> Vec<(usize, ReplicaEvent)> {
        core::mem::take(&mut self.events)
    }

    /// Asks a node whether `hits` pass. If they do, the node charges and reports them.
    pub fn ask(&mut self, index: usize, limit: usize, key: KeyHash, hits: u64) -> bool {
        let node = &mut self.nodes[index];
        if !node.up {
            return false;
        }
        let wait = node.limiter.hit(LimitKey { limit: limit as u8, hash: key }, hits, self.now);
        let passes = wait == Nanos::ZERO;
        if passes {
            node.replica.charge(limit, 0, key, Cost::hits(hits), self.now);
        }
        passes
    }

    /// Lets a node charge a key whatever its level, as at the end of a request.
    pub fn charge(&mut self, index: usize, limit: usize, key: KeyHash, amount: Cost) {
        let node = &mut self.nodes[index];
        if node.up {
            node.limiter.absorb(limit, key, amount, self.now, self.now);
            node.replica.charge(limit, 0, key, amount, self.now);
        }
    }

    /// The level of a key at a node, in nano-units.
    #[must_use]
    pub fn level(&self, index: usize, limit: usize, key: KeyHash) -> i64 {
        self.nodes[index].limiter.standing_of(limit, key, self.now).level.unwrap_or(0)
    }

    /// Cuts the connection between two nodes until [`Cluster::heal`].
    pub fn cut(&mut self, a: usize, b: usize) {
        self.cuts.insert((a.min(b), a.max(b)));
        let broken: Vec<usize> = (0..self.lines.len())
            .filter(|at| {
                let ClusterConnection { ends, whole, .. } = &self.lines[*at];
                *whole && (*ends == [a, b] || *ends == [b, a])
            })
            .collect();
        broken.into_iter().for_each(|line| self.break_line(line));
    }

    /// Lets two nodes reach each other again.
    pub fn heal(&mut self, a: usize, b: usize) {
        self.cuts.remove(&(a.min(b), a.max(b)));
    }

    /// Stops a node, which loses its state.
    pub fn kill(&mut self, index: usize) {
        self.nodes[index].up = false;
        let broken: Vec<usize> = (0..self.lines.len())
            .filter(|at| self.lines[*at].whole && self.lines[*at].ends.contains(&index))
            .collect();
        broken.into_iter().for_each(|line| self.break_line(line));
    }

    /// Restarts a node with an empty state, in a new life.
    pub fn start(&mut self, index: usize) {
        let life = self.nodes[index].life + 1;
        self.nodes[index] = node(&self.plan, index, life, self.now);
        self.join(index);
    }

    /// Runs the simulation until `end`.
    pub fn run_until(&mut self, end: Time) {
        while let Some(Reverse((at, number))) = self.agenda.peek().copied() {
            if at > end {
                break;
            }
            self.agenda.pop();
            self.now = self.now.max(at);
            if let Some(due) = self.due.remove(&number) {
                self.handle_event(due);
            }
        }
        self.now = self.now.max(end);
    }

    /// Runs the simulation for `length`.
    pub fn run_for(&mut self, length: Nanos) {
        self.run_until(self.now.plus(length));
    }

    fn handle_event(&mut self, due: ClusterEvent) {
        let lives = |node: usize, life| self.nodes[node].up && self.nodes[node].life == life;
        match due {
            ClusterEvent::Tick { node, life } if lives(node, life) => {
                self.nodes[node].replica.handle_timeout(self.now);
                let next = self.nodes[node].replica.poll_timeout();
                self.plan_at(next, ClusterEvent::Tick { node, life });
                self.pump(node);
            }
            ClusterEvent::Frame { to, life, link, frame } if lives(to, life) => {
                self.receive_frame(to, link, &frame)
            }
            ClusterEvent::Down { node, life, link } if lives(node, life) => {
                self.nodes[node].replica.handle_down(link, false, self.now);
                self.pump(node);
            }
            ClusterEvent::Connect { a, b } => self.connect(a, b),
            ClusterEvent::Tick { .. } | ClusterEvent::Frame { .. } | ClusterEvent::Down { .. } => {}
        }
    }

    /// Starts the periods of a node, and plans its connections or connects it to the group.
    fn join(&mut self, index: usize) {
        let life = self.nodes[index].life;
        let first = self.nodes[index].replica.poll_timeout();
        self.plan_at(first, ClusterEvent::Tick { node: index, life });
        if self.plan.mesh {
            for other in 0..self.nodes.len() {
                // At the start, the node with the higher index connects. A restarted node connects
                // to all.
                if other < index || (self.nodes[index].life > 1 && other != index) {
                    let at = self.now.plus(self.chance.length(self.plan.weather.connect));
                    self.plan_at(at, ClusterEvent::Connect { a: index, b: other });
                }
            }
        } else {
            self.nodes[index].replica.handle_up(GROUP_LINK, self.now);
            self.pump(index);
        }
    }

    /// Connects two nodes that can reach each other and have no connection. If they are cut off, it
    /// retries in a second.
    fn connect(&mut self, a: usize, b: usize) {
        let up = self.nodes[a].up && self.nodes[b].up;
        let joins = |line: &ClusterConnection| {
            line.whole && line.ends.contains(&a) && line.ends.contains(&b)
        };
        if !up || self.lines.iter().any(joins) {
            // A restarted node connects by itself.
            return;
        }
        if self.cuts.contains(&(a.min(b), a.max(b))) {
            self.plan_at(self.now.plus(Nanos::from_secs(1)), ClusterEvent::Connect { a, b });
            return;
        }
        let line = self.lines.len();
        self.lines.push(ClusterConnection { ends: [a, b], last: [self.now; 2], whole: true });
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
            self.plan_at(at, ClusterEvent::Down { node, life, link: link_of(line, end) });
        }
        let at = self.now.plus(self.chance.length(self.plan.weather.connect));
        self.plan_at(at, ClusterEvent::Connect { a, b });
    }

    /// Passes a received frame to a node.
    fn receive_frame(&mut self, index: usize, link: u64, frame: &[u8]) {
        let (now, node) = (self.now, &mut self.nodes[index]);
        let ClusterNode { limiter, replica, heard, .. } = node;
        let mut told = |told: ReplicaUpdate<'_>| match told {
            ReplicaUpdate::Charge { limit, key, amount, age, .. } => {
                limiter.absorb(limit, key, amount, now.minus(age), now);
                let sum = heard.entry((limit, key)).or_default();
                *sum = sum.plus(amount);
            }
            ReplicaUpdate::Short { limit, key, deficit } => {
                let here = limiter.missing(limit, key, now).unwrap_or_default();
                limiter.absorb(limit, key, deficit.charge(here), now, now);
            }
            ReplicaUpdate::Name { .. }
            | ReplicaUpdate::Client { .. }
            | ReplicaUpdate::Queue { .. } => {}
        };
        // The replica counts refused frames.
        let _ = replica.handle_frame(link, frame, now, &mut told);
        self.pump(index);
    }

    /// Processes all pending events and output frames of a node.
    fn pump(&mut self, index: usize) {
        while let Some(event) = self.nodes[index].replica.poll_event() {
            if let ReplicaEvent::Wanted { node } = event {
                self.give_state(index, node);
            } else {
                self.events.push((index, event));
            }
        }
        while let Some((link, frame)) = self.nodes[index].replica.poll_transmit() {
            if self.plan.mesh {
                self.send_over_line(index, link, frame);
            } else {
                self.send_to_group(index, &frame);
            }
        }
    }

    fn give_state(&mut self, index: usize, to: u64) {
        let ClusterNode { limiter, replica, .. } = &mut self.nodes[index];
        let limits = 0..limiter.limits().len();
        let buckets = limits.flat_map(|limit| {
            let short = limiter.short(limit, REPLICA_BOUNDS.state_max[0], self.now);
            short.into_iter().map(move |(key, missing)| (limit, key, missing))
        });
        let buckets: Vec<_> = buckets.collect();
        replica.give_state(to, buckets, self.now);
    }

    /// Sends a frame over a connection: in order, unless the connection is cut. A lost frame stands
    /// for one dropped before it reached the connection.
    fn send_over_line(&mut self, from: usize, link: u64, frame: Arc<[u8]>) {
        let (line, end) = ((link / 2) as usize, (link % 2) as usize);
        let lost = self.draw_chance(self.plan.weather.lost);
        let at = self.now.plus(self.chance.length(self.plan.weather.delay));
        let ClusterConnection { ends, last, whole } = &mut self.lines[line];
        debug_assert!(ends[end] == from, "a link has one owner");
        if !*whole || lost {
            return;
        }
        let to = ends[1 - end];
        last[1 - end] = last[1 - end].max(at);
        let (at, life) = (last[1 - end], self.nodes[to].life);
        self.plan_at(at, ClusterEvent::Frame { to, life, link: link_of(line, 1 - end), frame });
    }

    /// Sends a frame to all nodes, including the sender; each copy is lost or delayed
    /// independently.
    fn send_to_group(&mut self, from: usize, frame: &Arc<[u8]>) {
        for to in 0..self.nodes.len() {
            let cut = self.cuts.contains(&(from.min(to), from.max(to)));
            let copies = 1 + u32::from(self.draw_chance(self.plan.weather.twice));
            for _ in 0..copies {
                let lost = self.draw_chance(self.plan.weather.lost);
                let at = self.now.plus(self.chance.length(self.plan.weather.delay));
                if !cut && !lost {
                    let (life, frame) = (self.nodes[to].life, Arc::clone(frame));
                    self.plan_at(at, ClusterEvent::Frame { to, life, link: GROUP_LINK, frame });
                }
            }
        }
    }

    /// Draws whether an event of this probability, in thousandths, happens.
    fn draw_chance(&mut self, in_a_thousand: u32) -> bool {
        in_a_thousand > 0 && self.chance.unit() * 1_000.0 < f64::from(in_a_thousand)
    }

    fn plan_at(&mut self, at: Time, due: ClusterEvent) {
        self.planned += 1;
        self.agenda.push(Reverse((at, self.planned)));
        self.due.insert(self.planned, due);
    }
}

/// The link number of one end of a line, as its node uses it.
fn link_of(line: usize, end: usize) -> u64 {
    2 * line as u64 + end as u64
}

fn node(plan: &ClusterPlan, index: usize, life: u64, now: Time) -> ClusterNode {
    let policy =
        LimiterPolicy { action: crate::limit::LimitAction::Reject, max_delay: Nanos::ZERO };
    let limiter = Limiter::new(policy, plan.limits.clone(), SEED);
    let settings = ReplicaSettings {
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
    ClusterNode { limiter, replica, heard: BTreeMap::new(), life, up: true }
}

/// The shared form of a limit, which is equal at all nodes.
fn shared(at: u64, limit: &Limit) -> ReplicatedLimit {
    let hits = limit.unit == crate::limit::LimitUnit::Hits;
    ReplicatedLimit {
        fingerprint: at + 1,
        name: limit.name.clone(),
        numbers: format!("{:?}", limit.algorithm).into(),
        unit: if hits { crate::units::SECOND } else { 1 },
        per_second: limit.algorithm.per_second().unwrap_or_default(),
    }
}
