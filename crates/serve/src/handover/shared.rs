//! Sockets that share an address, one for each thread: the system distributes connections among
//! them.
//!
//! Another program's sockets of the same kind could share the address too, so it is checked first
//! whether the port is free. Users, and the inherited alternative: `handover.rs`.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Number of connections that the system queues until they are accepted.
const BACKLOG: i32 = 1024;

/// Binds `count` listeners at one address. If its port is 0, all get the same port.
pub(super) fn bind(mut address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    // A socket that does not share the address finds out whether it is free.
    try_bind(address)?;
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..count {
        let listener = socket(address, true)?;
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Checks whether `address` can be bound at the moment.
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
