//! A gatekeeper that reports its requests: one message per request, after it ran or was delayed.
//!
//! A message has six frames: the domain and a NUL, the outcome of the request, its identifier, its
//! arrival, the end of its delay, and a text for the log. The last frame may be missing. Times are
//! milliseconds since the Unix epoch. An invalid message is counted and changes nothing. Source:
//! the facts about Smockron's wire format in docs/guide/master.md.

use super::link::{ZmqConnectionError, ZmqLink};
use super::store_client::{DelayOrder, DelayOrders};
use super::wall_clock::WallClock;
use super::zmtp::{SocketRole, ZmtpEvent, ZmtpMessage, ZmtpSession, subscription};
use super::{MasterShared, TcpStream};
use evenkeel_core::classify::readable;
use evenkeel_core::units::Nanos;
use evenkeel_engine::domains::RecordOutcome;
use evenkeel_telemetry::counts::master::{GatekeeperDirection, GatekeeperMessageKind};
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
pub async fn run(
    stream: TcpStream,
    peer: IpAddr,
    desk: Rc<MasterShared>,
) -> Result<Infallible, ZmqConnectionError> {
    let link = ZmqLink::meet(stream, SocketRole::Subscriber).await?;
    desk.counts.record_connect(peer, GatekeeperDirection::Tells, desk.clock.now());
    let ended = hear(link, peer, &desk).await;
    desk.counts.record_disconnect(peer, GatekeeperDirection::Tells, desk.clock.now());
    ended
}

async fn hear(
    mut link: ZmqLink,
    peer: IpAddr,
    desk: &MasterShared,
) -> Result<Infallible, ZmqConnectionError> {
    let mut out = Vec::new();
    // Subscribe to everything: the domain of each message is checked when it arrives.
    subscription(link.version(), b"", &mut out);
    loop {
        let wall = WallClock::read(&desk.clock);
        let (mut orders, mut messages) = (DelayOrders::default(), 0);
        let drained = link.drain(|event| {
            let told = match event {
                ZmtpEvent::Message(message) => told(desk, peer, &message, &wall, &mut orders),
                ZmtpEvent::TooLarge => GatekeeperMessageKind::Faulty,
                ZmtpEvent::Ping(context) => return ZmtpSession::pong(context, &mut out),
                _ => return,
            };
            messages += 1;
            desk.counts.record_message(told);
        });
        desk.counts.record_messages(peer, messages, wall.now);
        drained?;
        if let Some(store) = &desk.store {
            orders = store.ask(orders, wall.now).await;
        }
        publish(orders, desk, &wall);
        link.send(&out).await?;
        out.clear();
        link.fill().await?;
    }
}

/// Handles one message from `peer`.
fn told(
    desk: &MasterShared,
    peer: IpAddr,
    message: &ZmtpMessage<'_>,
    wall: &WallClock,
    orders: &mut DelayOrders,
) -> GatekeeperMessageKind {
    if message.count() < FRAMES_MIN {
        return GatekeeperMessageKind::Faulty;
    }
    let domain = message.part(0);
    let domain = domain.strip_suffix(b"\0").unwrap_or(domain);
    let (told, at) = match message.part(1) {
        b"ACCEPTED" => (GatekeeperMessageKind::Accepted, wall.time(message.part(3))),
        b"DELAYED" => (GatekeeperMessageKind::Delayed, wall.time(message.part(4))),
        b"REJECTED" => (GatekeeperMessageKind::Rejected, Some(wall.now)),
        _ => return GatekeeperMessageKind::Faulty,
    };
    let Some(at) = at else { return GatekeeperMessageKind::Faulty };
    let Some(domain) = desk.domains.get(domain) else {
        desk.counts.record_unknown_domain(domain, peer, wall.now);
        return GatekeeperMessageKind::Unknown;
    };
    if !message.part(LOG_INFO).is_empty() {
        let text = |index| readable(message.part(index));
        desk.counts.log_message_text(wall.now, || {
            tracing::info!(
                target: "evenkeel::master", domain = domain.name, status = text(1),
                identifier = text(2), %peer, log_info = text(LOG_INFO),
                "a gatekeeper reported a request"
            );
        });
    }
    if told == GatekeeperMessageKind::Rejected {
        return told;
    }
    if told == GatekeeperMessageKind::Delayed
        && let Some(came) = wall.time(message.part(3))
    {
        // No request is delayed for a day, so a longer time is an error.
        let delay = at.since(came);
        if delay <= DELAY_MAX {
            desk.counts.record_delay(delay);
        }
    }
    let identifier = message.part(2);
    let until = match domain.record_request(identifier, at, wall.now) {
        RecordOutcome::Stale => return GatekeeperMessageKind::Stale,
        RecordOutcome::Free if desk.store.is_none() => return told,
        RecordOutcome::Free => None,
        RecordOutcome::Until(until) => Some(until),
    };
    let (domain, identifier) = (Arc::clone(domain), identifier.into());
    orders.0.push(DelayOrder { domain, identifier, at, until });
    told
}

/// Sends `orders` to the gatekeepers that subscribe to their domains.
fn publish(orders: DelayOrders, desk: &MasterShared, wall: &WallClock) {
    for DelayOrder { domain, identifier, until, .. } in orders.0 {
        let Some(until) = until else { continue };
        let dropped = desk.hub.publish(&domain.name, &identifier, wall.millis(until));
        desk.counts.record_order(dropped);
    }
}
