//! The body of an answer over HTTP/2: one message and its trailers, or a stream.
//!
//! gRPC sends the status of a call after the message, in trailers. A failed call has its status in
//! the headers and an empty body. Streams come from `quota_stream`, `health` and the reflection
//! service.

use crate::wire::encode_frame;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prost::Message;
use std::pin::Pin;
use std::task::{Context, Poll};

pub enum GrpcBody {
    /// Empty; no frame follows.
    Empty,
    /// A message, followed by trailers with the status OK.
    Message(Bytes),
    /// The trailers with the status OK.
    Trailers,
    /// Quota assignments, health statuses, or what the reflection service makes.
    Stream(tonic::body::Body),
}

impl GrpcBody {
    /// A message in a gRPC frame: not compressed, with its length in front.
    pub fn message(message: &impl Message) -> GrpcBody {
        GrpcBody::Message(encode_frame(message))
    }
}

impl HttpBody for GrpcBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let body = self.get_mut();
        match body {
            GrpcBody::Stream(stream) => Pin::new(stream).poll_frame(cx),
            GrpcBody::Empty => Poll::Ready(None),
            GrpcBody::Message(bytes) => {
                let bytes = std::mem::take(bytes);
                *body = GrpcBody::Trailers;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            GrpcBody::Trailers => {
                *body = GrpcBody::Empty;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(tonic::Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            GrpcBody::Empty => true,
            GrpcBody::Message(_) | GrpcBody::Trailers => false,
            GrpcBody::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            GrpcBody::Stream(stream) => stream.size_hint(),
            _ => SizeHint::default(),
        }
    }
}
