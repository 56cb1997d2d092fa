//! Instances that do nothing for some time and then continue, and instances that start.

use super::*;

#[test]
fn an_owner_that_stops_for_five_seconds_loses_the_queue_and_takes_part_again() {
    for stopped in [0, 1] {
        let mut world = four(false);
        let calm = figures(&mut world, 10);
        world.stopped.insert(stopped);
        let during = figures(&mut world, 5);
        world.resume(stopped);
        world.run(Nanos::from_secs(1));
        world.most = 0;
        let later = figures(&mut world, 10);
        println!("{stopped} stops: {calm:?}, {during:?}, {later:?}, most {}", world.most);
        assert_eq!(world.owners().len(), 1);
        assert!(during.0 >= 100, "{during:?}");
        assert!(later.0 >= 480 && later.1 <= 1.3 * calm.1, "{later:?}");
        assert!(world.most <= 3 && world.lost == 0, "{}", world.most);
    }
}

#[test]
fn an_instance_that_was_stopped_reads_its_messages_before_it_judges() {
    let mut world = four(false);
    for stopped in [2, 3] {
        world.stopped.insert(stopped);
        world.run(Nanos::from_secs(5));
        world.resume(stopped);
        world.run(Nanos::from_secs(2));
        assert_eq!(world.owners(), [0]);
        let taken = world.nodes.iter().flatten().map(|queue| queue.takeovers).sum::<u64>();
        assert_eq!(taken, 0, "{stopped}");
    }
    world.stopped.insert(0);
    world.run(Nanos::from_secs(5));
    world.resume(0);
    world.most = 0;
    world.run(Nanos::from_secs(2));
    assert_eq!(world.owners(), [1]);
    let taken = world.nodes.iter().flatten().map(|queue| queue.takeovers).sum::<u64>();
    assert!(taken == 1 && world.most <= 3, "{taken} {}", world.most);
}

/// The others have closed their connections to it, or not.
#[test]
fn an_instance_that_continues_or_starts_sends_no_more_than_its_part() {
    for (closed, stopped, search) in [false, true].into_iter().flat_map(|closed| {
        (0..2).flat_map(move |node| [false, true].map(|search| (closed, node, search)))
    }) {
        let mut world = four(search);
        world.stopped.insert(stopped);
        world.run(Nanos::from_secs(5));
        let found = world.nodes[2].as_ref().expect("up").slots();
        world.most = 0;
        let others = (0..4).filter(|node| *node != stopped);
        others.clone().filter(|_| closed).for_each(|other| world.cut(stopped, other));
        world.resume(stopped);
        if closed {
            let queue = world.nodes[stopped].as_mut().expect("up");
            queue.handle_timeout(world.now);
            others.clone().for_each(|other| queue.handle_link_end(other as u64, true, world.now));
            world.run(Nanos::from_millis(300));
            others.for_each(|other| world.link(stopped, other));
        }
        world.run(Nanos::from_secs(2));
        println!("{stopped} closed {closed}: most {} of {found}", world.most);
        assert!(world.most <= found + 1, "{stopped} {closed}: {} of {found}", world.most);
        assert_eq!((world.owners().len(), world.lost), (1, 0));
    }
    let mut world = four(false);
    world.kill(0);
    world.run(Nanos::from_secs(3));
    world.most = 0;
    world.start_alone(0);
    world.run(Nanos::from_millis(500));
    (1..4).for_each(|other| world.link(0, other));
    world.run(Nanos::from_secs(2));
    assert!(world.most <= 3 && world.lost == 0, "{}", world.most);
}
