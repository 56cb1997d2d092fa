//! Gets a connection to a backend: one that exists and has room, or a new one. A new one resolves
//! the name, connects to the port or socket file, does the TLS handshake and negotiates HTTP/1.1 or
//! HTTP/2.
//!
//! What is sent on it: `wire.rs`. Which backend: `backends.rs`.

use super::sessions::{Making, Next};
use super::{Backend, Manner};
use crate::exchange::Failure;
use crate::wire::ends::Stream;
use crate::wire::{Call, Connection, Session, Wire};
use crate::worker::{Site, Worker};
use evenkeel_config::settings::Scheme;
use evenkeel_telemetry::counts::BackendFault;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The ALPN names of HTTP/1.1 and HTTP/2.
const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// Returns a connection to this backend, and whether it has been used before. `switches`: the
/// request asks for another protocol, which needs a connection of its own.
pub(crate) async fn connection(
    worker: &Worker,
    site: &Site,
    backend: &Rc<Backend>,
    switches: bool,
) -> Result<(Wire, bool), Failure> {
    if let Some(wire) = poll_fn(|cx| Poll::Ready(backend.idle(cx, switches))).await {
        return Ok((wire, true));
    }
    let making = match backend.may_share(switches) {
        false => None,
        true => match backend.sessions.next().await {
            Next::Take(session) => return Ok((Wire::Stream(Call::new(&session, backend)), true)),
            Next::Failed => return Err(Failure::new(BackendFault::Connect)),
            Next::Make(making) => Some(making),
        },
    };
    match Box::pin(made(worker, site, backend, switches)).await {
        Ok(made) => Ok((backend.has_made(made, switches), false)),
        Err(failure) => {
            making.into_iter().for_each(Making::failed);
            Err(failure)
        }
    }
}

impl Backend {
    /// Records the new connection, so that other requests can share it if it is HTTP/2.
    fn has_made(self: &Rc<Backend>, made: Made, switches: bool) -> Wire {
        if !switches {
            self.shares.set(matches!(made, Made::Session(_)));
        }
        match made {
            Made::Connection(connection) => Wire::Whole(connection),
            Made::Session(session) => {
                if !self.retired.get() {
                    self.sessions.add(&session);
                }
                Wire::Stream(Call::new(&session, self))
            }
        }
    }
}

/// A new connection.
enum Made {
    Connection(Box<Connection>),
    Session(Rc<Session>),
}

/// Makes a connection within `timeouts.connect`.
async fn made(
    worker: &Worker,
    site: &Site,
    backend: &Rc<Backend>,
    switches: bool,
) -> Result<Made, Failure> {
    let reached = async {
        let (stream, streams) = reach(backend, switches).await?;
        let counted = worker.watch.proxy.backend_connections.hold();
        if !streams {
            return Ok(Made::Connection(Connection::new(stream, backend, counted)));
        }
        let opened = Session::open(stream, site.bounds.backend_streams, counted).await;
        opened.map(Made::Session).map_err(Failure::from)
    };
    if site.timeouts.connect.is_zero() {
        return reached.await;
    }
    let limited = tokio::time::timeout(site.timeouts.connect, reached);
    limited.await.map_err(|_| Failure::new(BackendFault::ConnectTimeout))?
}

/// Connects to the first of the backend's addresses that answers. Returns whether the connection is
/// HTTP/2.
async fn reach(backend: &Backend, switches: bool) -> Result<(Stream, bool), Failure> {
    let streams = backend.manner == Manner::Streams;
    if matches!(backend.at.scheme, Scheme::Unix | Scheme::UnixH2c) {
        let stream = UnixStream::connect(&backend.at.place).await.map_err(unreachable)?;
        return Ok((Stream::Unix(stream), streams));
    }
    let stream = connect(backend).await?;
    let _ = stream.set_nodelay(true);
    if backend.tls.is_none() {
        return Ok((Stream::Tcp(stream), streams));
    }
    let stream = secured(backend, stream, switches).await?;
    let agreed = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
    Ok((Stream::Tls(Box::new(stream)), streams || agreed))
}

/// Does the TLS handshake.
async fn secured(
    backend: &Backend,
    stream: TcpStream,
    switches: bool,
) -> Result<TlsStream<TcpStream>, Failure> {
    let Some((config, name)) = &backend.tls else {
        return Err(Failure::new(BackendFault::Tls));
    };
    let mut config = Arc::clone(config);
    if switches && backend.manner == Manner::Agreed {
        // Only HTTP/1.1 can switch to another protocol.
        Arc::make_mut(&mut config).alpn_protocols = vec![HTTP1.to_vec()];
    }
    let made = TlsConnector::from(config).connect(name.clone(), stream).await;
    made.map_err(|error| Failure::of(BackendFault::Tls, error))
}

async fn connect(backend: &Backend) -> Result<TcpStream, Failure> {
    if let Some(address) = backend.address {
        return TcpStream::connect(address).await.map_err(unreachable);
    }
    let found = tokio::net::lookup_host(&backend.at.place).await;
    let unknown = |error| Failure::of(BackendFault::Resolve, error);
    let addresses: Vec<SocketAddr> = found.map_err(unknown)?.collect();
    TcpStream::connect(&addresses[..]).await.map_err(unreachable)
}

fn unreachable(error: std::io::Error) -> Failure {
    Failure::of(BackendFault::Connect, error)
}
