//! The program with a line door, and a client for it.

use evenkeel_testing::program::{Program, addresses};
use evenkeel_testing::wait::DEADLINE;
use evenkeel_testing::{admin, evenkeel};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// One token, which does not return during a test, at any time of day.
pub const ONCE: &str = "rate: 1 per 365d, burst: 1";

/// A running program with a line door, and its files.
pub struct LineServer {
    process: Program,
    /// The folder with its files.
    pub folder: tempfile::TempDir,
    /// The address for the line protocol.
    pub lines: SocketAddr,
    /// The address for Redis clients.
    pub resp: SocketAddr,
    /// The address of the admin door.
    pub admin: SocketAddr,
}

impl LineServer {
    /// Starts the program with these keys in its `line` section.
    pub fn start(keys: &str) -> LineServer {
        LineServer::start_at(keys, 0)
    }

    /// Starts the program with this port for lines.
    pub fn start_at(keys: &str, port: u16) -> LineServer {
        let folder = tempfile::tempdir().expect("a folder");
        write(&folder, keys, port);
        LineServer::start_in(folder)
    }

    /// Starts the program with the configuration in `folder`.
    pub fn start_in(folder: tempfile::TempDir) -> LineServer {
        LineServer::start_by(evenkeel!(), folder)
    }

    /// Starts the program through a command.
    pub fn start_by(mut command: Command, folder: tempfile::TempDir) -> LineServer {
        let path = folder.path().join("evenkeel.yaml");
        command.args(["serve", "--config"]).arg(path);
        let mut process = Program::start(command);
        let line = process.told("line open");
        let [lines, resp, admin] = addresses(&line)[..] else { panic!("{line}") };
        LineServer { process, folder, lines, resp, admin }
    }

    /// The next log line that contains `what`; earlier lines are skipped.
    pub fn told(&mut self, what: &str) -> String {
        self.process.told(what)
    }

    /// The resident memory of the program, in bytes.
    pub fn memory(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.process.id());
        let pages = fs::read_to_string(path).expect("it runs");
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        4_096 * pages.expect("pages")
    }

    /// Writes other keys into the configuration and reloads it.
    pub fn reload(&mut self, keys: &str) {
        write(&self.folder, keys, 0);
        self.signal(Signal::HUP);
        self.told("configuration reloaded");
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until the program has ended.
    pub fn end(&mut self) -> ExitStatus {
        self.process.end()
    }

    /// Ends the program, and starts it again on the same addresses.
    pub fn again(mut self) -> LineServer {
        self.signal(Signal::TERM);
        self.end();
        let elsewhere = tempfile::tempdir().expect("a folder");
        LineServer::start_in(std::mem::replace(&mut self.folder, elsewhere))
    }

    /// The path of the Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("line.sock")
    }

    /// The answer of the admin door.
    pub fn get(&self, path: &str) -> String {
        admin::get(self.admin, path)
    }

    /// The value of one metric series.
    pub fn metric(&self, series: &str) -> u64 {
        admin::metric(self.admin, series)
    }
}

/// Writes a configuration with debts that outlive the program.
fn write(folder: &tempfile::TempDir, keys: &str, port: u16) {
    let path = folder.path().join("evenkeel.yaml");
    let state = folder.path().join("state");
    let socket = folder.path().join("line.sock");
    let text = format!(
        "admin: {{listen: '127.0.0.1:0'}}\nline: {{resp: '127.0.0.1:0', {keys}, \
         listen: ['tcp://127.0.0.1:{port}', 'unix://{}']}}\nstate: {{file: '{}'}}\n",
        socket.display(),
        state.display()
    );
    fs::write(&path, text).expect("saved");
}

/// A connection to the door.
pub struct Client<S> {
    pub stream: S,
}

impl Client<TcpStream> {
    pub fn tcp(address: SocketAddr) -> Client<TcpStream> {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_write_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Client { stream }
    }

    /// Ends the sending direction.
    pub fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).expect("open");
    }
}

impl Client<UnixStream> {
    pub fn unix(program: &LineServer) -> Client<UnixStream> {
        let stream = UnixStream::connect(program.socket()).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        Client { stream }
    }
}

impl<S: Read + Write> Client<S> {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("sent");
    }

    /// Reads exactly `count` bytes.
    pub fn take(&mut self, count: usize) -> String {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).expect("answers");
        String::from_utf8(bytes).expect("text")
    }

    /// Reads everything until the door closes the connection.
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).expect("an end");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends some lines and reads the replies: three bytes for each.
    pub fn ask(&mut self, lines: &str) -> String {
        self.send(lines);
        self.take(3 * lines.matches('\n').count())
    }
}
