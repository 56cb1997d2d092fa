//! Reads a request to a language model: the model, the size of the prompt, the permitted output.
//!
//! The length of the prompt is an estimate, because only the model knows its tokens: a quarter of
//! the bytes of its texts, one for each number of a prompt that consists of tokens, and a fixed
//! number for each image, recording or document. The answer states the real number (`reader`).
//!
//! The same members are read for all APIs. A member that an API does not have only makes the
//! estimate of that request wrong.

pub(crate) mod prefixes;
mod sink;
mod stream_options;

use crate::dialect::Dialect;
use crate::json::JsonScanner;
use crate::number::{BYTES_PER_TOKEN, TOKENS_MAX};
use prefixes::PromptPrefixes;
use sink::RequestSink;

/// The longest name of a model that is kept, in bytes.
const MODEL_BYTES_MAX: usize = 200;
/// The tokens that an image, a recording or a document in a prompt counts as: the order of
/// magnitude for a picture of a thousand by a thousand pixels, or for half a minute of speech.
const MEDIA_TOKENS: u64 = 1_000;

/// A request to a language model, as far as its cost is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRequest {
    /// The API that it uses.
    pub dialect: Dialect,
    /// The model that it names, at most 200 bytes; empty if it names none.
    pub model: Box<str>,
    /// Whether it asks for its answer as a stream.
    pub is_stream: bool,
    /// An estimate of the tokens of its prompt, at most [`TOKENS_MAX`]. Images, recordings and
    /// documents count 1000 each.
    pub prompt: u64,
    /// The maximum number of output tokens that it allows, over all the choices that it asks for,
    /// at most [`TOKENS_MAX`]; `None` if it sets no bound.
    pub output_max: Option<u64>,
    /// Whether the answer will state its usage without a change of the request.
    pub reports_usage: bool,
    /// Hashes of the beginning of its prompt.
    pub prefixes: PromptPrefixes,
}

impl ModelRequest {
    /// Reads a request from `begin`, the beginning of its body, which has `length` bytes if that is
    /// known. The rest of the body counts by its length only. A relevant member that is not in
    /// `begin` is taken to be absent.
    #[must_use]
    pub fn read(dialect: Dialect, begin: &[u8], length: Option<u64>) -> ModelRequest {
        let mut sink = RequestSink::new(dialect);
        let mut scanner = JsonScanner::new();
        scanner.read(begin, &mut sink);
        let seen = begin.len() as u64;
        let length = length.unwrap_or(seen).max(seen);
        let prompt = match (scanner.is_broken() || !sink.is_object, dialect) {
            // A form with a file, most likely.
            (true, Dialect::Media) => length.div_ceil(BYTES_PER_TOKEN).min(MEDIA_TOKENS),
            (true, _) => length.div_ceil(BYTES_PER_TOKEN),
            (false, _) => sink.prompt(seen, if scanner.is_done() { 0 } else { length - seen }),
        };
        let is_stream = sink.stream.unwrap_or(dialect.streams_by_default());
        ModelRequest {
            dialect,
            model: sink.model.to_text().into(),
            is_stream,
            prompt: prompt.min(TOKENS_MAX),
            output_max: if dialect.has_no_output() { Some(0) } else { sink.output_max() },
            reports_usage: !(is_stream && dialect.must_ask_for_usage()) || sink.includes_usage,
            prefixes: sink.beginning.prefixes(),
        }
    }

    /// The whole body `body` of this request, changed so that its stream reports its usage. `None`
    /// if no change is needed, or if the body is not a plain and unambiguous JSON object.
    #[must_use]
    pub fn asking_for_usage(&self, body: &[u8]) -> Option<Vec<u8>> {
        if self.reports_usage { None } else { stream_options::with_usage(body) }
    }
}

#[cfg(test)]
mod tests;
