//! Which gatekeepers subscribe to which domains, and the bytes that are pending for each.
//!
//! An order is written once for each subscriber of its domain, into a buffer that is bounded per
//! gatekeeper and for all together. If an order does not fit, it is dropped and counted; the next
//! order for that identifier carries the same information. This file knows no sockets.

use super::zmtp::{ZmtpVersion, message};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use tokio::sync::Notify;

/// The maximum number of pending bytes for one gatekeeper.
const READY_MAX: usize = 4 * 1024 * 1024;
/// The maximum number of pending bytes for all gatekeepers.
const READY_ALL_MAX: usize = 256 * 1024 * 1024;
/// The maximum number of subscriptions of one gatekeeper, and the maximum length of one in bytes.
const TOPICS_MAX: usize = 1024;
const TOPIC_BYTES_MAX: usize = 256;

pub struct OrderHub {
    listeners: RefCell<Vec<Rc<OrderSubscriber>>>,
    ready: Rc<Cell<usize>>,
    /// Notified when pending bytes have been sent.
    sent: Notify,
}

/// A gatekeeper that receives orders.
pub struct OrderSubscriber {
    /// The protocol version of the gatekeeper.
    version: ZmtpVersion,
    topics: RefCell<Vec<Box<[u8]>>>,
    ready: RefCell<Vec<u8>>,
    /// The number of bytes that are pending or being sent.
    held: Cell<usize>,
    all: Rc<Cell<usize>>,
    /// The domains of which it has already received the orders in force.
    told: RefCell<HashSet<String>>,
    wake: Notify,
}

impl OrderHub {
    pub fn new() -> OrderHub {
        OrderHub { listeners: RefCell::default(), ready: Rc::default(), sent: Notify::new() }
    }

    /// Adds a subscriber, until [`OrderHub::leave`].
    pub fn join(&self, version: ZmtpVersion) -> Rc<OrderSubscriber> {
        let listener = Rc::new(OrderSubscriber {
            version,
            topics: RefCell::default(),
            ready: RefCell::default(),
            held: Cell::new(0),
            told: RefCell::default(),
            all: Rc::clone(&self.ready),
            wake: Notify::new(),
        });
        self.listeners.borrow_mut().push(Rc::clone(&listener));
        listener
    }

    /// Removes a subscriber and its pending bytes.
    pub fn leave(&self, listener: &Rc<OrderSubscriber>) {
        self.listeners.borrow_mut().retain(|other| !Rc::ptr_eq(other, listener));
        listener.take();
        listener.sent();
        self.sent.notify_waiters();
    }

    /// Sends an order to all subscribers of `domain`: `identifier` has to wait until `until`, in
    /// milliseconds since the Unix epoch. Returns the number of subscribers for which there was no
    /// room.
    pub fn publish(&self, domain: &str, identifier: &[u8], until: u64) -> u64 {
        let mut orders = [const { Vec::new() }; 3];
        let mut dropped = 0;
        for listener in self.listeners.borrow().iter() {
            if listener.wants(domain) {
                let order = &mut orders[listener.version as usize];
                if order.is_empty() {
                    listener.write(domain, identifier, until, order);
                }
                dropped += u64::from(!listener.push(order));
            }
        }
        dropped
    }

    /// Reports that pending bytes have been sent.
    pub fn notify_sent(&self) {
        self.sent.notify_waiters();
    }

    /// Waits until no bytes are pending.
    pub async fn emptied(&self) {
        loop {
            let sent = self.sent.notified();
            if self.ready.get() == 0 {
                return;
            }
            sent.await;
        }
    }
}

pub fn topic(domain: &str) -> Vec<u8> {
    [domain.as_bytes(), b"\0"].concat()
}

impl OrderSubscriber {
    /// Subscribes to topics with this prefix. Returns false if there are too many subscriptions, or
    /// this one is too long.
    pub fn subscribe(&self, topic: &[u8]) -> bool {
        let mut topics = self.topics.borrow_mut();
        let fits = topics.len() < TOPICS_MAX && topic.len() <= TOPIC_BYTES_MAX;
        if fits {
            topics.push(topic.into());
        }
        fits
    }

    /// Cancels a subscription. If there are several equal ones, only one is removed.
    pub fn cancel(&self, topic: &[u8]) {
        let mut topics = self.topics.borrow_mut();
        if let Some(at) = topics.iter().position(|other| **other == *topic) {
            topics.swap_remove(at);
        }
    }

    /// Writes an order in the gatekeeper's version. The topic is the domain and a NUL, so no topic
    /// is a prefix of another.
    pub fn write(&self, domain: &str, identifier: &[u8], until: u64, out: &mut Vec<u8>) {
        let (topic, until) = (topic(domain), until.to_string());
        message(self.version, &[&topic, b"DELAY_UNTIL", identifier, until.as_bytes()], out);
    }

    fn wants(&self, domain: &str) -> bool {
        let topics = self.topics.borrow();
        topics.iter().any(|prefix| begins(domain, prefix))
    }

    /// Adds bytes to send. Returns false if there is no room.
    pub fn push(&self, bytes: &[u8]) -> bool {
        let held = self.held.get() + bytes.len();
        let all = self.all.get() + bytes.len();
        let fits = held <= READY_MAX && all <= READY_ALL_MAX;
        if fits {
            self.ready.borrow_mut().extend(bytes);
            self.held.set(held);
            self.all.set(all);
            self.wake.notify_one();
        }
        fits
    }

    /// Takes the pending bytes. They count until [`OrderSubscriber::sent`] is called.
    pub fn take(&self) -> Vec<u8> {
        self.ready.take()
    }

    /// The bytes that were taken have been sent, or never will be.
    pub fn sent(&self) {
        let left = self.ready.borrow().len();
        self.all.set(self.all.get() - self.held.replace(left) + left);
    }

    /// Whether the orders in force in `domain` are still to be sent to it. Returns true once per
    /// domain.
    pub fn mark_informed(&self, domain: &str) -> bool {
        self.told.borrow_mut().insert(domain.to_owned())
    }

    /// Waits until bytes are pending.
    pub async fn wake(&self) {
        self.wake.notified().await;
    }
}

/// Whether the topic of `domain` begins with `prefix`.
pub fn begins(domain: &str, prefix: &[u8]) -> bool {
    topic(domain).starts_with(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(listener: &OrderSubscriber) -> String {
        let bytes = listener.take();
        listener.sent();
        bytes.escape_ascii().to_string()
    }

    #[test]
    fn s13_a_domain_is_not_told_of_another_that_begins_alike() {
        let hub = OrderHub::new();
        let (one, all) = (hub.join(ZmtpVersion::Three), hub.join(ZmtpVersion::Two));
        assert!(one.subscribe(b"ab\0") && all.subscribe(b""));
        assert_eq!(hub.publish("abc", b"c", 5), 0);
        assert_eq!(told(&one), "");
        assert!(
            told(&all).starts_with("\\x01\\x04abc\\x00\\x01\\x0bDELAY_UNTIL\\x01\\x01c\\x00\\x015")
        );
        assert_eq!(hub.publish("ab", b"", 5), 0);
        assert!(told(&one).starts_with("\\x01\\x03ab\\x00"));
        one.cancel(b"ab\0");
        hub.leave(&all);
        hub.publish("ab", b"", 5);
        assert_eq!((told(&one), told(&all)), (String::new(), String::new()));
    }

    #[test]
    fn each_reads_its_own_version() {
        let hub = OrderHub::new();
        for (version, expected) in [
            (ZmtpVersion::One, "\\x03\\x01d\\x00\\x0c\\x01DELAY_UNTIL\\x02\\x01c\\x02\\x005"),
            (ZmtpVersion::Two, "\\x01\\x02d\\x00\\x01\\x0bDELAY_UNTIL\\x01\\x01c\\x00\\x015"),
        ] {
            let listener = hub.join(version);
            listener.subscribe(b"");
            hub.publish("d", b"c", 5);
            assert_eq!(told(&listener), expected);
        }
    }

    #[test]
    fn who_does_not_read_misses_messages_and_takes_no_more_memory() {
        let hub = OrderHub::new();
        let slow = hub.join(ZmtpVersion::Three);
        slow.subscribe(b"d");
        let identifier = vec![b'x'; 60_000];
        let dropped: u64 = (0..1_000).map(|_| hub.publish("d", &identifier, 1)).sum();
        assert!(dropped > 900, "{dropped}");
        assert!(slow.ready.borrow().len() <= READY_MAX);
        assert_eq!(hub.ready.get(), slow.ready.borrow().len());
        // Bytes that are being sent still count.
        let taken = slow.take();
        assert_eq!(hub.ready.get(), taken.len());
        assert_eq!(hub.publish("d", &identifier, 1), 1);
        slow.sent();
        assert_eq!((hub.ready.get(), hub.publish("d", &identifier, 1)), (0, 0));
        hub.leave(&slow);
        assert_eq!(hub.ready.get(), 0);
    }

    #[test]
    fn subscriptions_are_bounded() {
        let listener = OrderHub::new().join(ZmtpVersion::Three);
        assert!(!listener.subscribe(&[b'x'; TOPIC_BYTES_MAX + 1]));
        assert_eq!((0..2_000).filter(|_| listener.subscribe(b"x")).count(), TOPICS_MAX);
    }
}
