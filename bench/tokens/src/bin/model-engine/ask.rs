//! What a request for a chat asks for: the prompt, the length of the output, the form of the answer.
//!
//! The output is as long as `x_output` states, which no real API has, so that a workload may lie in
//! `max_tokens`; without it as long as `max_tokens`.

use crate::prefix::block_hashes;
use model_bench::TOKEN_BYTES;
use serde_json::Value;

/// The output of a request that states none, in tokens.
const OUTPUT_DEFAULT: u64 = 128;

/// A request, read.
#[derive(Clone, Debug)]
pub struct Ask {
    pub model: String,
    /// The field `x_tenant`, if it is there: some proxies send a key of their own.
    pub tenant: Option<String>,
    /// Tokens of the prompt, at least one.
    pub prompt: u64,
    pub hashes: Vec<u64>,
    /// Tokens of the output.
    pub output: u64,
    pub is_stream: bool,
    pub includes_usage: bool,
    /// The seed of an answer with random pieces, which costs the engine nothing: `x_random`.
    pub random: Option<u64>,
}

impl Ask {
    /// `None`: the body is no JSON object.
    pub fn read(body: &[u8]) -> Option<Ask> {
        let body: Value = serde_json::from_slice(body).ok().filter(Value::is_object)?;
        let mut content = Vec::new();
        collect(&body["messages"], &mut content);
        let number = |name: &str| body[name].as_u64();
        let text = |name: &str| body[name].as_str().map(str::to_owned);
        let most = number("max_completion_tokens").or_else(|| number("max_tokens"));
        Some(Ask {
            model: text("model").unwrap_or_default(),
            tenant: text("x_tenant"),
            prompt: (content.len().div_ceil(TOKEN_BYTES) as u64).max(1),
            hashes: block_hashes(&content),
            output: number("x_output").or(most).unwrap_or(OUTPUT_DEFAULT),
            is_stream: body["stream"] == true,
            includes_usage: body["stream_options"]["include_usage"] == true,
            random: number("x_random"),
        })
    }
}

/// Appends all texts of messages: strings, and those of their parts.
fn collect(value: &Value, into: &mut Vec<u8>) {
    match value {
        Value::String(text) => into.extend_from_slice(text.as_bytes()),
        Value::Array(values) => values.iter().for_each(|one| collect(one, into)),
        Value::Object(_) => ["content", "text"].iter().for_each(|name| collect(&value[name], into)),
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
        let ask = Ask::read(body.as_bytes()).expect("an object");
        assert_eq!((ask.prompt, ask.output, ask.is_stream), (3, 7, true));
        assert_eq!((ask.model.as_str(), ask.tenant.as_deref()), ("m", Some("u")));
    }

    #[test]
    fn max_tokens_may_lie() {
        let body = br#"{"messages":[],"max_tokens":1,"x_output":50}"#;
        let ask = Ask::read(body).expect("an object");
        assert_eq!((ask.output, ask.includes_usage), (50, false));
        assert!(Ask::read(b"[]").is_none());
    }
}
