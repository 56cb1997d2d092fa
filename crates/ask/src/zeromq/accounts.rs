//! A gatekeeper that reports its requests: one message per request, after it ran or was delayed.
//!
//! A message has six frames: the domain and a NUL, the outcome of the request, its identifier, its
//! arrival, the end of its delay, and a text for the log. The last frame may be missing. Times are
//! milliseconds since the Unix epoch. An invalid message is counted and changes nothing. Source:
//! the facts about Smockron's wire format in docs/guide/master.md.

use super::link::{Ended, Link};
use super::wall::Wall;
use super::zmtp::{Event, Message, Role, Session, subscription};
use super::{Desk, TcpStream};
use evenkeel_core::classify::readable;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::domains::{Domain, Heard};
use evenkeel_telemetry::counts::master::{Told, Way};
use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

/// The minimum number of frames of a message.
const FRAMES_MIN: usize = 5;
/// The index of the frame with a text for the log, which may be missing.
const LOG_INFO: usize = 5;
/// The longest delay that is accepted as real.
const DELAY_MAX: Nanos = Nanos::from_secs(86_400);

/// Handles the reports of a gatekeeper at `peer` until it disconnects.
pub async fn run(stream: TcpStream, peer: IpAddr, desk: Rc<Desk>) -> Result<Infallible, Ended> {
    let link = Link::meet(stream, Role::Subscriber).await?;
    desk.counts.came(peer, Way::Tells, desk.clock.now());
    let ended = hear(link, peer, &desk).await;
    desk.counts.went(peer, Way::Tells, desk.clock.now());
    ended
}

async fn hear(mut link: Link, peer: IpAddr, desk: &Desk) -> Result<Infallible, Ended> {
    let mut out = Vec::new();
    // Subscribe to everything: the domain of each message is checked when it arrives.
    subscription(link.version(), b"", &mut out);
    loop {
        let wall = Wall::read(&desk.clock);
        let (mut orders, mut messages) = (Orders::default(), 0);
        let drained = link.drain(|event| {
            let told = match event {
                Event::Message(message) => told(desk, peer, &message, &wall, &mut orders),
                Event::TooLarge => Told::Faulty,
                Event::Ping(context) => return Session::pong(context, &mut out),
                _ => return,
            };
            messages += 1;
            desk.counts.told(told);
        });
        desk.counts.heard(peer, messages, wall.now);
        drained?;
        if let Some(store) = &desk.store {
            orders = store.ask(orders, wall.now).await;
        }
        orders.publish(desk, &wall);
        link.send(&out).await?;
        out.clear();
        link.fill().await?;
    }
}

/// Handles one message from `peer`.
fn told(
    desk: &Desk,
    peer: IpAddr,
    message: &Message<'_>,
    wall: &Wall,
    orders: &mut Orders,
) -> Told {
    if message.count() < FRAMES_MIN {
        return Told::Faulty;
    }
    let domain = message.part(0);
    let domain = domain.strip_suffix(b"\0").unwrap_or(domain);
    let (told, at) = match message.part(1) {
        b"ACCEPTED" => (Told::Accepted, wall.time(message.part(3))),
        b"DELAYED" => (Told::Delayed, wall.time(message.part(4))),
        b"REJECTED" => (Told::Rejected, Some(wall.now)),
        _ => return Told::Faulty,
    };
    let Some(at) = at else { return Told::Faulty };
    let Some(domain) = desk.domains.get(domain) else {
        desk.counts.unknown(domain, peer, wall.now);
        return Told::Unknown;
    };
    if !message.part(LOG_INFO).is_empty() {
        let text = |index| readable(message.part(index));
        desk.counts.noted(wall.now, || {
            tracing::info!(
                target: "evenkeel::master", domain = domain.name(), status = text(1),
                identifier = text(2), %peer, log_info = text(LOG_INFO),
                "a gatekeeper told of a request"
            );
        });
    }
    if told == Told::Rejected {
        return told;
    }
    if told == Told::Delayed
        && let Some(came) = wall.time(message.part(3))
    {
        // No request is delayed for a day, so a longer time is an error.
        let delay = at.since(came);
        if delay <= DELAY_MAX {
            desk.counts.delayed_by(delay);
        }
    }
    let identifier = message.part(2);
    let until = match domain.hear(identifier, at, wall.now) {
        Heard::Stale => return Told::Stale,
        Heard::Free if desk.store.is_none() => return told,
        Heard::Free => None,
        Heard::Until(until) => Some(until),
    };
    let (domain, identifier) = (Arc::clone(domain), identifier.into());
    orders.0.push(Order { domain, identifier, at, until });
    told
}

/// The effect of one report: the request, and the time until which the next one of its client has
/// to wait.
pub struct Order {
    pub domain: Arc<Domain>,
    pub identifier: Box<[u8]>,
    pub at: Time,
    pub until: Option<Time>,
}

/// The orders that result from all messages read at once.
#[derive(Default)]
pub struct Orders(pub Vec<Order>);

impl Orders {
    /// Sends the orders to the gatekeepers that subscribe to their domains.
    fn publish(self, desk: &Desk, wall: &Wall) {
        for Order { domain, identifier, until, .. } in self.0 {
            let Some(until) = until else { continue };
            let dropped = desk.hub.publish(domain.name(), &identifier, wall.millis(until));
            desk.counts.published(dropped);
        }
    }
}
