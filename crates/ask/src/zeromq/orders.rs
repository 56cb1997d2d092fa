//! A gatekeeper that receives orders: it subscribes to domains and gets their orders.
//!
//! When a gatekeeper subscribes, it gets all orders in force at once. So one that has just started,
//! or was cut off, knows the same as the others.

use super::link::{ZmqConnectionError, ZmqLink};
use super::wall_clock::WallClock;
use super::zmtp::{SocketRole, ZmtpEvent, ZmtpSession};
use super::{MasterShared, TcpStream, hub};
use evenkeel_telemetry::counts::master::GatekeeperDirection;
use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;

/// Sends orders to a gatekeeper at `peer` until it disconnects.
pub async fn run(
    stream: TcpStream,
    peer: IpAddr,
    desk: Rc<MasterShared>,
) -> Result<Infallible, ZmqConnectionError> {
    let link = ZmqLink::meet(stream, SocketRole::Publisher).await?;
    desk.counts.record_connect(peer, GatekeeperDirection::Listens, desk.clock.now());
    let listener = desk.hub.join(link.version());
    let ended = tell(link, &desk, &listener).await;
    desk.hub.leave(&listener);
    desk.counts.record_disconnect(peer, GatekeeperDirection::Listens, desk.clock.now());
    ended
}

async fn tell(
    mut link: ZmqLink,
    desk: &MasterShared,
    listener: &hub::OrderSubscriber,
) -> Result<Infallible, ZmqConnectionError> {
    loop {
        let mut out = Vec::new();
        link.drain(|event| match event {
            ZmtpEvent::Subscribe(topic) => subscribe(desk, listener, topic),
            ZmtpEvent::Cancel(topic) => listener.cancel(topic),
            ZmtpEvent::Ping(context) => ZmtpSession::pong(context, &mut out),
            _ => {}
        })?;
        out.extend(listener.take());
        link.send(&out).await?;
        listener.sent();
        desk.hub.notify_sent();
        tokio::select! {
            filled = link.fill() => filled?,
            () = listener.wake() => {}
        }
    }
}

fn subscribe(desk: &MasterShared, listener: &hub::OrderSubscriber, topic: &[u8]) {
    if !listener.subscribe(topic) {
        desk.counts.dropped.increment(1);
        return;
    }
    let wall = WallClock::read(&desk.clock);
    let domains = desk.domains.in_order.iter().filter(|domain| hub::begins(&domain.name, topic));
    for domain in domains.filter(|domain| listener.mark_informed(&domain.name)) {
        let mut order = Vec::new();
        domain.in_force(wall.now, |identifier, until| {
            order.clear();
            listener.write(&domain.name, identifier, wall.millis(until), &mut order);
            let fits = listener.push(&order);
            if !fits {
                desk.counts.dropped.increment(1);
            }
            fits
        });
    }
}
