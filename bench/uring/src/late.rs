//! Tokio's sockets with sends deferred until no task can run. They show how much of a ring's gain
//! comes from handling many requests one after another, and not from io_uring.
//!
//! For small answers only: a send that finds no room ends the program.

use crate::sockets::send;
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

thread_local! {
    static WAITING: RefCell<Vec<Arc<Mutex<Socket>>>> = const { RefCell::new(Vec::new()) };
}

struct Socket {
    stream: TcpStream,
    /// The same, for sends before tokio has learnt that there is room.
    sender: std::net::TcpStream,
    output: Vec<u8>,
}

/// A connection of the thread that made it.
pub struct Stream(Arc<Mutex<Socket>>);

impl Stream {
    pub fn new(stream: std::net::TcpStream) -> Self {
        let sender = stream.try_clone().expect("a descriptor");
        let stream = TcpStream::from_std(stream).expect("a socket");
        Self(Arc::new(Mutex::new(Socket { stream, sender, output: vec![] })))
    }
}

/// Sends what waits.
pub fn turn() {
    WAITING.with_borrow_mut(|waiting| {
        for socket in waiting.drain(..) {
            let mut socket = socket.lock().expect("one thread");
            match send(&socket.sender, &socket.output) {
                Ok(bytes) => assert_eq!(bytes, socket.output.len(), "more than there is room for"),
                Err(error) => assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "no room"),
            }
            socket.output.clear();
        }
    });
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().expect("one thread").stream).poll_read(context, into)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut socket = self.0.lock().expect("one thread");
        if socket.output.is_empty() {
            WAITING.with_borrow_mut(|waiting| waiting.push(Arc::clone(&self.0)));
        }
        socket.output.extend_from_slice(data);
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        turn();
        Pin::new(&mut self.0.lock().expect("one thread").stream).poll_shutdown(context)
    }
}
