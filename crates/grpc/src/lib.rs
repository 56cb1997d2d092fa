//! gRPC over HTTP/2, on the crate `h2` directly: a decision takes about a microsecond, so the code
//! around it must not take ten.
//!
//! `worker` has the connections of a thread and calls the service, `call` reads a request and sends
//! its answer, `body` makes answers, `frames` splits bodies into messages, `protobuf` reads their
//! fields, `held_bytes` reads single messages and bounds what incomplete ones hold. What is asked
//! and answered is the business of the doors.

pub mod body;
pub mod call;
pub mod frames;
pub mod held_bytes;
pub mod protobuf;
mod stream;
pub mod worker;
