//! The master on the wire: the real program, libzmq as the peer, and raw sockets.
//!
//! Requests are reported with times in the future, so the answers depend on these times alone and
//! not on the speed of the test. The decisions themselves are tested beside the engine
//! (`engine/domains/tests.rs`).

mod abuse;
mod doctor;
mod gatekeeper;
mod stage;
mod store;
mod versions;
mod wire;
