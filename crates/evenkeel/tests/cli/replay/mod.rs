//! `evenkeel replay`: it finds the robots planted in a log, its decisions are those of the running
//! proxy, and the program does what its manual page says.
//!
//! `equal` compares it with the engine on one clock, to the nanosecond; `live` with the proxy on
//! real sockets.

mod equal;
mod found;
mod live;
mod program;
mod swarm;
