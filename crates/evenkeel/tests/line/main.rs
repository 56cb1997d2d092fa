//! The line door on the wire: the real program, real sockets, real Redis clients.
//!
//! Rates are so low that no token returns during a test, so no result depends on its speed. The
//! content of replies at a given moment is tested beside the door itself (`ask/line/tests.rs`).

mod abuse;
mod asking;
mod clients;
mod config;
mod life;
mod peers;
mod prefixes;
mod recipes;
mod stage;
mod transports;
mod turn_clients;
mod turn_pools;
mod turns;
mod wire;
