//! The body of a response that holds a slot until its end.
//!
//! A response does not end with its head: a long or streamed body keeps the service busy.

use crate::queue::Slot;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project_lite::pin_project! {
    /// A body that holds the slot of its request until it has ended, has failed, or is dropped.
    #[derive(Default)]
    pub struct SlotBody<B> {
        #[pin]
        inner: B,
        slot: Option<Slot>,
    }
}

impl<B: Body> SlotBody<B> {
    /// The body for a request with a slot, or for one that passed without one.
    pub(crate) fn new(inner: B, slot: Option<Slot>) -> SlotBody<B> {
        let slot = slot.filter(|_| !inner.is_end_stream());
        SlotBody { inner, slot }
    }
}

impl<B: Body> Body for SlotBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        let is_over = !matches!(frame, Some(Ok(_))) || this.inner.is_end_stream();
        if is_over {
            *this.slot = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
