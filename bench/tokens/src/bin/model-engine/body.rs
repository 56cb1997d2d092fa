//! Bodies of answers that grow.
//!
//! They are functions that give the next piece, as `Body::poll_frame` does, without its errors and
//! trailers, which no answer here has.

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

struct PolledBody<F>(F);

impl<F: FnMut(&mut Context<'_>) -> Poll<Option<Bytes>> + Unpin> http_body::Body for PolledBody<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        (self.0)(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// A body of the pieces that `poll` gives; `None`: it has ended.
pub fn polled(
    poll: impl FnMut(&mut Context<'_>) -> Poll<Option<Bytes>> + Unpin + Send + 'static,
) -> Body {
    PolledBody(poll).boxed_unsync()
}
