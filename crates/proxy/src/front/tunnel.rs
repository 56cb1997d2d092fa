//! A tunnel after an upgrade: copies bytes in both directions until both sides have ended, or
//! neither has sent anything for too long.
//!
//! The content is not examined and not charged: the request was charged up to the head of the
//! answer. An idle tunnel holds no buffers. Which protocols may be upgraded to: `headers.rs`.

use super::stream::ClientStream;
use crate::context::ThreadContext;
use crate::link::ClientLink;
use crate::wire::halves::UpstreamTunnel;
use bytes::Bytes;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The size of one read, in bytes. At most this many bytes are buffered from a side that writes
/// faster than the other reads.
const PIECE_BYTES: usize = 16 * 1024;

struct TunnelDirection {
    /// Bytes that were read and are not yet written.
    unwritten: Bytes,
    state: DirectionState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectionState {
    Open,
    /// The source has ended; the destination is still to be shut down.
    Ending,
    Ended,
}

impl TunnelDirection {
    fn new(unwritten: Bytes) -> TunnelDirection {
        TunnelDirection { unwritten, state: DirectionState::Open }
    }

    /// Moves what can be moved. Ready when the source has ended and the destination is shut down.
    fn poll(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        moved: &mut bool,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if !self.unwritten.is_empty() {
                let count = ready!(Pin::new(&mut *to).poll_write(cx, &self.unwritten))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                *moved = true;
                let _ = self.unwritten.split_to(count);
                continue;
            }
            match self.state {
                DirectionState::Open => {
                    let _ = Pin::new(&mut *to).poll_flush(cx)?;
                    let mut piece = [0; PIECE_BYTES];
                    let mut buffer = ReadBuf::new(&mut piece);
                    ready!(Pin::new(&mut *from).poll_read(cx, &mut buffer))?;
                    if buffer.filled().is_empty() {
                        self.state = DirectionState::Ending;
                    }
                    self.unwritten = Bytes::copy_from_slice(buffer.filled());
                }
                DirectionState::Ending => {
                    ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                    self.state = DirectionState::Ended;
                }
                DirectionState::Ended => return Poll::Ready(Ok(())),
            }
        }
    }
}

/// Carries bytes between `client`, of which `first` has already been read, and the backend.
pub(super) async fn run<S>(
    thread: &Rc<ThreadContext>,
    link: &ClientLink,
    client: ClientStream<S>,
    first: Bytes,
    backend: UpstreamTunnel,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let UpstreamTunnel { mut reader, mut writer, unread, counted } = backend;
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut up, mut down) = (TunnelDirection::new(first), TunnelDirection::new(unread));
    link.phase.note_tunnel_bytes(thread.now());
    let both = poll_fn(|cx| {
        link.task.set(cx.waker());
        if link.is_closed() {
            return Poll::Ready(Ok(()));
        }
        let mut moved = false;
        let sent = up.poll(&mut from_client, &mut writer, &mut moved, cx);
        let heard = down.poll(&mut reader, &mut to_client, &mut moved, cx);
        if moved {
            link.phase.note_tunnel_bytes(thread.now());
        }
        match (sent, heard) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    });
    if let Err(error) = both.await {
        let client = link.peer.address();
        tracing::debug!(
            target: "evenkeel::proxy", %client, %error,
            "an upgraded connection ended with an error"
        );
    }
    drop(counted);
}
