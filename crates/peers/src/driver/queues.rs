//! The queues of the engines that other instances share: connects them with the replica, which
//! carries their messages.
//!
//! Messages are sent at once: one frame for each instance with all pending messages. Above
//! [`AT_ONCE_MAX`] frames a second, they are gathered for a millisecond, so that no instance sends
//! more frames than others accept. If two connections between two instances replace each other,
//! the queue gets only the event that it begins anew with the other. The messages, and what follows
//! from the end of a connection: `evenkeel_core::queue::shared`.

use evenkeel_core::queue::shared::{InstanceId, QueueMessage};
use evenkeel_core::replica::{Replica, ReplicaEvent};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::replicated::{Replicated, SharedAdmission};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::Notify;

/// The number of times in a second that messages are sent without delay. Receivers accept 8192
/// frames a second.
const AT_ONCE_MAX: u32 = 3_000;
/// The time for which messages are gathered above that.
const GATHER: Nanos = Nanos::from_millis(1);
/// The time in which another connection takes the place of one that has ended. Shorter: the queue
/// is taken over because two connections between two instances have replaced each other. Longer: it
/// is taken over later when its owner has ended.
const REPLACE_WITHIN: Nanos = Nanos::from_millis(50);

/// The queues of this instance that others share.
pub struct SharedQueues {
    own: InstanceId,
    engines: Vec<Arc<dyn Replicated>>,
    /// Whether each engine has begun to share its queue.
    has_started: Vec<bool>,
    /// The engine of each queue, by fingerprint.
    places: BTreeMap<u64, usize>,
    wake: Arc<Notify>,
    /// The queue and the instance of each connection that an engine knows of.
    linked: BTreeSet<(u64, u64)>,
    /// Connections that have ended: when the engine gets this event, and whether the instance has
    /// ended.
    ending: BTreeMap<(u64, u64), (Time, bool)>,
    /// The second in which messages were last sent, and how often in it.
    sent: (u64, u32),
    /// When messages that are gathered are to be sent.
    send_at: Option<Time>,
    /// The messages for each instance; empty but for its room.
    batches: BTreeMap<u64, Vec<QueueMessage>>,
}

impl SharedQueues {
    /// The queues of `engines`, none of which is shared yet. Without engines, none will be.
    pub fn new(own: InstanceId, engines: Vec<Arc<dyn Replicated>>) -> SharedQueues {
        SharedQueues {
            own,
            has_started: vec![false; engines.len()],
            engines,
            places: BTreeMap::new(),
            wake: Arc::new(Notify::new()),
            linked: BTreeSet::new(),
            ending: BTreeMap::new(),
            sent: (0, 0),
            send_at: None,
            batches: BTreeMap::new(),
        }
    }

    /// Shares the queues that the engines have now; a reload may have changed them.
    pub fn look(&mut self, replica: &mut Replica) {
        let mut places = BTreeMap::new();
        for (index, engine) in self.engines.iter().enumerate() {
            let Some((queue, admission)) = engine.shared_queue() else { continue };
            if !self.has_started[index] && !admission.is_ready() {
                continue;
            }
            if !std::mem::replace(&mut self.has_started[index], true) {
                let wake = Arc::clone(&self.wake);
                admission.start(self.own, Arc::new(move || wake.notify_one()));
            }
            places.insert(queue, index);
        }
        if places != self.places {
            for (queue, index) in &self.places {
                if places.get(queue) != Some(index) {
                    self.linked.retain(|(of, _)| of != queue);
                    self.ending.retain(|(of, _), _| of != queue);
                    // The engine does not show a queue that it shares no longer.
                    self.engines[*index].end_sharing();
                }
            }
            replica.set_queues(places.keys().copied().collect());
            self.places = places;
        }
    }

    /// Returns when an engine has messages.
    pub fn woken(&self) -> impl Future<Output = ()> {
        let wake = Arc::clone(&self.wake);
        async move { wake.notified().await }
    }

    /// When [`SharedQueues::handle_timeout`] is to be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        let beats = self.places.keys().filter_map(|queue| self.admission(*queue)?.poll_timeout());
        let ends = self.ending.values().map(|(at, _)| *at);
        beats.chain(ends).chain(self.send_at).min()
    }

    /// Does what is due by the clock.
    pub fn handle_timeout(&mut self, now: Time) {
        for queue in self.places.keys() {
            let Some(admission) = self.admission(*queue) else { continue };
            if admission.poll_timeout().is_some_and(|at| now >= at) {
                admission.handle_timeout();
            }
        }
        let due = self.ending.iter().filter(|(_, (at, _))| now >= *at);
        let due: Vec<_> = due.map(|(link, (_, is_gone))| (*link, *is_gone)).collect();
        for ((queue, node), is_gone) in due {
            self.end_link(queue, node, is_gone);
        }
    }

    /// Handles an event of the replica about a queue.
    pub fn handle_event(&mut self, event: &ReplicaEvent, now: Time) {
        match *event {
            ReplicaEvent::QueueUp { queue, id } => {
                self.ending.remove(&(queue, id.node));
                let Some(admission) = self.admission(queue) else { return };
                admission.handle_link(id);
                self.linked.insert((queue, id.node));
            }
            ReplicaEvent::QueueDown { queue, node, is_gone } => {
                self.ending.insert((queue, node), (now.plus(REPLACE_WITHIN), is_gone));
            }
            _ => {}
        }
    }

    /// Passes messages of another instance to the engine of the queue.
    pub fn handle_messages(&self, queue: u64, from: u64, messages: &[QueueMessage]) {
        if let Some(admission) = self.admission(queue) {
            admission.handle_messages(from, messages);
        }
    }

    /// Passes the messages of the engines to the replica, unless they are to be gathered.
    pub fn flush(&mut self, replica: &mut Replica, now: Time) {
        if self.send_at.is_some_and(|at| now < at) {
            return;
        }
        self.send_at = None;
        let mut is_any = false;
        for (queue, index) in &self.places {
            let Some((_, admission)) = self.engines[*index].shared_queue() else { continue };
            let batches = &mut self.batches;
            admission.poll_messages(&mut |to, message| {
                batches.entry(to).or_default().push(message);
            });
            batches.retain(|_, messages| !messages.is_empty());
            for (to, messages) in batches {
                is_any = true;
                replica.queue_frame(*to, *queue, messages, now);
                messages.clear();
            }
        }
        if is_any {
            let (second, count) = self.sent;
            self.sent =
                if second == now.second() { (second, count + 1) } else { (now.second(), 1) };
            self.send_at = (self.sent.1 > AT_ONCE_MAX).then(|| now.plus(GATHER));
        }
    }

    /// Ends all connections, because there will be no further ones: each queue is this instance's
    /// alone.
    pub fn end(&mut self) {
        for (queue, node) in self.linked.clone() {
            self.end_link(queue, node, true);
        }
        for queue in self.places.keys() {
            self.admission(*queue).into_iter().for_each(SharedAdmission::handle_timeout);
        }
    }

    fn end_link(&mut self, queue: u64, node: u64, is_gone: bool) {
        self.ending.remove(&(queue, node));
        if self.linked.remove(&(queue, node))
            && let Some(admission) = self.admission(queue)
        {
            admission.handle_link_end(node, is_gone);
        }
    }

    fn admission(&self, queue: u64) -> Option<&dyn SharedAdmission> {
        let engine = self.engines.get(*self.places.get(&queue)?)?;
        engine.shared_queue().filter(|(own, _)| *own == queue).map(|(_, admission)| admission)
    }
}
