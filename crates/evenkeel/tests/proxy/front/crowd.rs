//! Everything at once: a flood of resets, clients that are slow in every way, and a visitor who
//! wants a page.

use super::frames::{END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS, fields, frame};
use crate::backends::server;
use crate::stage::{LONG, Stage, Wire};
use evenkeel_config::settings::ConcurrencySetting;
use evenkeel_core::limit::LimitAction;
use evenkeel_testing::wait::until;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// The number of slow clients.
const SLOW: usize = 500;

/// Each connection takes two file descriptors, as the proxy runs in this process too.
fn allow_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(8192, |maximum| maximum.min(8192));
    if current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// Opens streams and resets them at once, until `stop`. Counts in `ended` how often its connection
/// was closed for that.
fn reset_in_a_hurry(stage: &Stage, stop: &AtomicBool, ended: &AtomicUsize) {
    let head = fields(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
        ("x-forwarded-for", "198.51.100.1"),
    ]);
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(stage.door.addresses()[0]) else { continue };
        let begin =
            [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat();
        let mut taken = stream.write_all(&begin).is_ok();
        let mut id = 1;
        while taken && !stop.load(Ordering::Relaxed) {
            let open = frame(HEADERS, END_STREAM | END_HEADERS, id, &head);
            let reset = frame(RST_STREAM, 0, id, &8_u32.to_be_bytes());
            taken = stream.write_all(&[open, reset].concat()).is_ok();
            id += 2;
        }
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the flood when dropped, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client that is slow with its head, with its body, or with reading its answer.
fn slow(stage: &Stage, index: usize) -> Wire {
    let mut wire = stage.client();
    let from = format!("host: a\r\nx-forwarded-for: 198.51.100.{}\r\n", 2 + index % 100);
    match index % 3 {
        0 => wire.send(format!("GET / HTTP/1.1\r\n{from}x: ")),
        1 => wire.send(format!("POST / HTTP/1.1\r\n{from}content-length: 100\r\n\r\nx")),
        _ => wire.send(format!("GET / HTTP/1.1\r\n{from}\r\n")),
    };
    wire
}

#[test]
fn a_visitor_is_served_whatever_others_do() {
    allow_descriptors();
    let page: &'static str = Box::leak("x".repeat(300_000).into_boxed_str());
    let stage = Stage::open(|settings| {
        settings.backends = vec![server(page)];
        settings.action = LimitAction::Queue;
        settings.queue.concurrency = ConcurrencySetting::Fixed(2);
        settings.queue.reserve = 0;
        settings.bounds.body_buffer = 64 * 1024;
        // No client is closed for being slow, however long the test takes.
        (settings.timeouts.header, settings.timeouts.idle) = (10 * LONG, 10 * LONG);
        settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    });
    let (stop, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let ends = Stop(&stop);
        let dawdling: Vec<Wire> = (0..SLOW).map(|index| slow(&stage, index)).collect();
        let flood = scope.spawn(|| reset_in_a_hurry(&stage, &stop, &ended));
        until("the flood is on", || ended.load(Ordering::Relaxed) > 2);
        let before = ended.load(Ordering::Relaxed);
        for _ in 0..20 {
            let mut visitor = stage.client();
            visitor.send("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1\r\n\r\n");
            let answer = visitor.message();
            assert_eq!((answer.status(), answer.body.len()), (200, page.len()));
        }
        until("the flood went on", || ended.load(Ordering::Relaxed) > before);
        assert!(stage.door.connections() >= SLOW, "those who dawdle are here still");
        drop(ends);
        flood.join().expect("it ends");
        drop(dawdling);
    });
}
