//! Streams of external processing as no Envoy opens them, or as many do at once: byte for byte,
//! without an Envoy.

use crate::gate::{evenkeel, metric};
use bytes::Bytes;
use evenkeel_grpc::frames::FrameReader;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::{DEADLINE, until};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::fs;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, Sender, channel};

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// How bodies are sent: the numbers of the protocol.
const STREAMED: u64 = 1;
const BUFFERED: u64 = 2;
const FULL_DUPLEX_STREAMED: u64 = 4;

/// The numbers of the fields of answers.
const PASS_REQUEST: u8 = 1;
const PASS_REQUEST_BODY: u8 = 3;
const PASS_RESPONSE_BODY: u8 = 4;
const IMMEDIATE: u8 = 7;
const WAIT: u8 = 10;

/// Evenkeel with its doors for Envoy.
struct Doors {
    runtime: Runtime,
    process: Program,
    door: u16,
    authz: u16,
    admin: u16,
    _folder: TempDir,
}

impl Doors {
    /// `settings`: those of each door. `proxy`: lines of the section `proxy`.
    fn start(settings: &str, proxy: &str) -> Doors {
        let [door, authz, admin] = [(); 3].map(|()| free_port());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("evenkeel.yaml");
        let text = format!(
            "admin: {{listen: 127.0.0.1:{admin}}}\n\
             ext_proc: {{listen: 127.0.0.1:{door}{settings}}}\n\
             ext_authz: {{listen: 127.0.0.1:{authz}{settings}}}\n\
             proxy:\n  listen: off\n{proxy}"
        );
        fs::write(&path, text).expect("written");
        let mut command = evenkeel();
        command.args(["serve", "--config"]).arg(&path);
        // A connection that only looks whether it listens would count.
        let mut process = Program::start(command);
        process.told("envoy open");
        let runtime = Runtime::new().expect("a runtime");
        Doors { runtime, process, door, authz, admin, _folder: folder }
    }

    fn connect(&self, port: u16) -> SendRequest<Sent> {
        self.runtime.block_on(async {
            let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
            let made = handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
            let (sender, connection) = made.expect("HTTP/2");
            tokio::spawn(connection);
            sender
        })
    }

    /// The memory that the process has, in MiB.
    fn memory_mib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        let kib: u64 = line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("KiB");
        kib >> 10
    }

    fn waiting(&self) -> f64 {
        metric(self.admin, "evenkeel_waiting_requests", &[("door", "proxy")])
    }
}

/// The bytes that a caller sends.
struct Sent(Receiver<Bytes>);

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// One stream.
struct Call {
    outgoing: Sender<Bytes>,
    incoming: Incoming,
    frames: FrameReader,
}

/// What arrives on a stream.
#[derive(Debug, PartialEq)]
enum Arrived {
    /// An answer with this field.
    Answer(u8),
    /// The end, with the code of its status.
    End(String),
}

impl Call {
    async fn open(mut sender: SendRequest<Sent>, path: &str) -> hyper::Result<Call> {
        let (outgoing, sent) = channel(16);
        let request = http::Request::post(format!("http://door{path}"))
            .header("content-type", "application/grpc")
            .body(Sent(sent))
            .expect("a request");
        let response = sender.send_request(request).await?;
        let frames = FrameReader::new(64 << 20);
        Ok(Call { outgoing, incoming: response.into_body(), frames })
    }

    fn send(&self, bytes: impl Into<Bytes>) {
        self.outgoing.try_send(bytes.into()).expect("the stream is open");
    }

    async fn next(&mut self) -> Arrived {
        loop {
            if let Some(message) = self.frames.take().expect("frames") {
                return Arrived::Answer(message[0] >> 3);
            }
            let frame = tokio::time::timeout(DEADLINE, self.incoming.frame()).await;
            match frame.expect("an answer in time").expect("an end").expect("no reset").into_data()
            {
                Ok(bytes) => self.frames.push(bytes),
                Err(frame) => {
                    let trailers = frame.into_trailers().expect("trailers");
                    let status = trailers["grpc-status"].to_str().expect("text");
                    return Arrived::End(status.to_owned());
                }
            }
        }
    }

    /// The next answer that does not ask for time.
    async fn answer(&mut self) -> Arrived {
        match self.next().await {
            Arrived::Answer(WAIT) => self.next().await,
            other => other,
        }
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    [&varint(field << 3 | 2)[..], &varint(content.len() as u64), content].concat()
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short");
    [&[0][..], &length.to_be_bytes(), message].concat()
}

/// A message with these headers in this field, and how bodies are sent.
fn head(field: u64, headers: &[(&str, &str)], mode: u64) -> Vec<u8> {
    let header =
        |(name, value): &(&str, &str)| [bytes(1, name.as_bytes()), bytes(3, value.as_bytes())];
    let headers = headers.iter().flat_map(|one| bytes(1, &header(one).concat()));
    let headers = bytes(1, &headers.collect::<Vec<u8>>());
    let modes = [number(1, mode), number(2, mode)].concat();
    framed(&[bytes(field, &headers), bytes(11, &modes)].concat())
}

fn request_head(path: &str, mode: u64) -> Vec<u8> {
    let of = |name, value| (name, value);
    let method = of(":method", "POST");
    head(2, &[method, of(":path", path), of(":scheme", "http"), of(":authority", "site")], mode)
}

/// A message with a piece of a body in this field.
fn piece(field: u64, body: &[u8], ends: bool) -> Vec<u8> {
    framed(&bytes(field, &[bytes(1, body), number(2, ends.into())].concat()))
}

/// A prompt of nearly 4 MiB.
fn long_prompt() -> Vec<u8> {
    let text = "x".repeat((4 << 20) - 1_000);
    format!(
        r#"{{"model":"m","stream":true,"max_tokens":5,
        "messages":[{{"role":"user","content":"{text}"}}]}}"#
    )
    .into_bytes()
}

/// All large messages together have a bound. Beyond it they are not read on, which ends none of
/// their streams; and what has been read is not kept.
#[test]
fn prompts_that_arrive_at_once_wait_until_there_is_room_for_them() {
    const CALLS: usize = 120;
    let doors = Doors::start("", "  preset: openai\n  queue: {concurrency: 1, reserve: 0}\n");
    let message = Bytes::from(piece(4, &long_prompt(), true));
    let (most, last) = (message.slice(..message.len() - 1), message.slice(message.len() - 1..));
    let begun = Arc::new(AtomicUsize::new(0));
    let calls: Vec<Call> = (0..CALLS)
        .map(|_| {
            let sender = doors.connect(doors.door);
            doors.runtime.block_on(async {
                let mut call = Call::open(sender, PROCESS).await.expect("a stream");
                call.send(request_head("/v1/chat/completions", BUFFERED));
                assert_eq!(call.next().await, Arrived::Answer(PASS_REQUEST));
                call.send(most.clone());
                call
            })
        })
        .collect();
    // More than fits is on its way; how much of it has been read shows in the memory.
    until("much of it is read", || doors.memory_mib() > 200);
    let ends: Vec<_> = calls
        .into_iter()
        .map(|mut call| {
            let (last, begun) = (last.clone(), Arc::clone(&begun));
            doors.runtime.spawn(async move {
                call.send(last);
                let arrived = call.next().await;
                begun.fetch_add(1, Relaxed);
                (arrived, call)
            })
        })
        .collect();
    let mut calls = Vec::new();
    for end in ends {
        let (arrived, call) = doors.runtime.block_on(end).expect("it ran");
        assert!(matches!(arrived, Arrived::Answer(WAIT | PASS_REQUEST_BODY)), "{arrived:?}");
        calls.push(call);
    }
    assert_eq!(begun.load(Relaxed), CALLS);
    until("all but one wait", || doors.waiting() == (CALLS - 1) as f64);
    until("what is not needed is given back", || doors.memory_mib() < 420);
}

#[test]
fn a_refusal_ends_the_stream_whatever_else_arrives() {
    let deny = "  limits: [{name: none, when: {path: /no}, action: deny}]\n";
    let doors = Doors::start("", deny);
    let sender = doors.connect(doors.door);
    doors.runtime.block_on(async {
        for mode in [STREAMED, FULL_DUPLEX_STREAMED] {
            let mut call = Call::open(sender.clone(), PROCESS).await.expect("a stream");
            let more = [piece(4, b"a", false), piece(4, b"b", true), request_head("/yes", mode)];
            call.send([request_head("/no", mode), more.concat()].concat());
            assert_eq!(call.next().await, Arrived::Answer(IMMEDIATE));
            assert_eq!(call.next().await, Arrived::End("0".to_owned()));
        }
    });
}

/// Bodies with trailers can be changed only before these, so nothing of them is held back.
#[test]
fn an_event_that_is_not_complete_before_trailers_passes() {
    let doors = Doors::start("", "  preset: openai\n");
    let sender = doors.connect(doors.door);
    doors.runtime.block_on(async {
        let mut call = Call::open(sender, PROCESS).await.expect("a stream");
        let headers = |trailer: &'static str| {
            [(":status", "200"), ("content-type", "text/event-stream"), ("trailer", trailer)]
        };
        // The body is replaced, so that the stream reports its usage.
        let modes = [number(1, BUFFERED), number(2, STREAMED)].concat();
        let request = request_head("/v1/chat/completions", BUFFERED);
        let request = [&request[5..], &bytes(11, &modes)].concat();
        call.send(framed(&request));
        assert_eq!(call.next().await, Arrived::Answer(PASS_REQUEST));
        call.send(piece(4, br#"{"model":"m","stream":true,"messages":[]}"#, true));
        assert_eq!(call.answer().await, Arrived::Answer(PASS_REQUEST_BODY));
        call.send(head(3, &headers("x-end"), STREAMED));
        assert_eq!(call.next().await, Arrived::Answer(2));
        call.send(piece(5, br#"data: {"choices":[],"#, false));
        // An answer without a change has an empty field.
        let mut unchanged = Vec::new();
        while unchanged.len() < 7 {
            let frame = call.incoming.frame().await.expect("a frame").expect("sound");
            unchanged.extend_from_slice(&frame.into_data().expect("data"));
        }
        assert_eq!(unchanged, framed(&bytes(PASS_RESPONSE_BODY.into(), b"")));
    });
}

#[test]
fn each_door_has_its_own_bound_of_connections() {
    let doors = Doors::start(", connections_max: 1", "");
    let first = doors.connect(doors.door);
    doors.runtime.block_on(async {
        let mut call = Call::open(first.clone(), PROCESS).await.expect("a stream");
        call.send(request_head("/", 0));
        assert_eq!(call.next().await, Arrived::Answer(PASS_REQUEST));
    });
    let beyond = doors.connect(doors.door);
    assert!(doors.runtime.block_on(Call::open(beyond, PROCESS)).is_err());
    let other = doors.connect(doors.authz);
    doors.runtime.block_on(async {
        let (outgoing, sent) = channel(16);
        outgoing.try_send(Bytes::from(framed(b""))).expect("open");
        drop(outgoing);
        let request = http::Request::post(format!("http://door{CHECK}")).body(Sent(sent));
        let mut other = other;
        let response = other.send_request(request.expect("a request")).await.expect("an answer");
        assert_eq!(response.status(), 200);
    });
}
