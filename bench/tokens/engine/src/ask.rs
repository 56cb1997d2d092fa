//! Reads requests: the prompt, the length of the output and the form of the answer.
//!
//! A token of the prompt is four bytes of content. The output has `x_output` tokens, or
//! `max_tokens` if a request has no `x_output`. No real API has this field. It allows a workload to
//! state a `max_tokens` that differs from the real length.

use crate::prefix::{TOKEN_BYTES, block_hashes};
use serde_json::Value;

/// The forms of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Completion,
    Embedding,
}

impl Kind {
    pub fn of_path(path: &str) -> Option<Kind> {
        match path {
            "/v1/chat/completions" => Some(Kind::Chat),
            "/v1/completions" => Some(Kind::Completion),
            "/v1/embeddings" => Some(Kind::Embedding),
            _ => None,
        }
    }
}

/// A parsed request.
#[derive(Clone, Debug)]
pub struct Ask {
    pub kind: Kind,
    pub model: String,
    /// The field `x_tenant`, if present: some proxies replace the key of the client by their own.
    pub tenant: Option<String>,
    /// Tokens of the prompt, at least one.
    pub prompt: u64,
    pub hashes: Vec<u64>,
    /// The length of the output that the request states, in tokens.
    pub output: Option<u64>,
    pub is_stream: bool,
    pub includes_usage: bool,
    /// `x_random`: the seed of an answer with random pieces, which takes no time of the engine.
    pub random: Option<u64>,
    /// Texts of a request for embeddings.
    pub inputs: usize,
}

impl Ask {
    /// Returns `None` if the body is not a JSON object.
    pub fn read(kind: Kind, body: &[u8]) -> Option<Ask> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let fields = body.as_object()?;
        let mut content = Vec::new();
        for name in ["messages", "prompt", "input"] {
            collect(fields.get(name).unwrap_or(&Value::Null), &mut content);
        }
        let number = |name: &str| fields.get(name).and_then(Value::as_u64);
        let most = number("max_completion_tokens").or_else(|| number("max_tokens"));
        let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Ask {
            kind,
            model: text("model").unwrap_or_default(),
            tenant: text("x_tenant"),
            prompt: (content.len().div_ceil(TOKEN_BYTES) as u64).max(1),
            hashes: block_hashes(&content),
            output: number("x_output").or(most),
            is_stream: fields.get("stream").and_then(Value::as_bool) == Some(true),
            includes_usage: body["stream_options"]["include_usage"].as_bool() == Some(true),
            random: number("x_random"),
            inputs: fields.get("input").and_then(Value::as_array).map_or(1, Vec::len),
        })
    }
}

/// Appends all texts of a prompt: strings, and the texts of messages and their parts.
fn collect(value: &Value, into: &mut Vec<u8>) {
    match value {
        Value::String(text) => into.extend_from_slice(text.as_bytes()),
        Value::Array(values) => values.iter().for_each(|one| collect(one, into)),
        Value::Object(fields) => {
            for name in ["content", "text"] {
                collect(fields.get(name).unwrap_or(&Value::Null), into);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_the_prompt_is_four_bytes_of_content() {
        let body = r#"{"model":"m","max_tokens":7,"stream":true,"x_tenant":"u",
            "messages":[{"role":"system","content":"12345678"},
            {"role":"user","content":[{"type":"text","text":"9"}]}]}"#;
        let ask = Ask::read(Kind::Chat, body.as_bytes()).expect("an object");
        assert_eq!((ask.prompt, ask.output, ask.is_stream), (3, Some(7), true));
        assert_eq!((ask.model.as_str(), ask.tenant.as_deref()), ("m", Some("u")));
    }

    #[test]
    fn max_tokens_may_lie() {
        let body = br#"{"prompt":"a","max_tokens":1,"x_output":50}"#;
        let ask = Ask::read(Kind::Completion, body).expect("an object");
        assert_eq!((ask.output, ask.includes_usage), (Some(50), false));
    }
}
