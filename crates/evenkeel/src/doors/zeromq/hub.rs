//! Who is to be told of what: the gatekeepers that listen, and what lies ready for each.
//!
//! A message is written once for each that subscribes to its domain, into a buffer that is bounded
//! for each and for all together; what does not fit is dropped and counted, and the next message of
//! that identifier says the same again. It knows no sockets.

use super::zmtp::{Version, message};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use tokio::sync::Notify;

/// Bytes that lie ready for one gatekeeper.
const READY_MAX: usize = 4 * 1024 * 1024;
/// Bytes that lie ready for all.
const READY_ALL_MAX: usize = 256 * 1024 * 1024;
/// Subscriptions of one gatekeeper, and their bytes.
const TOPICS_MAX: usize = 1024;
const TOPIC_BYTES_MAX: usize = 256;

/// All that listen.
pub struct Hub {
    listeners: RefCell<Vec<Rc<Listener>>>,
    ready: Rc<Cell<usize>>,
    /// Woken when something that lay ready has been sent.
    sent: Notify,
}

/// One that listens.
pub struct Listener {
    /// What it reads.
    version: Version,
    topics: RefCell<Vec<Box<[u8]>>>,
    ready: RefCell<Vec<u8>>,
    /// What lies ready or is being sent.
    held: Cell<usize>,
    all: Rc<Cell<usize>>,
    /// Domains that it was told of when it began to listen to them.
    told: RefCell<HashSet<String>>,
    wake: Notify,
}

impl Hub {
    pub fn new() -> Hub {
        Hub { listeners: RefCell::default(), ready: Rc::default(), sent: Notify::new() }
    }

    /// Somebody listens from now on, until [`Hub::leave`].
    pub fn join(&self, version: Version) -> Rc<Listener> {
        let listener = Rc::new(Listener {
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

    /// It listens no more.
    pub fn leave(&self, listener: &Rc<Listener>) {
        self.listeners.borrow_mut().retain(|other| !Rc::ptr_eq(other, listener));
        listener.take();
        listener.sent();
        self.sent.notify_waiters();
    }

    /// Tells all that listen to `domain` until when `identifier` has to wait, in milliseconds since
    /// the Unix epoch. Says for how many it did not fit.
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

    /// Something that lay ready has been sent.
    pub fn moved(&self) {
        self.sent.notify_waiters();
    }

    /// Until nothing lies ready.
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

fn topic(domain: &str) -> Vec<u8> {
    [domain.as_bytes(), b"\0"].concat()
}

impl Listener {
    /// It wants what begins so. False if it wants too much already.
    pub fn subscribe(&self, topic: &[u8]) -> bool {
        let mut topics = self.topics.borrow_mut();
        let fits = topics.len() < TOPICS_MAX && topic.len() <= TOPIC_BYTES_MAX;
        if fits {
            topics.push(topic.into());
        }
        fits
    }

    /// It wants that no more; one of several alike stays.
    pub fn cancel(&self, topic: &[u8]) {
        let mut topics = self.topics.borrow_mut();
        if let Some(at) = topics.iter().position(|other| **other == *topic) {
            topics.swap_remove(at);
        }
    }

    /// Writes an order as it reads it: the topic is the domain and a NUL, so that no domain begins
    /// with another.
    pub fn write(&self, domain: &str, identifier: &[u8], until: u64, out: &mut Vec<u8>) {
        let (topic, until) = (topic(domain), until.to_string());
        message(self.version, &[&topic, b"DELAY_UNTIL", identifier, until.as_bytes()], out);
    }

    fn wants(&self, domain: &str) -> bool {
        let topics = self.topics.borrow();
        topics.iter().any(|prefix| begins(domain, prefix))
    }

    /// Has it sent; false if there is no room.
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

    /// What lies ready. It counts until it has been [sent](Self::sent).
    pub fn take(&self) -> Vec<u8> {
        self.ready.take()
    }

    /// What was taken has been sent, or never will be.
    pub fn sent(&self) {
        let left = self.ready.borrow().len();
        self.all.set(self.all.get() - self.held.replace(left) + left);
    }

    /// Whether it is to be told what is in force in `domain`: once.
    pub fn is_new_to(&self, domain: &str) -> bool {
        self.told.borrow_mut().insert(domain.to_owned())
    }

    /// Until something lies ready.
    pub async fn wake(&self) {
        self.wake.notified().await;
    }
}

/// Whether the topic of `domain` begins so.
pub fn begins(domain: &str, prefix: &[u8]) -> bool {
    topic(domain).starts_with(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(listener: &Listener) -> String {
        let bytes = listener.take();
        listener.sent();
        bytes.escape_ascii().to_string()
    }

    #[test]
    fn s13_a_domain_is_not_told_of_another_that_begins_alike() {
        let hub = Hub::new();
        let (one, all) = (hub.join(Version::Three), hub.join(Version::Two));
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
        let hub = Hub::new();
        for (version, expected) in [
            (Version::One, "\\x03\\x01d\\x00\\x0c\\x01DELAY_UNTIL\\x02\\x01c\\x02\\x005"),
            (Version::Two, "\\x01\\x02d\\x00\\x01\\x0bDELAY_UNTIL\\x01\\x01c\\x00\\x015"),
        ] {
            let listener = hub.join(version);
            listener.subscribe(b"");
            hub.publish("d", b"c", 5);
            assert_eq!(told(&listener), expected);
        }
    }

    #[test]
    fn who_does_not_read_misses_messages_and_takes_no_more_memory() {
        let hub = Hub::new();
        let slow = hub.join(Version::Three);
        slow.subscribe(b"d");
        let identifier = vec![b'x'; 60_000];
        let dropped: u64 = (0..1_000).map(|_| hub.publish("d", &identifier, 1)).sum();
        assert!(dropped > 900, "{dropped}");
        assert!(slow.ready.borrow().len() <= READY_MAX);
        assert_eq!(hub.ready.get(), slow.ready.borrow().len());
        // Being sent it counts still.
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
        let listener = Hub::new().join(Version::Three);
        assert!(!listener.subscribe(&[b'x'; TOPIC_BYTES_MAX + 1]));
        assert_eq!((0..2_000).filter(|_| listener.subscribe(b"x")).count(), TOPICS_MAX);
    }
}
