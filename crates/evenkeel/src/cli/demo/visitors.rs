//! Who visits the demo's site: a crawler with many connections, a human with one.
//!
//! Both come from 127.0.0.1 and say by `X-Forwarded-For` who they are, as a load balancer would
//! say it for them; their addresses have no network of 16 bits or more in common. What they get is
//! written into a [`Tally`]; the screen is made of that in `report`.

use crate::cli::demo::tally::Tally;
use crate::clock::Clock;
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

/// How long the human looks at a page before asking for the next.
pub const LOOK: Duration = Duration::from_millis(500);
/// How long a crawler's connection pauses after a refusal. It does not keep to `Retry-After`;
/// real ones seldom do.
pub const PAUSE: Duration = Duration::from_millis(100);

/// The name of the header in which a load balancer says whom it speaks for.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visitor {
    /// Asks for `/search` on many connections, without a rest.
    Crawler,
    /// Asks for `/page`, looks at it for half a second, asks again.
    Human,
}

impl Visitor {
    /// Both, in the order of the screen.
    pub const ALL: [Visitor; 2] = [Visitor::Crawler, Visitor::Human];

    /// What the screen calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Visitor::Crawler => "crawler",
            Visitor::Human => "human",
        }
    }

    /// Its address, out of the networks kept for documentation (RFC 5737).
    #[must_use]
    pub const fn address(self) -> &'static str {
        match self {
            Visitor::Crawler => "198.51.100.7",
            Visitor::Human => "203.0.113.20",
        }
    }

    /// The page it wants.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Visitor::Crawler => "/search",
            Visitor::Human => "/page",
        }
    }

    /// Who sent a request with these headers, as far as it says.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Visitor> {
        let first = headers.get(FORWARDED_FOR)?.to_str().ok()?.split(',').next()?.trim();
        Visitor::ALL.into_iter().find(|visitor| visitor.address() == first)
    }
}

/// What all visitors of one scene are told.
#[derive(Clone)]
pub struct Errand {
    /// The proxy's address.
    pub proxy: SocketAddr,
    /// What latencies are measured by.
    pub clock: Clock,
    /// Where what they get is written down, by visitor.
    pub tallies: Arc<[Mutex<Tally>; Visitor::ALL.len()]>,
}

/// Sends out a crawler with `connections` connections and a human. They stop when the set is
/// dropped.
#[must_use]
pub fn send_out(errand: &Errand, connections: usize) -> JoinSet<()> {
    let mut out = JoinSet::new();
    for _ in 0..connections {
        out.spawn(visit(errand.clone(), Visitor::Crawler, Duration::ZERO));
    }
    out.spawn(visit(errand.clone(), Visitor::Human, LOOK));
    out
}

/// Asks for pages one after the other on one connection, for ever, with `look` between an answer
/// and the next request.
async fn visit(errand: Errand, visitor: Visitor, look: Duration) {
    let mut line = Line { proxy: errand.proxy, sender: None };
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
            look.max(PAUSE)
        };
        tokio::time::sleep(rest).await;
    }
}

/// A connection to the proxy, opened when it is needed.
struct Line {
    proxy: SocketAddr,
    sender: Option<SendRequest<Empty<Bytes>>>,
}

/// A request that got no answer; what exactly went wrong makes no difference to a visitor.
struct Lost;

impl<E: std::error::Error> From<E> for Lost {
    fn from(_: E) -> Lost {
        Lost
    }
}

impl Line {
    /// Asks for the visitor's page and reads it to its end.
    async fn get(&mut self, visitor: Visitor) -> Result<StatusCode, Lost> {
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

async fn connect(proxy: SocketAddr) -> Result<SendRequest<Empty<Bytes>>, Lost> {
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
        assert_eq!(Visitor::of(&headers("203.0.113.20, 127.0.0.1")), Some(Visitor::Human));
        assert_eq!(Visitor::of(&headers("198.51.100.7")), Some(Visitor::Crawler));
        assert_eq!(Visitor::of(&headers("127.0.0.1")), None);
        assert_eq!(Visitor::of(&HeaderMap::new()), None);
    }
}
