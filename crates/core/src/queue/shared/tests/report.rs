//! The reports of a shared queue for operators.

use super::*;

fn report(world: &World, node: usize) -> SharedQueueReport {
    world.nodes[node].as_ref().expect("up").report(world.now).expect("it is shared")
}

#[test]
fn a_queue_of_one_instance_has_no_report() {
    let queue = SharedQueue::new(Admission::new(settings(2), None));
    assert_eq!(queue.report(Time(1)), None);
}

#[test]
fn each_instance_reports_the_owner_and_the_requests_of_all() {
    let world = four(false);
    for node in 0..4 {
        let report = report(&world, node);
        assert_eq!((report.owner, report.is_owner()), (0, node == 0));
        assert_eq!((report.instances(), report.slots, report.takeovers), (4, 2, 0));
        assert!((21..=23).contains(&report.all.waiting), "{report:?}");
        // 8 connections of one crawler and 2 of another, and maybe the person.
        let own = report.counts.waiting + report.counts.running;
        assert!(if node < 2 { own == 10 } else { own <= 3 }, "{node}: {report:?}");
        let others = report.others.iter();
        assert!(others.clone().all(|other| other.kept.is_some() == (node == 0)), "{report:?}");
        assert!(others.clone().all(OtherInstance::takes_part), "{report:?}");
        assert_eq!(report.kept.is_some(), node > 0);
        let sum = others.map(|other| other.counts).fold(report.counts, RequestCounts::plus);
        assert!((21..=24).contains(&sum.waiting), "{node}: {sum:?}");
    }
}

#[test]
fn an_instance_that_has_not_joined_is_apart() {
    let own = |node| InstanceId { life: node, node };
    let mut queue = SharedQueue::new(Admission::new(settings(2), None));
    let now = Time(1_000 * 1_000 * MILLI);
    queue.start(own(1), now);
    queue.handle_link(own(2), now);
    let seen = |queue: &SharedQueue| queue.report(now).expect("it is shared");
    assert_eq!((seen(&queue).instances(), seen(&queue).others[0].is_apart), (1, true));
    queue.handle_message(2, QueueMessage::Join { running: 3 }, now);
    let report = seen(&queue);
    assert_eq!((report.instances(), report.others[0].kept), (2, Some(3)));
    assert!(report.others[0].takes_part());
}

#[test]
fn an_owner_that_took_over_says_so_and_lists_who_is_silent() {
    let mut world = four(false);
    let begin = report(&world, 1).since;
    assert!(begin < world.now.minus(Nanos::from_secs(4)));
    world.stopped.insert(0);
    let stopped = world.now;
    world.run(Nanos::from_secs(3));
    let seen = report(&world, 1);
    assert_eq!((seen.owner, seen.takeovers, seen.instances()), (1, 1, 3));
    assert!(seen.since > stopped && seen.since < stopped.plus(Nanos::from_secs(1)));
    let silent = |report: &SharedQueueReport| -> Vec<u64> {
        let silent = report.others.iter().filter(|other| other.is_silent);
        silent.map(|other| other.id.node).collect()
    };
    assert_eq!(silent(&seen), [0]);
    for node in [2, 3] {
        let seen = report(&world, node);
        assert_eq!((seen.owner, seen.takeovers, seen.instances()), (1, 0, 3));
        assert_eq!(silent(&seen), [0]);
        assert!(seen.since > stopped && seen.since < stopped.plus(Nanos::from_secs(1)));
        assert_eq!(seen.term, report(&world, 1).term);
    }
}
