//! The master on the wire: the real program, libzmq as the other side, and raw sockets.
//!
//! Requests are told with times that lie ahead, so what is answered depends on them alone and not
//! on how fast a test runs. What is decided is tested beside the engine
//! (`engine/domains/tests.rs`).

mod abuse;
mod doctor;
mod gatekeeper;
mod stage;
mod store;
mod versions;
mod wire;
