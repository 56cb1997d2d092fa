//! A simulated server of a language model, with the API of OpenAI: `model-engine --port N`.
//!
//! It computes nothing, but takes as long as a GPU with continuous batching (`batch`): a step takes
//! a fixed time, plus some for each sequence that gets a token and for each token of a prompt.
//! Requests that do not fit wait, first in, first out. `ask` reads requests. `x_random` asks for a
//! stream of random pieces without delay (`random`). `/metrics`, `/stats` and `/timeline` report
//! what was served, and `POST /reset` clears these figures. One thread.

mod answer;
mod ask;
mod batch;
mod options;
mod prefix;
mod random;
mod report;
mod tally;

use answer::{Answer, StreamBody};
use ask::{Ask, Kind};
use batch::{Batch, Event, Sequence};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use options::Options;
use random::{PiecesBody, RandomStream};
use std::cell::RefCell;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep_until};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A step that begins later than this is counted as late.
const LATE: Duration = Duration::from_millis(100);

/// The engine, shared by its connections and its loop.
struct Engine {
    options: Options,
    batch: RefCell<Batch>,
    /// There is something to compute.
    work: Notify,
    began: Instant,
    requests: RefCell<u64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse(std::env::args().skip(1)).ok_or(options::USAGE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let engine = Rc::new(Engine {
        batch: RefCell::new(Batch::new(options.clone())),
        options,
        work: Notify::new(),
        began: Instant::now(),
        requests: RefCell::new(0),
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
        engine.batch.borrow_mut().finish_step(engine.seconds());
        if next >= sampled + Duration::from_millis(engine.options.sample_ms) {
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

    /// Adds a request to the queue. Its tenant is `x_tenant`, or else the value of `Authorization`.
    fn push(&self, ask: &Ask, headers: &HeaderMap, output: u64) -> Receiver {
        let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = authorization.map(|text| text.trim_start_matches("Bearer "));
        let name = ask.tenant.as_deref().or(token).unwrap_or("-");
        let (events, received) = unbounded_channel();
        let mut batch = self.batch.borrow_mut();
        let tenant = batch.tally.tenant(name);
        let size = (ask.prompt, output);
        batch.push(Sequence::new(tenant, size, ask.hashes.clone(), events, self.seconds()));
        self.work.notify_one();
        received
    }
}

type Receiver = tokio::sync::mpsc::UnboundedReceiver<Event>;

async fn answer(
    engine: Rc<Engine>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let is_post = request.method() == Method::POST;
    match (Kind::of_path(request.uri().path()), request.uri().path()) {
        (Some(kind), _) if is_post => model(engine, kind, request).await,
        (_, "/metrics") => Ok(whole("text/plain", report::metrics(&engine.batch.borrow()))),
        (_, "/stats") => {
            let text = report::stats(&engine.batch.borrow(), engine.seconds()).to_string();
            Ok(whole(JSON, text))
        }
        (_, "/timeline") => Ok(whole(JSON, report::timeline(&engine.batch.borrow()).to_string())),
        (_, "/reset") if is_post => {
            *engine.batch.borrow_mut() = Batch::new(engine.options.clone());
            Ok(whole(JSON, "{}"))
        }
        (_, "/v1/models") => Ok(whole(JSON, r#"{"object":"list","data":[{"id":"m"}]}"#)),
        (_, "/health") => Ok(whole(JSON, "{}")),
        _ => Ok(error(StatusCode::NOT_FOUND, "not found")),
    }
}

async fn model(
    engine: Rc<Engine>,
    kind: Kind,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let Some(mut ask) = Ask::read(kind, &body) else {
        return Ok(error(StatusCode::BAD_REQUEST, "the body is no JSON object"));
    };
    drop(body);
    if let Some(seed) = ask.random {
        let pieces = RandomStream::new(seed, ask.includes_usage).pieces();
        return Ok(response(
            "text/event-stream; charset=utf-8",
            PiecesBody::new(pieces).boxed_unsync(),
        ));
    }
    let room =
        engine.options.max_model_len.min(engine.options.kv_tokens).saturating_sub(ask.prompt);
    if room == 0 {
        return Ok(error(StatusCode::BAD_REQUEST, "the prompt is longer than the model's context"));
    }
    let output = match kind {
        Kind::Embedding => 0,
        _ => ask.output.unwrap_or(engine.options.default_output).clamp(1, room),
    };
    ask.output = Some(output);
    let mut events = engine.push(&ask, &head.headers, output);
    let answer = engine.begin(ask);
    if answer.ask.is_stream {
        let body = StreamBody::new(answer, events).boxed_unsync();
        return Ok(response("text/event-stream; charset=utf-8", body));
    }
    let cached = loop {
        match events.recv().await {
            Some(Event::Token) => {}
            Some(Event::End { cached }) => break cached,
            None => return Ok(error(StatusCode::SERVICE_UNAVAILABLE, "the engine was reset")),
        }
    };
    Ok(whole(JSON, answer.whole(output, cached)))
}

impl Engine {
    fn begin(&self, ask: Ask) -> Answer {
        let mut number = self.requests.borrow_mut();
        *number += 1;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Answer { ask, id: format!("chatcmpl-{:032x}", *number), created }
    }
}

const JSON: &str = "application/json";

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
