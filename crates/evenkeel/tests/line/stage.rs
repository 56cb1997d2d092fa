//! The program with a line door, and a client for it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Duration;

/// Longer than anything takes on a slow, busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// One token, which does not return during a test, at any time of day.
pub const ONCE: &str = "rate: 1 per 365d, burst: 1";

/// A free port of loopback. It is outside of the range from which the system assigns ports, so that
/// no other test gets it before it is used.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        // Other processes that run at the same time begin with another port.
        let begin = (std::process::id() % 100) as u16 * 100;
        let port = 20_000 + begin.wrapping_add(NEXT.fetch_add(1, Relaxed)) % 10_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// A running program; killed if a test forgets to end it.
pub struct Program {
    child: Child,
    log: BufReader<ChildStderr>,
    /// The folder with its files.
    pub folder: tempfile::TempDir,
    /// The address for the line protocol.
    pub lines: SocketAddr,
    /// The address for Redis clients.
    pub resp: SocketAddr,
    /// The address of the admin door.
    pub admin: SocketAddr,
}

impl Program {
    /// Starts the program with these keys in its `line` section.
    pub fn start(keys: &str) -> Program {
        Program::start_at(keys, 0)
    }

    /// Starts the program with this port for lines.
    pub fn start_at(keys: &str, port: u16) -> Program {
        let folder = tempfile::tempdir().expect("a folder");
        write(&folder, keys, port);
        Program::start_in(folder)
    }

    /// Starts the program with the configuration in `folder`.
    pub fn start_in(folder: tempfile::TempDir) -> Program {
        Program::start_by(Command::new(env!("CARGO_BIN_EXE_evenkeel")), folder)
    }

    /// Starts the program through a command.
    pub fn start_by(mut command: Command, folder: tempfile::TempDir) -> Program {
        let path = folder.path().join("evenkeel.yaml");
        command.args(["serve", "--config"]).arg(path);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut log = BufReader::new(child.stderr.take().expect("piped"));
        let line = told(&mut log, "line open");
        let words = line.split(|c: char| "[]= ,\"/".contains(c));
        let found: Vec<SocketAddr> = words.filter_map(|word| word.parse().ok()).collect();
        let [lines, resp, admin] = found[..] else { panic!("{line}") };
        Program { child, log, folder, lines, resp, admin }
    }

    /// The next log line that contains `what`; earlier lines are skipped.
    pub fn told(&mut self, what: &str) -> String {
        told(&mut self.log, what)
    }

    /// The resident memory of the program, in bytes.
    pub fn memory(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.child.id());
        let pages = fs::read_to_string(path).expect("it runs");
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        4_096 * pages.expect("pages")
    }

    /// Writes other keys into the configuration and reloads it.
    pub fn reload(&mut self, keys: &str) {
        write(&self.folder, keys, 0);
        self.signal("HUP");
        self.told("configuration reloaded");
    }

    /// Sends a signal to the program by name.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("a signal");
        assert!(sent.success());
    }

    /// Waits until the program has ended.
    pub fn end(&mut self) -> ExitStatus {
        self.child.wait().expect("its end")
    }

    /// Ends the program, and starts it again on the same addresses.
    pub fn again(mut self) -> Program {
        self.signal("TERM");
        self.end();
        let elsewhere = tempfile::tempdir().expect("a folder");
        Program::start_in(std::mem::replace(&mut self.folder, elsewhere))
    }

    /// The path of the Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("line.sock")
    }

    /// The answer of the admin door.
    pub fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).expect("it listens");
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.admin);
        stream.write_all(head.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// The value of one metric series.
    pub fn metric(&self, series: &str) -> u64 {
        let all = self.get("/metrics");
        let line = all.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{all}")).parse().expect("a number")
    }
}

fn told(log: &mut impl BufRead, what: &str) -> String {
    let mut all = String::new();
    loop {
        let mut line = String::new();
        let count = log.read_line(&mut line).expect("a log");
        assert!(count > 0, "the log ended without {what}:\n{all}");
        if line.contains(what) {
            return line;
        }
        all += &line;
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
    pub fn unix(program: &Program) -> Client<UnixStream> {
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
