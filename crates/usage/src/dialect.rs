//! The APIs of language models that are supported, and their paths.
//!
//! A path is recognised by its end, so a prefix that a gateway or a provider puts before it makes
//! no difference. Backends decode a path before they look it up, so it is read in the same way:
//! otherwise `%63ompletions` would be served without being counted. The form of requests and
//! answers: `request.rs`, `reader`.

use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// The API that a request to a language model uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's chat completions: `/v1/chat/completions`.
    Chat,
    /// OpenAI's completions of a text: `/v1/completions`.
    Completions,
    /// OpenAI's responses: `/v1/responses`.
    Responses,
    /// OpenAI's embeddings, and the ranks and scores of vLLM: `/v1/embeddings`, `/v1/rerank`,
    /// `/v1/score`. They have no output.
    Embeddings,
    /// OpenAI's images and audio, with requests that may be forms instead of JSON:
    /// `/v1/images/generations`, `/v1/audio/transcriptions` and their siblings.
    Media,
    /// Anthropic's messages: `/v1/messages`.
    Messages,
    /// Ollama's chats and texts: `/api/chat`, `/api/generate`.
    Ollama,
    /// Ollama's embeddings: `/api/embed`, `/api/embeddings`. They have no output.
    OllamaEmbeddings,
}

/// The ends of the paths of each API. The first that fits counts.
const ENDS: [(&str, Dialect); 18] = [
    ("/chat/completions", Dialect::Chat),
    ("/completions", Dialect::Completions),
    ("/responses", Dialect::Responses),
    // Other APIs have messages too, such as `/v1/threads/{id}/messages`.
    ("/v1/messages", Dialect::Messages),
    ("/api/chat", Dialect::Ollama),
    ("/api/generate", Dialect::Ollama),
    ("/api/embed", Dialect::OllamaEmbeddings),
    ("/api/embeddings", Dialect::OllamaEmbeddings),
    ("/embeddings", Dialect::Embeddings),
    ("/v1/rerank", Dialect::Embeddings),
    ("/v2/rerank", Dialect::Embeddings),
    ("/v1/score", Dialect::Embeddings),
    ("/images/generations", Dialect::Media),
    ("/images/edits", Dialect::Media),
    ("/images/variations", Dialect::Media),
    ("/audio/transcriptions", Dialect::Media),
    ("/audio/translations", Dialect::Media),
    ("/audio/speech", Dialect::Media),
];

/// Paths that count only as a whole, because many other servers have paths with such an end.
const WHOLE: [&str; 2] = ["/rerank", "/score"];

impl Dialect {
    /// The API at `path`, which has no query. `None` if no tokens are counted there, such as for
    /// `/v1/models` or `/v1/messages/count_tokens`.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Dialect> {
        let path = plain(path);
        if WHOLE.contains(&&*path) {
            return Some(Dialect::Embeddings);
        }
        ENDS.iter().find(|(end, _)| path.ends_with(end)).map(|(_, dialect)| *dialect)
    }

    /// Whether a stream of this API states its usage only if the request asks for it.
    pub(crate) fn must_ask_for_usage(self) -> bool {
        matches!(self, Dialect::Chat | Dialect::Completions)
    }

    /// Whether its answers are streams unless the request says otherwise.
    pub(crate) fn streams_by_default(self) -> bool {
        self == Dialect::Ollama
    }

    /// Whether its answers consist of numbers, so that no token is an output.
    pub(crate) fn has_no_output(self) -> bool {
        matches!(self, Dialect::Embeddings | Dialect::OllamaEmbeddings)
    }
}

/// The path as the most liberal backend reads it: decoded, `\` as a slash, without parameters,
/// empty segments, `.` and `..`. A stricter backend does not find such a path.
fn plain(path: &str) -> Cow<'_, str> {
    let is_odd = path.bytes().any(|byte| matches!(byte, b'%' | b';' | b'\\'));
    if !is_odd && !path.contains("//") && !path.contains("/.") {
        return Cow::Borrowed(path.strip_suffix('/').unwrap_or(path));
    }
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let mut segments = Vec::new();
    for segment in decoded.split(['/', '\\']) {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => _ = segments.pop(),
            name => segments.push(name),
        }
    }
    Cow::Owned(segments.into_iter().flat_map(|name| ["/", name]).collect())
}

#[cfg(test)]
mod tests {
    use super::Dialect;

    #[test]
    fn paths_are_recognised_by_their_end() {
        for (path, dialect) in [
            ("/v1/chat/completions", Some(Dialect::Chat)),
            ("/openai/v1/chat/completions", Some(Dialect::Chat)),
            ("/openai/deployments/gpt-4o/chat/completions", Some(Dialect::Chat)),
            ("/v1beta/openai/chat/completions/", Some(Dialect::Chat)),
            ("/v1/completions", Some(Dialect::Completions)),
            ("/v1/responses", Some(Dialect::Responses)),
            ("/v1/embeddings", Some(Dialect::Embeddings)),
            ("/v1/rerank", Some(Dialect::Embeddings)),
            ("/score", Some(Dialect::Embeddings)),
            ("/v1/images/edits", Some(Dialect::Media)),
            ("/v1/audio/speech", Some(Dialect::Media)),
            ("/v1/messages", Some(Dialect::Messages)),
            ("/anthropic/v1/messages", Some(Dialect::Messages)),
            ("/api/generate", Some(Dialect::Ollama)),
            ("/ollama/api/chat", Some(Dialect::Ollama)),
            ("/api/embed", Some(Dialect::OllamaEmbeddings)),
            ("/api/embeddings", Some(Dialect::OllamaEmbeddings)),
            ("/v1/messages/count_tokens", None),
            ("/v1/threads/t/messages", None),
            ("/v1/models", None),
            ("/game/score", None),
            ("/v1/chat/%63ompletions", Some(Dialect::Chat)),
            ("/v1/%63hat/completions", Some(Dialect::Chat)),
            ("/v1/chat%2Fcompletions", Some(Dialect::Chat)),
            ("/v1//chat//completions//", Some(Dialect::Chat)),
            ("/v1/chat/./completions/%2e", Some(Dialect::Chat)),
            ("/v1/chat;a=b/completions;c", Some(Dialect::Chat)),
            ("/v1/chat\\completions", Some(Dialect::Chat)),
            ("/v1/chat/x/../completions/x/%2E.", Some(Dialect::Chat)),
            ("//score", Some(Dialect::Embeddings)),
            ("/v1/m%6", None),
            ("/v1/%63hat/%25", None),
            ("/../..", None),
            ("/v1/Chat/Completions", None),
            ("", None),
            ("/", None),
        ] {
            assert_eq!(Dialect::of_path(path), dialect, "{path}");
        }
    }
}
