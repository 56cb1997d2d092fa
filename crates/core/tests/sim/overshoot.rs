//! The most that a client can get by using all nodes at once, and the network cost of the reports.

use super::cluster::{hits, plan, tag};
use super::seconds;
use evenkeel_core::bucket::{Algorithm, debt::DebtBucket};
use evenkeel_core::key::KeyHash;
use evenkeel_core::limit::{Limit, LimitUnit};
use evenkeel_core::replica::{Replica, ReplicaSettings, ReplicaUpdate, ReplicatedLimit};
use evenkeel_core::sim::SIM_START;
use evenkeel_core::sim::cluster::{Cluster, ClusterPlan};
use evenkeel_core::sim::random::{RandomDuration, SimRandom};
use evenkeel_core::units::{Cost, Nanos, Rate, SECOND, Time};

/// Hits served to a client that asks every node for more than the limit, for `length` seconds.
fn served(nodes: usize, period: u64, length: u64) -> u64 {
    let period = Nanos::from_secs(period);
    let offset = RandomDuration::Between(Nanos::ZERO, period);
    let limit = hits("10/s", 20, true);
    let mut cluster = Cluster::new(ClusterPlan { period, offset, ..plan(nodes, false, limit) });
    let key = tag("C");
    let mut served = 0;
    for step in 0..length * 10 {
        cluster.run_until(SIM_START.plus(Nanos::from_millis(100 * step)));
        for node in 0..nodes {
            while cluster.ask(node, 0, key, 1) {
                served += 1;
            }
        }
    }
    served
}

#[test]
fn d11_a_client_spread_over_all_nodes_gets_no_more_than_the_bound() {
    const LENGTH: u64 = 60;
    let (rate, burst) = (10, 20);
    for nodes in [2, 10, 50] {
        for period in [1, 5] {
            let served = served(nodes, period, LENGTH);
            let n = nodes as u64;
            // Nodes that start one after the other have not received reports from each other at
            // first.
            let bound = n * burst + rate * (LENGTH + (n - 1) * period);
            let fair = burst + rate * LENGTH;
            println!(
                "{nodes:3} nodes, {period} s: {served:6} served, bound {bound:6}, fair {fair}"
            );
            assert!(served <= bound, "{nodes} nodes, {period} s: {served} > {bound}");
            assert!(served >= rate * LENGTH / 2, "{nodes} nodes, {period} s: only {served}");
        }
    }
}

#[test]
fn in_the_long_run_it_gets_the_rate() {
    let (long, longer) = (served(2, 1, 60), served(2, 1, 360));
    let more = longer - long;
    assert!((2_900..=3_100).contains(&more), "{more} in 300 s at 10/s");
}

fn lonely(limits: Vec<ReplicatedLimit>, frame_max: usize) -> Replica {
    let settings = ReplicaSettings {
        node: 1,
        life: 1,
        name: "one".into(),
        period: seconds(5.0),
        frame_max,
        reliable: false,
        cpus_milli: 1_000,
        nodes_max: 64,
    };
    Replica::new(settings, limits, SIM_START)
}

fn sent(replica: &mut Replica, now: Time) -> usize {
    replica.handle_timeout(now);
    std::iter::from_fn(|| replica.poll_transmit()).map(|(_, frame)| frame.len()).sum()
}

/// 2000 requests a second at one of 50 nodes, each counted under four limits: an address out of
/// about 100 000, its /24, its /16, and its user agent.
#[test]
fn telling_costs_what_the_arithmetic_says() {
    let shared = |fingerprint: u64| ReplicatedLimit {
        fingerprint,
        name: "x".into(),
        numbers: "".into(),
        unit: 1,
        // A tenth of 4 CPUs.
        per_second: Cost(SECOND * 4 / 10),
    };
    let mut replica = lonely((1..=4).map(shared).collect(), 1_200);
    replica.handle_up(0, SIM_START);
    let mut chance = SimRandom::new(1, 1);
    let (mut now, mut bytes, mut entries) = (SIM_START, 0, 0);
    let periods = 24;
    for period in 0..periods {
        let before = replica.totals().entries_out;
        for _ in 0..10_000 {
            let client = chance.bits() % 100_000;
            let cost = Cost(chance.bits() % 4_000_000);
            for (limit, keys) in [(0, 1), (1, 40), (2, 400), (3, 2_000)] {
                let key = tag(&format!("{limit} {}", client / keys));
                replica.charge(limit, 0, key, cost, now);
            }
        }
        now = now.plus(seconds(5.0));
        let sent = sent(&mut replica, now);
        if period >= periods / 2 {
            bytes += sent;
            entries += replica.totals().entries_out - before;
        }
    }
    let per_entry = bytes as f64 / entries as f64;
    let mbits = |per_second: f64| per_second * 49.0 * 8.0 / 1e6;
    let sent = mbits(bytes as f64 / (f64::from(periods / 2) * 5.0));
    let most = mbits(2_000.0 * 4.0 * per_entry);
    println!("{per_entry:.1} bytes an entry; {sent:.1} Mbit/s each way, {most:.1} at the most");
    assert!(per_entry <= 13.0, "{per_entry} bytes an entry");
    assert!(most <= 60.0 && sent <= 25.0, "{most} and {sent} Mbit/s");
}

/// The amount held back is at most a thousandth of the cost that the limit lets pass in a period,
/// over all nodes together.
#[test]
fn what_is_hidden_of_a_key_stays_below_a_thousandth_of_its_limit() {
    const NODES: usize = 4;
    let rate = Rate::per(Cost(SECOND), Nanos(SECOND)).expect("a rate");
    let algorithm = Algorithm::Debt(DebtBucket::new(rate, Cost(10 * SECOND)));
    let limit = Limit { unit: LimitUnit::Cpu, algorithm, ..hits("1/s", 1, false) };
    let mut cluster = Cluster::new(plan(NODES, true, limit));
    let mut chance = SimRandom::new(3, 3);
    let keys: Vec<_> = (0..20).map(|n| tag(&n.to_string())).collect();
    let per_period = 5 * SECOND;
    cluster.run_for(seconds(11.0));
    let (mut most, mut waited) = (0, 0);
    for _ in 0..60 {
        for node in 0..NODES {
            for key in &keys {
                cluster.charge(node, 0, *key, Cost(chance.bits() % 700_000));
            }
        }
        cluster.run_for(seconds(5.0));
        // Just after a report: the remaining amounts are held back.
        for key in &keys {
            let hidden = |node| cluster.node(node).replica.unsent(0, 0, *key);
            let hidden: u64 = (0..NODES).map(hidden).sum();
            most = most.max(hidden);
            waited += u64::from(hidden > 0);
        }
    }
    assert!(most <= per_period / 1_000, "{most} of {per_period}");
    assert!(waited > 100, "nothing ever waited: the test shows nothing");
    // No amount is held back for ever.
    cluster.run_for(seconds(60.0));
    let left = |node| -> u64 {
        keys.iter().map(|key| cluster.node(node).replica.unsent(0, 0, *key)).sum()
    };
    assert_eq!((0..NODES).map(left).sum::<u64>(), 0);
}

/// Frames other than charges: names, differences between limits, identities.
mod frames {
    use super::*;

    use evenkeel_core::replica::{PeerFrameError, REPLICA_BOUNDS, ReplicaEvent};

    fn shared(fingerprint: u64, name: &str, numbers: &str) -> ReplicatedLimit {
        let (name, numbers) = (name.into(), numbers.into());
        ReplicatedLimit { fingerprint, name, numbers, unit: SECOND, per_second: Cost::ZERO }
    }

    fn instance(node: u64, reliable: bool, limits: Vec<ReplicatedLimit>) -> Replica {
        let settings = ReplicaSettings {
            node,
            life: 1,
            name: format!("node {node}"),
            period: seconds(5.0),
            frame_max: 1_200,
            reliable,
            cpus_milli: 2_000,
            nodes_max: 4,
        };
        Replica::new(settings, limits, SIM_START)
    }

    /// Carries frames in both directions on link 7 until there are none.
    fn talk(a: &mut Replica, b: &mut Replica, now: Time, told: &mut dyn FnMut(ReplicaUpdate<'_>)) {
        loop {
            let to_b: Vec<_> = std::iter::from_fn(|| a.poll_transmit()).collect();
            let to_a: Vec<_> = std::iter::from_fn(|| b.poll_transmit()).collect();
            if to_a.is_empty() && to_b.is_empty() {
                return;
            }
            for (link, frame) in to_b {
                b.handle_frame(link, &frame, now, told).expect("a good frame");
            }
            for (link, frame) in to_a {
                a.handle_frame(link, &frame, now, told).expect("a good frame");
            }
        }
    }

    fn met(ours: Vec<ReplicatedLimit>, theirs: Vec<ReplicatedLimit>) -> (Replica, Replica) {
        let (mut a, mut b) = (instance(1, true, ours), instance(2, true, theirs));
        a.handle_up(7, SIM_START);
        b.handle_up(7, SIM_START);
        talk(&mut a, &mut b, SIM_START, &mut |_| {});
        // Reports count once the state has arrived.
        a.give_state(2, [], SIM_START);
        b.give_state(1, [], SIM_START);
        talk(&mut a, &mut b, SIM_START, &mut |_| {});
        (a, b)
    }

    #[test]
    fn what_differs_is_told_once_and_what_is_shared_counts() {
        let ours = vec![shared(1, "ip", "10/s"), shared(2, "net", "5/s"), shared(3, "x", "1/s")];
        let theirs = vec![shared(2, "net", "6/s"), shared(1, "ip", "10/s"), shared(4, "x", "1/s")];
        let (mut a, mut b) = met(ours, theirs);
        let told = |a: &mut Replica| -> Vec<(String, Option<String>, bool)> {
            let events = std::iter::from_fn(|| a.poll_event());
            let differs = events.filter_map(|event| match event {
                ReplicaEvent::Differs { limit, ours, counts, .. } => Some((limit, ours, counts)),
                _ => None,
            });
            differs.collect()
        };
        let expected = [
            ("net".to_owned(), Some("5/s".to_owned()), true),
            ("x".to_owned(), Some("1/s".to_owned()), false),
        ];
        assert_eq!(told(&mut a), expected);
        // The same differences on another link are not reported again.
        a.handle_down(7, false, SIM_START);
        b.handle_down(7, false, SIM_START);
        a.handle_up(8, SIM_START);
        b.handle_up(8, SIM_START);
        talk(&mut a, &mut b, SIM_START, &mut |_| {});
        assert_eq!(told(&mut a), []);
        for (limit, amount) in [(0, 3), (1, 4), (2, 5)] {
            a.charge(limit, 0, tag("C"), Cost::hits(amount), SIM_START);
        }
        let now = SIM_START.plus(seconds(5.0));
        a.handle_timeout(now);
        let mut charged = Vec::new();
        talk(&mut a, &mut b, now, &mut |told| {
            if let ReplicaUpdate::Charge { limit, amount, .. } = told {
                charged.push((limit, amount));
            }
        });
        charged.sort_unstable();
        assert_eq!(charged, [(0, Cost::hits(4)), (1, Cost::hits(3))], "by their places there");
        assert_eq!(b.totals().counts.unshared, 1);
    }

    #[test]
    fn names_are_told_and_bounded() {
        let (mut a, mut b) = met(vec![shared(1, "ip", "")], vec![shared(1, "ip", "")]);
        let long = "n".repeat(500);
        let keys: Vec<_> = (0..300).map(|n| tag(&n.to_string())).collect();
        a.send_names(keys.iter().map(|key| (0, *key, &*long)), SIM_START);
        let mut names = Vec::new();
        talk(&mut a, &mut b, SIM_START, &mut |told| {
            if let ReplicaUpdate::Name { key, name, .. } = told {
                names.push((key, name.len()));
            }
        });
        let expected: Vec<_> =
            keys.iter().take(REPLICA_BOUNDS.names_max).map(|key| (*key, 120)).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn cpus_of_the_living_add_up() {
        let (a, b) = met(vec![], vec![]);
        assert_eq!((a.cpus_milli(SIM_START), b.cpus_milli(SIM_START)), (4_000, 4_000));
        let later = SIM_START.plus(seconds(16.0));
        assert_eq!(
            (a.cpus_milli(later), a.live_instances(later)),
            (2_000, 1),
            "nothing was heard since"
        );
    }

    #[test]
    fn who_is_not_believed() {
        let (mut a, mut b) = met(vec![shared(1, "ip", "")], vec![shared(1, "ip", "")]);
        let now = SIM_START.plus(seconds(5.0));
        a.charge(0, 0, tag("C"), Cost::hits(1), SIM_START);
        a.handle_timeout(now);
        let (_, report) = a.poll_transmit().expect("a report");
        let take = |b: &mut Replica, link, frame: &[u8]| {
            let mut charged = 0;
            let result = b.handle_frame(link, frame, now, &mut |_| charged += 1);
            (result, charged)
        };
        assert_eq!(take(&mut b, 9, &report), (Err(PeerFrameError::Stranger), 0), "no such link");
        b.handle_up(8, now);
        assert_eq!(
            take(&mut b, 8, &report),
            (Err(PeerFrameError::Stranger), 0),
            "no hello before it"
        );
        assert_eq!(take(&mut a, 7, &report), (Ok(()), 0), "its own");
        assert!(
            std::iter::from_fn(|| a.poll_event())
                .any(|event| event == ReplicaEvent::Own { link: 7 })
        );
        let changed = |at: usize, to: u8| {
            let mut frame = report.to_vec();
            frame[at] = to;
            frame
        };
        assert_eq!(take(&mut b, 7, &changed(0, 2)), (Err(PeerFrameError::Version(2)), 0));
        assert_eq!(take(&mut b, 7, &changed(1, 9)), (Err(PeerFrameError::Broken), 0));
        assert_eq!(
            take(&mut b, 7, &changed(2, 9)),
            (Err(PeerFrameError::Stranger), 0),
            "another node"
        );
        assert_eq!(
            take(&mut b, 7, &changed(10, 9)),
            (Err(PeerFrameError::Stranger), 0),
            "another life"
        );
        assert_eq!(take(&mut a, 7, &changed(10, 9)), (Err(PeerFrameError::Twin), 0));
        assert_eq!(take(&mut b, 7, &report[..report.len() - 1]), (Err(PeerFrameError::Broken), 0));
        assert_eq!(b.totals().refused, 7);
        assert_eq!(take(&mut b, 7, &report), (Ok(()), 1));
        assert_eq!(take(&mut b, 7, &report), (Ok(()), 0), "a second time");
    }

    #[test]
    fn a_group_believes_nobody_of_another_time_and_not_too_many() {
        let hello = |node: u64, at: Time| {
            let mut other = instance(node, false, vec![]);
            other.handle_up(0, at);
            other.poll_transmit().expect("a hello").1
        };
        let mut b = instance(100, false, vec![]);
        b.handle_up(0, SIM_START);
        let mut take = |frame: &[u8], now| b.handle_frame(0, frame, now, &mut |_| {});
        let later = |s| SIM_START.plus(seconds(s));
        assert_eq!(take(&hello(1, SIM_START), later(61.0)), Err(PeerFrameError::Time), "replayed");
        assert_eq!(take(&hello(1, later(61.0)), SIM_START), Err(PeerFrameError::Time));
        for node in 1..=3 {
            assert_eq!(take(&hello(node, SIM_START), SIM_START), Ok(()));
        }
        assert_eq!(take(&hello(4, SIM_START), SIM_START), Err(PeerFrameError::Full));
        b.handle_timeout(later(149.0));
        assert_eq!(b.peers(later(149.0)).len(), 3);
        b.handle_timeout(later(155.0));
        assert_eq!(b.peers(later(155.0)).len(), 0, "who is silent is forgotten in the end");
    }

    #[test]
    fn a_peer_that_floods_fills_nothing() {
        let (mut a, mut b) = met(vec![shared(1, "ip", "")], vec![shared(1, "ip", "")]);
        let now = SIM_START.plus(seconds(5.0));
        a.handle_timeout(now);
        let (_, report) = a.poll_transmit().expect("a report");
        let before = b.backlog();
        let mut refused = 0;
        for _ in 0..REPLICA_BOUNDS.frames_max + 100 {
            refused += u32::from(b.handle_frame(7, &report, now, &mut |_| {}).is_err());
        }
        assert!((90..=110).contains(&refused), "{refused}");
        assert_eq!(b.backlog(), before);
        assert!(std::iter::from_fn(|| b.poll_transmit()).count() <= 1, "one answer to all");
        b.handle_timeout(now.plus(seconds(5.0)));
        let again = b.handle_frame(7, &report, now.plus(seconds(5.0)), &mut |_| {});
        assert_eq!(again, Ok(()), "in the next period it is heard again");
    }

    /// Keys with so little that it waits for a later report are reported when their room is needed.
    #[test]
    fn held_back_keys_make_room_for_others() {
        let held_back =
            ReplicatedLimit { unit: 1, per_second: Cost(SECOND), ..shared(1, "ip", "") };
        let mut a = instance(1, false, vec![held_back]);
        let keys = REPLICA_BOUNDS.unsent_max as u64 + 10;
        for n in 0..keys {
            a.charge(0, 0, key(n), Cost(1), SIM_START);
        }
        assert_eq!(a.totals().dropped, 0);
        assert_eq!(a.backlog()[0], 10);
        let contexts = REPLICA_BOUNDS.groups_max as u128 + 10;
        for context in 0..contexts {
            a.charge(0, context, key(0), Cost(1), SIM_START);
        }
        assert_eq!(a.totals().dropped, 0);
        assert_eq!(a.totals().reports, 2, "one report for each time that there was no room");
    }

    /// The key with number `n`.
    fn key(n: u64) -> KeyHash {
        KeyHash::from_bits((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[test]
    fn what_nobody_takes_is_bounded() {
        let mut a = instance(1, true, vec![shared(1, "ip", "")]);
        let mut b = instance(2, true, vec![shared(1, "ip", "")]);
        a.handle_up(7, SIM_START);
        b.handle_up(7, SIM_START);
        talk(&mut a, &mut b, SIM_START, &mut |_| {});
        a.handle_down(7, false, SIM_START);
        // More keys than fit: a report is sent when there is no room, and no charge is lost.
        let keys = REPLICA_BOUNDS.unsent_max + 10;
        for n in 0..keys as u64 {
            a.charge(0, 0, key(n), Cost::hits(1), SIM_START);
        }
        let [waiting, frames, bytes] = a.backlog();
        assert_eq!(waiting, 10);
        assert!(frames > 1_000 && frames <= REPLICA_BOUNDS.log_frames_max, "{frames}");
        assert!(bytes <= REPLICA_BOUNDS.log_bytes_max);
        assert_eq!(a.totals().dropped, 0);
        // No peer is reachable for a minute: the reports are dropped and counted.
        let mut now = SIM_START;
        for _ in 0..13 {
            now = now.plus(seconds(5.0));
            a.handle_timeout(now);
        }
        assert!(a.backlog()[1] <= 14, "{:?}", a.backlog());
        assert!(a.totals().counts.lost_out >= frames as u64);
    }
}
