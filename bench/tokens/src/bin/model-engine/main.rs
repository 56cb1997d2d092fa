//! A simulated server of a language model, with OpenAI's API of chats: `model-engine --port N`.
//!
//! It computes nothing, but takes as long as a GPU with continuous batching (`batch`): a step takes
//! a fixed time, plus some for each sequence that gets a token and for each token of a prompt.
//! Requests that do not fit wait, first in, first out. `ask` reads requests. `x_random` asks for a
//! stream of random pieces without delay (`random`). `/metrics`, `/stats` and `/timeline` report
//! what was served, and `POST /reset` clears these figures. One thread.

mod answer;
mod ask;
mod batch;
mod body;
mod options;
mod prefix;
mod random;
mod report;
mod tally;

use answer::Answer;
use ask::Ask;
use batch::{Batch, Event, Sequence};
use body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use options::Options;
use random::RandomStream;
use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep_until};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A step that begins later than this is counted as late.
const LATE: Duration = Duration::from_millis(100);
/// The time between two entries of the timeline.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// The engine, shared by its connections and its loop.
struct Engine {
    options: Options,
    batch: RefCell<Batch>,
    /// There is something to compute.
    work: Notify,
    began: Instant,
    requests: Cell<u64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse(std::env::args().skip(1)).ok_or(options::USAGE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let engine = Rc::new(Engine {
        batch: RefCell::new(Batch::new(options.clone())),
        options,
        work: Notify::new(),
        began: Instant::now(),
        requests: Cell::new(0),
    });
    let local = tokio::task::LocalSet::new();
    Ok(local.block_on(&runtime, serve(engine))?)
}

async fn serve(engine: Rc<Engine>) -> std::io::Result<()> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, engine.options.port).into())?;
    let listener: TcpListener = socket.listen(8_192)?;
    tokio::task::spawn_local(compute(engine.clone()));
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let engine = engine.clone();
        let service = hyper::service::service_fn(move |request| answer(engine.clone(), request));
        tokio::task::spawn_local(async move {
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Computes step after step. A step that began late does not delay the next ones: the engine is as
/// fast as its options say if the CPU is fast enough.
async fn compute(engine: Rc<Engine>) {
    let mut next = Instant::now();
    let mut sampled = next;
    loop {
        let planned = engine.batch.borrow_mut().plan();
        let Some(seconds) = planned else {
            engine.sample();
            engine.work.notified().await;
            next = Instant::now();
            continue;
        };
        next += Duration::from_secs_f64(seconds / engine.options.scale);
        let now = Instant::now();
        if now > next + LATE {
            engine.batch.borrow_mut().tally.late_steps += 1;
            next = now;
        }
        if next > now {
            sleep_until(next).await;
        } else {
            // Steps that take no time must leave time for the connections.
            tokio::task::yield_now().await;
        }
        engine.batch.borrow_mut().finish_step();
        if next >= sampled + SAMPLE_INTERVAL {
            sampled = next;
            engine.sample();
        }
    }
}

impl Engine {
    fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn sample(&self) {
        let mut batch = self.batch.borrow_mut();
        let (running, waiting) = (batch.running(), batch.waiting());
        batch.tally.sample(self.seconds(), running, waiting);
    }

    fn begin(&self, ask: Ask) -> Answer {
        let number = self.requests.get() + 1;
        self.requests.set(number);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Answer { ask, id: format!("chatcmpl-{number:032x}"), created }
    }

    /// Puts a request into the queue. Its tenant: `x_tenant`, or what `Authorization` says.
    fn push(&self, ask: &Ask, headers: &HeaderMap) -> UnboundedReceiver<Event> {
        let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = authorization.map(|text| text.trim_start_matches("Bearer "));
        let name = ask.tenant.as_deref().or(token).unwrap_or("-");
        let (events, received) = unbounded_channel();
        let mut batch = self.batch.borrow_mut();
        let tenant = batch.tally.tenant(name);
        batch.push(Sequence::new(tenant, ask.prompt, ask.output, ask.hashes.clone(), events));
        self.work.notify_one();
        received
    }
}

async fn answer(
    engine: Rc<Engine>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let is_post = request.method() == Method::POST;
    let (kind, text) = match request.uri().path() {
        "/v1/chat/completions" if is_post => return chat(engine, request).await,
        "/metrics" => ("text/plain", report::metrics(&engine.batch.borrow())),
        "/stats" => (JSON, report::stats(&engine.batch.borrow(), engine.seconds()).to_string()),
        "/timeline" => (JSON, report::timeline(&engine.batch.borrow()).to_string()),
        "/reset" if is_post => {
            *engine.batch.borrow_mut() = Batch::new(engine.options.clone());
            (JSON, "{}".to_owned())
        }
        _ => return Ok(error(StatusCode::NOT_FOUND, "not found")),
    };
    Ok(whole(kind, text))
}

async fn chat(
    engine: Rc<Engine>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let Some(mut ask) = Ask::read(&body) else {
        return Ok(error(StatusCode::BAD_REQUEST, "the body is no JSON object"));
    };
    drop(body);
    if let Some(seed) = ask.random {
        let pieces = RandomStream::new(seed, ask.includes_usage).pieces();
        return Ok(response(EVENTS, random::body(pieces)));
    }
    let room = engine.options.kv_tokens.saturating_sub(ask.prompt);
    if room == 0 {
        return Ok(error(StatusCode::BAD_REQUEST, "the prompt is longer than the model's context"));
    }
    ask.output = ask.output.clamp(1, room);
    let mut events = engine.push(&ask, &head.headers);
    let answer = engine.begin(ask);
    if answer.ask.is_stream {
        return Ok(response(EVENTS, answer.stream(events)));
    }
    let cached = loop {
        match events.recv().await {
            Some(Event::Token) => {}
            Some(Event::End { cached }) => break cached,
            None => return Ok(error(StatusCode::SERVICE_UNAVAILABLE, "the engine was reset")),
        }
    };
    Ok(whole(JSON, answer.whole(cached)))
}

fn response(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let value = hyper::header::HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}

fn whole(kind: &'static str, text: impl Into<Bytes>) -> Response<Body> {
    response(kind, Full::new(text.into()).boxed_unsync())
}

fn error(status: StatusCode, message: &str) -> Response<Body> {
    let code = status.as_u16();
    let text = format!(
        "{{\"error\":{{\"message\":\"{message}\",\"type\":\"BadRequestError\",\
         \"param\":null,\"code\":{code}}}}}"
    );
    let mut response = whole(JSON, text);
    *response.status_mut() = status;
    response
}
