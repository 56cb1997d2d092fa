//! Sockets that share an address, one for each thread: the system spreads connections over them.
//!
//! They also share it with another program's of the same kind, so it is asked first whether the
//! port is free. Who uses them, and what is handed in instead: `handover.rs`.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Connections that the system keeps for us until we accept them.
const BACKLOG: i32 = 1024;

/// `count` listeners at one address.
pub(super) fn bind(mut address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    // One that does not share finds out whether the port is free.
    try_bind(address)?;
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..count {
        let listener = socket(address, true)?;
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Whether `address` can be bound just now.
pub fn try_bind(address: SocketAddr) -> io::Result<()> {
    socket(address, false).map(drop)
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    if shared {
        socket.listen(BACKLOG)?;
    }
    Ok(socket.into())
}
