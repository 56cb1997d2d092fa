//! Why a call failed: its gRPC status.
//!
//! Only the codes that this service sends are here. How a failure is sent: `body` for one answer,
//! `quota_stream` and `health` for a stream.

use crate::wire::reports::FrameError;

/// The gRPC status codes of failed calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcCode {
    Unknown = 2,
    InvalidArgument = 3,
    NotFound = 5,
    ResourceExhausted = 8,
    Unimplemented = 12,
}

/// A failed call: its code and its message.
pub struct CallError(pub GrpcCode, pub String);

/// The status of a call whose message cannot be read.
pub fn failure(fault: FrameError) -> CallError {
    let code = match fault {
        FrameError::Compressed => GrpcCode::Unimplemented,
        FrameError::Long(_) => GrpcCode::ResourceExhausted,
        FrameError::Missing | FrameError::Length => GrpcCode::InvalidArgument,
    };
    CallError(code, fault.to_string())
}
