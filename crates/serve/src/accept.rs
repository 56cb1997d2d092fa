//! The loop that accepts connections at one listener.
//!
//! The listener stays open until the server drains, and the connections that wait in the system's
//! queue by then are accepted too; or until a successor process has taken the listener over. Bounds
//! on connections belong to the door: its `welcome` refuses a connection, or waits for room.

use crate::backlog;
use crate::handover::HandoverSignal;
use crate::threads::ServerOrders;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// The number of connections accepted in a row before existing connections get a turn.
const ACCEPT_BURST: usize = 16;

/// The pause after an error. If the process has run out of file descriptors, for example, trying
/// again at once does not help.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A listener of a server.
pub trait Listen {
    /// The type that the listener accepts.
    type Accepted;

    /// Waits for the next connection.
    fn next(&self) -> impl Future<Output = io::Result<Self::Accepted>>;

    /// Returns the connections that wait in the system's queue, and closes the listener.
    fn waiting(self) -> impl Iterator<Item = Self::Accepted>;
}

impl Listen for TcpListener {
    type Accepted = (TcpStream, SocketAddr);

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept().await
    }

    fn waiting(self) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
        backlog::at(self)
    }
}

impl Listen for UnixListener {
    type Accepted = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }

    fn waiting(self) -> impl Iterator<Item = UnixStream> {
        backlog::at_file(self)
    }
}

/// Accepts connections at `listener`, and calls `welcome` for each. After an error, which `log`
/// gets, it pauses for 100 ms.
pub async fn accept<L: Listen>(
    listener: L,
    (mut orders, mut passed): (ServerOrders, HandoverSignal),
    log: impl Fn(&io::Error),
    mut welcome: impl AsyncFnMut(L::Accepted),
) {
    let (mut leaving, mut passed) = (pin!(orders.leaving()), pin!(passed.wait()));
    loop {
        for _ in 0..ACCEPT_BURST {
            let accepted = tokio::select! {
                accepted = listener.next() => accepted,
                _ = &mut leaving => {
                    // Closing the listener would reset the connections in the system's queue.
                    for accepted in listener.waiting() {
                        welcome(accepted).await;
                    }
                    return;
                }
                () = &mut passed => return,
            };
            match accepted {
                Ok(accepted) => welcome(accepted).await,
                Err(error) => {
                    log(&error);
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
        tokio::task::yield_now().await;
    }
}
