//! Every door but the proxy's: its sockets go to the successor, and every question gets an answer.

use super::super::LONG;
use super::{Last, configuration, told_pid};
use evenkeel_testing::evenkeel;
use evenkeel_testing::program::{self, Program};
use evenkeel_testing::wait::until;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::Signal;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// When they are handed over, these doors close a connection without a question at once. A client
/// that is delayed for longer than this between connecting and asking may find its connection
/// closed.
const PATIENCE: Duration = Duration::from_millis(50);

/// The first file descriptor for sockets that are handed in; no other test uses these numbers.
const FIRST_FD: i32 = 400;

/// Starts the program with these sockets, as systemd would.
fn start_on_all(listeners: &[TcpListener], config: &Path) -> Program {
    let passed: Vec<_> = (FIRST_FD..)
        .zip(listeners)
        .map(|(number, listener)| {
            let passed = fcntl_dupfd_cloexec(listener, number).expect("a descriptor");
            assert_eq!(passed.as_raw_fd(), number);
            fcntl_setfd(&passed, FdFlags::empty()).expect("a flag");
            passed
        })
        .collect();
    let mut command = evenkeel!();
    command.arg("serve").arg("--config").arg(config);
    command.env("LISTEN_FDS", passed.len().to_string());
    command.env("LISTEN_FDS_FIRST_FD", FIRST_FD.to_string());
    Program::start(&mut command)
}

/// One exchange of a client: it connects, asks once, and returns whether it got an answer.
type Asks = fn(&str) -> Option<()>;

/// Sends `question` to a port and reads until `enough` accepts the answer.
fn exchange(at: &str, question: &[u8], enough: fn(&[u8]) -> bool) -> Option<()> {
    let connect = || {
        let stream = TcpStream::connect(at).ok()?;
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        Some(stream)
    };
    exchange_on(connect, question, enough)
}

/// Does the same on the stream that `connect` opens. A client that was delayed for too long tries
/// again.
fn exchange_on<S: Read + Write>(
    connect: impl Fn() -> Option<S>,
    question: &[u8],
    enough: fn(&[u8]) -> bool,
) -> Option<()> {
    loop {
        let begun = Instant::now();
        let mut stream = connect()?;
        let sent = stream.write_all(question);
        let late = begun.elapsed() > PATIENCE;
        let answered = sent.ok().and_then(|()| until_answered(stream, enough));
        if answered.is_some() || !late {
            return answered;
        }
    }
}

fn until_answered(mut stream: impl Read, enough: fn(&[u8]) -> bool) -> Option<()> {
    let mut answer = Vec::new();
    let mut piece = [0; 1024];
    while !enough(&answer) {
        match stream.read(&mut piece) {
            Ok(count @ 1..) => answer.extend_from_slice(&piece[..count]),
            // The process was stopped for a while.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
    Some(())
}

fn asks_line(at: &str) -> Option<()> {
    exchange(at, b"tag\n", |answer| answer == b"OK\n")
}

fn asks_file(at: &str) -> Option<()> {
    let connect = || {
        let stream = UnixStream::connect(at).ok()?;
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        Some(stream)
    };
    exchange_on(connect, b"tag\n", |answer| answer == b"OK\n")
}

fn asks_resp(at: &str) -> Option<()> {
    exchange(at, b"*1\r\n$4\r\nPING\r\n", |answer| answer == b"+PONG\r\n")
}

fn asks_check(at: &str) -> Option<()> {
    let question = b"GET /check HTTP/1.1\r\nhost: a\r\nx-original-uri: /\r\n\r\n";
    exchange(at, question, |answer| {
        answer.starts_with(b"HTTP/1.1 204 ") && answer.ends_with(b"\r\n\r\n")
    })
}

fn asks_json(at: &str) -> Option<()> {
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"a","value":"b"}]}]}"#;
    let length = body.len();
    let head = format!("POST /json HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    exchange(at, (head + body).as_bytes(), |answer| {
        answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(b"}")
    })
}

/// Starts an HTTP/2 connection up to SETTINGS, and waits for the answer to a ping.
fn asks_grpc(at: &str) -> Option<()> {
    let question = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
                     \0\0\x08\x06\0\0\0\0\0question";
    exchange(at, question, |answer| answer.windows(8).any(|word| word == b"question"))
}

/// Exchanges the greeting of ZeroMQ.
fn asks_master(at: &str) -> Option<()> {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    exchange(at, &greeting, |answer| answer.len() >= 64)
}

/// A configuration with every door, at these addresses and with this Unix socket.
fn every_door(folder: &Path, at: &[String], file: &str) -> String {
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let syslog = datagrams.local_addr().expect("bound");
    let (state, rules) = (folder.join("state"), folder.join("rules"));
    fs::create_dir(&rules).expect("a folder");
    let [check, line, resp, grpc, json, accounting, control] = at else { panic!("seven") };
    let (state, rules) = (state.display(), rules.display());
    format!(
        "admin: off\nstate: {{file: {state}}}\nproxy: {{listen: off, limits: []}}\n\
         check: {{listen: {check}, syslog: 'udp://{syslog}'}}\n\
         line:\n  listen: ['tcp://{line}', 'unix://{file}']\n  resp: {resp}\n  \
         rate: 1000000/s\n  burst: 1000000\n\
         ratelimit: {{grpc: {grpc}, http: {json}, rules: {rules}}}\n\
         master:\n  accounting: 'tcp://{accounting}'\n  control: 'tcp://{control}'\n  \
         domains: {{d: [{{rate: 1/s, burst: 1}}]}}\n"
    )
}

/// The number of questions of each kind with an answer and without one.
#[derive(Debug, Default)]
struct Counts {
    answered: [AtomicUsize; 8],
    lost: [AtomicUsize; 8],
}

impl Counts {
    /// Waits until questions of each kind got ten more answers.
    fn go_on(&self) {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let before: Vec<usize> = self.answered.iter().map(load).collect();
        until("answers to each", || {
            self.answered.iter().zip(&before).all(|(count, before)| load(count) >= before + 10)
        });
    }
}

/// Stops the clients when dropped, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn every_door_is_handed_over_and_no_question_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("line.sock").display().to_string();
    let ports: Vec<TcpListener> =
        (0..7).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let at: Vec<String> =
        ports.iter().map(|port| port.local_addr().expect("bound").to_string()).collect();
    let text = every_door(folder.path(), &at, &file);
    let path = configuration(folder.path(), &text);
    let mut program = start_on_all(&ports, &path);
    program.told("check open");
    // From here on, only the program has these sockets.
    drop(ports);
    let mut last = Last(program.id());
    let asks: [(Asks, &str); 8] = [
        (asks_check, &at[0]),
        (asks_line, &at[1]),
        (asks_file, &file),
        (asks_resp, &at[2]),
        (asks_grpc, &at[3]),
        (asks_json, &at[4]),
        (asks_master, &at[5]),
        (asks_master, &at[6]),
    ];
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    thread::scope(|scope| {
        let ends = Stop(&stop);
        for (index, (ask, at)) in asks.into_iter().enumerate() {
            let (stop, counts) = (&stop, &counts);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let answered = ask(at).is_some();
                    let count = if answered { &counts.answered } else { &counts.lost };
                    count[index].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..3 {
            program::signal(last.0, Signal::USR2);
            let successor = told_pid(&program.told("a successor was started and opens its doors"));
            program.told("replaced: the successor accepts all new clients");
            program.told("stopped");
            last.0 = successor;
            counts.go_on();
        }
        drop(ends);
    });
    assert!(counts.lost.iter().all(|lost| lost.load(Ordering::Relaxed) == 0), "{counts:?}");
    assert!(Path::new(&file).exists(), "the socket's file is the successor's");
    program::signal(last.0, Signal::TERM);
    program.told("stopping: draining");
    program.told("stopped");
    assert!(!Path::new(&file).exists(), "the last one removes it");
}
