//! The bound on the bytes of incomplete messages.
//!
//! Each message has a bound, and all large ones together have one. Small messages are not counted,
//! so that a caller with large ones cannot keep the calls of others from being answered. Their
//! number is bounded by that of the calls. Bodies are split into messages in `frames`.

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;

/// The maximum length of a message, in bytes; longer messages are refused.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The maximum number of bytes that all large incomplete messages may hold together; messages
/// beyond it are refused.
pub const PIECES_BYTES_MAX: usize = 256 << 20;
/// An incomplete message of at most this number of bytes is not counted.
const SMALL_BYTES: usize = 64 << 10;
/// The longest time until a call with a single message has sent it.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The bytes that one body holds as its share of [`PIECES_BYTES_MAX`]; given back when dropped.
pub struct HeldBytes {
    /// The bytes that all bodies hold, as far as they are counted.
    all: Arc<AtomicUsize>,
    /// The bytes of this body that are counted.
    counted: usize,
}

impl HeldBytes {
    /// A body that holds nothing. `all`: the bytes that all bodies hold, as far as they are
    /// counted.
    #[must_use]
    pub fn new(all: &Arc<AtomicUsize>) -> HeldBytes {
        HeldBytes { all: Arc::clone(all), counted: 0 }
    }

    /// Sets the number of bytes that this body holds.
    ///
    /// # Errors
    /// All bodies together exceed the bound. The bytes are counted nevertheless until this value is
    /// dropped.
    pub fn set(&mut self, bytes: usize) -> Result<(), Status> {
        let now = if bytes > SMALL_BYTES { bytes } else { 0 };
        let all = match now.checked_sub(self.counted) {
            Some(0) => 0,
            Some(more) => self.all.fetch_add(more, Relaxed) + more,
            None => {
                self.all.fetch_sub(self.counted - now, Relaxed);
                0
            }
        };
        self.counted = now;
        if all > PIECES_BYTES_MAX {
            return Err(Status::resource_exhausted("too many large messages at once"));
        }
        Ok(())
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.counted, Relaxed);
    }
}

/// Reads the whole body of a call with a single message. Nearly always it comes in one piece, which
/// is not copied. `all`: as for [`HeldBytes::new`].
///
/// # Errors
/// The body breaks off, is too long, or takes too long.
pub async fn read_body(mut body: Incoming, all: &Arc<AtomicUsize>) -> Result<Bytes, Status> {
    let rest = async {
        let first = piece(&mut body).await?.unwrap_or_default();
        if body.is_end_stream() {
            return Ok(first);
        }
        let mut held = HeldBytes::new(all);
        let mut bytes = BytesMut::from(first);
        while let Some(more) = piece(&mut body).await? {
            if bytes.len() + more.len() > MESSAGE_BYTES_MAX + 5 {
                let what = format!("a message may have at most {MESSAGE_BYTES_MAX} bytes");
                return Err(Status::resource_exhausted(what));
            }
            bytes.extend_from_slice(&more);
            held.set(bytes.len())?;
        }
        Ok(bytes.freeze())
    };
    let late = || Status::deadline_exceeded("the message did not come in time");
    timeout(MESSAGE_TIMEOUT, rest).await.unwrap_or_else(|_| Err(late()))
}

/// The next piece of a body; `None` at its end. Trailers are skipped.
async fn piece(body: &mut Incoming) -> Result<Option<Bytes>, Status> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::unknown(error.to_string()))?;
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_messages_are_served_while_large_ones_exceed_the_bound() {
        let all = Arc::default();
        let count = PIECES_BYTES_MAX / MESSAGE_BYTES_MAX;
        let mut large: Vec<HeldBytes> = (0..count).map(|_| HeldBytes::new(&all)).collect();
        assert!(large.iter_mut().all(|body| body.set(MESSAGE_BYTES_MAX).is_ok()));
        let (mut small, mut one_more) = (HeldBytes::new(&all), HeldBytes::new(&all));
        assert!(one_more.set(SMALL_BYTES + 1).is_err());
        assert!(small.set(SMALL_BYTES).is_ok());
        drop((large, one_more));
        assert!(small.set(MESSAGE_BYTES_MAX).is_ok());
        assert!(small.set(0).is_ok());
        assert_eq!(all.load(Relaxed), 0);
    }
}
