//! Clients that send nonsense, never read, never end, or stay silent.

use crate::stage::{Client, LineServer, ONCE};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A client that has sent until its data was no longer accepted, and has not read anything.
pub fn stuck(address: SocketAddr) -> (TcpStream, usize) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_nonblocking(true).expect("an option");
    let chunk = "stuck\n".repeat(2_000);
    let (mut sent, mut refused) = (0, 0);
    // A slow door gets some more time; the number of attempts is large enough to be sure.
    while refused < 200 {
        match stream.write(&chunk.as_bytes()[sent % chunk.len()..]) {
            Ok(count) => (sent, refused) = (sent + count, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                refused += 1;
                // Another client gets its answer in the meantime, which takes some time.
                assert_eq!(Client::tcp(address).ask("free\n").len(), 3);
            }
            Err(error) => panic!("{error}"),
        }
    }
    (stream, sent)
}

#[test]
fn who_does_not_read_is_not_answered_further_and_loses_nothing() {
    let program = LineServer::start(ONCE);
    let (mut stream, sent) = stuck(program.lines);
    assert!(sent < 64 << 20, "{sent} bytes were taken from somebody who reads nothing");
    stream.set_nonblocking(false).expect("an option");
    stream.shutdown(std::net::Shutdown::Write).expect("open");
    let mut replies = Vec::new();
    stream.read_to_end(&mut replies).expect("all of them");
    assert_eq!(replies.len(), sent / "stuck\n".len() * 3);
}

#[test]
fn a_line_without_end_is_passed_over() {
    let program = LineServer::start(ONCE);
    let mut client = Client::tcp(program.lines);
    let piece = [b'x'; 1 << 16];
    (0..512).for_each(|_| client.send(piece));
    assert_eq!(client.ask("\nC\nC\n"), "OK\nOK\nNO\n");
    let mut client = Client::tcp(program.resp);
    client.send(&piece[..16_384]);
    assert!(client.rest().starts_with("-ERR Protocol error: command is longer than 16384 bytes"));
}

#[test]
fn garbage_hurts_nobody_else() {
    let program = LineServer::start(ONCE);
    let mut seed = 1_u64;
    for round in 0..40 {
        let garbage: Vec<u8> = (0..5_000)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        for address in [program.lines, program.resp] {
            let mut client = Client::tcp(address);
            // The door may close the connection in the middle, which is an answer too.
            let _ = client.stream.write_all(&garbage);
            if round % 2 == 0 {
                let _ = client.stream.shutdown(std::net::Shutdown::Write);
                let _ = client.stream.read_to_end(&mut Vec::new());
            }
        }
    }
    assert_eq!(Client::tcp(program.lines).ask("C\nC\n"), "OK\nNO\n");
    let mut browser = Client::tcp(program.resp);
    browser.send("POST / HTTP/1.1\r\nHost: x\r\n\r\nCL.THROTTLE a 1 1 1\r\n");
    assert_eq!(browser.rest(), "", "a page in a browser asks nothing here");
}

#[test]
fn the_longest_silent_connection_makes_room() {
    let mut program = LineServer::start(&format!("{ONCE}, connections: 2"));
    let mut clients: Vec<_> = (0..8).map(|_| Client::tcp(program.lines)).collect();
    for client in &mut clients {
        // The door may have closed this connection to make room for others.
        let _ = client.stream.write_all(b"C\n");
    }
    program.told("the limit of `line.connections` is reached");
    let mut newest = Client::tcp(program.lines);
    assert_eq!(newest.ask("D\n"), "OK\n");
    // At most one more than the bound in each thread that had no connection to close.
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    while program.metric("evenkeel_connections_open{door=\"line\"}") > 2 + threads {
        assert_eq!(newest.ask("E\n").len(), 3);
    }
    assert!(program.metric("evenkeel_connections_shed_total{door=\"line\"}") > 0);
}

#[test]
fn ten_thousand_that_sit_there_cost_little_and_delay_nobody() {
    let most = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit { current: most, maximum: most };
    setrlimit(Resource::Nofile, raised).expect("a higher limit");
    let count = most.map_or(10_000, |most| most.saturating_sub(500).min(10_000) as usize);
    let program = LineServer::start(&format!("{ONCE}, connections: {}", count + 100));
    let before = program.memory();
    let crowd: Vec<TcpStream> = (0..count)
        .map(|n| {
            let mut stream = TcpStream::connect(program.lines).expect("it listens");
            // Each connection holds an incomplete question.
            stream.write_all(&[b'a'; 16][..n % 16]).expect("sent");
            stream
        })
        .collect();
    let mut client = Client::tcp(program.lines);
    assert_eq!(client.ask("C\nC\n"), "OK\nNO\n");
    let open = "evenkeel_connections_open{door=\"line\"}";
    while program.metric(open) < count as u64 {
        assert_eq!(client.ask("C\n"), "NO\n");
    }
    assert_eq!(program.metric("evenkeel_connections_shed_total{door=\"line\"}"), 0);
    let each = program.memory().saturating_sub(before) / count as u64;
    assert!(each < 4_096, "{each} bytes for each of {count}");
    drop(crowd);
    while program.metric(open) > 1 {
        assert_eq!(client.ask("C\n"), "NO\n");
    }
}
