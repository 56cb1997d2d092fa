//! Requests to language models, as every door handles them: what is read from requests and
//! answers, what is charged while an answer passes, the answers that Evenkeel makes itself, and
//! which backend gets a request.
//!
//! How tokens are read: `evenkeel_usage`. When a request is decided on, and how its bytes arrive,
//! the doors know. Nothing here waits or does IO.
//!
//! Where to read next: [`ModelExchange`], then `answer.rs` and `choice.rs`.

#![forbid(unsafe_code)]

pub mod affinity;
pub mod answer;
pub mod choice;
mod exchange;

pub use exchange::{ModelExchange, is_stream};
