//! Answers from the admin listener of a running program.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// The answer to a request for `path`, with its head.
#[must_use]
pub fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The value of one metric series. Panics if there is no such series.
#[must_use]
pub fn metric(address: SocketAddr, series: &str) -> u64 {
    let all = get(address, "/metrics");
    let line = all.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{all}")).parse().expect("a number")
}
