//! The visitors of the demo's site: a crawler with many connections, a human with one.
//!
//! Both connect from 127.0.0.1 and send their addresses in `X-Forwarded-For`, as a load balancer
//! would. Their addresses have no common network of 16 bits or more. Their results are recorded in
//! a [`VisitorTally`], which `report` prints.

use crate::demo::tally::VisitorTally;
use evenkeel_runtime::clock::Clock;
use http::header::HOST;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How long the human looks at a page before the next request.
pub const PAGE_LOOK_TIME: Duration = Duration::from_millis(500);
/// How long a connection of the crawler pauses after a refusal. It ignores `Retry-After`, as most
/// real crawlers do.
pub const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// The header in which a load balancer sends the address of the client.
const FORWARDED_FOR: &str = "x-forwarded-for";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemoVisitor {
    /// Requests `/search` on many connections, without a pause.
    Crawler,
    /// Requests `/page`, looks at it for half a second, and requests it again.
    Human,
}

impl DemoVisitor {
    /// Both visitors, in the order of the output and of array indices.
    pub const ALL: [DemoVisitor; 2] = [DemoVisitor::Crawler, DemoVisitor::Human];

    /// The address of the visitor, from the networks for documentation (RFC 5737).
    pub const fn address(self) -> &'static str {
        match self {
            DemoVisitor::Crawler => "198.51.100.7",
            DemoVisitor::Human => "203.0.113.20",
        }
    }

    /// The page that the visitor requests.
    pub const fn path(self) -> &'static str {
        match self {
            DemoVisitor::Crawler => "/search",
            DemoVisitor::Human => "/page",
        }
    }

    /// The visitor that sent a request with these headers; `None` if they name neither.
    pub fn of(headers: &HeaderMap) -> Option<DemoVisitor> {
        let first = headers.get(FORWARDED_FOR)?.to_str().ok()?.split(',').next()?.trim();
        DemoVisitor::ALL.into_iter().find(|visitor| visitor.address() == first)
    }
}

#[derive(Clone)]
pub struct VisitInstructions {
    pub proxy: SocketAddr,
    /// The clock that measures waits.
    pub clock: Clock,
    /// The tallies for the results, by visitor.
    pub tallies: Arc<[Mutex<VisitorTally>; DemoVisitor::ALL.len()]>,
}

/// Starts a crawler with `connections` connections and a human. They stop when the set is dropped.
pub fn send_out(errand: &VisitInstructions, connections: usize) -> JoinSet<()> {
    let mut out = JoinSet::new();
    for _ in 0..connections {
        out.spawn(visit(errand.clone(), DemoVisitor::Crawler, Duration::ZERO));
    }
    out.spawn(visit(errand.clone(), DemoVisitor::Human, PAGE_LOOK_TIME));
    out
}

/// Requests pages one after the other on one connection, for ever, with a pause of `look` between
/// an answer and the next request.
async fn visit(errand: VisitInstructions, visitor: DemoVisitor, look: Duration) {
    let mut line = VisitorConnection { proxy: errand.proxy, sender: None };
    let tally = &errand.tallies[visitor as usize];
    loop {
        let asked = errand.clock.now();
        tally.lock().asked(asked);
        let status = line.get(visitor).await;
        let waited = errand.clock.now().since(asked);
        let rest = if status.is_ok_and(|status| status.is_success()) {
            tally.lock().served(asked, waited);
            look
        } else {
            tally.lock().refused(asked);
            look.max(REFUSAL_PAUSE)
        };
        tokio::time::sleep(rest).await;
    }
}

/// A connection to the proxy, opened on demand.
struct VisitorConnection {
    proxy: SocketAddr,
    sender: Option<SendRequest<Empty<Bytes>>>,
}

/// A request got no answer. The reason makes no difference to a visitor.
struct NoAnswerError;

impl<E: std::error::Error> From<E> for NoAnswerError {
    fn from(_: E) -> NoAnswerError {
        NoAnswerError
    }
}

impl VisitorConnection {
    /// Requests the visitor's page and reads it to its end.
    async fn get(&mut self, visitor: DemoVisitor) -> Result<StatusCode, NoAnswerError> {
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => connect(self.proxy).await?,
        };
        sender.ready().await?;
        let request = Request::get(visitor.path())
            .header(HOST, "demo.example")
            .header(FORWARDED_FOR, visitor.address())
            .body(Empty::new())?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        self.sender = Some(sender);
        Ok(status)
    }
}

async fn connect(proxy: SocketAddr) -> Result<SendRequest<Empty<Bytes>>, NoAnswerError> {
    let stream = TcpStream::connect(proxy).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn visitors_are_known_by_the_first_forwarded_address() {
        let headers = |value| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static(FORWARDED_FOR),
                HeaderValue::from_static(value),
            )])
        };
        assert_eq!(DemoVisitor::of(&headers("203.0.113.20, 127.0.0.1")), Some(DemoVisitor::Human));
        assert_eq!(DemoVisitor::of(&headers("198.51.100.7")), Some(DemoVisitor::Crawler));
        assert_eq!(DemoVisitor::of(&headers("127.0.0.1")), None);
        assert_eq!(DemoVisitor::of(&HeaderMap::new()), None);
    }
}
