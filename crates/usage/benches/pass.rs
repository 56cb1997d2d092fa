//! The cost of looking at what passes: events of a stream, large answers, requests.
//!
//! `cargo bench -p evenkeel-usage --bench pass`. The fastest of some rounds is shown, because other
//! work on the machine only adds time. Each event of a stream is read, and for a client that did
//! not ask for the usage also passed through the remover.

#![allow(missing_docs)]

use bytes::Bytes;
use evenkeel_usage::{Dialect, ModelRequest, UsageEventRemover, UsageReader, value_at};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 20;

/// Shows how long one of `calls` takes that `round` makes, and how fast that is.
fn measure(name: &str, calls: usize, bytes: usize, mut round: impl FnMut()) {
    let time = |_| {
        let begun = Instant::now();
        round();
        begun.elapsed().as_nanos()
    };
    let fastest = (0..ROUNDS).map(time).min().unwrap_or_default() as f64 / calls as f64;
    println!("{name:<40} {fastest:>10.0} ns {:>8.0} MB/s", bytes as f64 * 1e3 / fastest);
}

const EVENT: &str = "data: {\"id\":\"chatcmpl-0c0dd0fa4fae4544998222ce6edde854\",\"object\":\
    \"chat.completion.chunk\",\"created\":1749904312,\"model\":\"meta-llama/Llama-3.1-8B\",\
    \"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\
    \"finish_reason\":null}],\"usage\":null}\n\n";

fn events() {
    const CALLS: usize = 20_000;
    let event = Bytes::from_static(EVENT.as_bytes());
    let new = || UsageReader::new(Dialect::Chat, b"text/event-stream", b"");
    let Some(mut reader) = new() else { return };
    measure("event: read", CALLS, event.len(), || {
        (0..CALLS).for_each(|_| reader.read(black_box(&event)));
    });
    let mut remover = UsageEventRemover::new();
    measure("event: removed or not", CALLS, event.len(), || {
        (0..CALLS).for_each(|_| drop(black_box(remover.pass(black_box(event.clone())))));
    });
    let halves = [event.slice(..100), event.slice(100..)];
    measure("event in two pieces: both", CALLS, event.len(), || {
        for _ in 0..CALLS {
            for half in &halves {
                reader.read(black_box(half));
                drop(black_box(remover.pass(half.clone())));
            }
        }
    });
}

fn embeddings() {
    let vector = format!("[{}0.5]", "-0.012345678,".repeat(3071));
    let item = format!("{{\"object\":\"embedding\",\"index\":0,\"embedding\":{vector}}}");
    let items = vec![&item[..]; 260].join(",");
    let text = format!("{{\"data\":[{items}],\"usage\":{{\"prompt_tokens\":8}}}}");
    for (name, length) in [("embeddings, pieces of 16 KiB", 16 << 10), ("of 1 KiB", 1 << 10)] {
        measure(name, 1, text.len(), || {
            let mut reader = UsageReader::new(Dialect::Embeddings, b"application/json", b"");
            let pieces = text.as_bytes().chunks(length);
            pieces.for_each(|piece| reader.iter_mut().for_each(|reader| reader.read(piece)));
            assert!(reader.is_some_and(|reader| reader.stated().is_some()));
        });
    }
}

fn requests() {
    const CALLS: usize = 50;
    let message = |index: usize| {
        let text = "Some lines of a program, as people paste them.\\n".repeat(20);
        let role = if index.is_multiple_of(2) { "user" } else { "assistant" };
        format!("{{\"role\":\"{role}\",\"content\":\"{text}\"}}")
    };
    for (name, count) in [("a chat of 1 kB", 1), ("a chat of 100 kB", 100)] {
        let messages: Vec<_> = (0..count).map(message).collect();
        let messages = messages.join(",");
        let body = format!("{{\"model\":\"m\",\"messages\":[{messages}],\"stream\":true}}");
        let read = || ModelRequest::read(Dialect::Chat, black_box(body.as_bytes()), None);
        measure(name, CALLS, body.len(), || (0..CALLS).for_each(|_| drop(black_box(read()))));
        let request = read();
        measure("asking for the usage", CALLS, body.len(), || {
            (0..CALLS).for_each(|_| drop(black_box(request.asking_for_usage(body.as_bytes()))));
        });
        measure("one value", CALLS, body.len(), || {
            (0..CALLS).for_each(|_| drop(black_box(value_at(body.as_bytes(), "/user"))));
        });
    }
}

fn main() {
    events();
    embeddings();
    requests();
}
