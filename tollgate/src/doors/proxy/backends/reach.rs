//! A connection to a server behind: a name is looked up, a port or a socket file connected to, TLS
//! spoken.
//!
//! What is sent on it: `wire.rs`. How long it may take: `worker.rs`.

use super::Backend;
use crate::config::settings::Scheme;
use crate::doors::proxy::exchange::Failure;
use crate::doors::proxy::wire::ends::Stream;
use crate::watch::counts::BackendFault;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// Connects to the first of the backend's addresses that answers.
pub(in crate::doors::proxy) async fn reach(backend: &Backend) -> Result<Stream, Failure> {
    if backend.at.scheme == Scheme::Unix {
        let stream = UnixStream::connect(&backend.at.place).await.map_err(unreachable)?;
        return Ok(Stream::Unix(stream));
    }
    let stream = connect(backend).await?;
    let _ = stream.set_nodelay(true);
    let Some((config, name)) = &backend.tls else { return Ok(Stream::Tcp(stream)) };
    let connector = TlsConnector::from(Arc::clone(config));
    let made = connector.connect(name.clone(), stream).await;
    let stream = made.map_err(|error| Failure::of(BackendFault::Tls, error))?;
    Ok(Stream::Tls(Box::new(stream)))
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
