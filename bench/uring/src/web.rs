//! The proxy with hyper on both sides, as Evenkeel's: over tokio's sockets or over `driver`.

use crate::sockets::{Setup, connect, prepare};
use crate::tasks::{Io, Sockets, runtime, stream_of_tokio};
use crate::{driver, late};
use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

type Sender = SendRequest<Empty<Bytes>>;
type Pool = Arc<Mutex<Vec<Sender>>>;

pub fn run(setup: Setup, sockets: Sockets) {
    runtime(sockets, setup.buffer).block_on(async {
        match sockets {
            Sockets::Tokio => accept(setup, stream_of_tokio).await,
            Sockets::Late => accept(setup, late::Stream::new).await,
            Sockets::Ring => {
                tokio::spawn(driver::watch());
                accept(setup, driver::Stream::new).await;
            }
        }
    });
}

async fn accept<S: Io>(setup: Setup, wrap: fn(TcpStream) -> S) {
    let pool = Arc::new(Mutex::new(Vec::new()));
    for stream in setup.backends {
        let sender = open(wrap(stream)).await;
        pool.lock().expect("one thread").push(sender);
    }
    let listener = tokio::net::TcpListener::from_std(setup.listener).expect("a listener");
    loop {
        let (stream, _) = listener.accept().await.expect("accept");
        let stream = stream.into_std().expect("a socket");
        prepare(&stream).expect("an option of a new socket");
        let (client, pool) = (wrap(stream), Arc::clone(&pool));
        tokio::spawn(async move {
            let service =
                service_fn(move |request| forward(request, Arc::clone(&pool), setup.backend, wrap));
            // An error is the end of a client.
            _ = http1::Builder::new().serve_connection(TokioIo::new(client), service).await;
        });
    }
}

async fn open<S: Io>(stream: S) -> Sender {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("hyper");
    // It ends early if a client leaves before its answer.
    tokio::spawn(async move { _ = connection.await });
    sender
}

async fn forward<S: Io>(
    request: Request<Incoming>,
    pool: Pool,
    backend: u16,
    wrap: fn(TcpStream) -> S,
) -> hyper::Result<Response<Incoming>> {
    let (mut head, _) = request.into_parts();
    head.headers.insert("x-forwarded-for", HeaderValue::from_static("127.0.0.1"));
    let mut sender = loop {
        let found = pool.lock().expect("one thread").pop();
        match found {
            Some(sender) if sender.is_ready() => break sender,
            // Its last answer is still being passed on.
            Some(sender) => _ = tokio::spawn(give_back(sender, Arc::clone(&pool))),
            None => break open(wrap(connect(backend).expect("the backend"))).await,
        }
    };
    let answer = sender.send_request(Request::from_parts(head, Empty::new())).await?;
    pool.lock().expect("one thread").push(sender);
    Ok(answer)
}

async fn give_back(mut sender: Sender, pool: Pool) {
    if sender.ready().await.is_ok() {
        pool.lock().expect("one thread").push(sender);
    }
}
