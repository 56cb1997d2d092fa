//! Gets a connection to a backend: one that exists and has room, or a new one. A new one resolves
//! the name, connects to the port or socket file, does the TLS handshake and negotiates HTTP/1.1 or
//! HTTP/2.
//!
//! What is sent on it: `wire.rs`. Which backend: `backends.rs`.

use super::lease::UpstreamLease;
use super::sessions::{SessionChoice, SessionTurn};
use super::{ConnectionNeeds, ConnectionSharing, UpstreamBackend};
use crate::context::ThreadContext;
use crate::context::settings::ThreadSettings;
use crate::failure::UpstreamFailure;
use crate::outbox::DeferredStream;
use crate::wire::halves::UpstreamStream;
use crate::wire::{Http1Connection, Http2Session, StreamCall, UpstreamWire};
use evenkeel_config::settings::BackendScheme;
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
const ALPN_HTTP1: &[u8] = b"http/1.1";
const ALPN_HTTP2: &[u8] = b"h2";

/// Returns a connection to this backend, and whether it has been used before.
pub(crate) async fn connection(
    thread: &ThreadContext,
    settings: &ThreadSettings,
    backend: &Rc<UpstreamBackend>,
    needs: ConnectionNeeds,
) -> Result<(UpstreamLease, bool), UpstreamFailure> {
    let switches = needs.switches;
    // Counted while the connection is made, so that requests of other threads go elsewhere.
    let occupation = settings.affinity.map(|_| backend.shared.occupy());
    if let Some(wire) = poll_fn(|cx| Poll::Ready(backend.idle(cx, needs))).await {
        return Ok((UpstreamLease::new(backend, wire, occupation), true));
    }
    let making = match backend.may_share(switches) {
        false => None,
        true => match backend.sessions.next().await {
            SessionChoice::Take(session) => {
                let wire = UpstreamWire::Stream(StreamCall::new(&session, &backend.running));
                return Ok((UpstreamLease::new(backend, wire, occupation), true));
            }
            SessionChoice::Failed => return Err(UpstreamFailure::new(BackendFault::Connect)),
            SessionChoice::Make(making) => Some(making),
        },
    };
    match Box::pin(made(thread, settings, backend, switches)).await {
        Ok(made) => {
            let wire = backend.register_connection(made, switches);
            Ok((UpstreamLease::new(backend, wire, occupation), false))
        }
        Err(failure) => {
            making.into_iter().for_each(SessionTurn::failed);
            Err(failure)
        }
    }
}

impl UpstreamBackend {
    /// Records the new connection, so that other requests can share it if it is HTTP/2.
    fn register_connection(&self, made: NewConnection, switches: bool) -> UpstreamWire {
        if !switches {
            self.shares.set(matches!(made, NewConnection::Session(_)));
        }
        match made {
            NewConnection::Connection(connection) => UpstreamWire::Whole(connection),
            NewConnection::Session(session) => {
                if !self.retired.get() {
                    self.sessions.add(&session);
                }
                UpstreamWire::Stream(StreamCall::new(&session, &self.running))
            }
        }
    }
}

enum NewConnection {
    Connection(Box<Http1Connection>),
    Session(Rc<Http2Session>),
}

/// Makes a connection within `timeouts.connect`.
async fn made(
    thread: &ThreadContext,
    settings: &ThreadSettings,
    backend: &Rc<UpstreamBackend>,
    switches: bool,
) -> Result<NewConnection, UpstreamFailure> {
    let reached = async {
        let (stream, streams) = reach(thread, backend, switches).await?;
        let counted = thread.watch.proxy.backend_connections.hold();
        if !streams {
            let running = Rc::downgrade(&backend.running);
            return Ok(NewConnection::Connection(Http1Connection::new(stream, running, counted)));
        }
        let opened = Http2Session::open(stream, settings.bounds.backend_streams, counted).await;
        opened.map(NewConnection::Session).map_err(UpstreamFailure::from)
    };
    if settings.timeouts.connect.is_zero() {
        return reached.await;
    }
    let limited = tokio::time::timeout(settings.timeouts.connect, reached);
    limited.await.map_err(|_| UpstreamFailure::new(BackendFault::ConnectTimeout))?
}

/// Connects to the first of the backend's addresses that answers. Returns whether the connection is
/// HTTP/2.
async fn reach(
    thread: &ThreadContext,
    backend: &UpstreamBackend,
    switches: bool,
) -> Result<(UpstreamStream, bool), UpstreamFailure> {
    let streams = backend.manner == ConnectionSharing::Streams;
    if matches!(backend.at.scheme, BackendScheme::Unix | BackendScheme::UnixH2c) {
        let stream = UnixStream::connect(&backend.at.place).await.map_err(unreachable)?;
        return Ok((UpstreamStream::Unix(stream), streams));
    }
    let stream = connect(backend).await?;
    let _ = stream.set_nodelay(true);
    let stream = DeferredStream::new(stream, &thread.outbox);
    if backend.tls.is_none() {
        return Ok((UpstreamStream::Tcp(stream), streams));
    }
    let stream = secured(backend, stream, switches).await?;
    let agreed = stream.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2);
    Ok((UpstreamStream::Tls(Box::new(stream)), streams || agreed))
}

async fn secured(
    backend: &UpstreamBackend,
    stream: DeferredStream,
    switches: bool,
) -> Result<TlsStream<DeferredStream>, UpstreamFailure> {
    let Some((config, name)) = &backend.tls else {
        return Err(UpstreamFailure::new(BackendFault::Tls));
    };
    let mut config = Arc::clone(config);
    if switches && backend.manner == ConnectionSharing::Agreed {
        // Only HTTP/1.1 can switch to another protocol.
        Arc::make_mut(&mut config).alpn_protocols = vec![ALPN_HTTP1.to_vec()];
    }
    let made = TlsConnector::from(config).connect(name.clone(), stream).await;
    made.map_err(|error| UpstreamFailure::of(BackendFault::Tls, error))
}

async fn connect(backend: &UpstreamBackend) -> Result<TcpStream, UpstreamFailure> {
    if let Some(address) = backend.address {
        return TcpStream::connect(address).await.map_err(unreachable);
    }
    let found = tokio::net::lookup_host(&backend.at.place).await;
    let unknown = |error| UpstreamFailure::of(BackendFault::Resolve, error);
    let addresses: Vec<SocketAddr> = found.map_err(unknown)?.collect();
    TcpStream::connect(&addresses[..]).await.map_err(unreachable)
}

fn unreachable(error: std::io::Error) -> UpstreamFailure {
    UpstreamFailure::of(BackendFault::Connect, error)
}
