//! The bound on the bytes of incomplete messages.
//!
//! Each message has a bound, and all of them together have one. Who splits them: `frames`.
//! A body counts its bytes for as long as it holds them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tonic::Status;

/// The maximum length of a message, in bytes; longer messages are refused.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The maximum number of bytes that all incomplete messages may hold together; messages beyond it
/// are refused.
pub const PIECES_BYTES_MAX: usize = 64 << 20;

/// The bytes that one body holds as its share of [`PIECES_BYTES_MAX`]; given back when dropped.
pub struct HeldBytes {
    /// The bytes that all bodies hold.
    pub all: Arc<AtomicUsize>,
    /// The bytes that this body holds.
    pub mine: usize,
}

impl HeldBytes {
    /// Adds the `more` bytes of a message that has `before` so far.
    ///
    /// # Errors
    /// The message or all messages together exceed their bound.
    pub fn take(&mut self, more: usize, before: usize) -> Result<(), Status> {
        if before + more > MESSAGE_BYTES_MAX + 5 {
            let what = format!("a message may have at most {MESSAGE_BYTES_MAX} bytes");
            return Err(Status::resource_exhausted(what));
        }
        self.set(self.mine + more)
    }

    /// Sets the number of bytes that this body holds.
    ///
    /// # Errors
    /// All bodies together exceed the bound. The bytes are counted nevertheless until this value is
    /// dropped.
    pub fn set(&mut self, mine: usize) -> Result<(), Status> {
        let all = match mine.checked_sub(self.mine) {
            Some(more) => self.all.fetch_add(more, Relaxed) + more,
            None => {
                self.all.fetch_sub(self.mine - mine, Relaxed);
                0
            }
        };
        self.mine = mine;
        if all > PIECES_BYTES_MAX {
            return Err(Status::resource_exhausted("too many large messages at once"));
        }
        Ok(())
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.mine, Relaxed);
    }
}
