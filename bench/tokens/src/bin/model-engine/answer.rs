//! The answers of the API: whole ones, and streams that grow as tokens are made.

use crate::ask::Ask;
use crate::batch::Event;
use crate::body::{Body, polled};
use model_bench::TOKEN;
use serde_json::{Value, json};
use std::task::{Poll, ready};
use tokio::sync::mpsc::UnboundedReceiver;

/// The end of a stream.
const DONE: &str = "data: [DONE]\n\n";

/// What all parts of one answer have in common.
pub struct Answer {
    pub ask: Ask,
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
}

impl Answer {
    /// `cached`: tokens of the prompt that were in the prefix cache.
    fn usage(&self, cached: u64) -> Value {
        json!({
            "prompt_tokens": self.ask.prompt,
            "total_tokens": self.ask.prompt + self.ask.output,
            "completion_tokens": self.ask.output,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }

    /// The whole answer.
    pub fn whole(&self, cached: u64) -> String {
        let message =
            json!({"role": "assistant", "content": TOKEN.repeat(self.ask.output as usize)});
        let choice =
            json!({"index": 0, "message": message, "logprobs": null, "finish_reason": "length"});
        let answer = json!({"id": self.id, "object": "chat.completion", "created": self.created,
            "model": self.ask.model, "choices": [choice], "usage": self.usage(cached)});
        answer.to_string()
    }

    /// The body of a stream. When it is dropped the engine sees that the client is gone.
    pub fn stream(self, mut events: UnboundedReceiver<Event>) -> Body {
        let mut made = 0;
        polled(move |context| {
            let text = ready!(events.poll_recv(context)).map(|event| match event {
                Event::Token => {
                    made += 1;
                    self.token(made)
                }
                Event::End { cached } => self.end(cached),
            });
            Poll::Ready(text.map(Into::into))
        })
    }

    fn event(&self, choices: &str, more: &str) -> String {
        let (id, created, model) = (&self.id, self.created, Value::from(self.ask.model.as_str()));
        format!(
            "data: {{\"id\":\"{id}\",\"object\":\"chat.completion.chunk\",\"created\":{created},\
             \"model\":{model},\"choices\":[{choices}]{more}}}\n\n"
        )
    }

    /// The event of the token with this number, from 1. Before the first is one with the role.
    fn token(&self, number: u64) -> String {
        let event = |delta: &str, reason: &str| {
            let choice = format!(
                "{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{reason}}}"
            );
            self.event(&choice, "")
        };
        let reason = if number == self.ask.output { "\"length\"" } else { "null" };
        let token = event(&format!("{{\"content\":\"{TOKEN}\"}}"), reason);
        match number {
            1 => event("{\"role\":\"assistant\",\"content\":\"\"}", "null") + &token,
            _ => token,
        }
    }

    fn end(&self, cached: u64) -> String {
        if !self.ask.includes_usage {
            return DONE.to_owned();
        }
        let usage = format!(",\"usage\":{}", self.usage(cached));
        self.event("", &usage) + DONE
    }
}
