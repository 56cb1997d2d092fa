//! The line door on the wire: the real program, real sockets, real Redis clients.
//!
//! Rates are so slow that nothing comes in while a test runs, so no outcome depends on its speed.
//! What is replied at which moment is tested beside the door itself (`doors/line/tests.rs`).

mod abuse;
mod asking;
mod clients;
mod config;
mod life;
mod peers;
mod prefixes;
mod stage;
mod transports;
mod wire;
