//! An HTTP/1.1 client with an address of its own: all of 127.0.0.0/8 is this machine.
//!
//! It is written by hand on a blocking socket, so that it can also do what no correct client does:
//! disconnect early, not read, or send three requests at once.

use socket2::{Domain, Socket, Type};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// One connection, which is opened on demand.
pub struct Client {
    address: Ipv4Addr,
    port: u16,
    connection: Option<BufReader<TcpStream>>,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The time from just before the request was sent until the whole body had arrived.
    pub took: Duration,
}

impl Answer {
    /// The first value of a header, given its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    /// A client at `address` for the server on `port`.
    pub fn new(address: &str, port: u16) -> Client {
        let address = address.parse().expect("an address");
        Client { address, port, connection: None }
    }

    /// Sends `GET target` and reads the answer.
    pub fn get(&mut self, target: &str) -> Answer {
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: site\r\n\r\n"))
    }

    /// Sends `GET target` with header lines, each of which ends with CRLF.
    pub fn get_with(&mut self, target: &str, headers: &str) -> Answer {
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: site\r\n{headers}\r\n"))
    }

    /// Sends a request as it is and reads its answer.
    pub fn ask(&mut self, request: &str) -> Answer {
        let started = Instant::now();
        self.send(request);
        self.read(started)
    }

    /// Sends one request over a new connection. Returns the head of the answer; `None` if the
    /// server is gone before the head is complete.
    pub fn try_ask(&self, request: &str) -> Option<Answer> {
        let mut stream = TcpStream::from(self.socket().ok()?);
        stream.write_all(request.as_bytes()).ok()?;
        let (mut bytes, mut next) = (Vec::new(), [0; 1]);
        while !bytes.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut next).ok()?;
            bytes.extend(next);
        }
        let (status, headers) = head(&mut bytes.as_slice());
        Some(Answer { status, headers, body: Vec::new(), took: Duration::ZERO })
    }

    /// A connected socket with the client's address.
    fn socket(&self) -> std::io::Result<Socket> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((self.address, 0)).into())?;
        socket.connect(&to.into())?;
        Ok(socket)
    }

    /// Sends bytes without reading.
    pub fn send(&mut self, bytes: &str) {
        let connection = self.connect();
        connection.get_mut().write_all(bytes.as_bytes()).expect("an open connection");
    }

    /// Returns the connection; opens it if there is none.
    pub fn connect(&mut self) -> &mut BufReader<TcpStream> {
        if self.connection.is_none() {
            let stream = TcpStream::from(self.socket().expect("a listener"));
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
            stream.set_nodelay(true).expect("a socket");
            self.connection = Some(BufReader::new(stream));
        }
        self.connection.as_mut().expect("a connection")
    }

    /// Disconnects, even with a request in flight.
    pub fn close(&mut self) {
        self.connection = None;
    }

    /// Reads the answer to a request sent at `started`.
    pub fn read(&mut self, started: Instant) -> Answer {
        let connection = self.connect();
        let (status, headers) = head(connection);
        let mut answer = Answer { status, headers, body: Vec::new(), took: Duration::ZERO };
        answer.body = body(connection, &answer);
        answer.took = started.elapsed();
        if answer.header("connection") == Some("close") {
            self.close();
        }
        answer
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("an answer in time");
    line.trim_end().to_owned()
}

fn head(from: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let first = line(from);
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no answer but `{first}`"));
    let mut headers = Vec::new();
    loop {
        let next = line(from);
        let Some((name, value)) = next.split_once(':') else { return (status, headers) };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

fn body(from: &mut impl BufRead, answer: &Answer) -> Vec<u8> {
    let mut body = Vec::new();
    if answer.status == 204 {
        return body;
    }
    if answer.header("transfer-encoding") == Some("chunked") {
        loop {
            let size = usize::from_str_radix(&line(from), 16).expect("the size of a chunk");
            read(from, size, &mut body);
            line(from);
            if size == 0 {
                return body;
            }
        }
    }
    match answer.header("content-length") {
        Some(length) => read(from, length.parse().expect("a length"), &mut body),
        None => drop(from.read_to_end(&mut body).expect("a body")),
    }
    body
}

fn read(from: &mut impl BufRead, size: usize, body: &mut Vec<u8>) {
    let had = body.len();
    body.resize(had + size, 0);
    from.read_exact(&mut body[had..]).expect("a body");
}
