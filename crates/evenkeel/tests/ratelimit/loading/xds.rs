//! Rules over xDS from a minimal management server: the acknowledgements that it gets, the rules in
//! force in the meantime, and the authorities that both sides trust with TLS.

use crate::ask::{request, shown};
use crate::program::{Grpc, Messages, Server, http};
use crate::server::tls::Authority;
use bytes::Bytes;
use evenkeel_grpc::frames::{FrameReader, encode_frame};
use evenkeel_ratelimit::loader::xds::TYPE_URL;
use evenkeel_ratelimit::wire::Response;
use evenkeel_ratelimit::wire::conf::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use evenkeel_ratelimit::wire::discovery::{DiscoveryRequest, DiscoveryResponse};
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::wait_for;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustix::process::Signal;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

const V3: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The sending side of the open stream.
type Outgoing = Arc<Mutex<Option<mpsc::Sender<Bytes>>>>;

/// A minimal management server.
struct Manager {
    address: SocketAddr,
    outgoing: Outgoing,
    told: Receiver<DiscoveryRequest>,
    /// The result of the TLS handshake of each connection.
    greeted: Receiver<Result<(), String>>,
}

impl Manager {
    fn start(port: u16) -> Manager {
        Manager::start_with(port, None)
    }

    fn start_with(port: u16, tls: Option<TlsAcceptor>) -> Manager {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("a port");
        let address = listener.local_addr().expect("bound");
        listener.set_nonblocking(true).expect("a socket");
        let (outgoing, (tell, told)) = (Outgoing::default(), channel());
        let (greet, greeted) = channel();
        let current = Arc::clone(&outgoing);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                loop {
                    let (stream, _) = listener.accept().await.expect("a connection");
                    let Some(tls) = &tls else {
                        serve(stream, &current, &tell);
                        continue;
                    };
                    let accepted = tls.accept(stream).await;
                    let _ = greet.send(accepted.as_ref().map(|_| ()).map_err(ToString::to_string));
                    accepted.into_iter().for_each(|stream| serve(stream, &current, &tell));
                }
            });
        });
        Manager { address, outgoing, told, greeted }
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
        outgoing.blocking_send(encode_frame(&response)).expect("sent");
        let told = self.told();
        assert_eq!(told.response_nonce, format!("nonce {version}"));
        told
    }

    fn end_stream(&self) {
        *self.outgoing.lock().expect("a lock") = None;
    }
}

fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    outgoing: &Outgoing,
    tell: &Sender<DiscoveryRequest>,
) {
    let (outgoing, tell) = (Arc::clone(outgoing), tell.clone());
    let service = hyper::service::service_fn(move |request| {
        let (outgoing, tell) = (Arc::clone(&outgoing), tell.clone());
        async move { Ok::<_, Infallible>(answer(request, &outgoing, tell)) }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
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
        let (mut body, mut frames) = (request.into_body(), FrameReader::new(1 << 20));
        while let Some(Ok(frame)) = body.frame().await {
            frames.push(frame.into_data().expect("data"));
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
    start_with(url, &[])
}

fn start_with(url: &str, more: &[(&str, &str)]) -> Server {
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", url),
        ("CONFIG_GRPC_XDS_NODE_ID", "node"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b, c=d"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-who:me"),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "100ms"),
        ("RESPONSE_DYNAMIC_METADATA", "true"),
    ];
    Server::start("domain: unread", &[&variables, more].concat())
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

    let taken = manager.send("v1", &[config("d", 6, 5), config("e", 7, 2)]);
    assert_eq!((taken.version_info.as_str(), taken.error_detail), ("v1", None));
    assert_eq!(asked(&grpc, "d: k=1"), "OK [5/YEAR 4]");
    assert_eq!(asked(&grpc, "e: k=1"), "OK [2/WEEK 1]");

    let refused = manager.send("v2", &[config("d", 0, 5), config("d", 6, 5)]);
    let why = refused.error_detail.expect("what is wrong");
    assert_eq!((refused.version_info.as_str(), why.code), ("v1", 3));
    assert!(why.message.contains("config d: invalid rate limit unit ''"), "{}", why.message);
    assert!(why.message.contains("duplicate domain 'd'"), "{}", why.message);
    assert_eq!(asked(&grpc, "d: k=1"), "OK [5/YEAR 3]", "what runs stays");

    // The server ends the stream and the service reconnects. The rules in force and the counters
    // stay.
    manager.end_stream();
    let again = manager.told();
    assert_eq!((again.version_info.as_str(), again.node.is_some()), ("v1", true));
    assert_eq!(asked(&grpc, "d: k=1"), "OK [5/YEAR 2]");
    server.signal(Signal::HUP);
    manager.send("v3", &[config("d", 6, 10)]);
    assert_eq!(asked(&grpc, "d: k=1"), "OK [10/YEAR 6]");
    assert_eq!(asked(&grpc, "e: k=1"), "OK [-]", "it is the whole state");
    let stats = http(server.debug, "GET", "/stats", "").1;
    for line in ["config_load_success: 2", "config_load_error: 1"] {
        assert!(stats.contains(line), "{stats}");
    }
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let port = free_port();
    let server = start(&format!("127.0.0.1:{port}"));
    let grpc = server.grpc();
    assert_eq!(asked(&grpc, "d: k=1"), "2: no rate limit configuration loaded");
    let manager = Manager::start(port);
    manager.told();
    manager.send("v1", &[config("d", 6, 5)]);
    wait_for("rules", || (asked(&grpc, "d: k=1 +0") == "OK [5/YEAR 5]").then_some(()));
}

#[test]
fn over_tls_both_sides_show_who_they_are() {
    let authority = Authority::new();
    authority.sign("rules", "rules.example");
    authority.sign("me", "me.example");
    let manager = Manager::start_with(0, Some(authority.acceptor("rules")));
    let url = manager.address.to_string();
    let [cert, key, ca] = ["me.crt", "me.key", "ca.pem"].map(|name| authority.path(name));
    let on = ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
    let believe = ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ca.as_str());
    let name = ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "rules.example");
    let (cert, key) = (
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", cert.as_str()),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key.as_str()),
    );
    let strangers = Authority::new();
    let stranger = strangers.path("ca.pem");
    let [system, other] = [ca.as_str(), stranger.as_str()].map(|file| ("SSL_CERT_FILE", file));
    for (variables, fault) in [
        // The server's certificate is not valid for its address, or is not from an authority of the
        // system.
        (&[on, believe, cert, key][..], "fatal alert"),
        (&[on, other, name, cert, key], "fatal alert"),
        // The server demands a client certificate.
        (&[on, believe, name], "no certificates"),
    ] {
        let _refused = start_with(&url, variables);
        // Results of the previous instance's connections may arrive first.
        wait_for(fault, || {
            let why = manager.greeted.try_recv().ok()?.expect_err("refused");
            why.contains(fault).then_some(())
        });
    }
    assert!(manager.told.try_recv().is_err());
    // Without a configured authority, those of the system are trusted.
    let server = start_with(&url, &[on, system, name, cert, key]);
    manager.told();
    let mut rules = config("d", 6, 5);
    let word = prost_types::value::Kind::StringValue("word".to_owned());
    let word = prost_types::Value { kind: Some(word) };
    let fields = [("said".to_owned(), word)].into();
    rules.descriptors[0].metadata = Some(prost_types::Struct { fields });
    assert_eq!(manager.send("v1", &[rules]).error_detail, None);
    let bytes = server.grpc().call(V3, &request("d: k=1").encode_to_vec()).expect("an answer");
    let answer = Response::decode(&*bytes).expect("an answer");
    assert_eq!(shown(&answer), "OK [5/YEAR 4]");
    let told = evenkeel_ratelimit::json::metadata(&answer.dynamic_metadata.expect("on"));
    assert_eq!(told["metadata"], serde_json::json!({"said": "word"}));
}

#[test]
fn a_start_with_files_that_cannot_be_used_towards_the_server_says_so() {
    let variables = [
        ("RUNTIME_ROOT", "/tmp/current"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/nowhere/ca.pem"),
    ];
    let output = Server::command(&variables).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("cannot read /nowhere/ca.pem"), "{told}");
}
