//! The proxy on real sockets, byte by byte: each test starts the door on a port of its own and
//! plays both the client and the backend.
//!
//! `stage.rs` has both roles. No step relies on time passing: each one waits for the bytes, or for
//! the end of the connection, that it checks.

mod answers;
mod backends;
mod charging;
mod conditions;
mod delivering;
mod failures;
mod framing;
mod front;
mod life;
mod models;
mod models_backends;
mod models_seen;
mod passing;
mod queueing;
mod redirects;
mod stage;
mod upgrades;
mod uploading;
mod waiting;
