//! A connection to a ZeroMQ socket: bytes from and to the system, and the handshake within its
//! time.
//!
//! What comes in is kept up to one message; what goes out is written at once, and who does not take
//! it in time is cut off. The protocol: `zmtp`.

use super::zmtp::{Event, Fault, Role, SIGNATURE, Session, Version};
use crate::watch::counts::master::Refusal;
use bytes::{Buf, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The most bytes of a message: identifiers of 64 kB and some text for the log.
pub const MESSAGE_MAX: usize = 256 * 1024;
/// For the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For what is written to be taken.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are asked for at once.
const READ_BYTES: usize = 64 * 1024;
/// A peer that is silent is asked whether it is there after this.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The other end closed it, or the system did.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other end speaks nonsense.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// It took too long.
    #[error("it did not {0} in time")]
    Late(&'static str),
}

impl Ended {
    /// What a peer is disconnected for, in a word.
    pub fn kind(&self) -> Refusal {
        match self {
            Ended::Fault(Fault::Version(_)) => Refusal::Version,
            Ended::Fault(Fault::Mechanism) => Refusal::Mechanism,
            Ended::Fault(Fault::SocketType) => Refusal::Socket,
            Ended::Late(_) => Refusal::Late,
            Ended::Fault(_) | Ended::Io(_) => Refusal::Other,
        }
    }
}

/// A connection whose handshake is over.
pub struct Link {
    stream: TcpStream,
    session: Session,
    input: BytesMut,
}

impl Link {
    /// Meets the other end.
    ///
    /// # Errors
    /// [`Ended`]: it is no such peer.
    pub async fn meet(stream: TcpStream, role: Role) -> Result<Link, Ended> {
        // Messages are small and shall not wait for each other. A system that cannot do either
        // serves as well, later.
        let _ = stream.set_nodelay(true);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        let session = Session::new(role, MESSAGE_MAX);
        let mut link = Link { stream, session, input: BytesMut::new() };
        timeout(HANDSHAKE_TIMEOUT, link.shake_hands())
            .await
            .map_err(|_| Ended::Late("greet"))??;
        Ok(link)
    }

    async fn shake_hands(&mut self) -> Result<(), Ended> {
        self.stream.write_all(&SIGNATURE).await?;
        loop {
            let mut out = Vec::new();
            let mut met = false;
            while let Some((taken, event)) = self.session.next(&self.input)? {
                match event {
                    Event::Answer(bytes) => out.extend(bytes),
                    Event::Ready => met = true,
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

    /// What the other end speaks.
    pub fn version(&self) -> Version {
        self.session.version()
    }

    /// Waits for more to come in.
    ///
    /// # Errors
    /// [`Ended::Io`], also when the other end has closed.
    pub async fn fill(&mut self) -> Result<(), Ended> {
        self.input.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ => Ok(()),
        }
    }

    /// Hands over each event that has come in whole.
    ///
    /// # Errors
    /// [`Ended::Fault`].
    pub fn drain(&mut self, mut each: impl FnMut(Event<'_>)) -> Result<(), Ended> {
        while let Some((taken, event)) = self.session.next(&self.input)? {
            each(event);
            self.input.advance(taken);
        }
        Ok(())
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// [`Ended`]: they were not taken.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        if bytes.is_empty() {
            return Ok(());
        }
        let written = timeout(WRITE_TIMEOUT, self.stream.write_all(bytes)).await;
        Ok(written.map_err(|_| Ended::Late("read"))??)
    }
}
