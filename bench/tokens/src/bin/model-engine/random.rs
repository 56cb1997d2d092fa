//! Streams with random pieces, to compare what arrives through a proxy byte by byte.
//!
//! The same seed gives the same stream: texts in many scripts, tool calls, several choices,
//! comments, both kinds of line ends, and pieces that end in the middle of a character. Two streams
//! of one seed differ only in the event with the usage, which a request may ask for.

use crate::body::{Body, polled};
use bytes::Bytes;
use model_bench::Random;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::task::Poll;

const TEXTS: [&str; 12] = [
    "a",
    " word",
    "\u{e9}t\u{e9}",
    "\u{4f60}\u{597d}",
    "\u{1f9ea}\u{1f3fd}",
    "\"quoted\"",
    "line\nbreak",
    "data: [DONE]",
    "{\"usage\":{\"prompt_tokens\":1}}",
    "\\u0041\\",
    "\u{0}\u{1f}",
    "\u{2028}",
];

/// The pieces of the stream of a seed.
pub struct RandomStream {
    random: Random,
    includes_usage: bool,
    choices: usize,
    output: u64,
    end: &'static str,
}

impl RandomStream {
    pub fn new(seed: u64, includes_usage: bool) -> RandomStream {
        let mut random = Random(seed);
        let choices = 1 + random.below(8).saturating_sub(4);
        let end = ["\n\n", "\n\n", "\n\n", "\r\n\r\n"][random.below(4)];
        RandomStream { random, includes_usage, choices, output: 0, end }
    }

    /// The whole stream, in the pieces that are sent. With the usage, it is cut at other places
    /// than without.
    pub fn pieces(mut self) -> VecDeque<Bytes> {
        let mut text = String::new();
        for _ in 0..1 + self.random.below(40) {
            if self.random.below(16) == 0 {
                text += [": ping", ":", "event: x", "retry: 100"][self.random.below(4)];
                text += self.end;
            }
            let event = self.event();
            self.push(&event, &mut text);
        }
        if self.includes_usage {
            let usage = json!({"prompt_tokens": 9, "completion_tokens": self.output,
                               "total_tokens": 9 + self.output});
            let mut event = self.envelope(Vec::new());
            event["usage"] = usage;
            self.push(&event, &mut text);
        }
        if self.random.below(8) > 0 {
            text += "data: [DONE]";
            text += self.end;
        }
        self.cut(text.into_bytes())
    }

    fn envelope(&self, choices: Vec<Value>) -> Value {
        json!({"id": "chatcmpl-random", "object": "chat.completion.chunk", "created": 1_700_000_000,
               "model": "m", "choices": choices})
    }

    fn event(&mut self) -> Value {
        let count = if self.random.below(4) == 0 { self.choices } else { 1 };
        let choices = (0..count).map(|_| self.choice()).collect();
        self.envelope(choices)
    }

    fn choice(&mut self) -> Value {
        self.output += 1;
        let index = self.random.below(self.choices);
        let delta = match self.random.below(8) {
            0 => json!({"role": "assistant", "content": ""}),
            1 => json!({"tool_calls": [{"index": 0, "id": "call_1", "type": "function",
                        "function": {"name": "look_up", "arguments": ""}}]}),
            2 => json!({"tool_calls": [{"index": 0, "function": {"arguments": self.text()}}]}),
            3 => json!({"reasoning_content": self.text()}),
            4 => json!({}),
            _ => json!({"content": self.text()}),
        };
        let reason = if self.random.below(10) == 0 { json!("stop") } else { Value::Null };
        json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": reason})
    }

    fn text(&mut self) -> String {
        let count = if self.random.below(50) == 0 { 2_000 } else { self.random.below(4) };
        (0..count).map(|_| TEXTS[self.random.below(TEXTS.len())]).collect()
    }

    fn push(&mut self, event: &Value, text: &mut String) {
        *text += "data: ";
        *text += &event.to_string();
        *text += self.end;
    }

    fn cut(&mut self, mut rest: Vec<u8>) -> VecDeque<Bytes> {
        let most = [3, 50, 400, 100_000][self.random.below(4)];
        let mut pieces = VecDeque::new();
        while !rest.is_empty() {
            let length = (1 + self.random.below(most)).min(rest.len());
            // Many pieces of a few bytes would only take time.
            let length = if pieces.len() > 200 { rest.len() } else { length };
            let tail = rest.split_off(length);
            pieces.push_back(Bytes::from(std::mem::replace(&mut rest, tail)));
        }
        pieces
    }
}

/// A body that sends the pieces one by one, each when the connection has been served once more.
pub fn body(mut pieces: VecDeque<Bytes>) -> Body {
    let mut has_waited = false;
    polled(move |context| {
        has_waited = !has_waited;
        if has_waited && !pieces.is_empty() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(pieces.pop_front())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(seed: u64, includes_usage: bool) -> Vec<u8> {
        RandomStream::new(seed, includes_usage).pieces().into_iter().flatten().collect()
    }

    #[test]
    fn the_usage_is_the_only_difference() {
        for seed in 0..200 {
            let (with, without) = (whole(seed, true), whole(seed, false));
            let with = String::from_utf8(with).expect("text");
            let end = if with.contains("\r\n\r\n") { "\r\n\r\n" } else { "\n\n" };
            let usage = |event: &&str| !event.contains("\"choices\":[],");
            let rest: Vec<_> = with.split(end).filter(usage).collect();
            assert_eq!(rest.join(end).as_bytes(), without, "seed {seed}");
        }
    }
}
