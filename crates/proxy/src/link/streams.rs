//! The requests of a connection, and over HTTP/2 its streams: how many run, and how many the client
//! has reset.
//!
//! A client that resets most of its requests before they are answered costs work for nothing. When
//! its connection is closed for that: `link.rs`. The state of one stream is its own link.

use std::cell::Cell;

/// Streams reset before their answer are a flood from this number on, if they are half of all.
const RESETS_MIN: u32 = 100;

/// The requests of a connection, and its streams if it has any.
#[derive(Default)]
pub(crate) struct StreamCounts {
    /// The number of requests so far.
    requests: Cell<u64>,
    /// The number of streams that run; `None` on an HTTP/1.1 connection or a stream.
    running: Cell<Option<u32>>,
    /// The number of streams that the client reset before their answer began.
    resets: Cell<u32>,
    /// The connection accepts no more requests.
    ending: Cell<bool>,
}

impl StreamCounts {
    /// From now on the requests are streams.
    pub(crate) fn enable(&self) {
        self.running.set(Some(0));
    }

    /// Whether the requests are streams.
    pub(crate) fn is_enabled(&self) -> bool {
        self.running.get().is_some()
    }

    pub(crate) fn add_request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// Counts a request and the stream that it is.
    pub(crate) fn add_stream(&self) {
        self.add_request();
        self.running.set(Some(self.running.get().unwrap_or(0) + 1));
    }

    /// Ends the count of a running stream. Returns whether it was the last one.
    pub(crate) fn remove_stream(&self) -> bool {
        let left = self.running.get().unwrap_or(1).saturating_sub(1);
        self.running.set(Some(left));
        left == 0
    }

    /// Counts a stream that the client has reset before its answer. Returns whether such streams
    /// are a flood.
    pub(crate) fn add_reset(&self) -> bool {
        let resets = self.resets.get().saturating_add(1);
        self.resets.set(resets);
        resets >= RESETS_MIN && u64::from(resets) * 2 >= self.requests.get()
    }

    /// Whether at most one stream runs.
    pub(crate) fn has_at_most_one(&self) -> bool {
        self.running.get().is_some_and(|running| running <= 1)
    }

    /// Whether there were as many requests as `bound`. Zero is no bound.
    pub(crate) fn is_spent(&self, bound: u64) -> bool {
        bound > 0 && self.requests.get() >= bound
    }

    /// Lets the connection accept no more requests.
    pub(crate) fn end(&self) {
        self.ending.set(true);
    }

    /// Whether the connection accepts no more requests.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_are_a_flood_if_they_are_many_and_half_of_all() {
        let counts = StreamCounts::default();
        (0..2 * RESETS_MIN).for_each(|_| counts.add_stream());
        assert!((1..RESETS_MIN).all(|_| !counts.add_reset()));
        assert!(counts.add_reset());
        counts.add_stream();
        counts.add_stream();
        counts.add_stream();
        assert!(!counts.add_reset(), "less than half");
    }
}
