//! Traces that are sent to a minimal collector: which calls are traced, their attributes, and the
//! effect of a collector that is unreachable or refuses messages.

use crate::ask::{YEARLY, request};
use crate::program::{Server, http};
use bytes::Bytes;
use evenkeel_telemetry::otlp::wire::any_value::Value;
use evenkeel_telemetry::otlp::wire::{ExportTraceServiceRequest, KeyValue, Span, SpanKind};
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::wait_for;
use flate2::read::GzDecoder;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustix::process::Signal;
use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const V3: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// One message to the collector: its path, headers and content.
type Told = (String, HeaderMap, ExportTraceServiceRequest);

/// A collector that refuses the first `unwilling` messages.
struct Collector {
    address: SocketAddr,
    told: Receiver<Told>,
    spans: Vec<Span>,
}

impl Collector {
    fn start(grpc: bool, unwilling: usize) -> Collector {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        listener.set_nonblocking(true).expect("a socket");
        let (tell, told) = channel();
        let unwilling = Arc::new(AtomicUsize::new(unwilling));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                loop {
                    let (stream, _) = listener.accept().await.expect("a connection");
                    let (tell, unwilling) = (tell.clone(), Arc::clone(&unwilling));
                    let service = hyper::service::service_fn(move |request| {
                        answer(request, grpc, tell.clone(), Arc::clone(&unwilling))
                    });
                    let io = TokioIo::new(stream);
                    if grpc {
                        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        tokio::spawn(server.serve_connection(io, service));
                    } else {
                        let server = hyper::server::conn::http1::Builder::new();
                        tokio::spawn(server.serve_connection(io, service));
                    }
                }
            });
        });
        Collector { address, told, spans: Vec::new() }
    }

    fn told(&self) -> Told {
        self.told.recv_timeout(Duration::from_secs(60)).expect("a message in time")
    }

    /// Returns the next span with this name.
    fn span(&mut self, name: &str) -> Span {
        loop {
            if let Some(at) = self.spans.iter().position(|span| span.name == name) {
                return self.spans.remove(at);
            }
            let resources = self.told().2.resource_spans.into_iter();
            let scopes = resources.flat_map(|resource| resource.scope_spans);
            self.spans.extend(scopes.flat_map(|scope| scope.spans));
        }
    }
}

async fn answer(
    request: http::Request<hyper::body::Incoming>,
    grpc: bool,
    tell: Sender<Told>,
    unwilling: Arc<AtomicUsize>,
) -> Result<http::Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    let take = |n: usize| n.checked_sub(1);
    let refuse = unwilling.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
    let mut response = http::Response::new(Full::new(Bytes::new()));
    if grpc {
        let code = if refuse { "14" } else { "0" };
        response.headers_mut().insert("grpc-status", code.parse().expect("a value"));
        response.headers_mut().insert("content-type", "application/grpc".parse().expect("a value"));
    } else if refuse {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    if !refuse {
        let packed = if grpc { &bytes[5..] } else { &bytes[..] };
        let mut plain = Vec::new();
        let zipped = ["content-encoding", "grpc-encoding"].map(|name| head.headers.get(name));
        match zipped.iter().flatten().any(|name| *name == "gzip") {
            true => _ = GzDecoder::new(packed).read_to_end(&mut plain).expect("gzip"),
            false => plain.extend_from_slice(packed),
        }
        let message = ExportTraceServiceRequest::decode(&*plain).expect("a message");
        let _ = tell.send((head.uri.path().to_owned(), head.headers, message));
    }
    Ok(response)
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    let value = found.and_then(|attribute| attribute.value.clone()).and_then(|any| any.value);
    match value.unwrap_or_else(|| panic!("no {key} in {attributes:?}")) {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => panic!("{key} is {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn start(collector: SocketAddr, more: &[(&str, &str)]) -> Server {
    let endpoint = format!("http://{collector}");
    let on = [
        ("TRACING_ENABLED", "true"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ];
    Server::start(YEARLY, &[&on, more].concat())
}

fn parent(flags: &str) -> (String, String) {
    ("traceparent".to_owned(), format!("00-{TRACE}-{PARENT}-{flags}"))
}

#[test]
fn calls_are_spans_of_their_callers_trace() {
    let mut collector = Collector::start(false, 1);
    let server = start(
        collector.address,
        &[
            ("TRACING_SERVICE_NAME", "edge"),
            ("TRACING_SERVICE_NAMESPACE", "shop"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ],
    );
    let grpc = server.grpc();
    let ask = |flags: &str, text: &str| {
        let (name, value) = parent(flags);
        let message = request(text).encode_to_vec();
        grpc.call_with(V3, &[(&name, &value), ("tracestate", "a=1")], &message)
    };
    // The caller does not trace this call, so the service does not either.
    ask("00", "t: k=unseen").expect("an answer");
    ask("01", "t: zero=seen | k=too").expect("an answer");
    // The first message is refused and sent again.
    let (path, headers, message) = collector.told();
    assert_eq!(path, "/v1/traces");
    assert_eq!(headers["api-key"], "secret");
    let resource = message.resource_spans[0].resource.clone().expect("who");
    assert_eq!(text(&resource.attributes, "service.name"), "edge");
    assert_eq!(text(&resource.attributes, "service.namespace"), "shop");
    let scopes = message.resource_spans.into_iter().flat_map(|one| one.scope_spans);
    collector.spans.extend(scopes.flat_map(|scope| scope.spans));

    let call = collector.span(&V3[1..]);
    assert_eq!((hex(&call.trace_id), hex(&call.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert_eq!((call.kind, call.trace_state.as_str()), (SpanKind::Server as i32, "a=1"));
    assert_eq!(text(&call.attributes, "rpc.method"), "ShouldRateLimit");
    assert_eq!(text(&call.attributes, "rpc.grpc.status_code"), "0");
    let decision = collector.span("ShouldRateLimit Execution");
    assert_eq!((&decision.trace_id, &decision.parent_span_id), (&call.trace_id, &call.span_id));
    let within = call.start_time_unix_nano..=call.end_time_unix_nano;
    assert!(within.contains(&decision.start_time_unix_nano));
    assert!(within.contains(&decision.end_time_unix_nano));
    assert_eq!(text(&decision.attributes, "domain"), "t");
    assert_eq!(text(&decision.attributes, "evenkeel.code"), "OVER_LIMIT");
    let asked = text(&decision.attributes, "request string");
    assert!(asked.contains("entries:{key:\"zero\" value:\"seen\"}"), "{asked}");

    // A failed call carries its error; a long request is cut.
    ask("01", "t:").expect_err("no descriptors");
    let call = collector.span(&V3[1..]);
    assert_eq!(text(&call.attributes, "rpc.grpc.status_code"), "2");
    let status = call.status.expect("it failed");
    assert_eq!((status.code, status.message.contains("must not be empty")), (2, true));
    let _ = collector.span("ShouldRateLimit Execution");
    let long = format!("t: k={}", vec!["y".repeat(400); 3].join("|k="));
    ask("01", &long).expect("an answer");
    let decision = collector.span("ShouldRateLimit Execution");
    assert!(text(&decision.attributes, "request string").len() < 1_100);

    let json = r#"{"domain":"t","descriptors":[{"entries":[{"key":"zero","value":"v"}]}]}"#;
    assert_eq!(http(server.http, "POST", "/json", json).0, 429);
    let call = collector.span("POST /json");
    assert_eq!(text(&call.attributes, "http.response.status_code"), "429");
    assert!(call.parent_span_id.is_empty(), "nobody said what it is part of");
}

#[test]
fn a_collector_can_be_told_by_grpc_and_is_told_of_the_last_calls_too() {
    let mut collector = Collector::start(true, 1);
    let server = start(
        collector.address,
        &[("TRACING_EXPORTER_PROTOCOL", "grpc"), ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")],
    );
    server.grpc().call(V3, &request("t: k=v").encode_to_vec()).expect("an answer");
    assert_eq!(text(&collector.span(&V3[1..]).attributes, "rpc.system"), "grpc");
    let mut collector = Collector::start(false, 0);
    let server = start(collector.address, &[("OTEL_BSP_SCHEDULE_DELAY", "3600000")]);
    server.grpc().call(V3, &request("t: k=v").encode_to_vec()).expect("an answer");
    server.signal(Signal::TERM);
    assert_eq!(text(&collector.span(&V3[1..]).attributes, "rpc.system"), "grpc");
}

#[test]
fn a_collector_that_is_away_costs_no_call_and_what_is_lost_is_counted() {
    let port = free_port();
    let admin = format!("127.0.0.1:{}", free_port());
    let server = start(
        SocketAddr::from(([127, 0, 0, 1], port)),
        &[
            ("EVENKEEL_ADMIN", &admin),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "4"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2"),
        ],
    );
    let grpc = server.grpc();
    for _ in 0..100 {
        grpc.call(V3, &request("t: un=v").encode_to_vec()).expect("an answer");
    }
    let admin: SocketAddr = admin.parse().expect("an address");
    wait_for("drops and failures", || {
        let (_, metrics) = http_as(admin, "/metrics");
        let counted = |name: &str| {
            let line = metrics.lines().find(|line| line.starts_with(name))?;
            line.rsplit(' ').next()?.parse::<f64>().ok()
        };
        let dropped = counted("evenkeel_trace_spans_total{result=\"dropped\"}")?;
        let failures = counted("evenkeel_trace_failures_total")?;
        (dropped >= 190.0 && failures >= 1.0).then_some(())
    });
}

/// Sends a request with `Host` set to the address, which the admin port demands.
pub fn http_as(address: SocketAddr, path: &str) -> (u16, String) {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), answer)
}
