//! The answers of the API: complete ones, and streams that grow as tokens are generated.

use crate::ask::{Ask, Kind};
use crate::batch::Event;
use bytes::Bytes;
use http_body::Frame;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc::UnboundedReceiver;

/// The text of a token: four bytes, as the prompt's are.
const TOKEN: &str = " tok";
/// The end of a stream.
const DONE: &str = "data: [DONE]\n\n";

/// The fields that all parts of one answer share.
pub struct Answer {
    pub ask: Ask,
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
}

impl Answer {
    fn usage(&self, output: u64, cached: u64) -> Value {
        json!({
            "prompt_tokens": self.ask.prompt,
            "total_tokens": self.ask.prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }

    fn object(&self) -> &'static str {
        match (self.ask.kind, self.ask.is_stream) {
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Chat, false) => "chat.completion",
            (Kind::Completion, _) => "text_completion",
            (Kind::Embedding, _) => "list",
        }
    }

    /// The complete answer with this number of output tokens.
    pub fn whole(&self, output: u64, cached: u64) -> Vec<u8> {
        let text = TOKEN.repeat(output as usize);
        let choice = match self.ask.kind {
            Kind::Chat => json!({"index": 0, "message": {"role": "assistant", "content": text},
                                 "logprobs": null, "finish_reason": "length"}),
            Kind::Completion => json!({"index": 0, "text": text, "logprobs": null,
                                       "finish_reason": "length"}),
            Kind::Embedding => return self.embeddings(cached),
        };
        let answer = json!({"id": self.id, "object": self.object(), "created": self.created,
            "model": self.ask.model, "choices": [choice], "usage": self.usage(output, cached)});
        answer.to_string().into_bytes()
    }

    fn embeddings(&self, cached: u64) -> Vec<u8> {
        let one = |index| json!({"object": "embedding", "index": index, "embedding": vec![0.5; 8]});
        let data: Vec<_> = (0..self.ask.inputs).map(one).collect();
        let answer = json!({"id": self.id, "object": self.object(), "created": self.created,
            "model": self.ask.model, "data": data, "usage": self.usage(0, cached)});
        answer.to_string().into_bytes()
    }

    fn event(&self, choices: &str, more: &str) -> String {
        let (id, object, created, model) =
            (&self.id, self.object(), self.created, Value::from(self.ask.model.as_str()));
        format!(
            "data: {{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created},\
             \"model\":{model},\"choices\":[{choices}]{more}}}\n\n"
        )
    }

    /// The event of one token, numbered from 1. The first event of a chat also states the role.
    fn token(&self, number: u64, is_last: bool) -> String {
        let reason = if is_last { "\"length\"" } else { "null" };
        let content = match self.ask.kind {
            Kind::Chat => format!("\"delta\":{{\"content\":\"{TOKEN}\"}}"),
            _ => format!("\"text\":\"{TOKEN}\""),
        };
        let choice =
            format!("{{\"index\":0,{content},\"logprobs\":null,\"finish_reason\":{reason}}}");
        let event = self.event(&choice, "");
        if number > 1 || self.ask.kind != Kind::Chat {
            return event;
        }
        let role = "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\
                    \"logprobs\":null,\"finish_reason\":null}";
        self.event(role, "") + &event
    }

    fn end(&self, output: u64, cached: u64) -> String {
        if !self.ask.includes_usage {
            return DONE.to_owned();
        }
        let usage = format!(",\"usage\":{}", self.usage(output, cached));
        self.event("", &usage) + DONE
    }
}

/// The body of a stream. Dropping it shows the engine that the client has disconnected.
pub struct StreamBody {
    answer: Answer,
    events: UnboundedReceiver<Event>,
    made: u64,
    is_ended: bool,
}

impl StreamBody {
    pub fn new(answer: Answer, events: UnboundedReceiver<Event>) -> StreamBody {
        StreamBody { answer, events, made: 0, is_ended: false }
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.is_ended {
            return Poll::Ready(None);
        }
        let text = match ready!(this.events.poll_recv(context)) {
            Some(Event::Token) => {
                this.made += 1;
                let is_last = this.answer.ask.output == Some(this.made);
                this.answer.token(this.made, is_last)
            }
            Some(Event::End { cached }) => {
                this.is_ended = true;
                this.answer.end(this.made, cached)
            }
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(text)))))
    }
}
