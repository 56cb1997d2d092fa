//! A small server that speaks the API of language models, as far as Evenkeel reads it.
//!
//! What it answers depends on the request alone: a JSON text, or a stream of as many pieces as
//! `max_tokens` says. The model `endless` stops after its pieces, without an end of the stream, and
//! the model `broken` breaks the connection before any answer.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The tokens of each prompt, and how many of them are in the cache.
pub const PROMPT: u64 = 100;
pub const CACHED: u64 = 40;

/// A request as it has arrived.
#[derive(Clone, Debug)]
pub struct ModelCall {
    /// The lines of the head, in lower case.
    pub head: String,
    pub body: String,
}

/// The server, which runs until the tests end.
pub struct ModelServer {
    pub port: u16,
    calls: Arc<Mutex<Vec<ModelCall>>>,
}

impl ModelServer {
    pub fn start() -> ModelServer {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(any).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&calls);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let calls = Arc::clone(&noted);
                thread::spawn(move || serve(BufReader::new(stream), &calls));
            }
        });
        ModelServer { port, calls }
    }

    /// The requests that have arrived since the last call.
    pub fn take_calls(&self) -> Vec<ModelCall> {
        std::mem::take(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Answers the requests of one connection. `None` when it ends.
fn serve(mut stream: BufReader<TcpStream>, calls: &Mutex<Vec<ModelCall>>) -> Option<()> {
    loop {
        let call = read(&mut stream)?;
        if !call.head.starts_with("post ") {
            // Evenkeel asks for the metrics of an inference engine.
            stream.get_mut().write_all(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n").ok()?;
            continue;
        }
        calls.lock().unwrap_or_else(PoisonError::into_inner).push(call.clone());
        let question: Value = serde_json::from_str(&call.body).unwrap_or_default();
        let most = question["max_tokens"].as_u64().unwrap_or(0);
        if question["model"] == "broken" {
            return None;
        }
        let out = stream.get_mut();
        if question["stream"] != true {
            let path = call.head.split(' ').nth(1).unwrap_or_default();
            let text = plain_answer(path, most).to_string();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
            write!(out, "{head}{}\r\n\r\n{text}", text.len()).ok()?;
            continue;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
        write!(out, "{head}transfer-encoding: chunked\r\n\r\n").ok()?;
        for piece in 0..most {
            send(out, &delta(piece))?;
        }
        if question["model"] == "endless" {
            // Whatever comes next is the end.
            let _ = stream.read(&mut [0; 1]);
            return None;
        }
        if question["stream_options"]["include_usage"] == true {
            send(out, &usage_event(most))?;
        }
        send(out, DONE)?;
        out.write_all(b"0\r\n\r\n").ok()?;
    }
}

/// An answer that is no stream, in the form of the API at this path.
fn plain_answer(path: &str, output: u64) -> Value {
    match path {
        "/v1/messages" => json!({"type": "message", "content": [], "usage": {
            "input_tokens": PROMPT - CACHED, "cache_read_input_tokens": CACHED,
            "output_tokens": output}}),
        "/v1/responses" => json!({"object": "response", "output": [], "usage": {
            "input_tokens": PROMPT, "input_tokens_details": {"cached_tokens": CACHED},
            "output_tokens": output}}),
        "/api/chat" => json!({"message": {"role": "assistant", "content": "a"}, "done": true,
            "prompt_eval_count": PROMPT, "eval_count": output}),
        "/v1/embeddings" => json!({"data": [], "usage": {
            "prompt_tokens": PROMPT, "total_tokens": PROMPT}}),
        _ => json!({"choices": [], "usage": usage(output)}),
    }
}

fn send(out: &mut TcpStream, event: &str) -> Option<()> {
    write!(out, "{:x}\r\n{event}\r\n", event.len()).ok()
}

fn usage(output: u64) -> Value {
    json!({"prompt_tokens": PROMPT, "completion_tokens": output,
           "prompt_tokens_details": {"cached_tokens": CACHED}})
}

fn delta(piece: u64) -> String {
    let choice = json!({"index": 0, "delta": {"content": format!("{piece} ")}});
    format!("data: {}\n\n", json!({"choices": [choice]}))
}

fn usage_event(output: u64) -> String {
    format!("data: {}\n\n", json!({"choices": [], "usage": usage(output)}))
}

const DONE: &str = "data: [DONE]\n\n";

/// The body of a stream of this many pieces.
pub fn stream(pieces: u64, with_usage: bool) -> String {
    let usage = with_usage.then(|| usage_event(pieces));
    (0..pieces).map(delta).chain(usage).chain([DONE.to_owned()]).collect()
}

/// The next request; `None` after the last one.
fn read(stream: &mut BufReader<TcpStream>) -> Option<ModelCall> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let mut body = Vec::new();
    if head.contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let size = usize::from_str_radix(line.trim(), 16).ok()?;
            take(stream, size, &mut body)?;
            stream.read_line(&mut line).ok()?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(rest) = head.split("content-length: ").nth(1) {
        let length = rest.split("\r\n").next()?.parse().ok()?;
        take(stream, length, &mut body)?;
    }
    Some(ModelCall { head, body: String::from_utf8(body).ok()? })
}

fn take(stream: &mut impl Read, size: usize, into: &mut Vec<u8>) -> Option<()> {
    let had = into.len();
    into.resize(had + size, 0);
    stream.read_exact(&mut into[had..]).ok()
}
