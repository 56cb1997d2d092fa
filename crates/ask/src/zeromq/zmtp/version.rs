//! The protocol versions of peers.
//!
//! The version of a peer is determined in `greeting`. The differences between versions in a frame
//! are in `frame`.

use std::fmt;

/// The protocol version of a peer. Versions later than 3.0 speak 3.0 to this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZmtpVersion {
    /// ZeroMQ 2. Publishers send everything, since subscribers do not state what they want.
    One,
    /// ZeroMQ 3.2 and later 3.
    Two,
    /// ZeroMQ 4 and later.
    Three,
}

impl fmt::Display for ZmtpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ZmtpVersion::One => "1.0",
            ZmtpVersion::Two => "2.0",
            ZmtpVersion::Three => "3.0",
        })
    }
}
