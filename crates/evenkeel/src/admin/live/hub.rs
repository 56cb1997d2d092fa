//! The watchers. Each event is made once and sent to all.
//!
//! A watcher that does not read is dropped: events wait for it in a short queue, and if that has
//! been full for some seconds, its connection is closed. So the number of watchers and the memory
//! for their events are bounded.

use bytes::Bytes;
use http_body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};

/// The maximum number of watchers at once.
pub const WATCHERS_MAX: usize = 16;
/// The maximum number of events that wait for one watcher.
const WATCHER_QUEUE_EVENTS: usize = 4;
/// The number of events in a row without room in its queue after which a watcher is dropped.
const MISSED_EVENTS_MAX: u32 = 10;

#[derive(Debug, Default)]
pub struct WatcherHub(Vec<WatcherEntry>);

#[derive(Debug)]
struct WatcherEntry {
    events: mpsc::Sender<Bytes>,
    missed: u32,
    /// Dropped with this entry, which closes the connection.
    _open: oneshot::Sender<()>,
}

/// The events for one watcher, as the body of its answer.
#[derive(Debug)]
pub struct EventFeed(mpsc::Receiver<Bytes>);

/// Completes when a watcher is no longer served.
pub type WatcherEnd = oneshot::Receiver<()>;

impl WatcherHub {
    /// Whether there is a watcher. Removes those that have disconnected.
    pub fn remove_disconnected(&mut self) -> bool {
        self.0.retain(|entry| !entry.events.is_closed());
        !self.0.is_empty()
    }

    /// Adds a watcher, which gets `first` at once. Returns `None` if there are [`WATCHERS_MAX`]
    /// already.
    pub fn join(&mut self, first: Bytes) -> Option<(EventFeed, WatcherEnd)> {
        self.remove_disconnected();
        if self.0.len() >= WATCHERS_MAX {
            return None;
        }
        let (events, feed) = mpsc::channel(WATCHER_QUEUE_EVENTS);
        let (open, watcher) = oneshot::channel();
        // A new queue has room for the first event.
        let _ = events.try_send(first);
        self.0.push(WatcherEntry { events, missed: 0, _open: open });
        Some((EventFeed(feed), watcher))
    }

    /// Sends an event to all watchers. Drops a watcher that has not read for too long.
    pub fn send(&mut self, event: &Bytes) {
        self.0.retain_mut(|entry| match entry.events.try_send(event.clone()) {
            Ok(()) => {
                entry.missed = 0;
                true
            }
            Err(mpsc::error::TrySendError::Full(_)) => {
                entry.missed += 1;
                entry.missed < MISSED_EVENTS_MAX
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        });
    }
}

impl Body for EventFeed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchers_are_bounded_and_those_who_left_make_room() {
        let mut hub = WatcherHub::default();
        let mut all: Vec<_> = (0..WATCHERS_MAX).map(|_| hub.join(Bytes::new())).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(hub.join(Bytes::new()).is_none());
        all.pop();
        assert!(hub.join(Bytes::new()).is_some());
        drop(all);
        assert!(!hub.remove_disconnected());
    }

    #[test]
    fn who_does_not_read_is_dropped_and_who_does_gets_every_event() {
        let mut hub = WatcherHub::default();
        let (mut reads, _open) = hub.join(Bytes::from_static(b"first")).expect("room");
        let (_sleeps, mut closed) = hub.join(Bytes::new()).expect("room");
        assert_eq!(reads.0.try_recv().ok().as_deref(), Some(&b"first"[..]));
        let most = WATCHER_QUEUE_EVENTS as u32 + MISSED_EVENTS_MAX;
        for number in 0..most {
            assert_eq!(hub.0.len(), if number < most - 1 { 2 } else { 1 }, "{number}");
            hub.send(&Bytes::from(number.to_string()));
            assert_eq!(reads.0.try_recv().ok(), Some(Bytes::from(number.to_string())));
        }
        assert_eq!(closed.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert_eq!(hub.0.len(), 1);
    }
}
