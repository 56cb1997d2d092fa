//! The memory for the heads of HTTP/2 requests on one thread, bounded in total.
//!
//! Compression expands a few bytes into a head of `bounds.header_bytes`, and a connection has many
//! streams. So the heads of all streams share [`HEADS_MAX`]. A stream that finds no room is
//! answered with 503, unless it is the only one of its connection: a connection always has room for
//! one request.

use super::ThreadContext;
use super::settings::HEADER_BYTES_MAX;
use crate::link::ClientLink;
use http::HeaderMap;
use std::rc::Rc;

/// The maximum number of bytes that the heads of all streams of one thread take. With a smaller
/// value, streams with large heads are refused under load. A larger value costs memory per thread.
const HEADS_MAX: usize = 8 << 20;

/// The bytes that a field takes in addition to its name and value (RFC 9113, 6.5.2).
const FIELD_BYTES: usize = 32;

const _: () = assert!(HEADER_BYTES_MAX <= HEADS_MAX, "there is room for one head of any size");

/// The room of one head, given back when dropped.
pub(crate) struct HeadRoom {
    thread: Rc<ThreadContext>,
    bytes: usize,
}

impl HeadRoom {
    /// Returns `None` if there is no room. A head over HTTP/1.1 needs none: it has a connection to
    /// itself.
    pub(crate) fn take(
        thread: &Rc<ThreadContext>,
        link: &ClientLink,
        headers: &HeaderMap,
    ) -> Option<HeadRoom> {
        let Some(over) = link.over.as_ref() else { return Some(HeadRoom::of(thread, 0)) };
        let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            name.as_str().len() + value.len() + FIELD_BYTES
        };
        let bytes = headers.iter().map(field).sum();
        if thread.heads.get() + bytes > HEADS_MAX && !over.streams.has_at_most_one() {
            thread.watch.proxy.heads_refused.increment(1);
            return None;
        }
        Some(HeadRoom::of(thread, bytes))
    }

    fn of(thread: &Rc<ThreadContext>, bytes: usize) -> HeadRoom {
        thread.heads.set(thread.heads.get() + bytes);
        HeadRoom { thread: Rc::clone(thread), bytes }
    }
}

impl Drop for HeadRoom {
    fn drop(&mut self) {
        self.thread.heads.set(self.thread.heads.get().saturating_sub(self.bytes));
    }
}
