//! Connections that wait at a listener which is about to be closed, and are not accepted yet.
//!
//! Closing a listener resets them, although their clients see them as connected and may have sent a
//! request. They are accepted by direct system calls, because the runtime may not know the latest
//! ones yet.

use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Maximum number of connections that are accepted: more than the usual backlog
/// (`net.core.somaxconn`), and an end if new ones arrive as fast as they are accepted.
const WAITING_MAX: usize = 4096;

/// Accepts all connections that wait at `listener` and then closes it. Yields nothing if the system
/// fails.
pub fn at(listener: TcpListener) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
    let listener = listener.into_std().ok();
    accepted(move || {
        let (stream, peer) = listener.as_ref()?.accept().ok()?;
        let runs = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        Some(runs.map(|stream| (stream, peer)))
    })
}

/// The same for a Unix socket.
pub fn at_file(listener: UnixListener) -> impl Iterator<Item = UnixStream> {
    let listener = listener.into_std().ok();
    accepted(move || {
        let (stream, _) = listener.as_ref()?.accept().ok()?;
        Some(stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream)))
    })
}

/// The streams that `next` yields, without those that the runtime cannot register.
fn accepted<T>(next: impl FnMut() -> Option<io::Result<T>>) -> impl Iterator<Item = T> {
    std::iter::from_fn(next).take(WAITING_MAX).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream as Client;
    use std::os::unix::net::UnixStream as FileClient;

    #[tokio::test]
    async fn those_are_taken_in_of_whom_the_runtime_was_not_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a mode");
        let address = listener.local_addr().expect("an address");
        let listener = TcpListener::from_std(listener).expect("it is taken");
        // There is no await from here on, so the runtime cannot learn about new connections.
        let clients: Vec<_> = (0..3).map(|_| Client::connect(address).expect("in")).collect();
        let mut peers: Vec<_> = at(listener).map(|(_, peer)| peer).collect();
        let mut expected: Vec<_> =
            clients.iter().map(|client| client.local_addr().expect("an address")).collect();
        peers.sort();
        expected.sort();
        assert_eq!(peers, expected);
        assert!(Client::connect(address).is_err(), "it is closed");

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let clients: Vec<_> = (0..2).map(|_| FileClient::connect(&path).expect("in")).collect();
        assert_eq!(at_file(listener).count(), clients.len());
    }
}
