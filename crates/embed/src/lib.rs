//! Evenkeel within a Rust service: tower layers that decide in the process itself.
//!
//! `limiter` has the limits of a configuration, `gatekeeper` does what a master says. A layer that
//! asks a daemon needs none of this: `evenkeel_client`.

pub mod gatekeeper;
pub mod limiter;

use evenkeel_core::key::KeySeed;
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// A secret of this process, from the system's randomness.
fn seed() -> io::Result<KeySeed> {
    let mut seed = [0; 16];
    match getrandom(&mut seed, GetRandomFlags::empty())? {
        16 => Ok(KeySeed(seed)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
