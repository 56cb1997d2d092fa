//! The client side of a master's sockets: reports requests to the master, and receives its orders.
//!
//! Both connections are opened from here, and reopened after a growing pause whenever they end.
//! No message is buffered for an unreachable master, and a master that reads too slowly misses
//! messages. This runs on its own thread. Requests put a note into `engine::domains::outbox` and
//! look orders up in `engine::domains::gatekeeper`, and do not wait for this thread. Frames:
//! docs/guide/gatekeeper.md.

use super::hub::topic;
use super::link::{ZmqConnectionError, ZmqLink};
use super::wall_clock::WallClock;
use super::zmtp::{
    SocketRole, ZmtpEvent, ZmtpMessage, ZmtpSession, ZmtpVersion, message, subscription,
};
use evenkeel_config::settings::{self, Settings, gatekeeper::MasterAddress};
use evenkeel_engine::domains::gatekeeper::GatekeeperEngine;
use evenkeel_engine::domains::outbox::{ReportedStatus, RequestReport};
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::service::Service;
use evenkeel_serve::start::ServerStartError;
use evenkeel_serve::threads::{ServerOrders, ServerThreads};
use evenkeel_telemetry::counts::heartbeats::Heartbeats;
use evenkeel_telemetry::registry::GaugeGuard;
use rustix::net::sockopt;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// The time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The first pause after a connection has ended or failed. It doubles each time.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause, and so the longest delay until a reachable master is found again.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// The time limit for sending pending reports when the program ends.
const LAST_REPORTS_TIMEOUT: Duration = Duration::from_millis(500);
/// The maximum number of subscriptions remembered; a master has one.
const TOPICS_MAX: usize = 64;
/// A connection is given up if sent data are not acknowledged for this time.
const ACK_TIMEOUT: Duration = Duration::from_secs(15);
/// The error of a connection on which the master does not subscribe.
const NOT_SUBSCRIBED: &str = "it is connected, but has not subscribed to this domain";
/// The minimum number of parts of an order.
const ORDER_PARTS: usize = 4;

/// A thread that talks to the master until this is dropped.
pub struct RunningGatekeeper(ServerThreads);

impl Service for RunningGatekeeper {
    fn threads(&self) -> &ServerThreads {
        &self.0
    }

    /// The requests of the doors that drain are still reported.
    fn drain(&self, _settings: &Settings) {}

    /// The requests that are cut off are still reported.
    fn stop_now(&self) {}

    /// Tells the thread to end: all requests have been reported by then. The pending reports are
    /// sent for a moment, which a drop waits for.
    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        self.0.stop_now();
        Box::pin(std::future::ready(()))
    }
}

/// Starts to talk to the master. The master need not be reachable.
pub fn start(
    settings: &settings::GatekeeperSettings,
    keeper: &Arc<GatekeeperEngine>,
    clock: Clock,
    beats: &Heartbeats,
) -> Result<RunningGatekeeper, ServerStartError> {
    let (master, control) = (settings.master.clone(), settings.control.clone());
    let keeper = Arc::clone(keeper);
    let run = async move |orders| {
        serve(Rc::new(GatekeeperShared { keeper, clock }), master, control, orders).await;
        0
    };
    ServerThreads::single("gatekeeper", (beats, clock), run).map(RunningGatekeeper)
}

/// The state that both connections share.
struct GatekeeperShared {
    keeper: Arc<GatekeeperEngine>,
    clock: Clock,
}

async fn serve(
    desk: Rc<GatekeeperShared>,
    master: MasterAddress,
    control: MasterAddress,
    mut orders: ServerOrders,
) {
    let domain = &*desk.keeper.domain.clone();
    let tell = tell(Rc::clone(&desk), MasterConnection::new("accounting", master, domain));
    let hear = hear(Rc::clone(&desk), MasterConnection::new("control", control, domain));
    let tasks = [
        tokio::task::spawn_local(tell),
        tokio::task::spawn_local(hear),
        tokio::task::spawn_local(seconds(Rc::clone(&desk))),
    ];
    orders.stopped().await;
    let sent = async {
        while !desk.keeper.outbox.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    // A master that does not read in time misses the last messages.
    let _ = timeout(LAST_REPORTS_TIMEOUT, sent).await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn seconds(desk: Rc<GatekeeperShared>) {
    loop {
        sleep(Duration::from_secs(1)).await;
        desk.keeper.tick();
    }
}

/// One of the two connections, with its state across reconnects.
struct MasterConnection {
    domain: String,
    socket: &'static str,
    to: MasterAddress,
    pause: Duration,
    /// Whether the end of the connection has been logged.
    told: bool,
}

impl MasterConnection {
    fn new(socket: &'static str, to: MasterAddress, domain: &str) -> MasterConnection {
        MasterConnection {
            domain: domain.to_owned(),
            socket,
            to,
            pause: RECONNECT_PAUSE,
            told: false,
        }
    }

    /// Connects to the master, as a socket of this kind.
    async fn meet(&mut self, role: SocketRole) -> Result<ZmqLink, ZmqConnectionError> {
        let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(self.to.authority()));
        let stream = connecting.await.map_err(|_| ZmqConnectionError::Late("answer"))??;
        watch_closely(&stream);
        let link = ZmqLink::meet(stream, role).await?;
        let (socket, master) = (self.socket, &self.to);
        let zmtp = link.version();
        tracing::info!(
            target: "evenkeel::gatekeeper", socket, %master, %zmtp, "connected to the master"
        );
        (self.pause, self.told) = (RECONNECT_PAUSE, false);
        Ok(link)
    }

    /// Logs that the connection has ended, and pauses.
    async fn rest(&mut self, ended: &ZmqConnectionError) {
        let (domain, socket, master) = (&*self.domain, self.socket, &self.to);
        if !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                target: "evenkeel::gatekeeper", domain, socket, %master, why = %ended,
                "the master is unreachable: known orders stay in force, and all other requests \
                 are allowed"
            );
        }
        sleep(self.pause).await;
        self.pause = (2 * self.pause).min(RECONNECT_PAUSE_MAX);
    }
}

/// Makes the system detect soon that the peer is gone. A system without this option detects it
/// later.
fn watch_closely(stream: &TcpStream) {
    let gone_after = u32::try_from(ACK_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(stream, gone_after);
}

/// Reports requests to the master, forever.
async fn tell(desk: Rc<GatekeeperShared>, mut line: MasterConnection) {
    loop {
        let Err(ended) = told(&desk, &mut line).await;
        desk.keeper.outbox.set_open(false, &desk.keeper.counts);
        desk.keeper.counts.sockets[0].mark_unreachable(&ended, desk.clock.now());
        line.rest(&ended).await;
    }
}

async fn told(
    desk: &GatekeeperShared,
    line: &mut MasterConnection,
) -> Result<Infallible, ZmqConnectionError> {
    let mut link = line.meet(SocketRole::Publisher).await?;
    let (outbox, counts) = (&desk.keeper.outbox, &desk.keeper.counts);
    let topic = topic(&desk.keeper.domain);
    let mut wanted: Vec<Box<[u8]>> = Vec::new();
    let mut heard: Option<GaugeGuard> = None;
    loop {
        let mut out = Vec::new();
        link.drain(|event| match event {
            ZmtpEvent::Subscribe(topic) if wanted.len() < TOPICS_MAX => wanted.push(topic.into()),
            ZmtpEvent::Cancel(topic) => {
                let at = wanted.iter().position(|wanted| **wanted == *topic);
                at.into_iter().for_each(|at| drop(wanted.swap_remove(at)));
            }
            ZmtpEvent::Ping(context) => ZmtpSession::pong(context, &mut out),
            _ => {}
        })?;
        // Connected means that the master has subscribed, not only that TCP is connected.
        let open = wanted.iter().any(|prefix| topic.starts_with(prefix));
        outbox.set_open(open, counts);
        let wall = WallClock::read(&desk.clock);
        heard = open.then(|| heard.take().unwrap_or_else(|| counts.sockets[0].hold(wall.now)));
        if !open {
            counts.sockets[0].mark_unreachable(NOT_SUBSCRIBED, wall.now);
        }
        let notes = outbox.take();
        notes.iter().for_each(|note| write(link.version(), &topic, note, &wall, &mut out));
        let sent = link.send(&out).await;
        outbox.release(&notes);
        match sent {
            Ok(()) => counts.sent.increment(notes.len() as u64),
            Err(ended) => {
                counts.away.increment(notes.len() as u64);
                return Err(ended);
            }
        }
        tokio::select! {
            filled = link.fill() => filled?,
            () = outbox.wake() => {}
        }
    }
}

/// Writes the message of one request.
fn write(
    version: ZmtpVersion,
    topic: &[u8],
    note: &RequestReport,
    wall: &WallClock,
    out: &mut Vec<u8>,
) {
    let came = wall.millis_before(note.came).to_string();
    let (status, until) = match note.status {
        ReportedStatus::Accepted => (&b"ACCEPTED"[..], String::new()),
        ReportedStatus::Delayed(until) => (&b"DELAYED"[..], wall.millis(until).to_string()),
        ReportedStatus::Rejected => (&b"REJECTED"[..], String::new()),
    };
    let (came, until) = (came.as_bytes(), until.as_bytes());
    message(version, &[topic, status, &note.identifier, came, until, &note.log_info], out);
}

/// Receives the master's orders, forever.
async fn hear(desk: Rc<GatekeeperShared>, mut line: MasterConnection) {
    loop {
        let Err(ended) = heard(&desk, &mut line).await;
        desk.keeper.counts.sockets[1].mark_unreachable(&ended, desk.clock.now());
        line.rest(&ended).await;
    }
}

async fn heard(
    desk: &GatekeeperShared,
    line: &mut MasterConnection,
) -> Result<Infallible, ZmqConnectionError> {
    let mut link = line.meet(SocketRole::Subscriber).await?;
    let _connected = desk.keeper.counts.sockets[1].hold(desk.clock.now());
    let topic = topic(&desk.keeper.domain);
    let mut out = Vec::new();
    subscription(link.version(), &topic, &mut out);
    loop {
        let wall = WallClock::read(&desk.clock);
        let counts = &desk.keeper.counts;
        link.drain(|event| match event {
            // A master with ZeroMQ 2 sends every message to every subscriber.
            ZmtpEvent::Message(message) if !message.part(0).starts_with(&topic) => {}
            ZmtpEvent::Message(message) if learned(desk, &topic, &message, &wall) => {
                counts.record_order(wall.now);
            }
            ZmtpEvent::Message(_) | ZmtpEvent::TooLarge => counts.faulty.increment(1),
            ZmtpEvent::Ping(context) => ZmtpSession::pong(context, &mut out),
            _ => {}
        })?;
        link.send(&out).await?;
        out.clear();
        link.fill().await?;
    }
}

/// Handles one order. Returns false if it is invalid.
fn learned(
    desk: &GatekeeperShared,
    topic: &[u8],
    message: &ZmtpMessage<'_>,
    wall: &WallClock,
) -> bool {
    let known = message.part(0) == topic && message.part(1) == b"DELAY_UNTIL";
    if !known || message.count() < ORDER_PARTS {
        return false;
    }
    let until = wall.time(message.part(3));
    until.is_some_and(|until| desk.keeper.learn(message.part(2), until, wall.now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::units::Time;

    #[test]
    fn s14_every_message_has_six_frames() {
        let written = |status, identifier: &[u8]| {
            let note = RequestReport {
                status,
                identifier: identifier.into(),
                came: Time(1_795_206_188_293_400_000),
                log_info: Box::default(),
            };
            let mut out = Vec::new();
            let wall = WallClock::fixed(Time(0));
            write(ZmtpVersion::Three, b"d\0", &note, &wall, &mut out);
            out.escape_ascii().to_string()
        };
        assert_eq!(
            written(ReportedStatus::Accepted, b"c"),
            "\\x01\\x02d\\x00\\x01\\x08ACCEPTED\\x01\\x01c\\x01\\r1795206188293\\x01\\x00\\x00\\x00"
        );
        let delayed = ReportedStatus::Delayed(Time(1_795_206_188_833_000_000));
        assert_eq!(
            written(delayed, b""),
            "\\x01\\x02d\\x00\\x01\\x07DELAYED\\x01\\x00\\x01\\r1795206188293\
             \\x01\\r1795206188833\\x00\\x00"
        );
    }
}
