//! Answers over HTTP/2: one message and its trailers, or a stream.
//!
//! gRPC sends the status of a call after the message, in trailers. A failed call has its status in
//! the headers and an empty body. Streams come from the doors.

use crate::frames::encode_frame;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::Body as HttpBody;
use prost::Message;
use std::pin::Pin;
use tonic::Status;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Several messages and their trailers.
pub type GrpcStream = Pin<Box<dyn HttpBody<Data = Bytes, Error = Status>>>;

/// The body of an answer.
pub enum GrpcBody {
    /// Empty; no frame follows.
    Empty,
    /// A message, followed by trailers with the status OK.
    Message(Bytes),
    /// A stream, which ends with its own trailers.
    Stream(GrpcStream),
}

impl GrpcBody {
    /// A message in a gRPC frame: not compressed, with its length in front.
    pub fn message(message: &impl Message) -> GrpcBody {
        GrpcBody::Message(encode_frame(message))
    }

    /// A stream of messages.
    pub fn stream(body: impl HttpBody<Data = Bytes, Error = Status> + 'static) -> GrpcBody {
        GrpcBody::Stream(Box::pin(body))
    }
}

/// The trailers of a message.
pub(crate) fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
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
