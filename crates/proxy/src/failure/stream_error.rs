//! How a stream to a backend ended early (HTTP/2).
//!
//! The library's error types say only that HTTP/2 has failed, so the reason is read from its error
//! messages. A backend that refuses a stream, or ends the connection before it has reached the
//! stream, has not processed the request (RFC 9113, 8.7). An unknown message counts as processed;
//! tests fix the expected messages. What is done then: `wire/call.rs`.

use std::error::Error;

/// The library's message for a stream that the backend refused, and the prefix for one that the
/// backend did not reach.
const REFUSED_STREAM_MESSAGE: &str =
    "stream error received: refused stream before processing any application logic";
const GOAWAY_PREFIX: &str = "connection error received: ";

/// Prefixes of its messages for bytes that are not HTTP/2.
const NOT_HTTP2: [&str; 3] =
    ["connection error detected: ", "stream error detected: ", "protocol error: "];

/// Its message for an HTTP/1.1 answer: the first three bytes are read as a length that is too
/// large.
const HTTP1_ANSWER_MESSAGE: &str = "connection error detected: frame with invalid size";

/// The prefix of its messages about one stream alone, whichever side ended it.
const STREAM_ERROR_PREFIX: &str = "stream error ";

/// How a stream ended early.
#[derive(Debug, thiserror::Error)]
#[error("the backend ended the stream: {said}{}", hint(.said))]
pub(crate) struct StreamError {
    pub(crate) how: StreamErrorKind,
    /// Whether only this stream ended, not the connection.
    pub(crate) alone: bool,
    said: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamErrorKind {
    /// The connection had ended before anything of the request was sent.
    Unsent,
    /// The backend has not processed the request.
    Unprocessed,
    /// One of the two sides has reset the stream.
    Reset,
    /// The answer was not valid HTTP/2.
    Syntax,
    /// The connection has ended.
    Broken,
}

impl StreamError {
    /// Reads the reason from the innermost error of the library.
    pub(crate) fn of(error: &hyper::Error) -> StreamError {
        let mut said = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            said = error.to_string();
            source = error.source();
        }
        StreamError {
            how: StreamErrorKind::told(&said),
            alone: said.starts_with(STREAM_ERROR_PREFIX),
            said: said.into(),
        }
    }

    /// The error of a stream that the backend has reset before the end of its answer.
    pub(crate) fn cut() -> StreamError {
        StreamError {
            how: StreamErrorKind::Reset,
            alone: true,
            said: "reset before the end of the response".into(),
        }
    }

    /// Whether the answer was not valid HTTP/2.
    pub(crate) fn is_syntax(&self) -> bool {
        self.how == StreamErrorKind::Syntax
    }
}

impl StreamErrorKind {
    fn told(said: &str) -> StreamErrorKind {
        match said {
            REFUSED_STREAM_MESSAGE => StreamErrorKind::Unprocessed,
            _ if said.starts_with(GOAWAY_PREFIX) => StreamErrorKind::Unprocessed,
            _ if NOT_HTTP2.iter().any(|begin| said.starts_with(begin)) => StreamErrorKind::Syntax,
            _ if said.starts_with(STREAM_ERROR_PREFIX) => StreamErrorKind::Reset,
            _ => StreamErrorKind::Broken,
        }
    }
}

/// Suggests a likely configuration error if the answer is not HTTP/2.
fn hint(said: &str) -> &'static str {
    match said {
        HTTP1_ANSWER_MESSAGE => "; does it speak HTTP/1.1? write http://",
        _ => "",
    }
}
