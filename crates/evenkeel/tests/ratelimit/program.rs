//! `evenkeel ratelimit` as a process, and clients for its ports.
//!
//! The clients use hyper directly, so that the tests control every byte that is sent.

use bytes::Bytes;
use evenkeel_testing::evenkeel;
use evenkeel_testing::program::{Program, addresses};
use evenkeel_testing::wait::DEADLINE;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;
use std::convert::Infallible;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// The running program.
pub struct Server {
    process: Program,
    /// A folder in which the link `current` leads to the rules.
    pub folder: tempfile::TempDir,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub debug: SocketAddr,
    /// The configured address of the admin door.
    pub admin: Option<String>,
    addresses: Vec<SocketAddr>,
}

impl Server {
    /// Starts the program with one file of rules on free ports, and with additional variables.
    pub fn start(rules: &str, variables: &[(&str, &str)]) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("one/ratelimit/config");
        fs::create_dir_all(&config).expect("made");
        fs::write(config.join("a.yaml"), rules).expect("written");
        std::os::unix::fs::symlink("one", folder.path().join("current")).expect("linked");
        let root = folder.path().join("current");
        let root = root.to_str().expect("text");
        let mut all = vec![("RUNTIME_ROOT", root), ("RUNTIME_SUBDIRECTORY", "ratelimit")];
        all.extend(variables);
        let command = Server::command(&all);
        let unix = variables.iter().any(|(name, _)| *name == "GRPC_UDS");
        let mut server = Server::run(command, folder, unix);
        let admin = variables.iter().rfind(|(name, _)| *name == "EVENKEEL_ADMIN");
        server.admin = admin.map(|(_, address)| (*address).to_owned());
        server
    }

    /// Starts the program with a configuration file.
    pub fn from_file(text: &str) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("evenkeel.yaml");
        fs::write(&path, text).expect("written");
        let mut command = evenkeel!();
        command.arg("serve").arg("--config").arg(&path);
        Server::run(command, folder, false)
    }

    fn run(command: Command, folder: tempfile::TempDir, unix: bool) -> Server {
        let mut process = Program::start(command);
        let addresses = addresses(&process.told("ratelimit open"));
        let first = usize::from(!unix);
        Server {
            process,
            folder,
            grpc: addresses[0],
            http: addresses[first],
            debug: addresses[first + 1],
            admin: None,
            addresses,
        }
    }

    /// The log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// A command for the program with these variables, and no others that it would read.
    pub fn command(variables: &[(&str, &str)]) -> Command {
        let mut command = evenkeel!();
        command.arg("ratelimit").env_clear();
        let local = ["HOST", "GRPC_HOST", "DEBUG_HOST"].map(|name| (name, "127.0.0.1"));
        let free = ["PORT", "GRPC_PORT", "DEBUG_PORT"].map(|name| (name, "0"));
        let quiet = [("USE_STATSD", "false"), ("EVENKEEL_ADMIN", "off"), ("LOG_LEVEL", "info")];
        command.envs(local).envs(free).envs(quiet).envs(variables.iter().copied());
        command
    }

    /// The path of the rules.
    pub fn rules(&self) -> PathBuf {
        self.folder.path().join("one/ratelimit/config")
    }

    pub fn prometheus(&self) -> SocketAddr {
        self.addresses[3]
    }

    pub fn grpc(&self) -> Grpc {
        Grpc::connect(self.grpc)
    }

    /// The peak memory of the process, in KiB.
    pub fn peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
        line.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number")
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }
}

/// Sends one request over HTTP/1.1 and returns the status and the body.
pub fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream.write_all(body.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, body.to_owned())
}

type Body = UnsyncBoxBody<Bytes, Infallible>;
type Sender = hyper::client::conn::http2::SendRequest<Body>;

/// A gRPC connection.
pub struct Grpc {
    runtime: Runtime,
    sender: Sender,
}

impl Grpc {
    pub fn connect(address: SocketAddr) -> Grpc {
        let runtime = runtime();
        let stream = runtime.block_on(tokio::net::TcpStream::connect(address)).expect("it listens");
        stream.set_nodelay(true).expect("set");
        Grpc::over(runtime, TokioIo::new(stream))
    }

    pub fn unix(path: &Path) -> Grpc {
        let runtime = runtime();
        let stream = runtime.block_on(tokio::net::UnixStream::connect(path)).expect("it listens");
        Grpc::over(runtime, TokioIo::new(stream))
    }

    /// A connection over TLS to a server named `gate.example`.
    pub fn tls(address: SocketAddr, config: Arc<rustls::ClientConfig>) -> io::Result<Grpc> {
        let runtime = runtime();
        let name = rustls::pki_types::ServerName::try_from("gate.example").expect("a name");
        let stream = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await?;
            tokio_rustls::TlsConnector::from(config).connect(name, stream).await
        })?;
        Grpc::try_over(runtime, TokioIo::new(stream)).map_err(io::Error::other)
    }

    fn over(
        runtime: Runtime,
        io: impl hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    ) -> Grpc {
        Grpc::try_over(runtime, io).expect("HTTP/2")
    }

    fn try_over(
        runtime: Runtime,
        io: impl hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    ) -> hyper::Result<Grpc> {
        let sender = runtime.block_on(async {
            let (sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(connection);
            hyper::Result::Ok(sender)
        })?;
        Ok(Grpc { runtime, sender })
    }

    /// Calls a method, and returns the message, or the code and the text of the failure.
    pub fn call(&self, path: &str, message: &[u8]) -> Result<Vec<u8>, (i32, String)> {
        self.call_with(path, &[], message)
    }

    /// Calls a method with additional headers.
    pub fn call_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        message: &[u8],
    ) -> Result<Vec<u8>, (i32, String)> {
        self.sent(path, headers, &framed(message))
    }

    /// Calls a method with a given frame.
    pub fn framed(&self, path: &str, body: &[u8]) -> Result<Vec<u8>, (i32, String)> {
        self.sent(path, &[], body)
    }

    fn sent(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Vec<u8>, (i32, String)> {
        let mut request = request(path, Full::new(Bytes::copy_from_slice(body)).boxed_unsync());
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().expect("a name");
            request.headers_mut().append(name, value.parse().expect("a value"));
        }
        let mut sender = self.sender.clone();
        self.runtime.block_on(async {
            let response = match sender.send_request(request).await {
                Ok(response) => response,
                // A client that is refused gets no answer.
                Err(error) => return Err((-2, error.to_string())),
            };
            let head = response.headers().clone();
            let body = response.into_body().collect().await;
            let (trailers, bytes) = match body {
                Ok(body) => (body.trailers().cloned(), body.to_bytes()),
                Err(_) => (None, Bytes::new()),
            };
            let of = |name: &str| {
                let found = trailers.iter().find_map(|all| all.get(name)).or(head.get(name));
                found.map(|value| value.to_str().expect("text").to_owned())
            };
            let code = of("grpc-status").map_or(-1, |code| code.parse().expect("a number"));
            match code {
                0 => Ok(bytes.slice(5..).to_vec()),
                code => Err((code, decoded(&of("grpc-message").unwrap_or_default()))),
            }
        })
    }

    /// Begins a call without ever sending its message. The call lasts as long as the returned
    /// value.
    pub fn begin(&self, path: &str) -> impl Future + use<> {
        let mut sender = self.sender.clone();
        let request = request(path, Never.boxed_unsync());
        let mut call = Box::pin(async move { sender.send_request(request).await.map(|_| ()) });
        let first = std::future::poll_fn(|cx| {
            let _ = call.as_mut().poll(cx);
            std::task::Poll::Ready(())
        });
        self.runtime.block_on(first);
        call
    }
}

/// A call with messages in both directions.
pub struct Stream<'g> {
    grpc: &'g Grpc,
    outgoing: Option<tokio::sync::mpsc::Sender<Bytes>>,
    incoming: hyper::body::Incoming,
    read: Vec<u8>,
}

impl Grpc {
    /// Begins a call with messages in both directions, or returns the code of its failure.
    pub fn stream(&self, path: &str) -> Result<Stream<'_>, i32> {
        self.stream_after(path, None)
    }

    /// Begins such a call with one message and ends its request.
    pub fn stream_of(&self, path: &str, message: &[u8]) -> Result<Stream<'_>, i32> {
        self.stream_after(path, Some(message))
    }

    fn stream_after(&self, path: &str, first: Option<&[u8]>) -> Result<Stream<'_>, i32> {
        let (outgoing, messages) = tokio::sync::mpsc::channel(16);
        if let Some(message) = first {
            outgoing.try_send(framed(message)).expect("room");
        }
        let outgoing = first.is_none().then_some(outgoing);
        let mut sender = self.sender.clone();
        let request = request(path, Messages(messages).boxed_unsync());
        let response = self.runtime.block_on(sender.send_request(request)).expect("an answer");
        if let Some(code) = response.headers().get("grpc-status") {
            return Err(code.to_str().expect("text").parse().expect("a number"));
        }
        let incoming = response.into_body();
        Ok(Stream { grpc: self, outgoing, incoming, read: Vec::new() })
    }
}

impl Stream<'_> {
    /// Sends bytes as they are.
    pub fn send_raw(&self, bytes: &[u8]) {
        let sent = self.outgoing.as_ref().expect("open").send(Bytes::copy_from_slice(bytes));
        self.grpc.runtime.block_on(sent).expect("sent");
    }

    pub fn send(&self, message: &[u8]) {
        self.send_raw(&framed(message));
    }

    /// Returns the next message, or the status code at the end.
    pub fn receive(&mut self) -> Result<Vec<u8>, i32> {
        loop {
            if let Some(length) = self.read.get(1..5) {
                let length = u32::from_be_bytes(length.try_into().expect("four")) as usize;
                if self.read.len() >= 5 + length {
                    let rest = self.read.split_off(5 + length);
                    return Ok(std::mem::replace(&mut self.read, rest).split_off(5));
                }
            }
            let frame = self.grpc.runtime.block_on(async {
                let frame = tokio::time::timeout(DEADLINE, self.incoming.frame()).await;
                frame.expect("a message in time")
            });
            let frame = match frame {
                None | Some(Err(_)) => return Err(-1),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(bytes) => self.read.extend_from_slice(&bytes),
                Err(frame) => {
                    let trailers = frame.into_trailers().expect("trailers");
                    let code = trailers["grpc-status"].to_str().expect("text");
                    return Err(code.parse().expect("a number"));
                }
            }
        }
    }

    /// Ends the request.
    pub fn finish(&mut self) {
        self.outgoing = None;
    }
}

/// A body made from the messages of a channel.
pub struct Messages(pub tokio::sync::mpsc::Receiver<Bytes>);

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

/// A body that never sends anything.
struct Never;

impl http_body::Body for Never {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        std::task::Poll::Pending
    }
}

fn request(path: &str, body: Body) -> http::Request<Body> {
    let request = http::Request::post(format!("http://ratelimit{path}"));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    request.body(body).expect("a request")
}

/// A message in a gRPC frame, not compressed.
fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("short enough");
    [&[0], &length.to_be_bytes()[..], message].concat().into()
}

/// Decodes a gRPC error message, which is percent-encoded like a URL.
fn decoded(text: &str) -> String {
    text.replace("%20", " ").replace("%60", "`")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
