//! Room for connections: a bound, and the choice of a connection to close for a new one.
//!
//! The connection with the longest time since its last request is closed, so that a client that
//! opens connections and sends nothing cannot block health probes. Connections of watchers stay:
//! they are few and have their own bound (`live`). What is done on a connection: `admin`.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::Notify;

pub struct ConnectionRoom {
    max: usize,
    /// The places in use, ordered by their last request; the most recent is last.
    taken: Mutex<Vec<Arc<RoomPlace>>>,
}

#[derive(Default)]
struct RoomPlace {
    stays: AtomicBool,
    wanted: Notify,
}

/// A place in use, until this is dropped or another connection needs it.
pub struct RoomGuard {
    room: Arc<ConnectionRoom>,
    place: Arc<RoomPlace>,
}

impl ConnectionRoom {
    pub fn new(max: usize) -> Arc<ConnectionRoom> {
        Arc::new(ConnectionRoom { max, taken: Mutex::default() })
    }

    /// Takes a place. Also returns whether another connection loses its place for it. `None` if all
    /// connections stay.
    pub fn take(self: &Arc<ConnectionRoom>) -> Option<(RoomGuard, bool)> {
        let mut taken = self.taken.lock();
        let full = taken.len() >= self.max;
        if full {
            let longest = taken.iter().position(|place| !place.stays.load(Relaxed))?;
            taken.remove(longest).wanted.notify_one();
        }
        let place = Arc::<RoomPlace>::default();
        taken.push(Arc::clone(&place));
        Some((RoomGuard { room: Arc::clone(self), place }, full))
    }
}

impl RoomGuard {
    /// The connection makes a request now.
    pub fn note_request(&self) {
        let mut taken = self.room.taken.lock();
        if let Some(at) = taken.iter().position(|place| Arc::ptr_eq(place, &self.place)) {
            taken[at..].rotate_left(1);
        }
    }

    /// The connection must not lose its place from now on.
    pub fn keep_place(&self) {
        self.place.stays.store(true, Relaxed);
    }

    /// Waits until another connection needs the place.
    pub async fn wanted(&self) {
        self.place.wanted.notified().await;
    }
}

impl Drop for RoomGuard {
    fn drop(&mut self) {
        self.room.taken.lock().retain(|place| !Arc::ptr_eq(place, &self.place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn is_wanted(seat: &RoomGuard) -> bool {
        pin!(seat.wanted()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn take(room: &Arc<ConnectionRoom>) -> RoomGuard {
        room.take().expect("a place").0
    }

    #[test]
    fn who_has_asked_nothing_for_longest_goes_and_who_watches_stays() {
        let room = ConnectionRoom::new(3);
        let (watcher, silent, asking) = (take(&room), take(&room), take(&room));
        watcher.keep_place();
        silent.note_request();
        asking.note_request();
        let (probe, shed) = room.take().expect("a place");
        assert!(shed && is_wanted(&silent));
        assert!(![&watcher, &asking, &probe].into_iter().any(is_wanted));
        drop(silent);
        let (second, shed) = room.take().expect("a place");
        assert!(shed && is_wanted(&asking), "the place that it lost was not free");
        probe.keep_place();
        second.keep_place();
        assert!(room.take().is_none());
        drop(watcher);
        let (_, shed) = room.take().expect("a place");
        assert!(!shed);
        assert_eq!(room.taken.lock().len(), 2);
    }
}
