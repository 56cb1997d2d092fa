//! Web Bot Auth: which robot has signed a request (RFC 9421, draft-ietf-webbotauth-httpsig).
//!
//! A robot signs each request with a key of its own (Ed25519) and states in `Signature-Input` what
//! it has signed, until when, and with which key. This module reads those fields within bounds
//! (`fields`), finds the key among those that the operator trusts (`keys`), makes the text that was
//! signed from a bounded part of the request (`base`, `sources`), and checks it. Nonces of valid
//! signatures are remembered until they expire (`nonces`). It fetches nothing, reads no clock, and
//! a request without a signature costs one search of its headers. The robots are in `robots`.

mod base;
mod fault;
mod fields;
mod keys;
mod nonces;
mod sources;
mod verify;

pub use base::SignedRequest;
pub use fault::SignatureFault;
pub use keys::{KEY_SET_BYTES_MAX, KeyFault, RobotKey, RobotKeys};
pub use nonces::SeenNonces;
pub use verify::{CLOCK_SKEW_MAX, LIFETIME_MAX, VerifiedRobot, verify};

#[cfg(test)]
mod tests;
