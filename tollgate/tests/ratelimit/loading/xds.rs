//! Rules over xDS, from a management server of a few lines: what it is told, and what runs
//! meanwhile.

use crate::ask::{request, shown};
use crate::program::{Grpc, Messages, Server, http, wait_for};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tollgate::doors::ratelimit::loader::xds::TYPE_URL;
use tollgate::doors::ratelimit::wire::conf::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use tollgate::doors::ratelimit::wire::discovery::{DiscoveryRequest, DiscoveryResponse};
use tollgate::doors::ratelimit::wire::reports::Frames;
use tollgate::doors::ratelimit::wire::{Response, framed};

const V3: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The other side of the stream that is open.
type Outgoing = Arc<Mutex<Option<mpsc::Sender<Bytes>>>>;

/// A management server.
struct Manager {
    address: SocketAddr,
    outgoing: Outgoing,
    told: Receiver<DiscoveryRequest>,
}

impl Manager {
    fn start(port: u16) -> Manager {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("a port");
        let address = listener.local_addr().expect("bound");
        listener.set_nonblocking(true).expect("a socket");
        let (outgoing, (tell, told)) = (Outgoing::default(), channel());
        let current = Arc::clone(&outgoing);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(serve(listener, current, tell));
        });
        Manager { address, outgoing, told }
    }

    fn told(&self) -> DiscoveryRequest {
        self.told.recv_timeout(Duration::from_secs(60)).expect("a request")
    }

    fn send(&self, version: &str, configs: &[RateLimitConfig]) -> DiscoveryRequest {
        let resource = |config: &RateLimitConfig| prost_types::Any {
            type_url: TYPE_URL.to_owned(),
            value: config.encode_to_vec(),
        };
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            resources: configs.iter().map(resource).collect(),
            type_url: TYPE_URL.to_owned(),
            nonce: format!("nonce {version}"),
        };
        let outgoing = self.outgoing.lock().expect("a lock").clone().expect("a stream");
        outgoing.blocking_send(framed(&response)).expect("sent");
        let told = self.told();
        assert_eq!(told.response_nonce, format!("nonce {version}"));
        told
    }

    fn end_stream(&self) {
        *self.outgoing.lock().expect("a lock") = None;
    }
}

async fn serve(listener: TcpListener, outgoing: Outgoing, tell: Sender<DiscoveryRequest>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let (outgoing, tell) = (Arc::clone(&outgoing), tell.clone());
        let service = hyper::service::service_fn(move |request| {
            let (outgoing, tell) = (Arc::clone(&outgoing), tell.clone());
            async move { Ok::<_, Infallible>(answer(request, &outgoing, tell)) }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
    }
}

fn answer(
    request: http::Request<hyper::body::Incoming>,
    outgoing: &Outgoing,
    tell: Sender<DiscoveryRequest>,
) -> http::Response<impl http_body::Body<Data = Bytes, Error = Infallible> + use<>> {
    assert!(request.uri().path().ends_with("/StreamAggregatedResources"));
    assert_eq!(request.headers()["x-who"], "me");
    let (sender, receiver) = mpsc::channel::<Bytes>(4);
    *outgoing.lock().expect("a lock") = Some(sender);
    tokio::spawn(async move {
        let (mut body, mut frames) = (request.into_body(), Frames::new(1 << 20));
        while let Some(Ok(frame)) = body.frame().await {
            frames.push(&frame.into_data().expect("data"));
            while let Some(message) = frames.take().expect("a frame") {
                let _ = tell.send(DiscoveryRequest::decode(message).expect("a request"));
            }
        }
    });
    let response = http::Response::builder().header("content-type", "application/grpc");
    response.body(Messages(receiver)).expect("a response")
}

fn config(domain: &str, unit: i32, requests_per_unit: u32) -> RateLimitConfig {
    let limit = RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() };
    let descriptor = RateLimitDescriptor {
        key: "k".to_owned(),
        rate_limit: Some(limit),
        ..RateLimitDescriptor::default()
    };
    let (name, domain) = (format!("config {domain}"), domain.to_owned());
    RateLimitConfig { name, domain, descriptors: vec![descriptor] }
}

fn asked(grpc: &Grpc, text: &str) -> String {
    match grpc.call(V3, &request(text).encode_to_vec()) {
        Ok(bytes) => shown(&Response::decode(&*bytes).expect("an answer")),
        Err((code, message)) => format!("{code}: {message}"),
    }
}

fn start(url: &str) -> Server {
    Server::start(
        "domain: unread",
        &[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", url),
            ("CONFIG_GRPC_XDS_NODE_ID", "node"),
            ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b, c=d"),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-who:me"),
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "100ms"),
        ],
    )
}

#[test]
fn rules_come_are_refused_and_outlive_the_server() {
    let manager = Manager::start(0);
    let server = start(&manager.address.to_string());
    let first = manager.told();
    let node = first.node.expect("who asks");
    assert_eq!((first.type_url.as_str(), first.version_info.as_str()), (TYPE_URL, ""));
    assert_eq!((node.id.as_str(), node.metadata.expect("told").fields.len()), ("node", 2));
    let grpc = server.grpc();
    assert_eq!(asked(&grpc, "d: k=1"), "2: no rate limit configuration loaded");

    let taken = manager.send("v1", &[config("d", 3, 5), config("e", 7, 2)]);
    assert_eq!((taken.version_info.as_str(), taken.error_detail), ("v1", None));
    assert_eq!(asked(&grpc, "d: k=1"), "OK [5/HOUR 4]");
    assert_eq!(asked(&grpc, "e: k=1"), "OK [2/WEEK 1]");

    let refused = manager.send("v2", &[config("d", 0, 5), config("d", 3, 5)]);
    let why = refused.error_detail.expect("what is wrong");
    assert_eq!((refused.version_info.as_str(), why.code), ("v1", 3));
    assert!(why.message.contains("config d: invalid rate limit unit ''"), "{}", why.message);
    assert!(why.message.contains("duplicate domain 'd'"), "{}", why.message);
    assert_eq!(asked(&grpc, "d: k=1"), "OK [5/HOUR 3]", "what runs stays");

    // The server asks it to come again; what runs goes on, and so do the counters.
    manager.end_stream();
    let again = manager.told();
    assert_eq!((again.version_info.as_str(), again.node.is_some()), ("v1", true));
    assert_eq!(asked(&grpc, "d: k=1"), "OK [5/HOUR 2]");
    server.signal("HUP");
    manager.send("v3", &[config("d", 3, 10)]);
    assert_eq!(asked(&grpc, "d: k=1"), "OK [10/HOUR 6]");
    assert_eq!(asked(&grpc, "e: k=1"), "OK [-]", "it is the whole state");
    let stats = http(server.debug, "GET", "/stats", "").1;
    for line in ["config_load_success: 2", "config_load_error: 1"] {
        assert!(stats.contains(line), "{stats}");
    }
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let port = crate::envoy::free_port();
    let server = start(&format!("127.0.0.1:{port}"));
    let grpc = server.grpc();
    assert_eq!(asked(&grpc, "d: k=1"), "2: no rate limit configuration loaded");
    let manager = Manager::start(port);
    manager.told();
    manager.send("v1", &[config("d", 3, 5)]);
    wait_for("rules", || (asked(&grpc, "d: k=1 +0") == "OK [5/HOUR 5]").then_some(()));
}
