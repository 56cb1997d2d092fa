//! The proxy on real sockets, byte by byte: each test starts the door on a port of its own and
//! plays both the client and the backend.
//!
//! `stage.rs` has the players. Nothing waits for time to pass to be right: every step waits for
//! the bytes, or the end of the connection, that it is about.

mod answers;
mod backends;
mod charging;
mod delivering;
mod failures;
mod framing;
mod front;
mod life;
mod passing;
mod queueing;
mod stage;
mod upgrades;
mod uploading;
