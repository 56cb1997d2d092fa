//! The bound on the bytes of large messages and bodies.
//!
//! Each message has a bound, and all large ones together have one: beyond it, a message is not read
//! on until others are complete, so its sender keeps the rest. Small messages are not counted, so
//! that a caller with large ones cannot keep the calls of others from being answered. Their number
//! is bounded by that of the calls. Bodies are split into messages in `frames`.

use crate::call::CallBody;
use crate::frames::FrameReader;
use bytes::Bytes;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// The maximum length of a message, in bytes; longer messages are refused.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The maximum number of bytes that all large messages of a kind may hold together.
pub const PIECES_BYTES_MAX: usize = 256 << 20;
/// A message or body of at most this number of bytes is not counted.
pub const SMALL_BYTES: usize = 64 << 10;
/// The longest time until a message is complete.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes are counted in units of this length.
const UNIT_BYTES: usize = 1 << 10;

const _: () = assert!(MESSAGE_BYTES_MAX + 5 <= PIECES_BYTES_MAX, "each message has room some time");

/// The bytes that large messages, or bodies, may hold together.
#[derive(Clone, Debug)]
pub struct ByteBudget(Arc<Semaphore>);

impl Default for ByteBudget {
    fn default() -> ByteBudget {
        ByteBudget(Arc::new(Semaphore::new(PIECES_BYTES_MAX / UNIT_BYTES)))
    }
}

/// The bytes that one of them holds; given back when dropped.
#[derive(Debug)]
pub struct HeldBytes {
    budget: ByteBudget,
    held: Option<OwnedSemaphorePermit>,
}

/// The time of one message, from the first wait for a piece of it.
#[derive(Debug, Default)]
pub struct MessageTime(Option<Pin<Box<Sleep>>>);

impl MessageTime {
    /// Begins with the next message.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Waits for a part of the message. Earlier waits for it count too, even if they were dropped:
    /// a sender of tiny pieces must not keep the room of the whole message.
    ///
    /// # Errors
    /// The message has taken too long.
    pub async fn wait<T>(
        &mut self,
        mut part: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, Status> {
        poll_fn(|cx| {
            if let Poll::Ready(part) = part.as_mut().poll(cx) {
                return Poll::Ready(Ok(part));
            }
            // Most messages have arrived completely by now and need no timer.
            let late = self.0.get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIMEOUT)));
            let told = || Err(Status::deadline_exceeded("a message did not come in time"));
            late.as_mut().poll(cx).map(|()| told())
        })
        .await
    }
}

/// The number of units that are counted for this number of bytes.
fn units(bytes: usize) -> usize {
    if bytes > SMALL_BYTES { bytes.div_ceil(UNIT_BYTES) } else { 0 }
}

impl HeldBytes {
    /// Holds nothing.
    #[must_use]
    pub fn new(budget: &ByteBudget) -> HeldBytes {
        HeldBytes { budget: budget.clone(), held: None }
    }

    /// Whether any bytes are counted.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.held.is_some()
    }

    /// Gives everything back.
    pub fn clear(&mut self) {
        self.held = None;
    }

    /// Sets the number of bytes that are held. Returns whether there is room for them; without it,
    /// what was counted before stays counted.
    pub fn try_set(&mut self, bytes: usize) -> bool {
        let more = self.shrink_to(units(bytes));
        let taken = (more > 0).then(|| {
            let budget = Arc::clone(&self.budget.0);
            budget.try_acquire_many_owned(u32::try_from(more).unwrap_or(u32::MAX))
        });
        match taken {
            None => true,
            Some(Ok(permit)) => {
                self.add(permit);
                true
            }
            Some(Err(_)) => false,
        }
    }

    /// Sets the number of bytes that are held, as soon as there is room for them. Requests for room
    /// are served in the order of their arrival.
    pub async fn set(&mut self, bytes: usize) {
        let more = self.shrink_to(units(bytes.min(PIECES_BYTES_MAX)));
        if more > 0 {
            let budget = Arc::clone(&self.budget.0);
            // The semaphore is never closed.
            if let Ok(permit) = budget.acquire_many_owned(u32::try_from(more).unwrap_or(0)).await {
                self.add(permit);
            }
        }
    }

    /// Gives back what is beyond this number of units. Returns how many are missing.
    fn shrink_to(&mut self, units: usize) -> usize {
        let counted = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if units == 0 {
            self.held = None;
        } else if let Some(surplus) = counted.checked_sub(units) {
            self.held.as_mut().and_then(|held| held.split(surplus)).into_iter().for_each(drop);
        }
        units.saturating_sub(counted)
    }

    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(permit),
            held @ None => *held = Some(permit),
        }
    }
}

/// Reads the only message of a call. Nearly always it comes in one piece, which is not copied. A
/// large one waits until there is room.
///
/// # Errors
/// The body breaks off, is not exactly one message, or takes too long.
pub async fn read_message(body: &mut CallBody, budget: &ByteBudget) -> Result<Bytes, Status> {
    let (mut frames, mut held) = (FrameReader::new(MESSAGE_BYTES_MAX), HeldBytes::new(budget));
    let whole = pin!(async {
        while let Some(more) = body.piece().await {
            frames.push(more?);
            match frames.length()? {
                Some(length) if length < frames.buffered_bytes() => break,
                Some(length) => held.set(length).await,
                None => {}
            }
            if body.is_end() {
                break;
            }
        }
        frames.take_only().map_err(Status::from)
    });
    MessageTime::default().wait(whole).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_messages_are_served_while_large_ones_exceed_the_bound() {
        let budget = ByteBudget::default();
        let count = PIECES_BYTES_MAX / MESSAGE_BYTES_MAX;
        let mut large: Vec<HeldBytes> = (0..count).map(|_| HeldBytes::new(&budget)).collect();
        assert!(large.iter_mut().all(|body| body.try_set(MESSAGE_BYTES_MAX)));
        let (mut small, mut one_more) = (HeldBytes::new(&budget), HeldBytes::new(&budget));
        assert!(!one_more.try_set(SMALL_BYTES + 1));
        assert!(small.try_set(SMALL_BYTES));
        drop(large);
        assert!(small.try_set(MESSAGE_BYTES_MAX) && small.try_set(MESSAGE_BYTES_MAX / 2));
        assert_eq!(
            budget.0.available_permits(),
            (PIECES_BYTES_MAX - MESSAGE_BYTES_MAX / 2) / UNIT_BYTES
        );
        assert!(small.try_set(0));
        assert_eq!(budget.0.available_permits(), PIECES_BYTES_MAX / UNIT_BYTES);
    }

    #[tokio::test]
    async fn a_message_waits_until_there_is_room() {
        let budget = ByteBudget::default();
        let (mut all, mut waits) = (HeldBytes::new(&budget), HeldBytes::new(&budget));
        all.set(PIECES_BYTES_MAX).await;
        let mut waiting = Box::pin(waits.set(MESSAGE_BYTES_MAX));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        all.set(PIECES_BYTES_MAX - MESSAGE_BYTES_MAX).await;
        waiting.await;
        assert_eq!(budget.0.available_permits(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_in_tiny_pieces_ends_in_time() {
        let (mut time, part) = (MessageTime::default(), MESSAGE_TIMEOUT / 4);
        let pass = |length| tokio::time::timeout(length, std::future::pending::<()>());
        for _ in 0..3 {
            assert!(time.wait(pin!(pass(part))).await.is_ok(), "there is time");
        }
        // A wait that is given up counts.
        let waited = pin!(pass(part));
        let given_up = tokio::time::timeout(part / 2, time.wait(waited));
        assert!(given_up.await.is_err(), "given up");
        assert!(time.wait(pin!(pass(part))).await.is_err(), "late");
        time.clear();
        assert!(time.wait(pin!(pass(part))).await.is_ok(), "another message");
    }
}
