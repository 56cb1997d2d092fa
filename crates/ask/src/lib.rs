//! The doors that answer questions about requests which other servers serve.
//!
//! `line` speaks the line protocol and RESP, `check` is asked by a web server's access phase, and
//! `zeromq` is the master of gatekeepers. A door turns bytes into a question for the engine and
//! the verdict into bytes. No door decides anything, and none knows another.

pub mod check;
pub mod line;
pub mod zeromq;
