//! A stream of the rate limit quota service: reports arrive, assignments leave, until either side
//! ends it.
//!
//! [`QuotaStream`] makes the body of the answer, and it reads the body of the request whenever
//! it is polled for more data to send. It therefore needs no task and no queue. If an Envoy does
//! not read assignments, its reports are not read either, and everything is dropped with the
//! connection. The content of the messages: `quota`.

use crate::quota::QuotaMember;
use crate::wire::reports::{MESSAGE_BYTES_MAX, UsageReports};
use bytes::Bytes;
use evenkeel_grpc::body::{GrpcBody, shutting_down, trailers};
use evenkeel_grpc::call::CallBody;
use evenkeel_grpc::frames::{FrameReader, encode_frame};
use evenkeel_grpc::held_bytes::{ByteBudget, HeldBytes};
use futures_util::stream::poll_fn;
use http_body::Frame;
use http_body_util::StreamBody;
use std::task::{Context, Poll};
use tonic::Status;

pub struct QuotaStream {
    part: QuotaMember,
    /// The body of the request; `None` after its end.
    incoming: Option<CallBody>,
    frames: FrameReader,
    /// The bytes in `frames`, counted towards the bound over all bodies.
    held: HeldBytes,
}

impl QuotaStream {
    /// A stream that reads reports from `incoming`. `pieces` bounds the
    /// bytes of all large incomplete messages.
    pub fn new(part: QuotaMember, incoming: CallBody, pieces: &ByteBudget) -> QuotaStream {
        let held = HeldBytes::new(pieces);
        QuotaStream {
            part,
            incoming: Some(incoming),
            frames: FrameReader::new(MESSAGE_BYTES_MAX),
            held,
        }
    }

    pub(super) fn into_body(mut self) -> GrpcBody {
        let mut ended = false;
        GrpcBody::stream(StreamBody::new(poll_fn(move |cx| {
            if ended {
                return Poll::Ready(None);
            }
            self.poll(cx).map(|said| {
                ended = said.is_err();
                let frame = said.map_or_else(|end| Frame::trailers(trailers(&end)), Frame::data);
                Some(Ok(frame))
            })
        })))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        loop {
            if self.part.quotas().is_ending() {
                return Poll::Ready(Err(shutting_down()));
            }
            let heard = self.read_piece(cx);
            // A report that was read just now may get its answer at once.
            if let Some(response) = self.part.take_actions(cx.waker()) {
                return Poll::Ready(Ok(encode_frame(&response)));
            }
            match heard {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(Err(Status::ok(""))),
                Poll::Ready(Err(end)) => return Poll::Ready(Err(end)),
            }
        }
    }

    /// Reads the next piece of the request body; `false` at its end.
    fn read_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Status>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(Ok(false)) };
        match incoming.poll_piece(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(bytes))) => Poll::Ready(self.take(bytes).map(|()| true)),
            Poll::Ready(Some(Err(_)) | None) => {
                self.incoming = None;
                Poll::Ready(Ok(false))
            }
        }
    }

    fn take(&mut self, piece: Bytes) -> Result<(), Status> {
        self.frames.push(piece);
        while let Some(message) = self.frames.take()? {
            let wrong = |what: String| Status::invalid_argument(what);
            let reports = UsageReports::decode(&message);
            let reports = reports.map_err(|fault| wrong(format!("not a report: {fault}")))?;
            self.part.report(reports).map_err(|fault| wrong(fault.to_string()))?;
        }
        match self.held.try_set(self.frames.buffered_bytes()) {
            true => Ok(()),
            false => Err(Status::resource_exhausted("too many large messages at once")),
        }
    }
}
