//! Instances that count together, on a virtual clock: the cases of the original system's example.
//! `network_faults` tests network faults, and `overshoot` tests how much a client can get from all
//! nodes together.

use super::{SEED_BYTES, for_seeds, seconds};
use evenkeel_core::bucket::{Algorithm, debt::DebtBucket, grid::GridBucket};
use evenkeel_core::condition::Condition;
use evenkeel_core::key::{KeyHash, KeyHasher};
use evenkeel_core::limit::{KeyPart, Limit, LimitUnit};
use evenkeel_core::sim::SIM_START;
use evenkeel_core::sim::cluster::{Cluster, ClusterPlan, NetworkConditions};
use evenkeel_core::sim::random::RandomDuration;
use evenkeel_core::units::{Cost, Nanos, SECOND, Time, Weight};

/// Maximum length of a frame in a datagram, in bytes.
pub const DATAGRAM: usize = 1_200;

/// A limit in hits, refilled on the grid or evenly.
pub fn hits(rate: &str, burst: u64, grid: bool) -> Limit {
    let pace: evenkeel_core::units::ExactRate = rate.parse().expect("a rate");
    let algorithm = match grid {
        true => Algorithm::Grid(GridBucket::new(pace, burst)),
        false => Algorithm::Debt(DebtBucket::new(pace.rate(), Cost::hits(burst))),
    };
    Limit {
        name: "line".into(),
        by: vec![KeyPart::Tag],
        when: Condition::default(),
        unit: LimitUnit::Hits,
        algorithm,
        action: None,
        weight: Weight::ONE,
        keys_max: 100_000,
        shadow: false,
    }
}

/// The key of a tag.
pub fn tag(name: &str) -> KeyHash {
    let mut hasher = KeyHasher::new(&SEED_BYTES);
    hasher.part(name.as_bytes());
    hasher.finish()
}

/// A network without faults, with `nodes` nodes that report every five seconds.
pub fn plan(nodes: usize, mesh: bool, limit: Limit) -> ClusterPlan {
    ClusterPlan {
        nodes,
        mesh,
        period: seconds(5.0),
        offset: RandomDuration::ZERO,
        frame_max: DATAGRAM,
        limits: vec![limit],
        weather: NetworkConditions::PERFECT,
        seed: 1,
    }
}

/// The parameters of the original system: burst 10, rate 1/s, a report every 5 s.
fn original(nodes: usize, mesh: bool) -> Cluster {
    met(plan(nodes, mesh, hits("1/s", 10, true)))
}

/// A cluster whose nodes have joined and exchanged empty reports.
fn met(plan: ClusterPlan) -> Cluster {
    let mut cluster = Cluster::new(plan);
    cluster.run_until(at(0.0));
    cluster
}

/// The point in time `time` seconds after the nodes have joined.
fn at(time: f64) -> Time {
    SIM_START.plus(seconds(20.0 + time))
}

/// The level of a tag at each node, in hits.
fn levels(cluster: &Cluster, nodes: usize, key: KeyHash) -> Vec<i64> {
    (0..nodes).map(|node| cluster.level(node, 0, key) / SECOND as i64).collect()
}

/// Asks one node `times` times, and returns the results.
fn ask(cluster: &mut Cluster, node: usize, key: KeyHash, times: usize) -> Vec<bool> {
    (0..times).map(|_| cluster.ask(node, 0, key, 1)).collect()
}

fn both_ways(test: impl Fn(bool)) {
    test(true);
    test(false);
}

#[test]
fn d1_the_example_value_for_value() {
    both_ways(|mesh| {
        let weather = NetworkConditions {
            delay: RandomDuration::Fixed(seconds(0.1)),
            ..NetworkConditions::PERFECT
        };
        let plan = ClusterPlan { weather, ..plan(2, mesh, hits("1/s", 10, true)) };
        let (mut cluster, c) = (met(plan), tag("C"));
        assert_eq!(levels(&cluster, 2, c), [10, 10]);
        cluster.run_until(at(0.1));
        assert_eq!(ask(&mut cluster, 0, c, 9), [true; 9]);
        assert_eq!(ask(&mut cluster, 1, c, 8), [true; 8]);
        assert_eq!(levels(&cluster, 2, c), [1, 2]);
        cluster.run_until(at(0.2));
        assert_eq!(ask(&mut cluster, 0, c, 2), [true, false], "the refused one takes nothing");
        assert_eq!(levels(&cluster, 2, c), [0, 2]);
        cluster.run_until(at(5.05));
        assert_eq!(levels(&cluster, 2, c), [5, 7], "told, and not arrived");
        cluster.run_until(at(5.1));
        assert_eq!(levels(&cluster, 2, c), [-3, -3]);
        cluster.run_until(at(5.2));
        assert_eq!(
            (ask(&mut cluster, 0, c, 1), ask(&mut cluster, 1, c, 1)),
            (vec![false], vec![false])
        );
        assert_eq!(levels(&cluster, 2, c), [-3, -3], "refused ones take nothing");
        for (time, level) in [(6.0, -2), (7.0, -1), (8.0, 0), (9.0, 1)] {
            cluster.run_until(at(time - 0.1));
            assert_eq!(ask(&mut cluster, 0, c, 1), [false], "just before {time}");
            cluster.run_until(at(time));
            assert_eq!(levels(&cluster, 2, c), [level, level], "at {time}");
        }
        assert_eq!(ask(&mut cluster, 0, c, 1), [true]);
        assert_eq!(levels(&cluster, 2, c), [0, 1]);
    });
}

#[test]
fn d2_d3_reports_have_what_was_served_once_and_empty_ones_are_sent() {
    both_ways(|mesh| {
        let (mut cluster, c) = (original(2, mesh), tag("C"));
        ask(&mut cluster, 0, c, 11);
        ask(&mut cluster, 1, c, 8);
        cluster.run_until(at(5.0));
        let told = |cluster: &Cluster, node| cluster.node(node).replica.totals().entries_out;
        assert_eq!((told(&cluster, 0), told(&cluster, 1)), (1, 1));
        let heard = |cluster: &Cluster, node: usize| cluster.node(node).heard[&(0, c)];
        assert_eq!((heard(&cluster, 1), heard(&cluster, 0)), (Cost::hits(10), Cost::hits(8)));
        let before = cluster.node(1).replica.peers(at(5.0))[0].counts;
        cluster.run_until(at(10.0));
        assert_eq!((told(&cluster, 0), told(&cluster, 1)), (1, 1), "nothing more to tell");
        let seen = &cluster.node(1).replica.peers(at(10.0))[0];
        assert_eq!(seen.report, 6, "and told all the same");
        assert!(seen.counts.bytes_in > before.bytes_in && seen.lives);
    });
}

#[test]
fn d4_a_tag_only_in_a_report_begins_full() {
    both_ways(|mesh| {
        let (mut cluster, c) = (original(2, mesh), tag("C"));
        ask(&mut cluster, 0, c, 4);
        cluster.run_until(at(4.9));
        assert_eq!(levels(&cluster, 2, c), [10, 10], "refilled, and not told");
        let mut late = original(2, mesh);
        late.run_until(at(4.99));
        ask(&mut late, 0, c, 4);
        late.run_until(at(5.0));
        assert_eq!(levels(&late, 2, c), [7, 6], "one token came in at 5, before the report");
        assert_eq!(late.node(1).heard[&(0, c)], Cost::hits(4));
    });
}

#[test]
fn d5_d6_d7_own_reports_change_nothing_and_debts_refill_no_faster() {
    // Over a group every node receives its own frames, and every frame arrives two or three times.
    let weather = NetworkConditions { twice: 1_000, ..NetworkConditions::PERFECT };
    let plan = ClusterPlan { weather, ..plan(2, false, hits("1/s", 10, true)) };
    let (mut cluster, c) = (met(plan), tag("C"));
    cluster.run_until(at(4.5));
    ask(&mut cluster, 0, c, 10);
    ask(&mut cluster, 1, c, 7);
    cluster.run_until(at(5.5));
    assert_eq!(levels(&cluster, 2, c), [-6, -6]);
    assert!(cluster.node(1).replica.totals().counts.repeated > 0, "they did come twice");
    cluster.run_until(at(11.9));
    assert_eq!((levels(&cluster, 2, c), ask(&mut cluster, 0, c, 1)), (vec![0, 0], vec![false]));
    cluster.run_until(at(12.0));
    assert_eq!(ask(&mut cluster, 0, c, 1), [true]);
}

#[test]
fn d8_an_idle_hour_fills_no_bucket_beyond_its_burst() {
    both_ways(|mesh| {
        let (mut cluster, c) = (original(2, mesh), tag("C"));
        ask(&mut cluster, 0, c, 10);
        cluster.run_for(Nanos::from_secs(3_600));
        assert_eq!(levels(&cluster, 2, c), [10, 10]);
        assert_eq!(cluster.node(0).replica.live_instances(cluster.now()), 2);
    });
}

#[test]
fn d9_three_nodes_serve_three_bursts_and_all_owe_the_difference() {
    both_ways(|mesh| {
        let (mut cluster, c) = (original(3, mesh), tag("C"));
        for node in 0..3 {
            assert_eq!(ask(&mut cluster, node, c, 10), [true; 10]);
        }
        cluster.run_until(at(5.0));
        assert_eq!(levels(&cluster, 3, c), [-15, -15, -15], "10 - 30, and 5 came in");
        cluster.run_until(at(20.9));
        assert_eq!(ask(&mut cluster, 2, c, 1), [false]);
        cluster.run_until(at(21.0));
        assert_eq!(ask(&mut cluster, 2, c, 2), [true, false], "30 - burst = 20 s, and one token");
    });
}

#[test]
fn d10_a_client_within_the_rate_is_never_refused() {
    both_ways(|mesh| {
        let (mut cluster, c) = (original(2, mesh), tag("C"));
        for second in 0..60 {
            cluster.run_until(at(f64::from(second)));
            let node = usize::try_from(second % 2).expect("0 or 1");
            assert_eq!(ask(&mut cluster, node, c, 1), [true], "at {second}");
        }
    });
}

#[test]
fn d19_a_silent_peer_leaves_local_limits_standing() {
    both_ways(|mesh| {
        let (mut cluster, c) = (original(2, mesh), tag("C"));
        cluster.run_until(at(6.0));
        cluster.kill(1);
        assert_eq!(ask(&mut cluster, 0, c, 12), [vec![true; 10], vec![false; 2]].concat());
        cluster.run_until(at(30.0));
        assert_eq!(levels(&cluster, 1, c), [10]);
        assert_eq!(cluster.node(0).replica.live_instances(cluster.now()), 1);
        assert!(!cluster.node(0).replica.peers(cluster.now())[0].lives);
    });
}

#[test]
fn d21_ten_thousand_tags_are_told_in_many_parts_of_one_period() {
    both_ways(|mesh| {
        let mut cluster = original(2, mesh);
        cluster.run_until(at(4.9));
        let tags: Vec<KeyHash> = (0..10_000).map(|n| tag(&n.to_string())).collect();
        for key in &tags {
            assert!(cluster.ask(0, 0, *key, 3));
        }
        let before = cluster.node(1).replica.totals().counts.frames_in;
        cluster.run_until(at(5.0));
        let parts = cluster.node(1).replica.totals().counts.frames_in - before;
        let seen = &cluster.node(1).replica.peers(at(5.0))[0];
        assert_eq!((seen.report, seen.counts.entries_in), (5, 10_000));
        assert!((75..100).contains(&parts), "{parts} frames");
        assert!(tags.iter().all(|key| cluster.level(1, 0, *key) == 7 * SECOND as i64));
        // Every entry is sent once and never again.
        cluster.run_until(at(60.0));
        assert_eq!(cluster.node(1).replica.totals().counts.entries_in, 10_000);
        assert_eq!(cluster.node(0).replica.backlog()[0], 0);
    });
}

#[test]
fn a_joiner_gets_the_present_state() {
    for_seeds(|seed| {
        both_ways(|mesh| {
            let offset = RandomDuration::Between(Nanos::ZERO, seconds(5.0));
            let plan = ClusterPlan { offset, seed, ..plan(3, mesh, hits("1/h", 100, false)) };
            let (mut cluster, c) = (Cluster::new(plan), tag("C"));
            cluster.run_for(seconds(20.0));
            ask(&mut cluster, 0, c, 60);
            ask(&mut cluster, 1, c, 60);
            cluster.run_for(seconds(10.0));
            cluster.kill(2);
            ask(&mut cluster, 0, tag("meanwhile"), 5);
            cluster.run_for(seconds(200.0));
            // Unreported when the node joins: these hits may arrive with the state or after it, but
            // not twice.
            ask(&mut cluster, 0, tag("just now"), 7);
            cluster.start(2);
            cluster.run_for(seconds(15.0));
            for (key, level) in [(c, -20), (tag("meanwhile"), 95), (tag("just now"), 93)] {
                // The refill during the test is a fraction of a hit.
                let left = cluster.level(2, 0, key) as f64 / SECOND as f64;
                assert!((left - f64::from(level)).abs() < 0.1, "{left}, not {level}; {mesh}");
            }
        });
    });
}

#[test]
fn what_is_told_late_is_charged_as_of_then() {
    for (kill, mesh) in [(false, true), (true, true), (true, false)] {
        let (mut cluster, c) = (met(plan(2, mesh, hits("10/s", 20, false))), tag("C"));
        // Half of the limit's rate, all of it at one node.
        let serve = |cluster: &mut Cluster| {
            for _ in 0..40 * 5 {
                assert!(cluster.ask(0, 0, c, 1));
                cluster.run_for(seconds(0.2));
            }
        };
        if kill {
            cluster.kill(1);
        } else {
            cluster.cut(0, 1);
        }
        serve(&mut cluster);
        if kill {
            cluster.start(1);
        } else {
            cluster.heal(0, 1);
        }
        for _ in 0..10 {
            cluster.run_for(seconds(1.0));
            let left = cluster.level(1, 0, c) / SECOND as i64;
            assert!(left > -10, "{left} left at the other node (kill {kill}, mesh {mesh})");
        }
    }
}
