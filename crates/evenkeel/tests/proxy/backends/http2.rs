//! An HTTP/2 backend that behaves like a usual server (it uses hyper), and records its requests.

use crate::front::Authority;
use bytes::Bytes;
use evenkeel_config::settings::{BackendAddress, BackendScheme};
use http::{HeaderMap, Request, Response, Uri, Version};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

/// The length of the body at `/big`, in bytes: more than any window.
pub const BIG: usize = 3 << 20;

/// A request as received by the server.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub target: Uri,
    pub version: Version,
    pub headers: HeaderMap,
}

/// A server. `/big` is large; every other path returns the body of the request piece by piece, with
/// its trailers.
pub struct Server {
    pub at: BackendAddress,
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// A server over TCP.
    pub fn open() -> Server {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("an address").to_string();
        Server::run(
            BackendAddress { scheme: BackendScheme::H2c, place },
            async move |served: Served| {
                let listener = listening(listener);
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(served.clone().streams(stream));
                }
            },
        )
    }

    /// A server over a Unix socket.
    pub fn open_file(path: &Path) -> Server {
        let listener = std::os::unix::net::UnixListener::bind(path).expect("a socket");
        listener.set_nonblocking(true).expect("a mode");
        let place = path.to_str().expect("text").to_owned();
        Server::run(
            BackendAddress { scheme: BackendScheme::UnixH2c, place },
            async move |served: Served| {
                let listener = UnixListener::from_std(listener).expect("a listener");
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(served.clone().streams(stream));
                }
            },
        )
    }

    /// A TLS server for `name` with these protocols.
    pub fn open_tls(authority: &Authority, name: &str, protocols: &[&str]) -> Server {
        let (cert, key) = authority.sign(name);
        let cert = CertificateDer::from_pem_file(cert).expect("PEM");
        let key = PrivateKeyDer::from_pem_file(key).expect("PEM");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let config = builder.with_no_client_auth().with_single_cert(vec![cert], key);
        let mut config = config.expect("usable");
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("an address").to_string();
        Server::run(
            BackendAddress { scheme: BackendScheme::Https, place },
            async move |served: Served| {
                let listener = listening(listener);
                while let Ok((stream, _)) = listener.accept().await {
                    let Ok(stream) = acceptor.accept(stream).await else { continue };
                    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                        tokio::spawn(served.clone().streams(stream));
                    } else {
                        tokio::spawn(served.clone().whole(stream));
                    }
                }
            },
        )
    }

    fn run<F>(at: BackendAddress, serve: F) -> Server
    where
        F: AsyncFnOnce(Served) + Send + 'static,
    {
        let served = Served::default();
        let (asked, connections) = (Arc::clone(&served.asked), Arc::clone(&served.connections));
        thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().expect("a runtime");
            runtime.block_on(serve(served));
        });
        Server { at, asked, connections }
    }

    /// The requests received so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("whole").clone()
    }

    /// The number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn listening(listener: std::net::TcpListener) -> TcpListener {
    listener.set_nonblocking(true).expect("a mode");
    TcpListener::from_std(listener).expect("a listener")
}

#[derive(Clone, Default)]
struct Served {
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<AtomicUsize>,
}

impl Served {
    async fn streams(self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let service = service_fn(move |request| std::future::ready(self.answer(request)));
        let builder = http2::Builder::new(TokioExecutor::new());
        // A client that disconnects early has got what it wanted.
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    }

    async fn whole(self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let service = service_fn(move |request| std::future::ready(self.answer(request)));
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    fn answer(&self, request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
        let (head, body) = request.into_parts();
        let big = head.uri.path() == "/big";
        self.asked.lock().expect("whole").push(Asked {
            method: head.method.to_string(),
            target: head.uri,
            version: head.version,
            headers: head.headers,
        });
        let answer = if big { Answer::Big(BIG) } else { Answer::Echo(body) };
        Ok(Response::builder().header("x-a", "b").body(answer).expect("an answer"))
    }
}

enum Answer {
    Echo(Incoming),
    Big(usize),
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Answer::Echo(body) => Pin::new(&mut body.frame()).poll(cx),
            Answer::Big(0) => Poll::Ready(None),
            Answer::Big(left) => {
                let piece = (*left).min(1 << 16);
                *left -= piece;
                Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b'x'; piece])))))
            }
        }
    }
}
