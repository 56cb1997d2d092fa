//! Properties that hold whatever the network does: no charge is counted twice, sums are exact after
//! short outages, and long outages are forgiven except for their last minute.

use super::cluster::{hits, plan, tag};
use super::{Shown, seconds};
use evenkeel_core::key::KeyHash;
use evenkeel_core::sim::cluster::{Cluster, ClusterPlan, NetworkConditions};
use evenkeel_core::sim::random::{RandomDuration, SimRandom};
use evenkeel_core::units::{Cost, Nanos, SECOND};
use std::collections::BTreeMap;

/// Number of keys of each node. Only this node charges them, so all reports of them come from it.
const KEYS: usize = 6;
/// A burst that no client uses up.
const BURST: u64 = 100_000_000;

/// Runs the test for every seed of `from`, and further ones if `SIM_SEEDS` multiplies their number,
/// or only for the seed in `SIM_SEED`.
fn seeds(from: std::ops::Range<u64>, test: impl Fn(u64)) {
    let named = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok());
    let more = std::env::var("SIM_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(1);
    let count = (from.end - from.start) * more;
    for seed in named.map_or(from.start..from.start + count, |seed| seed..seed + 1) {
        let _shown_if_it_fails = Shown(seed);
        test(seed);
    }
}

/// A cluster with network faults, and the charges of its nodes.
struct Storm {
    cluster: Cluster,
    nodes: usize,
    chance: SimRandom,
    charged: BTreeMap<KeyHash, Cost>,
    keys: Vec<Vec<KeyHash>>,
}

impl Storm {
    fn new(nodes: usize, mesh: bool, seed: u64) -> Storm {
        let mut chance = SimRandom::new(seed, 1);
        let millis = |most: u64| RandomDuration::Between(Nanos::ZERO, Nanos::from_millis(most));
        let weather = NetworkConditions {
            lost: [0, 20, 100][(chance.bits() % 3) as usize],
            twice: [0, 50, 500][(chance.bits() % 3) as usize],
            delay: millis([1, 300, 4_000][(chance.bits() % 3) as usize]),
            noticed: millis(8_000),
            connect: millis(2_000),
        };
        let offset = millis(5_000);
        // The rate is so low that no hit is refilled during the test.
        let plan =
            ClusterPlan { weather, offset, seed, ..plan(nodes, mesh, hits("1/d", BURST, false)) };
        let own = |node| (0..KEYS).map(|key| tag(&format!("{node}/{key}"))).collect();
        Storm {
            cluster: Cluster::new(plan),
            nodes,
            chance,
            charged: BTreeMap::new(),
            keys: (0..nodes).map(own).collect(),
        }
    }

    fn any(&mut self, below: usize) -> usize {
        (self.chance.bits() % below as u64) as usize
    }

    /// Runs for `length` while every node serves some requests.
    fn serve(&mut self, length: Nanos) {
        let steps = 4;
        for _ in 0..steps {
            for node in 0..self.nodes {
                let any = self.any(KEYS);
                let key = self.keys[node][any];
                let count = 1 + self.any(5) as u64;
                if self.cluster.ask(node, 0, key, count) {
                    let sum = self.charged.entry(key).or_default();
                    *sum = sum.plus(Cost::hits(count));
                }
            }
            self.cluster.run_for(Nanos(length.0 / steps));
        }
    }

    /// Checks that no node has received more charges of a key than were made, and that no bucket
    /// was charged more.
    fn nothing_is_counted_twice(&self) {
        for (key, charged) in &self.charged {
            for node in 0..self.nodes {
                let heard = self.cluster.node(node).heard.get(&(0, *key)).copied();
                assert!(heard.unwrap_or_default() <= *charged, "node {node} heard too much");
                let used = BURST as i64 * SECOND as i64 - self.cluster.level(node, 0, *key);
                // Tolerance for rounding: times have 64 bits, and a rate is a quotient.
                assert!(used <= charged.0 as i64 + SECOND as i64 / 10, "node {node}: {used}");
            }
        }
    }

    /// Checks that every node has charged all charges of the others, unless reports are counted as
    /// lost: some seeds lose all copies of one for a minute.
    fn sums_are_exact(&self) {
        let lost = |node| self.cluster.node(node).replica.totals().counts.lost_out;
        if (0..self.nodes).map(lost).sum::<u64>() > 0 {
            return;
        }
        for (key, charged) in &self.charged {
            for node in 0..self.nodes {
                let used = BURST as i64 * SECOND as i64 - self.cluster.level(node, 0, *key);
                // Tolerance for the refill, and for rounding.
                let off = used - charged.0 as i64;
                assert!(off.abs() <= SECOND as i64 / 10, "node {node}: {used} for {charged:?}");
            }
        }
    }
}

#[test]
fn sums_are_exact_after_outages_shorter_than_a_minute() {
    seeds(1..100, |seed| {
        let nodes = 2 + (seed % 4) as usize;
        let mut storm = Storm::new(nodes, true, seed);
        // All nodes have joined, so all later charges are sent in reports.
        storm.cluster.run_for(seconds(60.0));
        for _ in 0..3 {
            let (a, b) = (storm.any(nodes), storm.any(nodes));
            if a != b {
                storm.cluster.cut(a, b);
            }
            let outage = seconds(storm.chance.unit() * 35.0);
            storm.serve(outage);
            storm.nothing_is_counted_twice();
            storm.cluster.heal(a, b);
            // Long enough to detect the cut, to connect and to exchange hellos in spite of losses.
            // Otherwise this outage and the next would be one, which may be longer than a minute.
            storm.serve(seconds(30.0));
        }
        storm.cluster.run_for(seconds(45.0));
        storm.nothing_is_counted_twice();
        storm.sums_are_exact();
    });
}

#[test]
fn nothing_is_counted_twice_whatever_happens() {
    seeds(1_000..1_100, |seed| {
        let (nodes, mesh) = (2 + (seed % 4) as usize, seed % 2 == 0);
        let mut storm = Storm::new(nodes, mesh, seed);
        let mut down = None;
        for _ in 0..12 {
            let (a, b) = (storm.any(nodes), storm.any(nodes));
            match storm.any(5) {
                0 if a != b => storm.cluster.cut(a, b),
                1 => storm.cluster.heal(a, b),
                2 if down.is_none() => {
                    storm.cluster.kill(a);
                    down = Some(a);
                }
                3 => {
                    if let Some(node) = down.take() {
                        storm.cluster.start(node);
                    }
                }
                _ => {}
            }
            let length = seconds(storm.chance.unit() * 60.0);
            storm.serve(length);
            storm.nothing_is_counted_twice();
        }
    });
}

#[test]
fn nodes_that_were_charged_before_they_met_have_the_sum() {
    seeds(5_000..5_060, |seed| {
        let nodes = 2 + (seed % 4) as usize;
        let mut chance = SimRandom::new(seed, 2);
        let most = |length: f64| RandomDuration::Between(Nanos::ZERO, seconds(length));
        let (delay, connect) =
            (most(chance.unit() * 0.5), most([0.1, 2.0, 8.0][seed as usize % 3]));
        let weather = NetworkConditions { delay, connect, ..NetworkConditions::PERFECT };
        let offset = most(5.0);
        let plan =
            ClusterPlan { weather, offset, seed, ..plan(nodes, true, hits("1/d", BURST, false)) };
        let (mut cluster, key) = (Cluster::new(plan), tag("C"));
        let mut charged = 0;
        for _ in 0..500 {
            let node = (chance.bits() % nodes as u64) as usize;
            assert!(cluster.ask(node, 0, key, 1));
            charged += 1;
            cluster.run_for(seconds(0.1));
        }
        cluster.run_for(seconds(60.0));
        for node in 0..nodes {
            let used = BURST as i64 - cluster.level(node, 0, key) / SECOND as i64;
            assert_eq!(used, charged, "node {node} of {nodes}");
        }
    });
}

/// The reports of the first node are too old to be sent when the other one joins.
#[test]
fn a_node_that_was_alone_for_minutes_counts_what_a_newcomer_was_charged_before_they_met() {
    let connect = RandomDuration::Fixed(seconds(0.5));
    let weather = NetworkConditions { connect, ..NetworkConditions::PERFECT };
    let plan = ClusterPlan { weather, ..plan(2, true, hits("1/d", BURST, false)) };
    let (mut cluster, key) = (Cluster::new(plan), tag("C"));
    cluster.kill(1);
    assert!(cluster.ask(0, 0, key, 1_000));
    cluster.run_for(seconds(150.0));
    cluster.start(1);
    assert!(cluster.ask(1, 0, key, 500));
    cluster.run_for(seconds(20.0));
    for node in 0..2 {
        assert_eq!(BURST as i64 - cluster.level(node, 0, key) / SECOND as i64, 1_500, "{node}");
    }
}

#[test]
fn a_group_that_loses_nothing_counts_everything_in_whatever_order_it_comes() {
    seeds(2_000..2_040, |seed| {
        let mut storm = Storm::new(3, false, seed);
        let quiet = NetworkConditions { lost: 0, twice: 300, ..NetworkConditions::PERFECT };
        let delay = RandomDuration::Between(Nanos::ZERO, seconds(7.0));
        let own = plan(3, false, hits("1/d", BURST, false));
        storm.cluster = Cluster::new(ClusterPlan {
            weather: NetworkConditions { delay, ..quiet },
            seed,
            ..own
        });
        // A node ignores reports sent before the first one that it receives, so all nodes join
        // first.
        storm.cluster.run_for(seconds(60.0));
        for _ in 0..10 {
            storm.serve(seconds(5.0));
        }
        storm.cluster.run_for(seconds(30.0));
        storm.nothing_is_counted_twice();
        storm.sums_are_exact();
    });
}

#[test]
fn a_long_partition_is_forgiven_but_for_its_last_minute() {
    seeds(3_000..3_010, |seed| {
        let calm = ClusterPlan { seed, ..plan(2, true, hits("1/d", BURST, false)) };
        let (mut cluster, key) = (Cluster::new(calm), tag("C"));
        let serve = |cluster: &mut Cluster, seconds_of_it: u64| {
            for _ in 0..seconds_of_it {
                assert!(cluster.ask(0, 0, key, 1));
                cluster.run_for(seconds(1.0));
            }
        };
        serve(&mut cluster, 30);
        let before = cluster.node(1).heard[&(0, key)];
        assert!(before >= Cost::hits(25));
        cluster.cut(0, 1);
        // A longer silence would make the peer forget this node, and its last minute too.
        serve(&mut cluster, 90 + 5 * (seed % 7));
        cluster.heal(0, 1);
        cluster.run_for(seconds(20.0));
        let late = cluster.node(1).heard[&(0, key)].minus(before);
        // A minute, the period before it, and the charges before the cut that were not reported
        // yet.
        assert!(late <= Cost::hits(60 + 5 + 5), "{late:?} of the partition");
        assert!(late >= Cost::hits(50), "{late:?}: the last minute does count");
        assert!(cluster.node(0).replica.totals().counts.lost_out > 0, "and the rest is counted");
        // Both nodes continue to count together.
        serve(&mut cluster, 20);
        cluster.run_for(seconds(10.0));
        let now = cluster.node(1).heard[&(0, key)];
        assert_eq!(now.minus(before).minus(late), Cost::hits(20));
    });
}

#[test]
fn fifty_nodes_come_through_a_storm() {
    seeds(4_000..4_001, |seed| {
        let mut storm = Storm::new(50, true, seed);
        storm.cluster.run_for(seconds(30.0));
        storm.serve(seconds(5.0));
        for _ in 0..20 {
            let (a, b) = (storm.any(50), storm.any(50));
            if a != b {
                storm.cluster.cut(a, b);
            }
        }
        storm.serve(seconds(20.0));
        for a in 0..50 {
            (0..a).for_each(|b| storm.cluster.heal(a, b));
        }
        storm.serve(seconds(10.0));
        storm.cluster.run_for(seconds(50.0));
        storm.nothing_is_counted_twice();
        storm.sums_are_exact();
        assert!(
            (0..50).all(|node| storm
                .cluster
                .node(node)
                .replica
                .live_instances(storm.cluster.now())
                == 50)
        );
    });
}
