//! How a peer can violate the protocol.
//!
//! After an error the connection is unusable. Messages that are only too large or unwanted are
//! events, not errors: `zmtp`.

/// The maximum claimed length of a frame in bytes; a longer one ends the connection. Up to this
/// length, an oversized frame is skipped, at the sender's cost.
pub const FRAME_MAX: u64 = 1 << 30;
/// A protocol violation by the peer, after which the connection is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// The first bytes are not ZMTP.
    #[error("it does not speak ZMTP")]
    Signature,
    /// The peer's version is not supported.
    #[error("it uses revision {0} of ZMTP, which is not supported; use ZeroMQ 2, 3.2 or later")]
    Version(u8),
    /// The peer's security mechanism is not supported.
    #[error("it requires a security mechanism; only NULL is supported")]
    Mechanism,
    /// The peer's socket type is not the counterpart of this end.
    #[error("its socket type is not allowed: only PUB and SUB sockets can connect")]
    SocketType,
    #[error("its handshake is invalid")]
    Handshake,
    /// A frame has flags that its version does not define.
    #[error("a frame with flags {0:#04x}")]
    Flags(u8),
    /// A frame is longer than [`FRAME_MAX`], or has an invalid length.
    #[error("a frame of {0} bytes")]
    Length(u64),
    /// A command is within a message, or is invalid.
    #[error("an invalid command")]
    Command,
    /// The peer answers the handshake with an error.
    #[error("it answers with an error")]
    Refused,
}
