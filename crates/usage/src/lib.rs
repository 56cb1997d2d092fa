//! Reads requests to language models, and the tokens that their answers use.
//!
//! Bodies are read from their bytes as they pass, however they are cut, in bounded memory, and are
//! never encoded again. Bytes that are not a request or an answer of the API do no harm and are
//! ignored. There is no IO, no clock and no waiting here, and no price of a token.
//!
//! Where to read next: [`Dialect`] (which API), [`ModelRequest`] (the request), [`UsageReader`]
//! (the answer), [`UsageEventRemover`] (the event that a client did not ask for), and
//! `json.rs`, which all of them read with.

#![forbid(unsafe_code)]

mod dialect;
mod json;
mod number;
mod reader;
mod remover;
mod request;
mod sse;
mod text;
mod value;

pub use dialect::Dialect;
pub use number::TOKENS_MAX;
pub use reader::UsageReader;
pub use reader::counts::TokenUsage;
pub use remover::UsageEventRemover;
pub use request::ModelRequest;
pub use request::prefixes::PromptPrefixes;
pub use value::{VALUE_BYTES_MAX, value_at};
