//! What a request asks a language model for: the model, how much is read, how much may be written.
//!
//! The length of the prompt is an estimate, as only the model knows its tokens: a quarter of the
//! bytes of its texts, one for each number of a prompt that consists of tokens, and a fixed
//! number for each image, recording or document. The truth comes with the answer (`reader`).
//!
//! Which members are read is the same for all APIs: a member that an API does not have makes the
//! estimate of its own request wrong and nothing else.

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
/// What an image, a recording or a document in a prompt counts, in tokens: the order of what models
/// make of a picture of a thousand by a thousand pixels, or of half a minute of speech.
const MEDIA_TOKENS: u64 = 1_000;

/// What a request asks a language model for.
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
    /// The most tokens of output that it allows, over all the choices that it asks for, at most
    /// [`TOKENS_MAX`]; `None` if it sets no bound.
    pub output_max: Option<u64>,
    /// Whether the answer will state its usage without a change of the request.
    pub reports_usage: bool,
    /// Hashes of the beginning of its prompt.
    pub prefixes: PromptPrefixes,
}

impl ModelRequest {
    /// Reads a request from `begin`, the beginning of its body, which has `length` bytes if that is
    /// known. What `begin` does not contain counts by its length only. A member that matters but is
    /// not in `begin` is taken to be absent.
    #[must_use]
    pub fn read(dialect: Dialect, begin: &[u8], length: Option<u64>) -> ModelRequest {
        let mut sink = RequestSink::new();
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
    /// if nothing is to be done, or if the body is no plain JSON object whose meaning is certain.
    #[must_use]
    pub fn asking_for_usage(&self, body: &[u8]) -> Option<Vec<u8>> {
        if self.reports_usage { None } else { stream_options::with_usage(body) }
    }
}

#[cfg(test)]
mod tests;
