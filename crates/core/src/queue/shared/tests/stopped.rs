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

/// The doors of an instance open before it has a connection to others.
#[test]
fn requests_that_came_before_the_queue_is_shared_wait_at_the_owner() {
    for (is_new, slots) in [(true, 1), (false, 2)] {
        let now = Time(1_000 * 1_000 * MILLI);
        let [mut owner, mut other] =
            [0, 1].map(|_| SharedQueue::new(Admission::new(settings(2), None)));
        owner.start(bounds::instance(0), now);
        other.prepare(is_new, now);
        let ids = [1, 2, 3].map(|client| other.handle_arrival(arrival(client), now));
        let granted = core::iter::from_fn(|| other.poll(now)).count();
        assert_eq!((granted, other.is_ready()), (slots, true), "{is_new}");
        other.start(bounds::instance(1), now);
        other.handle_link(bounds::instance(0), now);
        owner.handle_link(bounds::instance(1), now);
        let mut messages = Vec::new();
        while let Some((_, message)) = owner.poll_message() {
            other.handle_message(0, message, now);
        }
        messages.extend(core::iter::from_fn(|| other.poll_message().map(|(_, one)| one)));
        let asks = |id: &RequestId| {
            messages
                .iter()
                .any(|one| matches!(one, QueueMessage::Ask { id: asked, .. } if asked == id))
        };
        assert_eq!(ids.iter().filter(|id| asks(id)).count(), 3 - slots, "{messages:?}");
        assert_eq!((other.poll(now), other.owner()), (None, Some(0)));
    }
}

#[test]
fn a_queue_is_shared_when_the_requests_from_before_have_had_their_turn() {
    let now = Time(1_000 * 1_000 * MILLI);
    let mut queue = SharedQueue::new(Admission::new(settings(1), None));
    let [first, second] = [1, 2].map(|client| queue.handle_arrival(arrival(client), now));
    assert_eq!(queue.poll(now), Some(AdmissionOutcome::Slot(first)));
    queue.prepare(false, now);
    queue.handle_arrival(arrival(3), now);
    assert!(!queue.is_ready(), "it does not know what the second one has asked for");
    queue.handle_done(first, Cost(PAGE.0), None, now);
    assert_eq!(queue.poll(now), Some(AdmissionOutcome::Slot(second)));
    assert!(queue.is_ready());
}
