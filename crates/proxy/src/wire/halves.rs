//! The two halves of a connection to the backend, over TCP, TLS or a socket file.
//!
//! A closed enum and not a trait object: over TCP, which is the usual case, a call costs a
//! comparison. How connections are made: `backends/connector.rs`.

use crate::outbox::DeferredStream;
use bytes::Bytes;
use evenkeel_telemetry::registry::GaugeGuard;
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_quickack;
use rustix::net::{RecvFlags, recv};
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::{UnixStream, unix};
use tokio::task::unconstrained;
use tokio_rustls::client::TlsStream;

/// A connection that is not split yet.
pub(crate) enum UpstreamStream {
    Tcp(DeferredStream),
    Tls(Box<TlsStream<DeferredStream>>),
    Unix(UnixStream),
}

/// A connection on which a protocol other than HTTP is spoken.
pub(crate) struct UpstreamTunnel {
    pub(crate) reader: UpstreamReader,
    pub(crate) writer: UpstreamWriter,
    /// Bytes that have been read from the backend already.
    pub(crate) unread: Bytes,
    /// Counts the connection in the metrics of backend connections.
    pub(crate) counted: Option<GaugeGuard>,
}

/// The half that is read from.
pub(crate) enum UpstreamReader {
    Tcp(DeferredStream),
    Tls(ReadHalf<Box<TlsStream<DeferredStream>>>),
    Unix(unix::OwnedReadHalf),
    /// The reader was moved out.
    None,
}

/// The half that is written to.
pub(crate) enum UpstreamWriter {
    Tcp(DeferredStream),
    Tls(WriteHalf<Box<TlsStream<DeferredStream>>>),
    Unix(unix::OwnedWriteHalf),
}

impl UpstreamStream {
    pub(super) fn into_split(self) -> (UpstreamReader, UpstreamWriter) {
        match self {
            UpstreamStream::Tcp(stream) => {
                (UpstreamReader::Tcp(stream.clone()), UpstreamWriter::Tcp(stream))
            }
            UpstreamStream::Tls(stream) => {
                let (reader, writer) = tokio::io::split(stream);
                (UpstreamReader::Tls(reader), UpstreamWriter::Tls(writer))
            }
            UpstreamStream::Unix(stream) => {
                let (reader, writer) = stream.into_split();
                (UpstreamReader::Unix(reader), UpstreamWriter::Unix(writer))
            }
        }
    }
}

impl UpstreamReader {
    /// Whether nothing has arrived, not even the end. The runtime knows what had arrived when it
    /// last asked the system for events, which is enough for a request that can be sent again
    /// (`may_repeat`). For others this asks the system itself. Under TLS a session ticket may have
    /// arrived, which means nothing.
    ///
    /// The runtime reports nothing as ready to a task that has done much since it last yielded.
    /// This check is exempt, because a connection would seem silent that is not.
    pub(super) fn is_silent(&mut self, cx: &mut Context<'_>, may_repeat: bool) -> bool {
        let check = poll_fn(|cx| Poll::Ready(self.has_no_event(cx, may_repeat)));
        matches!(pin!(unconstrained(check)).poll(cx), Poll::Ready(true))
    }

    fn has_no_event(&mut self, cx: &mut Context<'_>, may_repeat: bool) -> bool {
        let mut byte = [0; 1];
        match self {
            UpstreamReader::Tcp(reader) => {
                let stream = reader.socket();
                (may_repeat && stream.poll_read_ready(cx).is_pending()) || has_nothing(&*stream)
            }
            UpstreamReader::Unix(reader) => {
                let stream: &UnixStream = reader.as_ref();
                (may_repeat && stream.poll_read_ready(cx).is_pending()) || has_nothing(stream)
            }
            UpstreamReader::Tls(reader) => {
                let mut buffer = ReadBuf::new(&mut byte);
                Pin::new(reader).poll_read(cx, &mut buffer).is_pending()
            }
            UpstreamReader::None => false,
        }
    }
}

impl UpstreamReader {
    /// Makes the system acknowledge the received bytes at once. A server that writes its answer in
    /// pieces may wait for that before the next one (RFC 896), and the system may delay it (RFC
    /// 1122, 4.2.3.2).
    pub(super) fn acknowledge(&self) {
        if let UpstreamReader::Tcp(reader) = self {
            // If this fails, the connection is only slower.
            let _ = set_tcp_quickack(&*reader.socket(), true);
        }
    }
}

/// Whether the system has received nothing on this socket, not even its end.
fn has_nothing(socket: impl AsFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    recv(socket, &mut [0; 1], flags) == Err(Errno::AGAIN)
}

impl AsyncRead for UpstreamReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            UpstreamReader::Tcp(reader) => Pin::new(reader).poll_read(cx, buffer),
            UpstreamReader::Tls(reader) => Pin::new(reader).poll_read(cx, buffer),
            UpstreamReader::Unix(reader) => Pin::new(reader).poll_read(cx, buffer),
            UpstreamReader::None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for UpstreamWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            UpstreamWriter::Tcp(writer) => Pin::new(writer).poll_write(cx, bytes),
            UpstreamWriter::Tls(writer) => Pin::new(writer).poll_write(cx, bytes),
            UpstreamWriter::Unix(writer) => Pin::new(writer).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            UpstreamWriter::Tcp(writer) => Pin::new(writer).poll_write_vectored(cx, slices),
            UpstreamWriter::Tls(writer) => Pin::new(writer).poll_write_vectored(cx, slices),
            UpstreamWriter::Unix(writer) => Pin::new(writer).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            UpstreamWriter::Tcp(writer) => Pin::new(writer).poll_flush(cx),
            UpstreamWriter::Tls(writer) => Pin::new(writer).poll_flush(cx),
            UpstreamWriter::Unix(writer) => Pin::new(writer).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            UpstreamWriter::Tcp(writer) => Pin::new(writer).poll_shutdown(cx),
            UpstreamWriter::Tls(writer) => Pin::new(writer).poll_shutdown(cx),
            UpstreamWriter::Unix(writer) => Pin::new(writer).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::task::coop;

    /// A task notices unexpected bytes, however much it has done since it last yielded.
    #[tokio::test]
    async fn a_busy_task_notices_bytes_that_have_arrived() {
        let (stream, mut backend) = UnixStream::pair().unwrap();
        let (mut reader, _writer) = UpstreamStream::Unix(stream).into_split();
        assert!(poll_fn(|cx| Poll::Ready(reader.is_silent(cx, true))).await);
        backend.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        let UpstreamReader::Unix(half) = &reader else { unreachable!("made above") };
        half.readable().await.unwrap();
        let noticed = poll_fn(|cx| {
            while let Poll::Ready(step) = coop::poll_proceed(cx) {
                step.made_progress();
            }
            Poll::Ready(!reader.is_silent(cx, true))
        });
        assert!(noticed.await);
    }
}
