//! Heartbeats of the serving threads: each thread beats a few times a second.
//!
//! A stuck thread (in a loop, on a lock, in the system) stops beating. `serve::watchdog` reads the
//! beats and decides what happens then. This file reads no clock.

use evenkeel_core::units::{Nanos, Time};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The door of a thread, and the time of its last beat.
type LastBeat = (&'static str, Arc<AtomicU64>);

/// The beats of all threads that live; a clone shares them.
#[derive(Clone, Debug, Default)]
pub struct Heartbeats(Arc<Mutex<Vec<LastBeat>>>);

/// The beat of one thread. Dropping it unregisters the thread, which is not an error.
#[derive(Debug)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// Records a beat at `now`.
    pub fn at(&self, now: Time) {
        self.0.store(now.0, Relaxed);
    }
}

impl Heartbeats {
    /// Registers a thread of the door called `door`, with its first beat at `now`.
    pub fn begin(&self, door: &'static str, now: Time) -> Heartbeat {
        let last = Arc::new(AtomicU64::new(now.0));
        let mut all = self.0.lock();
        all.retain(|(_, last)| Arc::strong_count(last) > 1);
        all.push((door, Arc::clone(&last)));
        Heartbeat(last)
    }

    /// The doors of the threads that live and have not beaten within `within` before `now`; one
    /// entry for each thread.
    pub fn silent(&self, within: Nanos, now: Time) -> Vec<&'static str> {
        let all = self.0.lock();
        let living = all.iter().filter(|(_, last)| Arc::strong_count(last) > 1);
        let late = living.filter(|(_, last)| now.since(Time(last.load(Relaxed))) > within);
        late.map(|(door, _)| *door).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO.plus(Nanos::from_secs(seconds))
    }

    #[test]
    fn a_thread_that_lives_and_does_not_beat_is_silent() {
        let beats = Heartbeats::default();
        let silent = |now| beats.silent(Nanos::from_secs(5), at(now));
        let (proxy, line) = (beats.begin("proxy", at(100)), beats.begin("line", at(100)));
        assert!(silent(105).is_empty());
        line.at(at(104));
        assert_eq!(silent(106), ["proxy"]);
        assert_eq!(silent(110), ["proxy", "line"]);
        proxy.at(at(110));
        assert_eq!(silent(110), ["line"]);
        drop(line);
        assert!(silent(111).is_empty(), "who has ended is not missed");
        assert_eq!(silent(200), ["proxy"]);
        drop(beats.begin("proxy", at(200)));
        assert_eq!(beats.0.lock().len(), 2, "places of those who have ended are used again");
    }
}
