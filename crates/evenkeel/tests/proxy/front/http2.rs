//! An HTTP/2 client on a thread of its own: it uses hyper and is driven step by step.

use crate::stage::LONG;
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The maximum number of parts of an answer that are buffered for a late reader, of any size. It is
/// more than several megabytes may be cut into. Beyond it, the connection stalls.
const PARTS_MAX: usize = 1_024;

/// A body that the test sends piece by piece.
pub struct Given(tokio::sync::mpsc::Receiver<Frame<Bytes>>);

impl http_body::Body for Given {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_closed() && self.0.is_empty()
    }
}

/// The parts of an answer, in order of arrival.
#[derive(Debug)]
pub enum Part {
    Head(Box<http::response::Parts>),
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    /// The stream failed before its end.
    Failed,
}

/// A request in flight.
pub struct Exchange {
    body: Option<tokio::sync::mpsc::Sender<Frame<Bytes>>>,
    parts: mpsc::Receiver<Part>,
    dropped: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Exchange {
    /// Sends a piece of the body.
    pub fn give(&self, data: &'static str) -> &Exchange {
        let body = self.body.as_ref().expect("not ended");
        body.blocking_send(Frame::data(Bytes::from(data))).expect("taken");
        self
    }

    /// Ends the body.
    pub fn end(&mut self) {
        self.body = None;
    }

    /// Ends the body with trailers.
    pub fn end_with(&mut self, trailers: HeaderMap) {
        let body = self.body.take().expect("not ended");
        body.blocking_send(Frame::trailers(trailers)).expect("taken");
    }

    /// Resets the stream of the request.
    pub fn reset(mut self) {
        self.dropped.take().expect("once").send(()).expect("it runs");
        self.parts.recv_timeout(LONG).expect_err("no answer comes");
    }

    pub fn next(&self) -> Part {
        self.parts.recv_timeout(LONG).expect("something of an answer")
    }

    /// The next part of the answer, if it has arrived by now.
    pub fn try_next(&self) -> Option<Part> {
        self.parts.try_recv().ok()
    }

    pub fn head(&self) -> http::response::Parts {
        match self.next() {
            Part::Head(head) => *head,
            other => panic!("{other:?} in place of a head"),
        }
    }

    /// The rest of the body as text, and its trailers.
    pub fn rest(&self) -> (String, Option<HeaderMap>) {
        let (mut text, mut trailers) = (Vec::new(), None);
        loop {
            match self.next() {
                Part::Data(data) => text.extend_from_slice(&data),
                Part::Trailers(some) => trailers = Some(some),
                Part::End => return (String::from_utf8(text).expect("text"), trailers),
                other => panic!("{other:?} within a body"),
            }
        }
    }

    pub fn whole(&self) -> (http::response::Parts, String) {
        let head = self.head();
        (head, self.rest().0)
    }
}

struct Job {
    request: Request<Given>,
    parts: mpsc::SyncSender<Part>,
    dropped: tokio::sync::oneshot::Receiver<()>,
}

/// A client connection.
pub struct Http2 {
    jobs: tokio::sync::mpsc::Sender<Job>,
    ended: mpsc::Receiver<()>,
}

impl Http2 {
    /// Connects without TLS, with prior knowledge.
    pub fn connect(to: SocketAddr) -> Http2 {
        Http2::over(async move || TcpStream::connect(to).await.expect("it listens"))
    }

    /// Connects over TLS.
    pub fn connect_tls(to: SocketAddr, config: Arc<ClientConfig>, name: &'static str) -> Http2 {
        Http2::over(async move || {
            let stream = TcpStream::connect(to).await.expect("it listens");
            let name = ServerName::try_from(name).expect("a name");
            let stream = TlsConnector::from(config).connect(name, stream).await;
            let stream = stream.expect("a handshake");
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            stream
        })
    }

    fn over<S>(connect: impl AsyncFnOnce() -> S + Send + 'static) -> Http2
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (jobs, queue) = tokio::sync::mpsc::channel(64);
        let (end, ended) = mpsc::sync_channel(1);
        thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().expect("a runtime");
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async {
                let stream = TokioIo::new(connect().await);
                let made = http2::handshake(Local, stream).await;
                let (sender, connection) = made.expect("a handshake");
                let connection = tokio::task::spawn_local(async move {
                    let _ = connection.await;
                    let _ = end.send(());
                });
                serve(queue, sender).await;
                connection.abort();
            });
        });
        Http2 { jobs, ended }
    }

    /// Begins a request; its body is sent later.
    pub fn begin(&self, request: http::request::Builder) -> Exchange {
        let (body, given) = tokio::sync::mpsc::channel(16);
        let (parts, heard) = mpsc::sync_channel(PARTS_MAX);
        let (drop, dropped) = tokio::sync::oneshot::channel();
        let request = request.body(Given(given)).expect("a request");
        let job = Job { request, parts, dropped };
        assert!(self.jobs.blocking_send(job).is_ok(), "the connection is gone");
        Exchange { body: Some(body), parts: heard, dropped: Some(drop) }
    }

    /// Sends a GET request without a body.
    pub fn get(&self, path: &str) -> Exchange {
        self.bodyless(Request::get(format!("http://site.example{path}")))
    }

    pub fn bodyless(&self, request: http::request::Builder) -> Exchange {
        let (_, given) = tokio::sync::mpsc::channel(1);
        let (parts, heard) = mpsc::sync_channel(PARTS_MAX);
        let (drop, dropped) = tokio::sync::oneshot::channel();
        let request = request.body(Given(given)).expect("a request");
        assert!(self.jobs.blocking_send(Job { request, parts, dropped }).is_ok());
        Exchange { body: None, parts: heard, dropped: Some(drop) }
    }

    /// Waits until the peer ends the connection.
    pub fn ends(&self) {
        self.ended.recv_timeout(LONG).expect("an end");
    }
}

async fn serve(mut queue: tokio::sync::mpsc::Receiver<Job>, sender: http2::SendRequest<Given>) {
    while let Some(Job { request, parts, dropped }) = queue.recv().await {
        let mut sender = sender.clone();
        tokio::task::spawn_local(async move {
            tokio::select! {
                () = exchange(&mut sender, request, parts) => {}
                Ok(()) = dropped => {}
            }
        });
    }
}

async fn exchange(
    sender: &mut http2::SendRequest<Given>,
    request: Request<Given>,
    parts: mpsc::SyncSender<Part>,
) {
    let tell = |part| drop(parts.send(part));
    let (head, mut given) = request.into_parts();
    let up = (head.method == Method::CONNECT)
        .then(|| std::mem::replace(&mut given, Given(tokio::sync::mpsc::channel(1).1)));
    let answer = match sender.send_request(Request::from_parts(head, given)).await {
        Ok(answer) => answer,
        Err(_) => return tell(Part::Failed),
    };
    if let Some(up) = up.filter(|_| answer.status() == 200) {
        return tunnel(up, answer, &parts).await;
    }
    let (head, mut body) = answer.into_parts();
    tell(Part::Head(Box::new(head)));
    loop {
        match body.frame().await {
            None => return tell(Part::End),
            Some(Err(_)) => return tell(Part::Failed),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => tell(Part::Data(data)),
                Err(frame) => tell(Part::Trailers(frame.into_trailers().expect("trailers"))),
            },
        }
    }
}

/// Copies the data of a tunnel after a successful CONNECT.
async fn tunnel(
    Given(mut up): Given,
    mut answer: http::Response<hyper::body::Incoming>,
    parts: &mpsc::SyncSender<Part>,
) {
    let stream = hyper::upgrade::on(&mut answer);
    let _ = parts.send(Part::Head(Box::new(answer.into_parts().0)));
    let stream = TokioIo::new(stream.await.expect("a tunnel"));
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sent = async {
        while let Some(frame) = up.recv().await {
            writer.write_all(&frame.into_data().expect("data")).await.ok()?;
        }
        writer.shutdown().await.ok()
    };
    let heard = async {
        let mut piece = vec![0; 16 * 1024];
        loop {
            let part = match reader.read(&mut piece).await {
                Ok(0) => Part::End,
                Ok(count) => Part::Data(Bytes::copy_from_slice(&piece[..count])),
                Err(_) => Part::Failed,
            };
            let over = !matches!(part, Part::Data(_));
            let _ = parts.send(part);
            if over {
                return;
            }
        }
    };
    tokio::join!(sent, heard);
}

#[derive(Clone)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move { drop(future.await) });
    }
}
