//! Answers over HTTP/2: one message and its trailers, or a stream.
//!
//! gRPC sends the status of a call after the message, in trailers. A failed call has its status in
//! the headers and an empty body. Streams come from the doors.

use crate::frames::encode_frame;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prost::Message;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// The body of an answer.
pub enum GrpcBody {
    /// Empty; no frame follows.
    Empty,
    /// A message, followed by trailers with the status OK.
    Message(Bytes),
    /// The trailers with the status OK.
    Trailers,
    /// Several messages, and their trailers.
    Stream(tonic::body::Body),
    /// The same from what does not leave its thread.
    Local(Pin<Box<dyn HttpBody<Data = Bytes, Error = Status>>>),
}

impl GrpcBody {
    /// A message in a gRPC frame: not compressed, with its length in front.
    pub fn message(message: &impl Message) -> GrpcBody {
        GrpcBody::Message(encode_frame(message))
    }
}

impl HttpBody for GrpcBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let body = self.get_mut();
        match body {
            GrpcBody::Stream(stream) => Pin::new(stream).poll_frame(cx),
            GrpcBody::Local(stream) => stream.as_mut().poll_frame(cx),
            GrpcBody::Empty => Poll::Ready(None),
            GrpcBody::Message(bytes) => {
                let bytes = std::mem::take(bytes);
                *body = GrpcBody::Trailers;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            GrpcBody::Trailers => {
                *body = GrpcBody::Empty;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            GrpcBody::Empty => true,
            GrpcBody::Message(_) | GrpcBody::Trailers => false,
            GrpcBody::Stream(stream) => stream.is_end_stream(),
            GrpcBody::Local(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            GrpcBody::Stream(stream) => stream.size_hint(),
            GrpcBody::Local(stream) => stream.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

/// An answer with this body.
#[must_use]
pub fn response(body: GrpcBody) -> Response<GrpcBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// The answer to a failed call. Its status is sent in the headers; the HTTP status is 200, as gRPC
/// requires.
#[must_use]
pub fn failed(status: &Status) -> Response<GrpcBody> {
    let mut response = response(GrpcBody::Empty);
    // This fails only for texts that no header can carry, and `add_header` escapes these.
    let _ = status.add_header(response.headers_mut());
    response
}

/// The trailers of a stream that ends with this status.
#[must_use]
pub fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    // This fails only for texts that no header can carry, and `add_header` escapes these.
    let _ = status.add_header(&mut trailers);
    trailers
}

/// The status of calls to a method that does not exist. It does not repeat the path, which may be
/// long.
#[must_use]
pub fn no_method() -> Status {
    Status::unimplemented("unknown method")
}

/// The status of streams that end because the server does.
#[must_use]
pub fn shutting_down() -> Status {
    Status::unavailable("the server is shutting down")
}
