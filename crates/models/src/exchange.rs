//! A request to a language model: what it asks for, and the tokens that its answer uses.
//!
//! How they are read: `evenkeel_usage`. How much they cost: the settings `proxy.tokens`. Bodies
//! pass unchanged, with one exception: a stream is made to report its usage, and the event with the
//! usage is removed again.

use bytes::Bytes;
use evenkeel_config::settings::TokenSettings;
use evenkeel_core::classify::ModelCall;
use evenkeel_engine::{Charge, TokenCosts};
use evenkeel_telemetry::counts::models::{TokenCounts, TokenSource};
use evenkeel_usage::{
    Dialect, ModelRequest, PromptPrefixes, TokenUsage, UsageEventRemover, UsageReader,
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use std::sync::Arc;

/// The bytes of text that count as one token, if no better figure is known.
const BYTES_PER_TOKEN: u64 = 4;

/// One request to a language model, and the usage of its answer so far.
pub struct ModelExchange {
    request: ModelRequest,
    weights: Arc<TokenSettings>,
    reader: Option<UsageReader>,
    /// Whether the answer is a stream.
    is_stream: bool,
    /// The bytes of the answer so far.
    length: u64,
    /// Present if the event with the usage is to be removed from the answer.
    remover: Option<UsageEventRemover>,
}

impl ModelExchange {
    /// The API of the model that a request with this method and path asks, if it asks one. Requests
    /// without a body ask none.
    #[must_use]
    pub fn dialect(method: &str, path: &str) -> Option<Dialect> {
        Dialect::of_path(path).filter(|_| method == "POST")
    }

    /// Reads a request to a model of this API. `begin`: the beginning of its body, of `length`
    /// bytes if that is known.
    #[must_use]
    pub fn new(
        weights: Arc<TokenSettings>,
        dialect: Dialect,
        headers: &HeaderMap,
        begin: &[u8],
        length: Option<u64>,
    ) -> ModelExchange {
        let coding = headers.get(header::CONTENT_ENCODING);
        let plain = coding.is_none_or(|coding| coding.is_empty() || coding == "identity");
        let begin = if plain { begin } else { &[] };
        let request = ModelRequest::read(dialect, begin, length);
        ModelExchange { request, weights, reader: None, is_stream: false, length: 0, remover: None }
    }

    /// The API that the request uses.
    #[must_use]
    pub fn api(&self) -> Dialect {
        self.request.dialect
    }

    /// The figures that the decision on the request needs.
    #[must_use]
    pub fn call(&self) -> ModelCall<'_> {
        let ModelRequest { model, prompt, output_max, .. } = &self.request;
        ModelCall {
            model,
            prompt: self.weights.cost(model, *prompt, 0, 0),
            output: self.weights.cost(model, 0, 0, 1_000),
            output_max: *output_max,
        }
    }

    /// The prefixes of the prompt.
    #[must_use]
    pub fn prefixes(&self) -> PromptPrefixes {
        self.request.prefixes
    }

    /// Asks the backend for an answer that is not compressed.
    pub fn ask_for_plain(headers: &mut HeaderMap) {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }

    /// Prepares the request for the backend, so that its answer is readable. Returns the whole body
    /// `body` as it has to be sent, if it must change so that a stream reports its usage.
    pub fn prepare(&mut self, headers: &mut HeaderMap, body: Option<&[u8]>) -> Option<Bytes> {
        ModelExchange::ask_for_plain(headers);
        if !self.weights.include_usage || headers.contains_key(header::CONTENT_ENCODING) {
            return None;
        }
        let body = Bytes::from(self.request.asking_for_usage(body?)?);
        if headers.contains_key(header::CONTENT_LENGTH) {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        self.remover = Some(UsageEventRemover::new());
        Some(body)
    }

    /// Removes nothing from the answer.
    pub fn pass_unchanged(&mut self) {
        self.remover = None;
    }

    /// Handles the head of the answer, and charges what it says about the cost so far. Returns
    /// whether the model has accepted the request. `charge`: `None` if the account is closed.
    pub fn head(
        &mut self,
        charge: Option<&mut Charge>,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> bool {
        self.begin_answer(status, headers);
        if status.is_success()
            && let Some(charge) = charge
        {
            match self.cost(false) {
                Some(tokens) => charge.set_tokens(tokens),
                None => charge.assume_tokens(),
            }
        }
        status.is_success()
    }

    fn begin_answer(&mut self, status: StatusCode, headers: &HeaderMap) {
        let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let coding = headers.get(header::CONTENT_ENCODING).map_or(&b""[..], HeaderValue::as_bytes);
        let coded = !matches!(coding, b"" | b"identity");
        // A request that is refused has used no tokens.
        let reader = UsageReader::new(self.request.dialect, kind, coding);
        self.reader = reader.filter(|_| status.is_success());
        let is_stream = is_stream(headers);
        self.is_stream = self.request.is_stream || is_stream;
        let is_bounded = headers.contains_key(header::CONTENT_LENGTH);
        self.remover = self.remover.take().filter(|_| is_stream && !is_bounded && !coded);
    }

    /// Handles a piece of the answer, and charges the tokens so far. Returns its bytes for the
    /// client.
    pub fn pass(&mut self, bytes: Bytes, charge: Option<&mut Charge>) -> Bytes {
        self.reader.iter_mut().for_each(|reader| reader.read(&bytes));
        self.length += bytes.len() as u64;
        let passed = match &mut self.remover {
            Some(remover) => remover.pass(bytes),
            None => bytes,
        };
        self.charge(charge, false);
        passed
    }

    /// Handles the end of the answer, and charges its tokens. Returns the rest of the bytes that go
    /// to the client.
    pub fn finish(&mut self, charge: Option<&mut Charge>) -> Bytes {
        self.charge(charge, true);
        self.remover.take().map(|mut remover| remover.finish()).unwrap_or_default()
    }

    fn charge(&self, charge: Option<&mut Charge>, ended: bool) {
        if let (Some(charge), Some(tokens)) = (charge, self.cost(ended)) {
            charge.set_tokens(tokens);
        }
    }

    /// The cost so far; `None` if the tokens are not known. `ended`: the answer is complete, so the
    /// usage that it states is final.
    fn cost(&self, ended: bool) -> Option<TokenCosts> {
        let reader = self.reader.as_ref()?;
        let counted = reader.counted();
        let prompt = self.request.prompt;
        let (mut usage, source) = match reader.stated() {
            Some(stated) if ended || stated.output >= counted => (stated, TokenSource::Stated),
            Some(stated) => (TokenUsage { output: counted, ..stated }, TokenSource::Counted),
            // An answer that is no stream arrives when all of it is made.
            None if !ended && !self.is_stream => return None,
            None => {
                let output = counted.max(self.unstated(ended));
                (TokenUsage { prompt, cached: 0, output }, TokenSource::Counted)
            }
        };
        if usage.prompt == 0 && self.request.dialect == Dialect::Ollama {
            // Ollama does not state a prompt that it had in its cache completely.
            usage = TokenUsage { prompt, cached: prompt, ..usage };
        }
        let TokenUsage { prompt, cached, output } = usage;
        let cost = self.weights.cost(&self.request.model, prompt, cached, output);
        let cached = cached.min(prompt);
        let counts = TokenCounts { prompt: prompt - cached, cached, output };
        Some(TokenCosts { cost, source, counts })
    }

    /// The likely output of a complete text answer that states no tokens and is not a stream.
    fn unstated(&self, ended: bool) -> u64 {
        let is_text = !matches!(
            self.request.dialect,
            Dialect::Embeddings | Dialect::OllamaEmbeddings | Dialect::Media
        );
        if ended && is_text && !self.is_stream { self.length / BYTES_PER_TOKEN } else { 0 }
    }
}

/// Prefixes of the media types of streams.
const STREAM_MEDIA_TYPES: [&[u8]; 2] = [b"text/event-stream", b"application/grpc"];

/// Whether an answer may have no end: a stream of events (WHATWG HTML, 9.2) or a gRPC call. A gRPC
/// call that does end has done its work when the head arrives.
#[must_use]
pub fn is_stream(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is = |kind: &&[u8]| {
        let begin = value.and_then(|value| value.get(..kind.len()));
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(kind))
    };
    STREAM_MEDIA_TYPES.iter().any(is)
}
