//! A request on its way to a slot.
//!
//! A queue has no task of its own. Each waiting request reads the clock once a second, so that
//! overdue requests are refused even while no request comes or ends.

use super::{FairQueue, QueueRefusal, QueuedRequest, Slot, WaitState};
use evenkeel_core::queue::RequestId;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The longest time between two readings of the clock while a request waits.
const TICK: Duration = Duration::from_secs(1);

/// A request that waits for its turn, or has its turn. Dropping it gives up the place.
#[must_use = "dropping it gives up the place in the queue"]
pub struct WaitingSlot(WaitingStep);

enum WaitingStep {
    /// The result, until it is taken.
    Ended(Option<Result<Slot, QueueRefusal>>),
    /// In a box, because most requests do not wait.
    Waits(Box<WaitingPlace>),
}

/// The place of a request in the queue.
struct WaitingPlace {
    queue: FairQueue,
    id: RequestId,
    request: QueuedRequest,
    /// When the request will have waited for too long.
    due: Instant,
    tick: Option<Pin<Box<Sleep>>>,
}

impl WaitingSlot {
    pub(super) fn ended(result: Result<Slot, QueueRefusal>) -> WaitingSlot {
        WaitingSlot(WaitingStep::Ended(Some(result)))
    }

    pub(super) fn new(
        queue: FairQueue,
        id: RequestId,
        request: QueuedRequest,
        due: Instant,
    ) -> WaitingSlot {
        let place = WaitingPlace { queue, id, request, due, tick: None };
        WaitingSlot(WaitingStep::Waits(Box::new(place)))
    }

    /// The slot or the refusal, if the request does not have to wait.
    pub fn take_result(&mut self) -> Option<Result<Slot, QueueRefusal>> {
        match &mut self.0 {
            WaitingStep::Ended(result) => result.take(),
            WaitingStep::Waits(_) => None,
        }
    }
}

impl Future for WaitingSlot {
    type Output = Result<Slot, QueueRefusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let place = match &mut self.0 {
            WaitingStep::Ended(result) => return result.take().map_or(Poll::Pending, Poll::Ready),
            WaitingStep::Waits(place) => place,
        };
        loop {
            if let Some(result) = place.poll_result(cx) {
                // Its place has become a slot, or nothing.
                self.0 = WaitingStep::Ended(None);
                return Poll::Ready(result);
            }
            if place.poll_tick(cx).is_pending() {
                return Poll::Pending;
            }
            place.queue.expire();
        }
    }
}

impl WaitingPlace {
    fn poll_result(&mut self, cx: &Context<'_>) -> Option<Result<Slot, QueueRefusal>> {
        let mut state = self.queue.0.state.lock();
        let result = match state.waiting.get_mut(&self.id)? {
            WaitState::Waits(waker) => {
                if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                return None;
            }
            WaitState::Ended(result) => *result,
        };
        state.waiting.remove(&self.id);
        drop(state);
        Some(result.map(|()| self.queue.slot(self.id, self.request, self.queue.now())))
    }

    fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let next = || (Instant::now() + TICK).min(self.due.max(Instant::now() + TICK / 100));
        let tick = self.tick.get_or_insert_with(|| Box::pin(sleep_until(next())));
        if tick.as_mut().poll(cx).is_ready() {
            self.tick = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.queue.leave(self.id);
    }
}
