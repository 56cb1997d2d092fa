//! One call on an HTTP/2 connection: the body of its request, and its answer on the way out.

use crate::body::{GrpcBody, GrpcStream, ok_trailers};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use http_body::{Body, Frame};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tonic::Status;

/// The body of a request. Its trailers are not read: gRPC has none in requests.
pub struct CallBody(RecvStream);

impl CallBody {
    /// The body that arrives on `stream`.
    pub(crate) fn new(stream: RecvStream) -> CallBody {
        CallBody(stream)
    }

    /// The next piece; `None` at the end of the body. The peer may then send as many bytes more.
    pub async fn piece(&mut self) -> Option<Result<Bytes, Status>> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    /// Polls for the same as [`CallBody::piece`].
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let piece = match ready!(self.0.poll_data(cx)) {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => {
                return Poll::Ready(None);
            }
            Some(Err(error)) => Err(Status::unknown(error.to_string())),
            None => return Poll::Ready(None),
        };
        if let Ok(bytes) = &piece {
            // This fails only for more bytes than have arrived.
            let _ = self.0.flow_control().release_capacity(bytes.len());
        }
        Poll::Ready(Some(piece))
    }

    /// Whether the body has ended, as far as is known without waiting.
    pub fn is_end(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// For services that other crates implement.
impl Body for CallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.get_mut().poll_piece(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_end()
    }
}

/// Sends the response that `answer` gives. Ends early if the peer resets the call or disconnects.
pub(crate) async fn respond(
    mut respond: SendResponse<Bytes>,
    answer: impl Future<Output = Response<GrpcBody>>,
) -> Result<(), h2::Error> {
    let mut answer = pin!(answer);
    let answered = poll_fn(|cx| match answer.as_mut().poll(cx) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        Poll::Pending => respond.poll_reset(cx).map(|_| None),
    });
    let Some(response) = answered.await else { return Ok(()) };
    let (head, body) = response.into_parts();
    let head = Response::from_parts(head, ());
    match body {
        GrpcBody::Empty => respond.send_response(head, true).map(drop),
        GrpcBody::Message(bytes) => {
            let mut stream = respond.send_response(head, false)?;
            // HTTP/2 keeps what the peer does not accept yet. It is one message, and the peer can
            // begin only a limited number of calls.
            stream.send_data(bytes, false)?;
            stream.send_trailers(ok_trailers())
        }
        GrpcBody::Stream(body) => send_stream(respond.send_response(head, false)?, body).await,
    }
}

/// Sends a stream piece by piece. It is polled only while the peer accepts data.
async fn send_stream(mut to: SendStream<Bytes>, mut body: GrpcStream) -> Result<(), h2::Error> {
    loop {
        to.reserve_capacity(1);
        let next = poll_fn(|cx| {
            while to.capacity() == 0 {
                match ready!(to.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => return Poll::Ready(Err(Reason::CANCEL.into())),
                }
            }
            match body.as_mut().poll_frame(cx) {
                Poll::Ready(next) => Poll::Ready(Ok(next)),
                Poll::Pending => to.poll_reset(cx).map(|reset| Err(reset?.into())),
            }
        });
        let frame = match next.await? {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => {
                to.send_reset(Reason::INTERNAL_ERROR);
                return Ok(());
            }
            None => return to.send_data(Bytes::new(), true),
        };
        match frame.into_data().map_err(Frame::into_trailers) {
            Ok(data) => to.send_data(data, false)?,
            Err(Ok(trailers)) => return to.send_trailers(trailers),
            Err(Err(_)) => {}
        }
    }
}
