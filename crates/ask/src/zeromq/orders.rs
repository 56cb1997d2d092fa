//! A gatekeeper that receives orders: it subscribes to domains and gets their orders.
//!
//! When a gatekeeper subscribes, it gets all orders in force at once. So one that has just started,
//! or was cut off, knows the same as the others.

use super::link::{Ended, Link};
use super::wall::Wall;
use super::zmtp::{Event, Role, Session};
use super::{Desk, TcpStream, hub};
use evenkeel_telemetry::counts::master::Way;
use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;

/// Sends orders to a gatekeeper at `peer` until it disconnects.
pub async fn run(stream: TcpStream, peer: IpAddr, desk: Rc<Desk>) -> Result<Infallible, Ended> {
    let link = Link::meet(stream, Role::Publisher).await?;
    desk.counts.came(peer, Way::Listens, desk.clock.now());
    let listener = desk.hub.join(link.version());
    let ended = tell(link, &desk, &listener).await;
    desk.hub.leave(&listener);
    desk.counts.went(peer, Way::Listens, desk.clock.now());
    ended
}

async fn tell(mut link: Link, desk: &Desk, listener: &hub::Listener) -> Result<Infallible, Ended> {
    loop {
        let mut out = Vec::new();
        link.drain(|event| match event {
            Event::Subscribe(topic) => subscribe(desk, listener, topic),
            Event::Cancel(topic) => listener.cancel(topic),
            Event::Ping(context) => Session::pong(context, &mut out),
            _ => {}
        })?;
        out.extend(listener.take());
        link.send(&out).await?;
        listener.sent();
        desk.hub.moved();
        tokio::select! {
            filled = link.fill() => filled?,
            () = listener.wake() => {}
        }
    }
}

fn subscribe(desk: &Desk, listener: &hub::Listener, topic: &[u8]) {
    if !listener.subscribe(topic) {
        desk.counts.dropped.increment(1);
        return;
    }
    let wall = Wall::read(&desk.clock);
    let domains = desk.domains.all().iter().filter(|domain| hub::begins(domain.name(), topic));
    for domain in domains.filter(|domain| listener.is_new_to(domain.name())) {
        let mut order = Vec::new();
        domain.in_force(wall.now, |identifier, until| {
            order.clear();
            listener.write(domain.name(), identifier, wall.millis(until), &mut order);
            let fits = listener.push(&order);
            if !fits {
                desk.counts.dropped.increment(1);
            }
            fits
        });
    }
}
