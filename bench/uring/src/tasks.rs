//! The proxy as tokio tasks, one a client, over tokio's own sockets or over `driver`.
//!
//! It parses and copies as `proxy` does, in the shape that a task has: read, write, read, write.

use crate::proxy::{answer_bytes, head_end};
use crate::sockets::{Setup, prepare};
use crate::{driver, late};
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Io for T {}

type Pool<S> = Arc<Mutex<Vec<S>>>;

/// What carries the bytes.
#[derive(Clone, Copy)]
pub enum Sockets {
    Tokio,
    Late,
    Ring,
}

/// A runtime on this thread.
pub fn runtime(sockets: Sockets, buffer: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all();
    match sockets {
        Sockets::Tokio => {}
        Sockets::Late => _ = builder.on_thread_park(late::turn),
        Sockets::Ring => {
            driver::open(buffer);
            builder.on_thread_park(driver::turn);
        }
    }
    builder.build().expect("a runtime")
}

pub fn run(setup: Setup, sockets: Sockets) {
    runtime(sockets, setup.buffer).block_on(async {
        match sockets {
            Sockets::Tokio => accept(setup, stream_of_tokio).await,
            Sockets::Late => accept(setup, late::Stream::new).await,
            Sockets::Ring => {
                tokio::spawn(driver::watch());
                accept(setup, driver::Stream::new).await;
            }
        }
    });
}

pub fn stream_of_tokio(stream: std::net::TcpStream) -> tokio::net::TcpStream {
    tokio::net::TcpStream::from_std(stream).expect("a socket")
}

async fn accept<S: Io>(setup: Setup, wrap: fn(std::net::TcpStream) -> S) {
    let buffer = setup.buffer;
    let pool: Pool<S> = Arc::new(Mutex::new(setup.backends.into_iter().map(wrap).collect()));
    let listener = tokio::net::TcpListener::from_std(setup.listener).expect("a listener");
    loop {
        let (stream, _) = listener.accept().await.expect("accept");
        let stream = stream.into_std().expect("a socket");
        prepare(&stream).expect("an option of a new socket");
        let (client, pool) = (wrap(stream), Arc::clone(&pool));
        // An error is the end of a client.
        tokio::spawn(async move { _ = serve(client, pool, buffer).await });
    }
}

async fn serve<S: Io>(mut client: S, pool: Pool<S>, buffer: usize) -> io::Result<()> {
    let (mut input, mut output) = (vec![0; buffer], Vec::new());
    let mut used = 0;
    loop {
        let Some(end) = head_end(&input[..used]) else {
            let bytes = client.read(&mut input[used..]).await?;
            if bytes == 0 {
                return Ok(());
            }
            used += bytes;
            continue;
        };
        if !input.starts_with(b"GET ") {
            return Ok(());
        }
        output.clear();
        output.extend_from_slice(&input[..end - 2]);
        output.extend_from_slice(b"X-Forwarded-For: 127.0.0.1\r\n\r\n");
        input.copy_within(end..used, 0);
        used -= end;
        let mut backend = pool.lock().expect("one thread").pop().expect("connections");
        backend.write_all(&output).await.expect("the backend");
        let is_passed_on = answer(&mut client, &mut backend, &mut output, buffer).await;
        pool.lock().expect("one thread").push(backend);
        is_passed_on?;
    }
}

/// Passes one answer on; reads it to its end if the client has left.
async fn answer<S: Io>(
    client: &mut S,
    backend: &mut S,
    output: &mut Vec<u8>,
    buffer: usize,
) -> io::Result<()> {
    output.clear();
    output.resize(buffer, 0);
    let mut used = 0;
    let all = loop {
        let bytes = backend.read(&mut output[used..]).await.expect("the backend");
        assert_ne!(bytes, 0, "the backend closed its connection");
        used += bytes;
        if let Some(all) = answer_bytes(&output[..used]) {
            break all;
        }
    };
    let mut is_passed_on = client.write_all(&output[..used]).await;
    let mut left = all.checked_sub(used).expect("more than one answer");
    while left > 0 {
        let bytes = backend.read(output).await.expect("the backend");
        assert_ne!(bytes, 0, "the backend closed its connection");
        left = left.checked_sub(bytes).expect("more than one answer");
        if is_passed_on.is_ok() {
            is_passed_on = client.write_all(&output[..bytes]).await;
        }
    }
    is_passed_on
}
