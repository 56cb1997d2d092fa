//! Protocols towards clients: HTTP/2 with and without TLS, certificates, and frames that no correct
//! client sends.
//!
//! `http2.rs` has a correct HTTP/2 client, `frames.rs` one that writes arbitrary frames.

mod aside;
mod crowd;
mod cut;
mod forging;
pub mod frames;
mod heads;
pub mod http2;
mod preface;
mod prints;
mod resting;
mod streams;
pub mod tls;
mod tunnels;

pub use tls::Authority;
