//! A connection to a ZeroMQ socket: reads and writes its bytes, and does the handshake within a
//! time limit.
//!
//! Input is buffered up to one message. Output is written at once, and a peer that does not read it
//! in time is disconnected. The protocol: `zmtp`.

use super::zmtp::{SIGNATURE, SocketRole, ZmtpError, ZmtpEvent, ZmtpSession, ZmtpVersion};
use bytes::{Buf, BytesMut};
use evenkeel_telemetry::counts::master::MasterDisconnectReason;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The maximum size of a message in bytes: identifiers of 64 kB and some text for the log.
pub const MESSAGE_MAX: usize = 256 * 1024;
/// The time limit for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for the peer to read what is written.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The size of one read, in bytes.
const READ_BYTES: usize = 64 * 1024;
/// The time without traffic after which TCP checks whether the peer is still reachable.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ZmqConnectionError {
    /// The peer or the system closed it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer violates the protocol.
    #[error("{0}")]
    Fault(#[from] ZmtpError),
    /// The peer took too long.
    #[error("it did not {0} in time")]
    Late(&'static str),
}

impl ZmqConnectionError {
    /// Returns the reason for a disconnection as a metrics label.
    pub fn kind(&self) -> MasterDisconnectReason {
        match self {
            ZmqConnectionError::Fault(ZmtpError::Version(_)) => MasterDisconnectReason::Version,
            ZmqConnectionError::Fault(ZmtpError::Mechanism) => MasterDisconnectReason::Mechanism,
            ZmqConnectionError::Fault(ZmtpError::SocketType) => MasterDisconnectReason::Socket,
            ZmqConnectionError::Late(_) => MasterDisconnectReason::Late,
            ZmqConnectionError::Fault(_) | ZmqConnectionError::Io(_) => {
                MasterDisconnectReason::Other
            }
        }
    }
}

/// A connection with a completed handshake.
pub struct ZmqLink {
    stream: TcpStream,
    session: ZmtpSession,
    input: BytesMut,
}

impl ZmqLink {
    /// Does the handshake with the peer.
    ///
    /// # Errors
    /// [`ZmqConnectionError`]: the peer is not a suitable socket.
    pub async fn meet(stream: TcpStream, role: SocketRole) -> Result<ZmqLink, ZmqConnectionError> {
        // Messages are small and must not wait for each other. Without these options the connection
        // still works, with more delay.
        let _ = stream.set_nodelay(true);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        let session = ZmtpSession::new(role, MESSAGE_MAX);
        let mut link = ZmqLink { stream, session, input: BytesMut::new() };
        timeout(HANDSHAKE_TIMEOUT, link.shake_hands())
            .await
            .map_err(|_| ZmqConnectionError::Late("greet"))??;
        Ok(link)
    }

    async fn shake_hands(&mut self) -> Result<(), ZmqConnectionError> {
        self.stream.write_all(&SIGNATURE).await?;
        loop {
            let mut out = Vec::new();
            let mut met = false;
            while let Some((taken, event)) = self.session.next(&self.input)? {
                match event {
                    ZmtpEvent::Answer(bytes) => out.extend(bytes),
                    ZmtpEvent::Ready => met = true,
                    _ => {}
                }
                self.input.advance(taken);
                if met {
                    break;
                }
            }
            self.stream.write_all(&out).await?;
            if met {
                return Ok(());
            }
            self.fill().await?;
        }
    }

    /// Returns the protocol version of the peer.
    pub fn version(&self) -> ZmtpVersion {
        self.session.version()
    }

    /// Waits for more input.
    ///
    /// # Errors
    /// [`ZmqConnectionError::Io`], also if the peer has closed the connection.
    pub async fn fill(&mut self) -> Result<(), ZmqConnectionError> {
        self.input.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ => Ok(()),
        }
    }

    /// Calls `each` for every event that has arrived completely.
    pub fn drain(&mut self, mut each: impl FnMut(ZmtpEvent<'_>)) -> Result<(), ZmqConnectionError> {
        while let Some((taken, event)) = self.session.next(&self.input)? {
            each(event);
            self.input.advance(taken);
        }
        Ok(())
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// [`ZmqConnectionError`]: the peer did not read them.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), ZmqConnectionError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let written = timeout(WRITE_TIMEOUT, self.stream.write_all(bytes)).await;
        Ok(written.map_err(|_| ZmqConnectionError::Late("read"))??)
    }
}
