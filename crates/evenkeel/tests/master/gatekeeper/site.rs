//! A site that counts its requests, the program in front of it as a gatekeeper, and a client.

use evenkeel_testing::admin;
use evenkeel_testing::evenkeel;
use evenkeel_testing::program::{Program, addresses};
use evenkeel_testing::wait::DEADLINE;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// The present in milliseconds since the Unix epoch.
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after the epoch");
    now.as_millis() as u64
}

/// A site; its threads end with the test process.
pub struct Site {
    pub address: SocketAddr,
    requests: Arc<AtomicU64>,
    /// The time of the last request, in milliseconds since the Unix epoch.
    last: Arc<AtomicU64>,
}

impl Site {
    /// Starts a site on an address that the system assigns.
    pub fn start() -> Site {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (requests, last) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let counts = (Arc::clone(&requests), Arc::clone(&last));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (requests, last) = (Arc::clone(&counts.0), Arc::clone(&counts.1));
                std::thread::spawn(move || answer(stream, &requests, &last));
            }
        });
        Site { address, requests, last }
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    pub fn last(&self) -> u64 {
        self.last.load(Relaxed)
    }
}

fn answer(stream: TcpStream, requests: &AtomicU64, last: &AtomicU64) {
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
    let mut stream = stream;
    loop {
        let mut line = String::new();
        while !line.ends_with("\r\n\r\n") && line != "\r\n" {
            match reader.read_line(&mut line) {
                Ok(1..) => {}
                _ => return,
            }
        }
        requests.fetch_add(1, Relaxed);
        last.store(now(), Relaxed);
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n").is_err() {
            return;
        }
    }
}

/// The answer that a client got.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
    pub text: String,
}

impl Answer {
    fn read(mut stream: TcpStream) -> Answer {
        let mut all = String::new();
        stream.read_to_string(&mut all).expect("an answer");
        let (head, text) = all.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), text: text.to_owned() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// The program with a gatekeeper in front of a site.
pub struct Keeper {
    _process: Program,
    _folder: tempfile::TempDir,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    pub site: Site,
}

impl Keeper {
    /// Starts the program for the master at these two addresses, with more keys in its section. The
    /// identifier is the value of the header `x-id`.
    pub fn start([accounting, control]: [SocketAddr; 2], keys: &str) -> Keeper {
        let site = Site::start();
        let at = site.address;
        Keeper::start_by(
            evenkeel!(),
            "127.0.0.1",
            site,
            &format!(
                "proxy: {{listen: '127.0.0.1:0', backend: 'http://{at}', \
                 limits: [{{name: plenty, by: all, rate: 1000000/s, burst: 1000000}}]}}\n\
                 gatekeeper: {{master: 'tcp://{accounting}', control: 'tcp://{control}', \
                 identifier: 'header:x-id', {keys}}}\n"
            ),
        )
    }

    /// Starts the program through a command.
    pub fn start_by(mut command: Command, host: &str, site: Site, sections: &str) -> Keeper {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("evenkeel.yaml");
        fs::write(&path, format!("admin: {{listen: '127.0.0.1:0'}}\n{sections}")).expect("saved");
        command.args(["serve", "--config"]).arg(path);
        let mut process = Program::start(command);
        let line = process.told("proxy open");
        let [address, admin] = addresses(&line)[..] else { panic!("{line}") };
        assert_eq!(address.ip().to_string(), host);
        Keeper { _process: process, _folder: folder, address, admin, site }
    }

    /// Sends a request with this identifier and returns its connection.
    pub fn ask(&self, identifier: &str) -> TcpStream {
        self.ask_for("/", identifier)
    }

    /// Sends a request with this identifier for a path.
    fn ask_for(&self, path: &str, identifier: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: site\r\nconnection: close\r\n\
             x-id: {identifier}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream
    }

    /// Sends a request with this identifier and returns the answer.
    pub fn get(&self, identifier: &str) -> Answer {
        Answer::read(self.ask(identifier))
    }

    /// The status of a request for this path.
    pub fn get_at(&self, path: &str, identifier: &str) -> u16 {
        Answer::read(self.ask_for(path, identifier)).status
    }

    /// The answer of the admin door.
    pub fn admin(&self, path: &str) -> String {
        let answer = admin::get(self.admin, path);
        answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
    }

    /// The value of one metric series of the only domain.
    pub fn metric(&self, series: &str) -> u64 {
        let all = self.admin("/metrics");
        let mut lines = all.lines().map(without_domain);
        let value = lines.find_map(|line| {
            line.strip_prefix(series)?.strip_prefix(' ').map(|value| value.parse())
        });
        value.unwrap_or_else(|| panic!("no {series} in\n{all}")).expect("a number")
    }

    /// The number of requests with this result.
    pub fn requests(&self, status: &str) -> u64 {
        self.metric(&format!("evenkeel_gatekeeper_requests_total{{status=\"{status}\"}}"))
    }

    /// The number of messages to the master with this result.
    pub fn messages(&self, result: &str) -> u64 {
        self.metric(&format!("evenkeel_gatekeeper_messages_total{{result=\"{result}\"}}"))
    }

    /// The number of orders that were accepted.
    pub fn orders(&self) -> u64 {
        self.metric("evenkeel_gatekeeper_orders_total{result=\"taken\"}")
    }

    /// Whether both connections to the master are open.
    pub fn is_connected(&self) -> bool {
        let connected = |socket: &str| {
            self.metric(&format!("evenkeel_gatekeeper_connected{{socket=\"{socket}\"}}")) == 1
        };
        connected("accounting") && connected("control")
    }
}

/// A line of metrics without its domain label; most tests have one domain only.
fn without_domain(line: &str) -> String {
    let Some((name, labels)) = line.split_once("{domain=\"") else { return line.to_owned() };
    let (_, rest) = labels.split_once('"').expect("an end");
    match rest.strip_prefix(',') {
        Some(more) => format!("{name}{{{more}"),
        None => format!("{name}{}", rest.trim_start_matches('}')),
    }
}
