//! Several backends over TCP, TLS and Unix sockets: how one is selected or left out, and which
//! requests are sent again.

mod ends;
mod frames;
mod gone;
mod http2;
mod lengths;
mod strays;
mod streams;
mod versions;

use crate::front::Authority;
use crate::stage::{LONG, Stage, Wire};
use evenkeel_config::settings::tls::ClientTls;
use evenkeel_config::settings::{BackendAddress, BackendScheme, BackendTls};
use evenkeel_telemetry::counts::BackendFault;
use evenkeel_testing::wait::until;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;

/// A server that answers every request with `name`, each on a new connection.
pub fn server(name: &'static str) -> BackendAddress {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = BackendAddress::http(listener.local_addr().expect("an address").to_string());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut wire = Wire::new(stream);
                while wire.try_head().is_some() {
                    wire.answer(name);
                }
            });
        }
    });
    at
}

/// An address without a listener. The port stays reserved until the tests end, so that no other
/// test gets it.
pub fn nobody() -> BackendAddress {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    let at = socket.local_addr().ok().and_then(|at| at.as_socket()).expect("an address");
    std::mem::forget(socket);
    BackendAddress::http(at.to_string())
}

/// A server that reads requests and closes the connection.
fn hangs_up() -> BackendAddress {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = BackendAddress::http(listener.local_addr().expect("an address").to_string());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            Wire::new(stream).head();
        }
    });
    at
}

fn asked(stage: &Stage, times: usize) -> Vec<String> {
    let mut client = stage.client();
    let mut ask = || client.get("/").message().text().to_owned();
    (0..times).map(|_| ask()).collect()
}

#[test]
fn servers_take_turns() {
    let backends = vec![server("a"), server("b"), server("c")];
    let stage = Stage::open(|settings| settings.backends = backends);
    let mut heard = asked(&stage, 6);
    heard.sort();
    assert_eq!(heard, ["a", "a", "b", "b", "c", "c"]);
}

#[test]
fn the_one_with_fewest_requests_is_asked() {
    let quick = server("quick");
    let stage = Stage::open(|settings| settings.backends.push(quick));
    let mut client = stage.client();
    // One of two requests goes to the slow server, which the test answers by hand.
    let mut slow = None;
    while slow.is_none() {
        client.get("/");
        slow = stage.backend_or_client(&mut client);
        if slow.is_none() {
            client.message();
        }
    }
    // Its thread has one request in flight to this server; later connections may belong to other
    // threads.
    let mut slow = slow.expect("it is asked");
    slow.head();
    slow.answer("slow");
    assert_eq!(client.message().text(), "slow");
}

#[test]
fn who_cannot_be_reached_costs_nobody_a_request() {
    let backends = vec![nobody(), server("a"), nobody()];
    let stage = Stage::open(|settings| settings.backends = backends);
    assert_eq!(asked(&stage, 8), ["a"; 8]);
    // The connection was refused before anything was sent, so the request may go to another server.
    let mut client = stage.client();
    for _ in 0..8 {
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab");
        assert_eq!(client.message().text(), "a");
    }
}

#[test]
fn all_are_tried_before_a_request_fails() {
    let backends = vec![nobody(), nobody()];
    let stage = Stage::open(|settings| settings.backends = backends);
    let mut client = stage.client();
    assert_eq!(client.get("/").message().status(), 502);
    assert_eq!(client.get("/").message().status(), 502);
}

#[test]
fn what_does_no_harm_twice_is_sent_to_another() {
    let backends = vec![hangs_up(), server("a")];
    let stage = Stage::open(|settings| settings.backends = backends);
    assert_eq!(asked(&stage, 4), ["a"; 4]);
    let backends = vec![hangs_up()];
    let stage = Stage::open(|settings| settings.backends = backends);
    let mut client = stage.client();
    assert_eq!(client.get("/").message().status(), 502, "there is no other");
    let backends = vec![hangs_up(), hangs_up()];
    let stage = Stage::open(|settings| settings.backends = backends);
    let mut client = stage.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(client.message().status(), 502, "it may have been done");
}

#[test]
fn a_socket_file_is_a_backend() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let place = path.display().to_string();
    let backend = BackendAddress { scheme: BackendScheme::Unix, place };
    let stage = Stage::open(|settings| settings.backends = vec![backend]);
    let mut client = stage.client();
    client.get("/1");
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    for body in ["one", "two"] {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a head");
            head.push(byte[0]);
        }
        assert!(String::from_utf8_lossy(&head).contains("host: site.example\r\n"));
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).expect("taken");
        assert_eq!(client.message().text(), body);
        client.get("/2");
    }
}

/// A TLS server for `name` that answers every request with `secured`.
fn secured(authority: &Authority, name: &str) -> BackendAddress {
    let (cert, key) = authority.sign(name);
    let cert = CertificateDer::from_pem_file(cert).expect("PEM");
    let key = PrivateKeyDer::from_pem_file(key).expect("PEM");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let config = builder.with_no_client_auth().with_single_cert(vec![cert], key).expect("usable");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            thread::spawn(move || answer_under_tls(stream, config));
        }
    });
    BackendAddress { scheme: BackendScheme::Https, place }
}

fn answer_under_tls(stream: TcpStream, config: Arc<ServerConfig>) {
    let connection = ServerConnection::new(config).expect("a connection");
    let mut stream = StreamOwned::new(connection, stream);
    let mut unread = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        unread.extend_from_slice(&piece[..count]);
        // Requests in this test have either no body or one that ends with "!".
        if unread.ends_with(b"\r\n\r\n") || unread.ends_with(b"!") {
            unread.clear();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nsecured";
            if stream.write_all(answer).and_then(|()| stream.flush()).is_err() {
                return;
            }
        }
    }
}

#[test]
fn a_backend_under_tls_is_asked_if_it_is_believed() {
    let authority = Authority::new();
    let backend = secured(&authority, "app.example");
    let tls = |name: &str, ca| BackendTls {
        client: ClientTls { ca, identity: None, name: Some(name.to_owned()) },
        ..BackendTls::default()
    };
    let ca = || Some(authority.path("ca.pem"));
    let open = |tls: BackendTls| {
        Stage::open(|settings| {
            settings.backends = vec![backend.clone()];
            settings.backend_tls = tls;
        })
    };
    let stage = open(tls("app.example", ca()));
    assert_eq!(asked(&stage, 3), ["secured"; 3]);
    let mut client = stage.client();
    let body = "x".repeat(300_000);
    let length = body.len() + 1;
    client.send(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}!"));
    assert_eq!(client.message().text(), "secured");
    let connections = stage.watch.proxy.backend_connections.get();
    assert!(connections <= 2, "connections are used again: {connections}");

    let other = Authority::new();
    for wrong in [tls("other.example", ca()), tls("app.example", Some(other.path("ca.pem")))] {
        let stage = open(wrong);
        let mut client = stage.client();
        assert_eq!(client.get("/").message().status(), 502);
        until("it is counted", || stage.watch.proxy.failures(BackendFault::Tls).get() == 1);
    }
    let anybody = BackendTls { verify: false, ..BackendTls::default() };
    assert_eq!(asked(&open(anybody), 1), ["secured"]);
}
