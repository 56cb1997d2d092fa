//! A stream of the rate limit quota service: reports arrive, assignments leave, until either side
//! ends it.
//!
//! [`QuotaStream`] is the body of the answer, and it reads the body of the request whenever hyper
//! polls it for more data to send. It therefore needs no task and no queue. If an Envoy does not
//! read assignments, its reports are not read either, and everything is dropped with the
//! connection. The content of the messages: `quota`.

use super::failure::{CallError, GrpcCode, failure};
use super::held_bytes::HeldBytes;
use crate::quota::QuotaMember;
use crate::wire::encode_frame;
use crate::wire::reports::{FrameError, FrameReader, MESSAGE_BYTES_MAX, UsageReports};
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};

/// gRPC's status code for a server that shuts down.
pub(super) const UNAVAILABLE_CODE: i32 = 14;

/// One stream of an Envoy.
pub struct QuotaStream {
    part: QuotaMember,
    /// The body of the request; `None` after its end.
    incoming: Option<Incoming>,
    frames: FrameReader,
    /// The bytes in `frames`, counted towards the bound over all bodies.
    held: HeldBytes,
    ended: bool,
}

/// The end of a stream: gRPC's status code and its message.
struct StreamEnd(i32, String);

impl QuotaStream {
    /// A stream that reads reports from `incoming`. `pieces` is the number of bytes that all
    /// incomplete messages hold.
    pub fn new(part: QuotaMember, incoming: Incoming, pieces: &Arc<AtomicUsize>) -> QuotaStream {
        let held = HeldBytes { all: Arc::clone(pieces), mine: 0 };
        QuotaStream {
            part,
            incoming: Some(incoming),
            frames: FrameReader::new(MESSAGE_BYTES_MAX),
            held,
            ended: false,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, StreamEnd>> {
        loop {
            if self.part.quotas().is_ending() {
                return Poll::Ready(Err(StreamEnd(
                    UNAVAILABLE_CODE,
                    "the server is shutting down".into(),
                )));
            }
            let heard = self.read_piece(cx);
            // A report that was read just now may get its answer at once.
            if let Some(response) = self.part.take_actions(cx.waker()) {
                return Poll::Ready(Ok(encode_frame(&response)));
            }
            match heard {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(Err(StreamEnd(0, String::new()))),
                Poll::Ready(Err(end)) => return Poll::Ready(Err(end)),
            }
        }
    }

    /// Reads the next piece of the request body; `false` at its end.
    fn read_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, StreamEnd>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(Ok(false)) };
        match Pin::new(incoming).poll_frame(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(bytes) => Poll::Ready(self.take(&bytes).map(|()| true)),
                Err(_) => Poll::Ready(Ok(true)),
            },
            Poll::Ready(Some(Err(_)) | None) => {
                self.incoming = None;
                Poll::Ready(Ok(false))
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), StreamEnd> {
        self.frames.push(bytes);
        while let Some(message) = self.frames.take().map_err(end)? {
            let wrong = |what: String| StreamEnd(GrpcCode::InvalidArgument as i32, what);
            let reports = UsageReports::decode(&message);
            let reports = reports.map_err(|fault| wrong(format!("not a report: {fault}")))?;
            self.part.report(reports).map_err(|fault| wrong(fault.to_string()))?;
        }
        match self.held.set(self.frames.buffered_bytes()) {
            Ok(()) => Ok(()),
            Err(CallError(code, what)) => Err(StreamEnd(code as i32, what)),
        }
    }
}

fn end(fault: FrameError) -> StreamEnd {
    let CallError(code, what) = failure(fault);
    StreamEnd(code as i32, what)
}

impl Body for QuotaStream {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let talk = self.get_mut();
        if talk.ended {
            return Poll::Ready(None);
        }
        talk.poll(cx).map(|said| {
            Some(Ok(match said {
                Ok(bytes) => Frame::data(bytes),
                Err(StreamEnd(code, what)) => {
                    talk.ended = true;
                    Frame::trailers(trailers(code, &what))
                }
            }))
        })
    }
}

pub(super) fn trailers(code: i32, what: &str) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    let status = tonic::Status::new(tonic::Code::from_i32(code), what);
    // This fails only for texts that no header can carry, and `add_header` escapes these.
    let _ = status.add_header(&mut trailers);
    trailers
}
