//! Metrics over gRPC, to a collector that uses HTTP/2 and answers with trailers, as real ones do.

use super::*;
use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// A received message: the path, the headers, the frame.
type Told = (String, HeaderMap, Bytes);

/// The statuses of the answers, in order.
type Statuses = Arc<parking_lot::Mutex<Box<dyn Iterator<Item = &'static str> + Send>>>;

fn all(statuses: impl Iterator<Item = &'static str> + Send + 'static) -> Statuses {
    Arc::new(parking_lot::Mutex::new(Box::new(statuses)))
}

/// Starts a collector that answers with these statuses, and with 0 after the last one.
fn collector(statuses: &Statuses) -> (SocketAddr, Receiver<Told>) {
    let (listener, address) = listener();
    listener.set_nonblocking(true).expect("a socket");
    let (tell, told) = sync_channel(16);
    let statuses = Arc::clone(statuses);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let (tell, statuses) = (tell.clone(), Arc::clone(&statuses));
                let service = hyper::service::service_fn(move |request| {
                    let status = statuses.lock().next().unwrap_or("0");
                    taken(request, status, tell.clone())
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
    });
    (address.parse().expect("an address"), told)
}

async fn taken(
    request: Request<Incoming>,
    status: &'static str,
    tell: SyncSender<Told>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let frame = body.collect().await.expect("a body").to_bytes();
    // This fails if the test has seen enough and reads no more.
    let _ = tell.try_send((head.uri.path().to_owned(), head.headers, frame));
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    trailers.insert("grpc-message", HeaderValue::from_static("as the test wants it"));
    // An empty message without compression.
    let body = Full::new(Bytes::from_static(&[0; 5]));
    let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", kind);
    Ok(response)
}

fn figures(address: SocketAddr, gzip: bool) -> OtlpMetricsSettings {
    OtlpMetricsSettings {
        collector: CollectorSettings {
            endpoint: OtlpEndpoint {
                tls: false,
                authority: address.to_string(),
                path: String::new(),
            },
            protocol: OtlpProtocol::Grpc,
            headers: vec![("api-key".into(), "secret".into())],
            gzip,
            timeout: LONG,
            tls: ClientTls::default(),
        },
        service: "a".into(),
        attributes: Vec::new(),
        every: Duration::from_secs(1),
    }
}

/// The message in a frame, and whether it was compressed.
fn message(frame: &[u8]) -> (ExportMetricsServiceRequest, bool) {
    let length = u32::from_be_bytes(frame[1..5].try_into().expect("four bytes"));
    let body = &frame[5..];
    assert_eq!(length as usize, body.len(), "one frame");
    let packed = frame[0] == 1;
    let mut plain = Vec::new();
    match packed {
        true => _ = GzDecoder::new(body).read_to_end(&mut plain).expect("gzip"),
        false => plain.extend_from_slice(body),
    }
    (ExportMetricsServiceRequest::decode(&*plain).expect("a message"), packed)
}

fn requests_told(request: &ExportMetricsServiceRequest) -> Option<f64> {
    let metrics = &request.resource_metrics.first()?.scope_metrics.first()?.metrics;
    let requests = metrics.iter().find(|metric| metric.name == "evenkeel_requests_total")?;
    let Some(metric::Data::Sum(sum)) = &requests.data else { return None };
    match sum.data_points.first()?.value {
        Some(number_data_point::Value::AsDouble(value)) => Some(value),
        _ => None,
    }
}

#[test]
fn a_collector_is_told_by_grpc_what_it_would_be_told_over_http() {
    for gzip in [false, true] {
        let (address, told) = collector(&all(std::iter::empty()));
        let (watch, clock) = watch();
        watch.proxy.requests.increment(5);
        let settings = MetricsSettings { otlp: Some(figures(address, gzip)), ..settings() };
        let running = start(&settings, &watch, clock, look()).expect("a thread");
        let (path, headers, frame) = told.recv_timeout(LONG).expect("a message");
        assert_eq!(path, "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export");
        let header = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
        assert_eq!(header("content-type"), Some(&b"application/grpc"[..]));
        assert_eq!(header("te"), Some(&b"trailers"[..]));
        assert_eq!(header("api-key"), Some(&b"secret"[..]));
        assert_eq!(header("grpc-encoding"), gzip.then_some(&b"gzip"[..]));
        let (request, packed) = message(&frame);
        assert_eq!((requests_told(&request), packed), (Some(5.0), gzip));
        let said = request.resource_metrics[0].resource.as_ref().expect("a resource");
        assert_eq!(said.attributes[..], [text("service.name", "a")]);
        let counts = PushCounts::new(watch.registry(), "otlp");
        until("it is counted", || counts.lines.get() > 0);
        assert_eq!((counts.failures.get(), counts.dropped.get()), (0, 0));
        drop(running);
    }
}

#[test]
fn what_a_collector_refuses_in_its_trailers_is_counted_and_the_next_says_it_all() {
    // Unavailable once, and then invalid, until the test has seen it.
    let statuses = all(std::iter::once("14").chain(std::iter::repeat("3")));
    let (address, told) = collector(&statuses);
    let (watch, clock) = watch();
    watch.proxy.requests.increment(5);
    let settings = MetricsSettings { otlp: Some(figures(address, true)), ..settings() };
    let running = start(&settings, &watch, clock, look()).expect("a thread");
    let counts = PushCounts::new(watch.registry(), "otlp");
    until("two failures", || counts.failures.get() >= 2);
    assert_eq!(counts.lines.get(), 0, "nothing was taken");
    assert!(counts.dropped.get() > 0);
    watch.proxy.requests.increment(1);
    *statuses.lock() = Box::new(std::iter::empty());
    let next = || {
        let (_, _, frame) = told.recv_timeout(LONG).expect("a message");
        requests_told(&message(&frame).0).expect("a figure")
    };
    assert_eq!([next(), next()], [5.0, 5.0]);
    while next() < 6.0 {}
    until("it is taken", || counts.lines.get() > 0);
    drop(running);
}
