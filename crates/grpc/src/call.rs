//! One call on an HTTP/2 connection: the body of its request, and its answer on the way out.
//!
//! What a body means is not known here: `frames` and `held_bytes` make messages of it. Which calls
//! are accepted, and when: `worker`.

use crate::body::{GrpcBody, GrpcStream, failed, ok_trailers};
use crate::held_bytes::{ByteBudget, HeldBytes, SMALL_BYTES};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use http_body::{Body, Frame};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tonic::Status;

/// The body of a request. Its trailers are not read: gRPC has none in requests.
pub struct CallBody(RecvStream);

impl CallBody {
    /// The body that arrives on `stream`.
    pub(crate) fn new(stream: RecvStream) -> CallBody {
        CallBody(stream)
    }

    /// The next piece; `None` at the end of the body. Allows the peer to send as many bytes again.
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
/// `unread`: the bytes of large answers that peers have not read yet; a call with one beyond it
/// fails.
pub(crate) async fn respond(
    mut respond: SendResponse<Bytes>,
    mut answer: Pin<&mut impl Future<Output = Response<GrpcBody>>>,
    unread: &ByteBudget,
) -> Result<(), h2::Error> {
    let answered = poll_fn(|cx| match answer.as_mut().poll(cx) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        Poll::Pending => respond.poll_reset(cx).map(|_| None),
    });
    let Some(response) = answered.await else { return Ok(()) };
    let (head, body) = response.into_parts();
    let head = Response::from_parts(head, ());
    match body {
        GrpcBody::Empty => respond.send_response(head, true).map(drop),
        GrpcBody::Message(bytes) if bytes.len() > SMALL_BYTES => {
            let mut held = HeldBytes::new(unread);
            if !held.try_set(bytes.len()) {
                let full = Status::resource_exhausted("too many answers have not been read");
                let head = failed(&full).map(drop);
                return respond.send_response(head, true).map(drop);
            }
            Box::pin(send_large(respond.send_response(head, false)?, bytes)).await
        }
        GrpcBody::Message(bytes) => {
            let mut stream = respond.send_response(head, false)?;
            // HTTP/2 keeps what the peer does not accept yet. It is little, and the peer can begin
            // only a limited number of calls.
            stream.send_data(bytes, false)?;
            stream.send_trailers(ok_trailers())
        }
        GrpcBody::Stream(body) => send_stream(respond.send_response(head, false)?, body).await,
    }
}

/// Sends a large message as the peer accepts it.
async fn send_large(mut to: SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        to.reserve_capacity(bytes.len());
        poll_fn(|cx| poll_room(&mut to, cx)).await?;
        to.send_data(bytes.split_to(bytes.len().min(to.capacity())), false)?;
    }
    to.send_trailers(ok_trailers())
}

/// Sends a stream piece by piece. While the peer accepts no data, one piece waits and the stream is
/// not polled further.
async fn send_stream(mut to: SendStream<Bytes>, mut body: GrpcStream) -> Result<(), h2::Error> {
    loop {
        let next = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Ready(next) => Poll::Ready(Ok(next)),
            Poll::Pending => to.poll_reset(cx).map(|reset| Err(h2::Error::from(reset?))),
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
            Ok(data) => {
                to.reserve_capacity(1);
                poll_fn(|cx| poll_room(&mut to, cx)).await?;
                to.send_data(data, false)?;
            }
            Err(Ok(trailers)) => return to.send_trailers(trailers),
            Err(Err(_)) => {}
        }
    }
}

/// Waits until the peer accepts some of the data for which capacity was reserved.
fn poll_room(to: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
    while to.capacity() == 0 {
        match ready!(to.poll_capacity(cx)) {
            Some(room) => _ = room?,
            None => return Poll::Ready(Err(Reason::CANCEL.into())),
        }
    }
    Poll::Ready(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::{response, trailers};
    use crate::held_bytes::PIECES_BYTES_MAX;
    use futures_util::{FutureExt, StreamExt, stream};
    use http::Request;
    use http_body_util::StreamBody;
    use std::pin::pin;

    /// The window of the peer, in bytes.
    const WINDOW: u32 = 10;

    fn piece() -> Result<Frame<Bytes>, Status> {
        Ok(Frame::data(Bytes::from_static(&[7; WINDOW as usize])))
    }

    fn end() -> Result<Frame<Bytes>, Status> {
        Ok(Frame::trailers(trailers(&Status::ok(""))))
    }

    /// Answers one call with these frames, whose last one comes only after the peer has read
    /// `reads` pieces and stopped. Returns whether the peer gets the trailers.
    async fn ends(frames: Vec<Result<Frame<Bytes>, Status>>, reads: usize) -> bool {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (stopped, waits) = tokio::sync::oneshot::channel::<()>();
        let serve = async {
            let mut connection = h2::server::handshake(near).await.expect("a preface");
            let (_, to) = connection.accept().await.expect("a call").expect("a call");
            let last = waits.map(|_| end());
            let body = StreamBody::new(stream::iter(frames).chain(stream::once(last)));
            let unread = ByteBudget::default();
            let answer = pin!(std::future::ready(response(GrpcBody::stream(body))));
            tokio::join!(respond(to, answer, &unread), poll_fn(|cx| connection.poll_closed(cx))).0
        };
        let ask = async {
            let mut builder = h2::client::Builder::new();
            let begun = builder.initial_window_size(WINDOW).handshake::<_, Bytes>(far).await;
            let (mut send, connection) = begun.expect("a server");
            let call = async {
                let (answer, _) = send.send_request(Request::new(()), true).expect("room");
                let mut body = answer.await.expect("an answer").into_body();
                for read in 0..reads {
                    body.data().await.expect("a piece").expect("a piece");
                    if read + 1 < reads {
                        body.flow_control().release_capacity(WINDOW as usize).expect("held");
                    }
                }
                stopped.send(()).expect("the body waits");
                let rest = std::time::Duration::from_secs(1);
                let next = tokio::time::timeout(rest, poll_fn(|cx| body.poll_trailers(cx)));
                next.await.is_ok_and(|trailers| trailers.is_ok_and(|found| found.is_some()))
            };
            tokio::select! {
                got = call => got,
                end = connection => panic!("{end:?}"),
            }
        };
        tokio::select! {
            got = ask => got,
            end = serve => panic!("{end:?}"),
        }
    }

    /// Answers one call with a message of this length. Returns the status in the headers, and the
    /// number of bytes that the peer gets.
    async fn large(length: usize, unread: &ByteBudget) -> (Option<String>, usize) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let serve = async {
            let mut connection = h2::server::handshake(near).await.expect("a preface");
            let (_, to) = connection.accept().await.expect("a call").expect("a call");
            let message = GrpcBody::Message(Bytes::from(vec![7; length]));
            let answer = pin!(std::future::ready(response(message)));
            tokio::join!(respond(to, answer, unread), poll_fn(|cx| connection.poll_closed(cx))).0
        };
        let ask = async {
            let (mut send, connection) = h2::client::handshake(far).await.expect("open");
            let call = async {
                let (answer, _) = send.send_request(Request::new(()), true).expect("room");
                let (head, mut body) = answer.await.expect("an answer").into_parts();
                let mut read = 0;
                while let Some(piece) = body.data().await {
                    let piece = piece.expect("a piece").len();
                    body.flow_control().release_capacity(piece).expect("held");
                    read += piece;
                }
                let status = head.headers.get(Status::GRPC_STATUS);
                (status.map(|status| status.to_str().expect("text").to_owned()), read)
            };
            tokio::select! {
                got = call => got,
                end = connection => panic!("{end:?}"),
            }
        };
        tokio::select! {
            got = ask => got,
            end = serve => panic!("{end:?}"),
        }
    }

    #[tokio::test]
    async fn a_large_answer_needs_room_until_it_is_read() {
        let unread = ByteBudget::default();
        for _ in 0..2 {
            assert_eq!(large(1 << 20, &unread).await, (None, 1 << 20));
        }
        let mut others = HeldBytes::new(&unread);
        assert!(others.try_set(PIECES_BYTES_MAX - (1 << 20)));
        assert_eq!(large(1 << 20, &unread).await, (None, 1 << 20), "there is room for one");
        assert_eq!(large((1 << 20) + 1, &unread).await, (Some("8".to_owned()), 0));
        assert_eq!(large(SMALL_BYTES, &unread).await, (None, SMALL_BYTES), "it is not counted");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_although_its_peer_accepts_no_more_data() {
        assert!(ends(vec![piece()], 1).await, "the window is used up");
        assert!(ends(vec![piece(), piece()], 2).await, "it was opened once");
        assert!(!ends(vec![piece(), piece()], 1).await, "a piece still waits");
    }
}
