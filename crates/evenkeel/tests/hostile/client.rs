//! Clients: each one takes the steps of its script, and records the answers in the meantime.
//!
//! Answers are parsed strictly (`client/http1.rs`, `client/http2.rs`): an answer that cannot be
//! parsed is a violation, too.

mod hpack;
mod http1;
mod http2;

use crate::law::{Heard, Ledger};
use crate::plan::{Asked, Script, Speaks, Step};
use socket2::SockRef;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// The time that a hostile client waits for anything before its next step.
const PATIENCE: Duration = Duration::from_millis(400);

/// The time that an innocent client waits: longer than anything takes.
const LONG: Duration = Duration::from_secs(30);

/// The parser for the answers of a connection.
enum Reader {
    Http1(http1::Reader),
    Http2(http2::Reader),
}

impl Reader {
    /// Parses received bytes. Returns the bytes to be sent in return.
    fn hear(&mut self, bytes: &[u8], heard: &mut [Heard]) -> Result<Vec<u8>, String> {
        match self {
            Reader::Http1(reader) => reader.hear(bytes, heard).map(|()| Vec::new()),
            Reader::Http2(reader) => reader.hear(bytes, heard),
        }
    }
}

/// One connection of a client.
struct Client<'a> {
    stream: TcpStream,
    reader: Reader,
    requests: &'a [Asked],
    heard: Vec<Heard>,
    /// The time at which each request was answered in full.
    answered: Vec<Option<Instant>>,
    unsent: Vec<u8>,
    ended: bool,
    patience: Duration,
    ledger: &'a Ledger,
}

/// Takes the steps of a script, and checks the answers against the law.
pub async fn play(ledger: &Ledger, script: &Script, to: SocketAddr) {
    let requests = &ledger.plan.requests[script.requests.clone()];
    let begun = Instant::now();
    let stream = match TcpStream::connect(to).await {
        Ok(stream) => stream,
        Err(_) if ledger.replaced || !script.innocent => return,
        Err(error) => return ledger.violated(format!("(a) no connection: {error}")),
    };
    let methods = requests.iter().map(|asked| asked.method).collect();
    let reader = match script.speaks {
        Speaks::Http1 => Reader::Http1(http1::Reader::new(methods)),
        Speaks::Http2 => Reader::Http2(http2::Reader::default()),
    };
    let heard = vec![Heard::default(); requests.len()];
    let answered = vec![None; requests.len()];
    let patience = if script.innocent { LONG } else { PATIENCE };
    let (unsent, ended) = (Vec::new(), false);
    let mut client =
        Client { stream, reader, requests, heard, answered, unsent, ended, patience, ledger };
    for step in &script.steps {
        client.take(step).await;
    }
    for (asked, heard) in requests.iter().zip(&client.heard) {
        ledger.check_answer(asked, heard);
    }
    // A request without an answer may be in flight to the backend until the end of the seed.
    for answered in client.answered {
        ledger.asked(begun, answered);
    }
}

impl Client<'_> {
    async fn take(&mut self, step: &Step) {
        match step {
            Step::Send(_, bytes) => {
                self.unsent.extend_from_slice(bytes);
                self.go_on(self.patience, |client| client.unsent.is_empty()).await;
            }
            Step::Pause(ms) => self.go_on(Duration::from_millis(*ms), |_| false).await,
            Step::Deaf(ms) => pause(Duration::from_millis(*ms)).await,
            Step::Answers(count) => {
                let enough = |client: &Client<'_>| {
                    client.heard[..*count].iter().all(|heard| heard.whole || heard.ended)
                };
                self.go_on(self.patience, enough).await;
            }
            Step::Greeting => {
                let greeted = |client: &Client<'_>| match &client.reader {
                    Reader::Http1(_) => true,
                    Reader::Http2(reader) => reader.greeted && client.unsent.is_empty(),
                };
                self.go_on(self.patience, greeted).await;
            }
            Step::HalfClose => {
                drop(SockRef::from(&self.stream).shutdown(std::net::Shutdown::Write))
            }
            Step::Reset => drop(SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))),
        }
    }

    /// Reads and writes until `done`, until the time limit, or until the end of the connection.
    async fn go_on(&mut self, limit: Duration, done: impl Fn(&Client<'_>) -> bool) {
        let end = tokio::time::Instant::now() + limit;
        while !self.ended && !done(self) {
            let interest = match self.unsent.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            let ready = tokio::time::timeout_at(end, self.stream.ready(interest));
            let Ok(Ok(ready)) = ready.await else { return };
            if ready.is_readable() {
                let mut piece = [0; 16_384];
                match self.stream.try_read(&mut piece) {
                    Ok(0) => self.end(),
                    Ok(count) => self.hear(&piece[..count]),
                    Err(error) => self.failed(&error),
                }
            }
            if ready.is_writable() && !self.unsent.is_empty() {
                match self.stream.try_write(&self.unsent) {
                    Ok(count) => drop(self.unsent.drain(..count)),
                    Err(error) => self.failed(&error),
                }
            }
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        match self.reader.hear(bytes, &mut self.heard) {
            Ok(reply) => self.unsent.extend(reply),
            Err(what) => {
                let tokens: Vec<&str> = self.requests.iter().map(|a| a.token.as_str()).collect();
                self.ledger.violated(format!("(a) on the connection of {tokens:?}: {what}"));
                self.end();
            }
        }
        for (heard, answered) in self.heard.iter().zip(&mut self.answered) {
            if heard.whole && answered.is_none() {
                *answered = Some(Instant::now());
            }
        }
    }

    fn failed(&mut self, error: &io::Error) {
        if error.kind() == ErrorKind::WouldBlock {
            return;
        }
        // The proxy may have refused the rest of the request, and its answer has the reason.
        self.unsent.clear();
        if error.kind() != ErrorKind::BrokenPipe {
            self.end();
        }
    }

    fn end(&mut self) {
        self.ended = true;
        if let Reader::Http1(reader) = &mut self.reader {
            reader.end(&mut self.heard);
        }
        self.heard.iter_mut().filter(|heard| !heard.whole).for_each(|heard| heard.ended = true);
    }
}

/// Waits for the given time, like a client that does nothing.
pub async fn pause(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}
