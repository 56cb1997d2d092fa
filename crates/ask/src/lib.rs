//! The doors that answer questions about requests which other servers serve.
//!
//! `line` speaks the line protocol and RESP, `check` is asked by a web server's access phase,
//! `ext_proc` by Envoy, and `zeromq` is the master of gatekeepers. A door turns bytes into a
//! question for the engine and the verdict into bytes. No door decides anything, and none knows
//! another. `original` is the request that a front asks about, `permit` decides on one at once.

pub mod check;
pub mod ext_proc;
pub mod line;
mod original;
mod permit;
pub mod zeromq;
