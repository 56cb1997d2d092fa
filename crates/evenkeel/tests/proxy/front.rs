//! What is spoken in front: HTTP/2 with TLS and without, certificates, frames that no honest client
//! sends.
//!
//! `http2.rs` has a client that speaks it properly, `frames.rs` one that writes any frame it likes.

mod aside;
mod crowd;
mod cut;
mod forging;
pub mod frames;
mod heads;
pub mod http2;
mod preface;
mod resting;
mod streams;
mod tls;
mod tunnels;

pub use tls::Authority;
