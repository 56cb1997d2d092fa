//! The body of an answer over HTTP/2: one message and its trailers, or a stream.
//!
//! gRPC sends the status of a call after the message, in trailers. A failed call has its status in
//! the headers and an empty body. Streams come from `talk`, `health` and the reflection service.

use super::health::Watching;
use super::talk::Talk;
use crate::wire::framed;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prost::Message;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of an answer.
pub enum Body {
    /// Empty; no frame follows.
    Empty,
    /// A message, followed by trailers with the status OK.
    Message(Bytes),
    /// The trailers with the status OK.
    Trailers,
    /// A stream of quota assignments.
    Talk(Box<Talk>),
    /// A stream of health statuses.
    Watching(Box<Watching>),
    /// A body made by the reflection service.
    Other(tonic::body::Body),
}

impl Body {
    /// A message in a gRPC frame: not compressed, with its length in front.
    pub fn message(message: &impl Message) -> Body {
        Body::Message(framed(message))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let body = self.get_mut();
        match body {
            Body::Other(other) => Pin::new(other).poll_frame(cx),
            Body::Talk(talk) => Pin::new(&mut **talk).poll_frame(cx),
            Body::Watching(watching) => Pin::new(&mut **watching).poll_frame(cx),
            Body::Empty => Poll::Ready(None),
            Body::Message(bytes) => {
                let bytes = std::mem::take(bytes);
                *body = Body::Trailers;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Body::Trailers => {
                *body = Body::Empty;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(tonic::Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Empty => true,
            Body::Message(_) | Body::Trailers | Body::Talk(_) | Body::Watching(_) => false,
            Body::Other(other) => other.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Other(other) => other.size_hint(),
            _ => SizeHint::default(),
        }
    }
}
