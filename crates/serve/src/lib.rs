//! What every server of the program shares, whatever protocol it speaks.
//!
//! `handover` keeps listening sockets open across processes, `backlog` accepts the clients that
//! wait at a listener before it closes, and `watchdog` reports to systemd that all threads run.
//! What is spoken on a connection is each door's own.

pub mod backlog;
pub mod handover;
pub mod watchdog;
