//! Instances with different settings of the queue. Those of the owner hold for all.

use super::bounds::{Pair, instance};
use super::*;

/// Four instances with little in common, each of which owns the queue in turn.
#[test]
fn the_queue_moves_between_instances_with_different_settings() {
    let auto = KnownClients::Auto { clients_max: 1_000 };
    let wait = |secs| Nanos::from_secs(secs);
    let plain = settings(2);
    let all = [
        (QueueSettings { wait_max: wait(5), len_max: 60, reserve: 2, ..plain }, false),
        (QueueSettings { known: auto, reserve: 1, cpus_milli: 4_000, ..settings(1) }, true),
        (QueueSettings { wait_max: wait(86_400), workers: Some(2), known: auto, ..plain }, false),
        (QueueSettings { wait_max: wait(7), len_max: 1_000_000, ..settings(1) }, true),
    ];
    let loads = [
        crawler(1, [0].to_vec(), 8),
        crawler(2, [1].to_vec(), 8),
        crawler(3, (0..4).collect(), 8),
        person(3),
    ];
    let mut world = World::with(all.to_vec(), 2, loads.to_vec());
    world.run(Nanos::from_secs(5));
    for round in 0..12 {
        let owner = world.owners()[0] as usize;
        assert_eq!(owner, round % 4, "the oldest instance");
        world.reset();
        let (pages, p95) = figures(&mut world, 10);
        println!("{owner}: {pages} pages, person's p95 {p95} ms, most {}", world.most);
        // A search may work with one slot for a while.
        assert!(pages >= 10 * 44 && world.most <= 5, "{owner}: {pages} {}", world.most);
        world.kill(owner);
        world.run(Nanos::from_secs(1));
        world.start(owner);
        world.run(Nanos::from_secs(4));
        assert_eq!(world.owners().len(), 1, "{owner}");
    }
    assert_eq!(world.lost, 0);
}

/// An instance with a shorter `wait_max` than its owner leaves it when a request has waited for
/// that long, and owns the queue of all.
#[test]
fn the_queue_moves_to_the_instance_with_the_shortest_wait() {
    let brief = QueueSettings { wait_max: Nanos::from_millis(1), ..settings(1) };
    let mut pair = Pair::of([settings(1), brief]);
    let running = pair.queues[0].handle_arrival(arrival(1), pair.now);
    assert_eq!(pair.relay_all(), [(0, AdmissionOutcome::Slot(running))]);
    let own = pair.queues[0].handle_arrival(arrival(2), pair.now);
    let asked = pair.queues[1].handle_arrival(arrival(3), pair.now);
    assert_eq!(pair.relay_all(), []);
    for _ in 0..12 {
        pair.now = pair.now.plus(BEAT_INTERVAL);
        for queue in &mut pair.queues {
            queue.handle_timeout(pair.now);
        }
        assert!(pair.relay_all().iter().all(|(_, one)| *one == AdmissionOutcome::Slot(asked)));
    }
    assert_eq!(pair.queues.each_ref().map(SharedQueue::owner), [Some(instance(1).node); 2]);
    pair.queues[0].handle_done(running, Cost(PAGE.0), None, pair.now);
    pair.queues[1].handle_done(asked, Cost(PAGE.0), None, pair.now);
    assert!(pair.relay_all().contains(&(0, AdmissionOutcome::Slot(own))));
}
