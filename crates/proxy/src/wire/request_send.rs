//! Sends a request with a body to the backend: its head, then the frames of the body as they
//! arrive.
//!
//! It runs as a task in parallel to the one that waits for the answer, which may begin before the
//! body is sent. The next frame is asked for when the previous one is written. The kinds of bodies:
//! `body.rs`.

use super::{halves, head};
use crate::context::ThreadContext;
use crate::failure::BodyError;
use crate::timer::WaitTimer;
use crate::write_slices::poll_write_slices;
use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite as _;

/// Why a request was not fully sent.
#[derive(Debug)]
pub(super) enum SendError {
    /// The body did not arrive, or must not pass.
    Body(BodyError),
    /// The backend accepts no more of it. It may still have answered.
    Backend,
}

/// The state of the task.
pub(super) struct RequestSend<B> {
    pub(super) writer: halves::UpstreamWriter,
    pub(super) body: B,
    /// The number of body bytes still to come, if the head states a length. `None`: the body is
    /// chunked.
    pub(super) left: Option<u64>,
    pub(super) stuck: Rc<WaitTimer>,
    pub(super) thread: Rc<ThreadContext>,
}

type NextFrame = Option<Result<Frame<Bytes>, BodyError>>;

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> RequestSend<B> {
    /// Writes `head` and the body. Returns the writer for the next request, unless the body is not
    /// of the length that the head states: the backend would read the next request as part of it.
    pub(super) async fn run(mut self, head: Vec<u8>) -> Result<halves::UpstreamWriter, SendError> {
        // Bytes that go out together with the next frame, if that is ready by now.
        let mut before = head;
        let mut ended = false;
        loop {
            let there = poll_fn(|cx| Poll::Ready(self.poll_next(cx))).await;
            let next = match there {
                Poll::Ready(next) => next,
                Poll::Pending => {
                    self.write(&before[..]).await?;
                    before.clear();
                    poll_fn(|cx| self.poll_next(cx)).await
                }
            };
            match next.transpose().map_err(SendError::Body)?.map(Frame::into_data) {
                Some(Ok(data)) if !data.is_empty() => self.pass(&mut before, data).await?,
                Some(Ok(_)) => {}
                Some(Err(frame)) => {
                    ended = self.close(&mut before, frame.into_trailers().ok().as_ref());
                }
                None => break,
            }
        }
        if self.left.is_some_and(|left| left > 0) {
            return Err(SendError::Body(BodyError::Length));
        }
        if !ended {
            self.close(&mut before, None);
        }
        self.write(&before[..]).await?;
        Ok(self.writer)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<NextFrame> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    /// Writes `before` and then some data. Clears `before`.
    async fn pass(&mut self, before: &mut Vec<u8>, data: Bytes) -> Result<(), SendError> {
        let mut after: &[u8] = b"";
        if let Some(left) = &mut self.left {
            let rest = left.checked_sub(data.len() as u64);
            *left = rest.ok_or(SendError::Body(BodyError::Length))?;
        } else {
            before.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
            after = b"\r\n";
        }
        self.write((&before[..]).chain(data).chain(after)).await?;
        before.clear();
        Ok(())
    }

    /// Appends the end of a chunked body. Always returns true: no frame follows.
    fn close(&self, before: &mut Vec<u8>, trailers: Option<&http::HeaderMap>) -> bool {
        if self.left.is_none() {
            before.extend_from_slice(b"0\r\n");
            if let Some(trailers) = trailers {
                head::write_fields(trailers, before);
            }
            before.extend_from_slice(b"\r\n");
        }
        true
    }

    async fn write(&mut self, mut bytes: impl Buf) -> Result<(), SendError> {
        let written = poll_fn(|cx| {
            while bytes.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 3];
                let count = bytes.chunks_vectored(&mut slices);
                let poll = poll_write_slices(&mut self.writer, cx, &slices[..count]);
                match ready!(self.stuck.track(poll, self.thread.now()))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    count => bytes.advance(count),
                }
            }
            // A TLS buffer may hold some of the bytes.
            let poll = Pin::new(&mut self.writer).poll_flush(cx);
            self.stuck.track(poll, self.thread.now())
        });
        written.await.map_err(|_| SendError::Backend)
    }
}
