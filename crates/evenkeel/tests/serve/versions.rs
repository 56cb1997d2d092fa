//! Backends with another HTTP version than configured: the log names the correct setting.

use super::{addresses, get, start};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

/// A backend that sends `answer` on every connection, and keeps listening.
fn backend(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut heard = [0; 1024];
                let begun = stream.read(&mut heard).and_then(|_| stream.write_all(answer));
                while begun.is_ok() && stream.read(&mut heard).is_ok_and(|count| count > 0) {}
            });
        }
    });
    address
}

#[test]
fn the_right_scheme_is_named_and_the_error_told_once() {
    let settings = b"\0\0\0\x04\0\0\0\0\0";
    let text = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    for (scheme, answer, error, hint) in [
        ("http", &settings[..], "invalid HTTP version", "HTTP/2? write h2c://"),
        ("h2c", &text[..], "frame with invalid size", "HTTP/1.1? write http://"),
    ] {
        let backend = format!("{scheme}://{}", backend(answer));
        let listen = ["proxy", "--listen", "127.0.0.1:0", "--backend", &backend];
        let mut program = start(&[&listen[..], &["--admin", "off"]].concat());
        let address = addresses(&mut program)[0];
        assert!(get(address, "/").starts_with("HTTP/1.1 502 "));
        let told = program.told("the backend failed a request");
        assert!(told.contains("kind=\"protocol\"") && told.contains(hint), "{told}");
        assert_eq!(told.matches(error).count(), 1, "{told}");
    }
}
