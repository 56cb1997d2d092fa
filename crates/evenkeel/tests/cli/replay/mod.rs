//! `evenkeel replay`: who was planted in a log is found, its decisions are those of the running
//! proxy, and the program does what its page says.
//!
//! `equal` compares with the engine on one clock, to the nanosecond; `live` with the proxy on real
//! sockets.

mod equal;
mod found;
mod live;
mod program;
