//! The test stage: a door with its settings, and a client and a backend that the test controls.

use evenkeel_config::settings::hosts::HostSettings;
use evenkeel_config::settings::{
    BackendAddress as BackendAt, BackendTls, ClientAddress, CostSource, DatabaseSettings,
    ProxyBounds, ProxyQueueSettings, ProxySettings, ProxyTimeouts, RefusalPages, RobotSettings,
    TokenSettings,
};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::condition::Condition;
use evenkeel_core::fact::FactSet;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::units::{Cost, Nanos, Rate, Weight};
use evenkeel_engine::Engine;
use evenkeel_proxy::RunningProxy;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use evenkeel_testing::wait::until;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Longer than any step takes on the slowest machine; only a failing test waits that long.
pub const LONG: Duration = Duration::from_secs(20);

/// A proxy in front of one backend.
pub struct Stage {
    pub door: RunningProxy,
    pub engine: Arc<Engine>,
    pub watch: Arc<Watch>,
    pub settings: ProxySettings,
    backend: TcpListener,
}

impl Stage {
    /// A proxy with the default settings, changed by `change`.
    pub fn open(change: impl FnOnce(&mut ProxySettings)) -> Stage {
        let backend = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = backend.local_addr().expect("an address");
        let mut settings = settings(at);
        change(&mut settings);
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(clock.now()));
        let engine = Engine::new(
            &settings,
            evenkeel_proxy::threads(),
            KeySeed([7; 16]),
            clock,
            Arc::clone(&watch),
        );
        let door = evenkeel_proxy::start(&settings, &engine, &watch).expect("the door opens");
        Stage { door, engine, watch, settings, backend }
    }

    /// A connected client.
    pub fn client(&self) -> Wire {
        Wire::new(TcpStream::connect(self.door.addresses()[0]).expect("the door takes us in"))
    }

    /// The next connection that the proxy opens to the backend.
    pub fn backend(&self) -> Wire {
        Wire::new(self.backend.accept().expect("a connection").0)
    }

    /// The connection on which the request for `path` arrives: a new one, or `old`, reused. The
    /// head of the request has been read.
    pub fn backend_for(&self, path: &str, old: impl Into<Option<Wire>>) -> Wire {
        let (mut wire, mut old) = (None, old.into());
        until("a request comes", || {
            wire = self.backend_if_any();
            wire.is_some() || old.as_mut().is_some_and(|old| !old.is_silent())
        });
        let mut wire = wire.or(old).expect("one of the two");
        let head = wire.head();
        assert_eq!(head.split(' ').nth(1), Some(path), "{head}");
        wire
    }

    /// The connection that the proxy opens to the backend, or `None` if the client gets an answer
    /// first.
    pub fn backend_or_client(&self, client: &mut Wire) -> Option<Wire> {
        let mut wire = None;
        until("something comes", || {
            wire = self.backend_if_any();
            wire.is_some() || !client.is_silent()
        });
        wire
    }

    pub fn backend_if_any(&self) -> Option<Wire> {
        self.backend.set_nonblocking(true).expect("a mode");
        let accepted = self.backend.accept();
        self.backend.set_nonblocking(false).expect("a mode");
        let (stream, _) = accepted.ok()?;
        stream.set_nonblocking(false).expect("a mode");
        Some(Wire::new(stream))
    }

    /// Checks that the proxy has not connected to the backend.
    pub fn backend_is_left_alone(&self) {
        assert!(self.backend_if_any().is_none(), "the backend was connected to");
    }
}

fn settings(backend: SocketAddr) -> ProxySettings {
    ProxySettings {
        hosts: HostSettings::default(),
        robots: RobotSettings::default(),
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        tls: None,
        redirect: None,
        http2: true,
        backends: vec![BackendAt::http(backend.to_string())],
        backend_tls: BackendTls::default(),
        upgrades: vec!["websocket".to_owned()],
        cpus: 4.0,
        cost: CostSource::Wall,
        tokens: TokenSettings::default(),
        action: LimitAction::Hold,
        queue: ProxyQueueSettings::for_cpus(4.0),
        max_delay: Nanos::from_secs(30),
        trusted_proxies: Vec::new(),
        client_address: ClientAddress::XForwardedFor,
        timeouts: ProxyTimeouts::default(),
        // Bodies are streamed, unless a test wants them buffered.
        bounds: ProxyBounds { body_buffer: 0, ..ProxyBounds::default() },
        exempt: Vec::new(),
        exempt_when: Vec::new(),
        facts: FactSet::default(),
        ip_files: Vec::new(),
        databases: DatabaseSettings::default(),
        denials: Vec::new(),
        pages: RefusalPages::default(),
        shadow: false,
        headers: false,
        keep_cost_header: false,
        charge_streams: false,
        names_max: 1_000,
        limits: Vec::new(),
    }
}

/// A limit per address in CPU time: `rate` CPU-seconds a second with the burst `burst`.
pub fn cpu_limit(rate: f64, burst: Duration) -> Limit {
    let rate = Rate::per(Cost((rate * 1e9) as u64), Nanos::from_secs(1)).expect("a rate");
    limit("cpu", LimitUnit::Cpu, DebtBucket::new(rate, Cost(burst.as_nanos() as u64)))
}

/// A limit per address in requests.
pub fn hit_limit(per_minute: u64, burst: u64) -> Limit {
    let rate = Rate::per(Cost::hits(per_minute), Nanos::from_secs(60)).expect("a rate");
    limit("hits", LimitUnit::Hits, DebtBucket::new(rate, Cost::hits(burst)))
}

fn limit(name: &str, unit: LimitUnit, debt: DebtBucket) -> Limit {
    Limit {
        name: name.into(),
        by: vec![KeyPart::Ip { v4: 32, v6: 64 }],
        when: Condition::default(),
        unit,
        algorithm: Algorithm::Debt(debt),
        action: None,
        weight: Weight::ONE,
        keys_max: 1000,
        shadow: false,
    }
}

/// One end of a connection.
pub struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// A message as received over the wire.
#[derive(Debug)]
pub struct Message {
    pub head: String,
    pub body: Vec<u8>,
}

impl Message {
    /// The status of an answer.
    pub fn status(&self) -> u16 {
        let code = self.head.split(' ').nth(1).expect("a status line");
        code.parse().expect("a status")
    }

    /// All values of a header, given its name in lower case.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        fields.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    /// The only value of a header; `None` if it is missing.
    pub fn header(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name} came several times: {}", self.head);
        all.first().copied()
    }

    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("text")
    }
}

impl Wire {
    pub fn new(stream: TcpStream) -> Wire {
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        stream.set_write_timeout(Some(LONG)).expect("a timeout");
        stream.set_nodelay(true).expect("a mode");
        Wire { stream, unread: Vec::new() }
    }

    /// A second handle of this connection, for another thread.
    pub fn again(&self) -> Wire {
        Wire::new(self.stream.try_clone().expect("a descriptor"))
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Wire {
        self.stream.write_all(bytes.as_ref()).expect("bytes are taken");
        self
    }

    /// Sends a GET request without a body.
    pub fn get(&mut self, path: &str) -> &mut Wire {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: site.example\r\n\r\n"))
    }

    /// Sends an answer with a `Content-Length`.
    pub fn answer(&mut self, body: &str) -> &mut Wire {
        let length = body.len();
        self.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"))
    }

    /// Writes `size` bytes, or as much as the peer accepts before the connection ends. Returns the
    /// number of bytes written.
    pub fn pour(&mut self, size: usize) -> usize {
        let chunk = vec![b'x'; 1 << 16];
        let mut poured = 0;
        while poured < size && self.stream.write_all(&chunk).is_ok() {
            poured += chunk.len();
        }
        poured
    }

    fn more(&mut self) -> usize {
        let mut chunk = [0; 16384];
        let count = loop {
            match self.stream.read(&mut chunk) {
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break 0,
                // The process was stopped for a while.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!(
                    "nothing came: {error}; so far {:?}",
                    String::from_utf8_lossy(&self.unread)
                ),
            }
        };
        self.unread.extend_from_slice(&chunk[..count]);
        count
    }

    /// Checks that exactly these bytes arrive next.
    pub fn expect(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        assert_eq!(
            String::from_utf8_lossy(&self.take(bytes.len())),
            String::from_utf8_lossy(bytes)
        );
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        while self.unread.len() < count {
            assert!(self.more() > 0, "the connection ended");
        }
        self.unread.drain(..count).collect()
    }

    /// Sends bytes; returns false if the connection ends before all are sent.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// The next `count` bytes, or `None` if the connection ends before.
    pub fn try_take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.unread.len() < count {
            if self.more() == 0 {
                return None;
            }
        }
        Some(self.unread.drain(..count).collect())
    }

    /// The next message head, or `None` if the connection ends before.
    pub fn try_head(&mut self) -> Option<String> {
        while !self.unread.windows(4).any(|w| w == b"\r\n\r\n") {
            if self.more() == 0 {
                return None;
            }
        }
        Some(self.head())
    }

    /// Delays everything that is sent until the end of the connection.
    pub fn cork(&mut self) {
        rustix::net::sockopt::set_tcp_cork(&self.stream, true).expect("a mode");
    }

    /// Ends the sending direction; reading stays possible.
    pub fn shut(&mut self) {
        self.stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    }

    /// The next message head, up to its empty line.
    pub fn head(&mut self) -> String {
        loop {
            let end = self.unread.windows(4).position(|w| w == b"\r\n\r\n");
            if let Some(end) = end {
                let head: Vec<u8> = self.unread.drain(..end + 4).collect();
                return String::from_utf8(head).expect("a readable head");
            }
            assert!(self.more() > 0, "the connection ended within a head: {:?}", self.unread);
        }
    }

    /// The next complete message, delimited by its length, its chunks, or the end of the
    /// connection.
    pub fn message(&mut self) -> Message {
        let head = self.head();
        let mut message = Message { head, body: Vec::new() };
        message.body = if let Some(length) = message.header("content-length") {
            self.take(length.parse().expect("a length"))
        } else if message.header("transfer-encoding").is_some() {
            self.chunks()
        } else if message.head.starts_with("HTTP/1.0") {
            self.rest()
        } else {
            Vec::new()
        };
        message
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let length = usize::from_str_radix(line.trim(), 16).expect("a chunk's length");
            if length == 0 {
                while !self.line().trim().is_empty() {}
                return body;
            }
            body.extend(self.take(length));
            self.expect("\r\n");
        }
    }

    /// The next line.
    pub fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                return String::from_utf8(self.take(end + 1)).expect("a readable line");
            }
            assert!(self.more() > 0, "the connection ended within a line");
        }
    }

    /// All bytes until the peer closes the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.more() > 0 {}
        std::mem::take(&mut self.unread)
    }

    /// Checks that the peer closes the connection without another byte.
    pub fn ends(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "still came: {:?}", String::from_utf8_lossy(&rest));
    }

    /// Whether no byte has arrived so far.
    pub fn is_silent(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("a mode");
        let mut byte = [0];
        let silent = self.unread.is_empty() && self.stream.peek(&mut byte).is_err();
        self.stream.set_nonblocking(false).expect("a mode");
        silent
    }
}
