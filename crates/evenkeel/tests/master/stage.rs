//! The program with a master, and a gatekeeper that uses libzmq.

use evenkeel_testing::port::free_port;
use evenkeel_testing::program::{Program, addresses};
use evenkeel_testing::{admin, evenkeel};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// An hour, in milliseconds.
pub const HOUR: u64 = 3_600_000;

/// A running program with a master, and its files.
pub struct MasterServer {
    process: Program,
    folder: tempfile::TempDir,
    /// The address that receives reports of requests.
    pub accounting: SocketAddr,
    /// The address that publishes orders.
    pub control: SocketAddr,
    /// The address of the admin door.
    pub admin: SocketAddr,
}

impl MasterServer {
    /// Starts the program with these keys in its `master` section.
    pub fn start(keys: &str) -> MasterServer {
        let folder = tempfile::tempdir().expect("a folder");
        // No connection of another program gets one of these ports while the program is away.
        MasterServer::start_at(folder, keys, [free_port(), free_port()])
    }

    /// Starts the program with this text in addition to its `admin` section.
    pub fn start_with(text: &str) -> MasterServer {
        MasterServer::start_by(evenkeel!(), text)
    }

    fn start_at(
        folder: tempfile::TempDir,
        keys: &str,
        [accounting, control]: [u16; 2],
    ) -> MasterServer {
        let text = format!(
            "master: {{accounting: 'tcp://127.0.0.1:{accounting}', \
             control: 'tcp://127.0.0.1:{control}', {keys}}}\n"
        );
        MasterServer::run(evenkeel!(), folder, &text)
    }

    /// Starts the program through a command.
    pub fn start_by(command: Command, text: &str) -> MasterServer {
        MasterServer::run(command, tempfile::tempdir().expect("a folder"), text)
    }

    fn run(mut command: Command, folder: tempfile::TempDir, text: &str) -> MasterServer {
        let path = folder.path().join("evenkeel.yaml");
        let text = format!("admin: {{listen: '127.0.0.1:0'}}\n{text}");
        fs::write(&path, text).expect("saved");
        command.args(["serve", "--config"]).arg(path).env("RUST_LOG", "debug");
        let mut process = Program::start(command);
        let line = process.told("master open");
        let [accounting, control, admin] = addresses(&line)[..] else { panic!("{line}") };
        MasterServer { process, folder, accounting, control, admin }
    }

    /// Kills the program, and starts it again on the same addresses.
    pub fn killed_and_started(self, keys: &str) -> MasterServer {
        self.killed().back(keys)
    }

    /// Kills the program.
    pub fn killed(mut self) -> Away {
        self.process.kill();
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"));
        Away { folder, ports: [self.accounting.port(), self.control.port()] }
    }

    /// The process id of the program.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Writes other keys into the configuration and reloads it.
    pub fn reload(&mut self, keys: &str) {
        let path = self.folder.path().join("evenkeel.yaml");
        let before = fs::read_to_string(&path).expect("it is there");
        let at = before.find("domains:").expect("domains");
        fs::write(&path, format!("{}{keys}}}\n", &before[..at])).expect("saved");
        self.process.signal(Signal::HUP);
        self.told("configuration reloaded");
    }

    /// The next log line that contains `what`.
    pub fn told(&mut self, what: &str) -> String {
        self.process.told(what)
    }

    /// The answer of the admin door.
    pub fn get(&self, path: &str) -> String {
        admin::get(self.admin, path)
    }

    /// The value of one metric series.
    pub fn metric(&self, series: &str) -> u64 {
        admin::metric(self.admin, series)
    }

    /// The number of messages received with this status.
    pub fn messages(&self, status: &str) -> u64 {
        self.metric(&format!("evenkeel_master_messages_total{{status=\"{status}\"}}"))
    }
}

/// The addresses of a program that was killed.
pub struct Away {
    folder: tempfile::TempDir,
    ports: [u16; 2],
}

impl Away {
    /// Starts the program again on these addresses.
    pub fn back(self, keys: &str) -> MasterServer {
        MasterServer::start_at(self.folder, keys, self.ports)
    }
}

/// The output of `evenkeel clients` about the program at this address.
pub fn doctor(admin: SocketAddr) -> String {
    let mut command = evenkeel!();
    let output =
        command.args(["clients", "--admin", &admin.to_string()]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Half a minute after the present, in milliseconds: no test lasts that long.
pub fn ahead() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after the epoch");
    now.as_millis() as u64 + 30_000
}

/// The identifier of probes by which a gatekeeper checks that the master hears it.
const PROBE: &str = "|probe|";

/// libzmq sockets that are controlled by lines: `send` with frames in hexadecimal, and `hear` with
/// a time in milliseconds.
const PEER: &str = r#"
import sys, zmq
context = zmq.Context()
accounts = context.socket(zmq.PUB if sys.argv[3] == 'PUB' else zmq.XPUB)
accounts.linger = 0
accounts.connect('tcp://' + sys.argv[1])
orders = context.socket(zmq.SUB)
orders.connect('tcp://' + sys.argv[2])
for topic in sys.argv[4:]:
    orders.subscribe(bytes.fromhex(topic))
if sys.argv[3] != 'PUB':
    # The subscription of the master: from now on it hears everything.
    assert accounts.recv() == b'\x01'
def said(text):
    print(text, flush=True)
said('ready')
for line in sys.stdin:
    word, *frames = line.rstrip('\n').split(' ')
    if word == 'send':
        accounts.send_multipart([bytes.fromhex(frame) for frame in frames])
    elif word == 'hear':
        there = orders.poll(int(frames[0]))
        said(' '.join('-' + frame.hex() for frame in orders.recv_multipart()) if there else 'none')
"#;

/// A gatekeeper: libzmq in a program of its own, which ends when this is dropped.
pub struct Gatekeeper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Gatekeeper {
    /// A gatekeeper that subscribes to these topics. The master receives its messages from the
    /// first one on.
    pub fn new(program: &MasterServer, topics: &[&str]) -> Gatekeeper {
        let mut gatekeeper = Gatekeeper::of_kind("XPUB", program, topics);
        if !topics.is_empty() {
            gatekeeper.listen(topics[0].trim_end_matches('\0'));
        }
        gatekeeper
    }

    /// A gatekeeper with a PUB socket, like real ones: it cannot know when the master begins to
    /// receive its messages.
    pub fn plain(program: &MasterServer, topics: &[&str]) -> Gatekeeper {
        Gatekeeper::of_kind("PUB", program, topics)
    }

    fn of_kind(kind: &str, program: &MasterServer, topics: &[&str]) -> Gatekeeper {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", PEER, &program.accounting.to_string(), &program.control.to_string()]);
        command.arg(kind).args(topics.iter().map(|topic| hex(topic.as_bytes())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 runs");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut gatekeeper = Gatekeeper { child, input, output };
        assert_eq!(gatekeeper.line(), "ready", "python3 needs zmq (Debian: python3-zmq)");
        gatekeeper
    }

    /// Waits until orders for `domain` arrive, and sends requests that cause some.
    fn listen(&mut self, domain: &str) {
        self.request(domain, PROBE, ahead());
        while self.hear_within(50).is_none() {
            self.request(domain, PROBE, ahead());
        }
    }

    /// Reports an accepted request.
    pub fn request(&mut self, domain: &str, identifier: &str, at: u64) {
        let domain = format!("{domain}\0");
        self.send(&[domain.as_bytes(), b"ACCEPTED", identifier.as_bytes(), &text(at), b"", b""]);
    }

    /// Publishes a message with these frames.
    pub fn send(&mut self, frames: &[&[u8]]) {
        let frames: Vec<String> = frames.iter().map(|frame| hex(frame)).collect();
        writeln!(self.input, "send {}", frames.join(" ")).expect("it reads");
    }

    /// The next order, with bars between its frames; panics after a minute.
    pub fn hear(&mut self) -> String {
        loop {
            let order = self.hear_within(60_000).expect("an order");
            if !order.contains(PROBE) {
                return order;
            }
        }
    }

    /// The next order, if it arrives within 50 milliseconds.
    pub fn hear_soon(&mut self) -> Option<String> {
        self.hear_within(50)
    }

    fn hear_within(&mut self, millis: u32) -> Option<String> {
        writeln!(self.input, "hear {millis}").expect("it reads");
        let line = self.line();
        if line == "none" {
            return None;
        }
        let frames = line.split(' ').map(|frame| {
            let hex = frame.trim_start_matches('-').as_bytes();
            let byte = |pair: &[u8]| {
                let text = std::str::from_utf8(pair).expect("hexadecimal");
                u8::from_str_radix(text, 16).expect("hexadecimal")
            };
            hex.chunks(2).map(byte).collect::<Vec<u8>>().escape_ascii().to_string()
        });
        Some(frames.collect::<Vec<_>>().join("|"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes");
        line.trim_end().to_owned()
    }
}

impl Drop for Gatekeeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A number in its text form on the wire.
pub fn text(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// An order in the form that [`Gatekeeper::hear`] returns.
pub fn order(domain: &str, identifier: &str, until: u64) -> String {
    format!("{domain}\\x00|DELAY_UNTIL|{identifier}|{until}")
}
