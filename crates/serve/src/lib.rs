//! The parts that all servers of the program share, for every protocol.
//!
//! `service` is what the program can do with an open door, `threads` are a server's threads and
//! their orders, and `accept` is the loop at a listener. `start` says why a server could not start,
//! `handover` keeps listening sockets open across processes, `backlog` accepts the clients that
//! wait at a listener before it closes, and `watchdog` reports to systemd that all threads run.
//! What is spoken on a connection is each door's own.

pub mod accept;
pub mod backlog;
pub mod handover;
pub mod service;
pub mod start;
pub mod threads;
pub mod watchdog;
