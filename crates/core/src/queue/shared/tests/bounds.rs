//! The cost of one message of another instance: how often the number of slots is calculated, and
//! how many messages follow.

use super::*;

/// Two instances that exchange messages at once. The first one owns the queue.
pub(super) struct Pair {
    pub queues: [SharedQueue; 2],
    pub now: Time,
}

impl Pair {
    pub fn new(slots: usize) -> Pair {
        Pair::of([settings(slots); 2])
    }

    pub fn of(settings: [QueueSettings; 2]) -> Pair {
        let now = Time(1_000 * 1_000 * MILLI);
        let queues = [0, 1].map(|node| {
            let mut queue = SharedQueue::new(Admission::new(settings[node], None));
            queue.start(instance(node as u64), now);
            queue
        });
        let mut pair = Pair { queues, now };
        pair.queues[0].handle_link(instance(1), now);
        pair.queues[1].handle_link(instance(0), now);
        pair.relay();
        // Until each instance knows which others there are.
        pair.wait(SILENT_MAX);
        pair
    }

    fn wait(&mut self, length: Nanos) {
        for _ in 0..=length.0 / BEAT_INTERVAL.0 {
            self.now = self.now.plus(BEAT_INTERVAL);
            self.queues.iter_mut().for_each(|queue| queue.handle_timeout(self.now));
            self.relay();
        }
    }

    /// Brings all messages to where they belong. Returns their number.
    pub fn relay(&mut self) -> usize {
        self.relay_to(&mut |_, _| ())
    }

    /// Brings all messages to where they belong. Returns the outcomes of requests, each with the
    /// place of its instance.
    pub fn relay_all(&mut self) -> Vec<(usize, AdmissionOutcome)> {
        let mut outcomes = Vec::new();
        self.relay_to(&mut |node, outcome| outcomes.push((node, outcome)));
        outcomes
    }

    fn relay_to(&mut self, heard: &mut dyn FnMut(usize, AdmissionOutcome)) -> usize {
        let mut count = 0;
        loop {
            let before = count;
            for from in [0, 1] {
                while let Some(outcome) = self.queues[from].poll(self.now) {
                    heard(from, outcome);
                }
                while let Some((to, message)) = self.queues[from].poll_message() {
                    count += 1;
                    self.queues[to as usize].handle_message(from as u64, message, self.now);
                }
            }
            if count == before {
                return count;
            }
        }
    }

    /// The second instance tells the owner something. Returns how often the owner has calculated
    /// the number of its slots, and how many messages it wants to send.
    fn cost_of(&mut self, message: QueueMessage) -> (usize, usize) {
        let owner = &mut self.queues[0];
        let before = owner.admission.narrowed;
        owner.handle_message(1, message, self.now);
        while owner.poll(self.now).is_some() {}
        let messages = core::iter::from_fn(|| owner.poll_message()).count();
        (owner.admission.narrowed - before, messages)
    }
}

pub(super) fn instance(node: u64) -> InstanceId {
    InstanceId { life: node + 1, node }
}

#[test]
fn a_message_about_many_slots_costs_as_much_as_one_about_one() {
    let mut pair = Pair::new(8);
    for message in [
        QueueMessage::Join { running: 1 << 16 },
        QueueMessage::Return { slots: 1 << 16 },
        QueueMessage::Take { slots: 1 << 16 },
        QueueMessage::Take { slots: u32::MAX },
        QueueMessage::Join { running: u32::MAX },
    ] {
        let (calculated, messages) = pair.cost_of(message);
        assert!(calculated <= 2 && messages <= 1, "{message:?}: {calculated} {messages}");
    }
    let before = pair.queues[0].admission.narrowed;
    pair.queues[0].handle_link(instance(1), pair.now);
    assert!(pair.queues[0].admission.narrowed - before <= 2);
    assert_eq!(pair.queues[0].running(), 0);
}

/// A connection in the place of another one costs one message for each request that waits at the
/// other instance, and a few more.
#[test]
fn a_new_connection_costs_a_message_for_each_waiting_request() {
    let mut pair = Pair::new(2);
    for client in 0..1_000 {
        pair.queues[1].handle_arrival(arrival(client), pair.now);
    }
    pair.relay();
    for round in 0..20_usize {
        pair.now = pair.now.plus(Nanos::from_secs(20));
        pair.queues[0].handle_link(instance(1), pair.now);
        pair.queues[1].handle_link(instance(0), pair.now);
        let before = pair.queues[0].admission.narrowed;
        let count = pair.relay();
        let all = 1_000 - round;
        assert!((all - 10..=all + 20).contains(&count), "{round}: {count}");
        assert!(pair.queues[0].admission.narrowed - before <= 20, "{round}");
        let RequestCounts { waiting, running } = pair.queues[1].counts();
        assert_eq!(waiting + running, 1_000, "{round}");
    }
}

/// The end of sharing does not reduce the slots, as silent instances would.
#[test]
fn an_instance_that_shares_no_longer_has_all_slots() {
    for apart in [0, 1] {
        let mut pair = Pair::new(2);
        let (owner, other) = (instance(0), instance(1));
        let run = [1, 2].map(|client| pair.queues[1].handle_arrival(arrival(client), pair.now));
        assert_eq!(pair.relay_all().len(), 2);
        let waits = [0, 1].map(|node| pair.queues[node].handle_arrival(arrival(3), pair.now));
        assert_eq!(pair.relay_all(), []);
        let queue = &mut pair.queues[apart];
        if apart == 1 {
            queue.handle_done(run[0], Cost(PAGE.0), None, pair.now);
        }
        queue.end_sharing(pair.now);
        assert_eq!((queue.owner(), queue.running_elsewhere()), (queue.own.map(|own| own.node), 0));
        // Neither of the owner's two slots is in use; one of the other instance's slots is.
        let granted = queue.poll(pair.now);
        assert_eq!(granted, Some(AdmissionOutcome::Slot(waits[apart])));
        assert_eq!(queue.poll_message(), None);
        let id = queue.handle_arrival(arrival(4), pair.now);
        let free = (apart == 0).then_some(AdmissionOutcome::Slot(id));
        assert_eq!(queue.poll(pair.now), free);
        queue.handle_message(1 - apart as u64, QueueMessage::Take { slots: 2 }, pair.now);
        assert_eq!(queue.report(pair.now).map(|report| report.others.len()), Some(0));
        // Later the instances share the queue again.
        pair.queues[1 - apart].end_sharing(pair.now);
        pair.queues[0].handle_link(other, pair.now);
        pair.queues[1].handle_link(owner, pair.now);
        pair.relay_all();
        let owners = pair.queues.each_ref().map(SharedQueue::owner);
        assert!(owners[0].is_some() && owners[0] == owners[1], "{owners:?}");
    }
}

#[test]
fn an_only_slot_is_not_kept() {
    let mut pair = Pair::new(1);
    // Long enough for slots to be kept.
    for _ in 0..2 {
        let id = pair.queues[1].handle_arrival(arrival(1), pair.now);
        assert_eq!(pair.relay_all(), [(1, AdmissionOutcome::Slot(id))]);
        pair.now = pair.now.plus(PAGE);
        pair.queues[1].handle_done(id, Cost(PAGE.0), None, pair.now);
        pair.relay();
        pair.wait(Nanos::from_secs(1));
    }
    let there = pair.queues[1].handle_arrival(arrival(1), pair.now);
    assert_eq!(pair.relay_all(), [(1, AdmissionOutcome::Slot(there))]);
    pair.queues[0].handle_arrival(arrival(2), pair.now);
    assert_eq!(pair.relay_all(), []);
}
