//! Random traffic: no request is lost, no request waits while a slot is free, and no state is left.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum QueueEvent {
    Arrive { from: u64, place: u64, cost: u64, weight: u32 },
    Done { which: usize, cost: u64 },
    Cancel { which: usize },
    Pass(u64),
    Concurrency(usize),
    Brief(usize, u64),
}

fn events() -> impl Strategy<Value = Vec<QueueEvent>> {
    let arrive = (0..6_u64, 0..4_u64, 0..50_u64, 100..5_000_u32)
        .prop_map(|(from, place, cost, weight)| QueueEvent::Arrive { from, place, cost, weight });
    let done =
        (any::<usize>(), 0..80_u64).prop_map(|(which, cost)| QueueEvent::Done { which, cost });
    let cancel = any::<usize>().prop_map(|which| QueueEvent::Cancel { which });
    let event = prop_oneof![
        5 => arrive,
        3 => done,
        1 => cancel,
        1 => (0..40_u64).prop_map(QueueEvent::Pass),
        1 => (1..5_usize).prop_map(QueueEvent::Concurrency),
        1 => (0..8_usize, 0..50_u64).prop_map(|(count, cost)| QueueEvent::Brief(count, cost)),
    ];
    prop::collection::vec(event, 1..200)
}

/// A queue and a record of its actions.
struct RecordedQueue {
    queue: Queue,
    now: Time,
    waiting: BTreeMap<RequestId, (u64, Time)>,
    running: Vec<RequestId>,
    /// The last request of each client that was sent to the backend.
    sent: BTreeMap<u64, RequestId>,
}

impl RecordedQueue {
    fn new(settings: QueueSettings) -> RecordedQueue {
        RecordedQueue {
            queue: Queue::new(settings),
            now: NOW,
            waiting: BTreeMap::new(),
            running: Vec::new(),
            sent: BTreeMap::new(),
        }
    }

    fn handle(&mut self, event: QueueEvent) {
        match event {
            QueueEvent::Arrive { from, place, cost, weight } => {
                let place = if place < 2 { QueuePlace::Credit } else { bucket(place) };
                let weight = Weight::new(weight);
                let is_guess = cost % 5 == 0;
                let one = Arrival { weight, is_guess, ..arrival(from, place, cost) };
                let id = self.queue.handle_arrival(one, self.now);
                self.waiting.insert(id, (from, self.now));
            }
            QueueEvent::Done { which, cost } if !self.running.is_empty() => {
                let id = self.running.swap_remove(which % self.running.len());
                self.queue.handle_done(id, Cost(cost), NOW);
            }
            QueueEvent::Cancel { which } if !self.waiting.is_empty() => {
                let id = *self.waiting.keys().nth(which % self.waiting.len()).expect("one");
                assert_eq!(self.queue.handle_cancel(id), CancelOutcome::Waiting);
                assert_eq!(self.queue.handle_cancel(id), CancelOutcome::Unknown);
                self.waiting.remove(&id);
            }
            QueueEvent::Pass(time) => {
                self.now = self.now.plus(Nanos(time));
                self.queue.handle_timeout(self.now);
            }
            QueueEvent::Concurrency(slots) => self.queue.set_concurrency(slots),
            QueueEvent::Brief(count, cost) => {
                let cost_max = Cost(cost);
                self.queue.set_brief_slots(BriefSlots { count, cost_max });
            }
            QueueEvent::Done { .. } | QueueEvent::Cancel { .. } => {}
        }
    }

    fn poll(&mut self) {
        while let Some(refused) = self.queue.poll_refused() {
            assert!(self.waiting.remove(&refused.id).is_some(), "refused, but not waiting");
        }
        while let Some(id) = self.queue.poll_dispatch(self.now) {
            let (from, _) = self.waiting.remove(&id).expect("sent, but not waiting");
            assert!(self.sent.insert(from, id).is_none_or(|before| before < id), "out of order");
            assert_eq!(self.queue.handle_cancel(id), CancelOutcome::Running);
            self.running.push(id);
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let QueueSettings { len_max, wait_max, .. } = self.queue.settings();
        let slots = self.queue.settings().concurrency;
        prop_assert_eq!(self.queue.waiting(), self.waiting.len());
        prop_assert_eq!(self.queue.in_flight(), self.running.len());
        prop_assert!(self.waiting.is_empty() || self.running.len() >= slots, "a slot is free");
        let workers = self.queue.settings().workers.unwrap_or(usize::MAX);
        prop_assert!(slots.max(self.running.len()) <= workers, "more than the workers");
        prop_assert!(self.waiting.len() <= len_max, "too many wait");
        let oldest = self.waiting.values().map(|(_, since)| *since).min();
        prop_assert_eq!(self.queue.poll_timeout(), oldest.map(|since| since.plus(wait_max)));
        prop_assert!(oldest.is_none_or(|since| self.now.since(since) < wait_max), "too long");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// For random events: no request waits while a slot is free, the requests of each client stay
    /// in order, each request is sent or refused once, and no client is remembered at the end.
    #[test]
    fn nothing_is_lost_and_nothing_stands_idle(
        events in events(), reserve in 0..3_usize, len_max in 0..12_usize, wait in 20..200_u64,
        workers in proptest::option::of(1..6_usize),
    ) {
        let settings = QueueSettings {
            len_max, wait_max: Nanos(wait), workers, ..settings(2, reserve)
        };
        let mut watched = RecordedQueue::new(settings);
        for event in events {
            let cut = matches!(event, QueueEvent::Concurrency(_) | QueueEvent::Brief(..));
            watched.handle(event);
            watched.poll();
            if !cut {
                watched.check()?;
            }
        }
        while watched.queue.in_flight() > 0 {
            watched.handle(QueueEvent::Done { which: 0, cost: 1 });
            watched.poll();
        }
        prop_assert_eq!(watched.queue.waiting(), 0);
        prop_assert_eq!(watched.queue.remembered(), 0);
    }

    /// Most requests find an empty queue and are never put into order. The result is the same if
    /// each request is put into order first.
    #[test]
    fn who_passes_at_once_leaves_all_as_if_it_had_waited(
        events in events(), reserve in 0..3_usize, len_max in 0..12_usize, wait in 20..200_u64,
    ) {
        let settings = QueueSettings {
            len_max, wait_max: Nanos(wait), ..settings(4, reserve)
        };
        let mut quick = RecordedQueue::new(settings);
        let mut thorough = RecordedQueue::new(settings);
        for event in events {
            quick.handle(event.clone());
            thorough.handle(event);
            // A change of the concurrency, even to the same value, puts all waiting requests into
            // order.
            let slots = thorough.queue.settings().concurrency;
            thorough.queue.set_concurrency(slots);
            prop_assert_eq!(quick.queue.waiting(), thorough.queue.waiting());
            prop_assert_eq!(quick.queue.poll_timeout(), thorough.queue.poll_timeout());
            quick.poll();
            thorough.poll();
            prop_assert_eq!(&quick.running, &thorough.running);
            prop_assert_eq!(&quick.waiting, &thorough.waiting);
        }
    }
}
