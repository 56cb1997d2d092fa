//! Sockets as every variant uses them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// What a variant starts with.
pub struct Setup {
    pub listener: TcpListener,
    /// Open connections to the backend.
    pub backends: Vec<TcpStream>,
    /// Its port.
    pub backend: u16,
    /// Bytes received at once.
    pub buffer: usize,
}

impl Setup {
    pub fn new(port: u16, backend: u16, connections: usize, buffer: usize) -> io::Result<Self> {
        let backends = (0..connections).map(|_| connect(backend)).collect::<io::Result<_>>()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, backends, backend, buffer })
    }
}

pub fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    prepare(&stream)?;
    Ok(stream)
}

pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)
}

/// `None`: no more connections for now.
pub fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept() {
        Ok((stream, _)) => {
            prepare(&stream).expect("an option of a new socket");
            Some(stream)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("accept: {error}"),
    }
}

pub fn receive(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    stream.read(buffer)
}

pub fn send(mut stream: &TcpStream, data: &[u8]) -> io::Result<usize> {
    stream.write(data)
}
