//! What the tests of several crates share. No shipped crate depends on it.

#![allow(clippy::unwrap_used)]

pub mod authority;
