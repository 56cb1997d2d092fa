//! The Rust client and the layer: their questions, and their behaviour if no server answers.

use crate::stage::{LineServer, ONCE};
use evenkeel_client::layer::{EvenkeelLayer, RequestGate};
use evenkeel_client::{LineAddress, LineAnswer, LineClient, LineTimeouts};
use evenkeel_embed::limiter::LocalLimiter;
use evenkeel_testing::port::free_port;
use http::{Request, Response, StatusCode};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;
use tower_layer::Layer;
use tower_service::Service;

/// Waits for answers as long as a slow machine may take.
const PATIENT: LineTimeouts = LineTimeouts {
    timeout: Duration::from_secs(60),
    pause: Duration::from_secs(3_600),
    pause_max: Duration::from_secs(3_600),
};

fn run<T>(test: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime").block_on(test)
}

fn tcp(port: u16) -> LineAddress {
    format!("tcp://127.0.0.1:{port}").parse().expect("an address")
}

#[test]
fn addresses_are_read() {
    assert_eq!("unix:///run/a".parse(), Ok(LineAddress::Unix("/run/a".into())));
    assert_eq!("tcp://door.example:7".parse(), Ok(LineAddress::Tcp("door.example:7".into())));
    for bad in ["", "127.0.0.1:7070", "tcp://", "tcp://:1", "tcp://a:b", "unix://a", "udp://a:1"] {
        assert!(bad.parse::<LineAddress>().is_err(), "{bad}");
    }
}

#[test]
fn many_tasks_ask_over_one_connection() {
    let program = LineServer::start("rate: 1 per 365d, burst: 3");
    run(async {
        for address in [tcp(program.lines.port()), LineAddress::Unix(program.socket())] {
            let client = LineClient::new(address.clone(), PATIENT);
            let mut tasks = tokio::task::JoinSet::new();
            for n in 0..400 {
                let (client, tag) = (client.clone(), format!("{address:?} {}", n % 100));
                tasks.spawn(async move { client.ask(tag.as_bytes()).await });
            }
            let answers = tasks.join_all().await;
            let count = |answer| answers.iter().filter(|one| **one == answer).count();
            assert_eq!((count(LineAnswer::Served), count(LineAnswer::Refused)), (300, 100));
            assert_eq!(client.ask(b"a\nb").await, LineAnswer::Unanswered, "no tag");
            assert!(client.allows(&[b'x'; 9_000]).await, "nor that");
        }
    });
    assert_eq!(program.metric("evenkeel_connections_accepted_total{door=\"line\"}"), 2);
}

/// A door that calls `serve` with each connection, and sends a message for each.
fn door(serve: fn(std::net::TcpStream)) -> (u16, std::sync::mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (came, visits) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if came.send(()).is_err() {
                return;
            }
            serve(stream);
        }
    });
    (port, visits)
}

#[test]
fn after_a_failure_everybody_passes_and_nothing_is_asked_for_a_while() {
    let closing = door(drop);
    let talking = door(|mut stream| {
        let _ = stream.read(&mut [0; 16]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = stream.read(&mut [0; 16]);
    });
    for (port, visits) in [closing, talking] {
        run(async {
            let client = LineClient::new(tcp(port), PATIENT);
            for _ in 0..100 {
                assert_eq!(client.ask(b"C").await, LineAnswer::Unanswered);
                assert!(client.allows(b"C").await);
            }
        });
        assert_eq!(visits.try_iter().count(), 1, "asked once");
    }
}

#[test]
fn who_does_not_answer_in_time_is_not_waited_for() {
    let (port, visits) = door(|mut stream| {
        // Returns when the client gives up.
        while stream.read(&mut [0; 16]).is_ok_and(|count| count > 0) {}
    });
    let hasty = LineTimeouts { timeout: Duration::from_millis(1), ..PATIENT };
    run(async {
        let client = LineClient::new(tcp(port), hasty);
        let several = (0..50).map(|_| client.ask(b"C"));
        for answer in several {
            assert_eq!(answer.await, LineAnswer::Unanswered);
        }
    });
    assert!(visits.try_iter().count() <= 1);
}

#[test]
fn when_the_pause_is_over_it_asks_again() {
    let port = free_port();
    let eager = LineTimeouts { pause: Duration::from_millis(1), ..PATIENT };
    let eager = LineTimeouts { pause_max: Duration::from_millis(4), ..eager };
    run(async {
        let client = LineClient::new(tcp(port), eager);
        assert_eq!(client.ask(b"C").await, LineAnswer::Unanswered);
        let program = LineServer::start_at(ONCE, port);
        while client.ask(b"C").await == LineAnswer::Unanswered {}
        assert_eq!(client.ask(b"C").await, LineAnswer::Refused);
        drop(program);
        while client.ask(b"C").await != LineAnswer::Unanswered {}
        let _program = LineServer::start_at(ONCE, port);
        while client.ask(b"C").await != LineAnswer::Served {}
    });
}

/// A service that answers with the name of the user.
#[derive(Clone)]
struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        ready(Ok(Response::new(request.uri().path().to_owned())))
    }
}

/// The statuses of three requests of a user.
async fn three(gate: impl RequestGate<Vec<u8>> + Sync, user: &str) -> [StatusCode; 3] {
    let tag = |request: &Request<()>| Some(request.uri().path().as_bytes().to_vec());
    let mut service = EvenkeelLayer::new(gate, tag).layer(Hello);
    let mut answers = [StatusCode::OK; 3];
    for answer in &mut answers {
        let request = Request::get(format!("/{user}")).body(()).expect("a request");
        let response = service.call(request).await.expect("no fault");
        *answer = response.status();
        let refused = *answer == StatusCode::TOO_MANY_REQUESTS;
        assert_eq!(response.headers().contains_key("retry-after"), refused);
        assert_eq!(response.body().is_empty(), refused);
    }
    answers
}

#[test]
fn a_layer_answers_for_the_service_when_a_request_is_refused() {
    let (ok, no) = (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS);
    let program = LineServer::start("rate: 1 per 365d, burst: 2");
    run(async {
        let client = LineClient::new(tcp(program.lines.port()), PATIENT);
        assert_eq!(three(client.clone(), "a").await, [ok, ok, no]);
        assert_eq!(three(client, "b").await, [ok, ok, no]);
        let here = LocalLimiter::new("line: {rate: 1 per 365d, burst: 1}").expect("good");
        assert_eq!(three(here, "a").await, [ok, no, no]);
        let (port, _visits) = door(drop);
        let nobody = LineClient::new(tcp(port), PATIENT);
        assert_eq!(three(nobody, "a").await, [ok; 3]);
    });
    let fault = LocalLimiter::new("line: {rate: fast}").err().expect("a fault").to_string();
    assert!(fault.contains("not a rate"), "{fault}");
    assert!(LocalLimiter::new("admin: off").is_err());
}
