//! A connection to a server behind: one that is there and has room, or one that is made: a name is
//! looked up, a port or a socket file connected to, TLS spoken, and agreed on what goes over it.
//!
//! What is sent on it: `wire.rs`. Which server: `backends.rs`.

use super::sessions::{Making, Next};
use super::{Backend, Manner};
use crate::config::settings::Scheme;
use crate::doors::proxy::exchange::Failure;
use crate::doors::proxy::wire::ends::Stream;
use crate::doors::proxy::wire::{Call, Connection, Session, Wire};
use crate::doors::proxy::worker::{Site, Worker};
use crate::watch::counts::BackendFault;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What HTTP/1.1 and HTTP/2 are called where TLS agrees on one (ALPN).
const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// A connection to this backend, and whether it has been used before. `switches`: the request asks
/// for another protocol, which takes a connection of its own.
pub(in crate::doors::proxy) async fn connection(
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
    /// Notes what was made, for others to use too where they can.
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

/// What was made.
enum Made {
    Connection(Box<Connection>),
    Session(Rc<Session>),
}

/// Makes one, within the time that there is for it.
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

/// Connects to the first of the backend's addresses that answers. Says whether streams are spoken.
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

/// The connection under TLS.
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
        // Only there another protocol may follow.
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
