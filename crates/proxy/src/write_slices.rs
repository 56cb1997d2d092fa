//! Writes several slices to a connection, towards a client or a backend.
//!
//! Short messages are written with one plain `send`: the system handles one buffer faster than a
//! list, and copying a few hundred bytes costs less than the difference. Long messages are never
//! copied.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;

/// Slices with a total length up to this are copied into one write, in bytes.
const SMALL_BYTES: usize = 1024;

/// Writes several slices: in one copy if they are short.
pub(super) fn poll_write_slices(
    stream: &mut (impl AsyncWrite + Unpin),
    cx: &mut Context<'_>,
    slices: &[io::IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let stream = Pin::new(stream);
    if let [only] = slices {
        return stream.poll_write(cx, only);
    }
    let length: usize = slices.iter().map(|slice| slice.len()).sum();
    if length > SMALL_BYTES {
        return stream.poll_write_vectored(cx, slices);
    }
    let mut small = [0; SMALL_BYTES];
    let mut end = 0;
    for slice in slices {
        small[end..end + slice.len()].copy_from_slice(slice);
        end += slice.len();
    }
    stream.poll_write(cx, &small[..end])
}
