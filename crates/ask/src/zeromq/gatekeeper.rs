//! The client side of a master's sockets: reports requests to the master, and receives its orders.
//!
//! Both connections are opened from here, and reopened after a growing pause whenever they end.
//! Nothing is buffered for an unreachable master, and a master that reads too slowly misses
//! messages. This runs on its own thread. Requests put a note into `engine::domains::outbox` and
//! look orders up in `engine::domains::gatekeeper`, and do not wait for this thread. Frames:
//! docs/guide/gatekeeper.md.

use super::link::{Ended, Link};
use super::wall::Wall;
use super::zmtp::{Event, Message, Role, Session, Version, message, subscription};
use evenkeel_config::settings::{self, gatekeeper::Remote};
use evenkeel_engine::domains::gatekeeper::Gatekeeper;
use evenkeel_engine::domains::outbox::{Note, Status};
use evenkeel_runtime::clock::Clock;
use evenkeel_runtime::thread::Thread;
use evenkeel_serve::watchdog;
use evenkeel_telemetry::counts::beats::Beats;
use evenkeel_telemetry::registry::Held;
use rustix::net::sockopt;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The first pause after a connection has ended or failed. It doubles each time.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause, and so the longest delay until a reachable master is found again.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The time limit for sending pending reports when the program ends.
const LAST: Duration = Duration::from_millis(500);
/// The maximum number of subscriptions remembered; a master has one.
const TOPICS_MAX: usize = 64;
/// A connection is given up if sent data are not acknowledged for this time.
const GONE_AFTER: Duration = Duration::from_secs(15);
/// The error of a connection on which the master does not subscribe.
const UNHEARD: &str = "it answers, but has not asked for this domain";
/// The minimum number of parts of an order.
const ORDER_PARTS: usize = 4;

/// The thread could not be started. Nothing is connected then.
#[derive(Debug, thiserror::Error)]
#[error("gatekeeper: cannot start its thread: {0}")]
pub struct StartError(io::Error);

/// A thread that talks to the master until this is dropped.
pub struct Running(Thread<watch::Sender<bool>>);

impl Running {
    /// Sends the pending reports to the master for a moment, then ends.
    pub fn stop(&self) {
        self.0.orders.send_replace(true);
    }
}

/// Starts to talk to the master. The master need not be reachable.
///
/// # Errors
/// [`StartError`].
pub fn start(
    settings: &settings::Gatekeeper,
    keeper: &Arc<Gatekeeper>,
    clock: Clock,
    beats: Beats,
) -> Result<Running, StartError> {
    let (stop, stopped) = watch::channel(false);
    let (master, control) = (settings.master.clone(), settings.control.clone());
    let keeper = Arc::clone(keeper);
    let run = async move || {
        tokio::task::spawn_local(watchdog::beat("gatekeeper", beats, clock));
        serve(Rc::new(Desk { keeper, clock }), master, control, stopped).await;
    };
    Thread::serve("gatekeeper", stop, (), run).map(Running).map_err(StartError)
}

/// The state that both connections share.
struct Desk {
    keeper: Arc<Gatekeeper>,
    clock: Clock,
}

async fn serve(
    desk: Rc<Desk>,
    master: Remote,
    control: Remote,
    mut stopped: watch::Receiver<bool>,
) {
    let domain = &*desk.keeper.domain().to_owned();
    let tell = tell(Rc::clone(&desk), Line::new("accounting", master, domain));
    let hear = hear(Rc::clone(&desk), Line::new("control", control, domain));
    let tasks = [
        tokio::task::spawn_local(tell),
        tokio::task::spawn_local(hear),
        tokio::task::spawn_local(seconds(Rc::clone(&desk))),
    ];
    // An error means that the sender is gone, which also means to stop.
    let _ = stopped.wait_for(|stopped| *stopped).await;
    let sent = async {
        while !desk.keeper.outbox.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    // A master that does not read in time misses the last messages.
    let _ = timeout(LAST, sent).await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn seconds(desk: Rc<Desk>) {
    loop {
        sleep(Duration::from_secs(1)).await;
        desk.keeper.tick();
    }
}

/// One of the two connections, with its state across reconnects.
struct Line {
    domain: String,
    socket: &'static str,
    to: Remote,
    pause: Duration,
    /// Whether the end of the connection has been logged.
    told: bool,
}

impl Line {
    fn new(socket: &'static str, to: Remote, domain: &str) -> Line {
        Line { domain: domain.to_owned(), socket, to, pause: PAUSE, told: false }
    }

    /// Connects to the master, as a socket of this kind.
    async fn meet(&mut self, role: Role) -> Result<Link, Ended> {
        let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(self.to.authority()));
        let stream = connecting.await.map_err(|_| Ended::Late("answer"))??;
        watch_closely(&stream);
        let link = Link::meet(stream, role).await?;
        let (socket, master) = (self.socket, &self.to);
        let zmtp = link.version();
        tracing::info!(
            target: "evenkeel::gatekeeper", socket, %master, %zmtp, "connected to the master"
        );
        (self.pause, self.told) = (PAUSE, false);
        Ok(link)
    }

    /// Logs that the connection has ended, and pauses.
    async fn rest(&mut self, ended: &Ended) {
        let (domain, socket, master) = (&*self.domain, self.socket, &self.to);
        if !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                target: "evenkeel::gatekeeper", domain, socket, %master, why = %ended,
                "the master is away: orders that are known are kept, and everybody else passes"
            );
        }
        sleep(self.pause).await;
        self.pause = (2 * self.pause).min(PAUSE_MAX);
    }
}

/// Makes the system detect soon that the peer is gone. A system without this option detects it
/// later.
fn watch_closely(stream: &TcpStream) {
    let gone_after = u32::try_from(GONE_AFTER.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(stream, gone_after);
}

/// Reports requests to the master, forever.
async fn tell(desk: Rc<Desk>, mut line: Line) {
    loop {
        let Err(ended) = told(&desk, &mut line).await;
        desk.keeper.outbox.set_open(false, &desk.keeper.counts);
        desk.keeper.counts.sockets[0].away(&ended, desk.clock.now());
        line.rest(&ended).await;
    }
}

async fn told(desk: &Desk, line: &mut Line) -> Result<Infallible, Ended> {
    let mut link = line.meet(Role::Publisher).await?;
    let (outbox, counts) = (&desk.keeper.outbox, &desk.keeper.counts);
    let topic = topic(desk.keeper.domain());
    let mut wanted: Vec<Box<[u8]>> = Vec::new();
    let mut heard: Option<Held> = None;
    loop {
        let mut out = Vec::new();
        link.drain(|event| match event {
            Event::Subscribe(topic) if wanted.len() < TOPICS_MAX => wanted.push(topic.into()),
            Event::Cancel(topic) => {
                let at = wanted.iter().position(|wanted| **wanted == *topic);
                at.into_iter().for_each(|at| drop(wanted.swap_remove(at)));
            }
            Event::Ping(context) => Session::pong(context, &mut out),
            _ => {}
        })?;
        // Connected means that the master has subscribed, not only that TCP is connected.
        let open = wanted.iter().any(|prefix| topic.starts_with(prefix));
        outbox.set_open(open, counts);
        let wall = Wall::read(&desk.clock);
        heard = open.then(|| heard.take().unwrap_or_else(|| counts.sockets[0].hold(wall.now)));
        if !open {
            counts.sockets[0].away(UNHEARD, wall.now);
        }
        let notes = outbox.take();
        notes.iter().for_each(|note| write(link.version(), &topic, note, &wall, &mut out));
        let sent = link.send(&out).await;
        outbox.sent(&notes);
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
fn write(version: Version, topic: &[u8], note: &Note, wall: &Wall, out: &mut Vec<u8>) {
    let came = wall.millis_before(note.came).to_string();
    let (status, until) = match note.status {
        Status::Accepted => (&b"ACCEPTED"[..], String::new()),
        Status::Delayed(until) => (&b"DELAYED"[..], wall.millis(until).to_string()),
        Status::Rejected => (&b"REJECTED"[..], String::new()),
    };
    let (came, until) = (came.as_bytes(), until.as_bytes());
    message(version, &[topic, status, &note.identifier, came, until, &note.log_info], out);
}

/// Receives the master's orders, forever.
async fn hear(desk: Rc<Desk>, mut line: Line) {
    loop {
        let Err(ended) = heard(&desk, &mut line).await;
        desk.keeper.counts.sockets[1].away(&ended, desk.clock.now());
        line.rest(&ended).await;
    }
}

async fn heard(desk: &Desk, line: &mut Line) -> Result<Infallible, Ended> {
    let mut link = line.meet(Role::Subscriber).await?;
    let _connected = desk.keeper.counts.sockets[1].hold(desk.clock.now());
    let topic = topic(desk.keeper.domain());
    let mut out = Vec::new();
    subscription(link.version(), &topic, &mut out);
    loop {
        let wall = Wall::read(&desk.clock);
        let counts = &desk.keeper.counts;
        link.drain(|event| match event {
            // A master with ZeroMQ 2 sends every message to every subscriber.
            Event::Message(message) if !message.part(0).starts_with(&topic) => {}
            Event::Message(message) if learned(desk, &topic, &message, &wall) => {
                counts.ordered(wall.now);
            }
            Event::Message(_) | Event::TooLarge => counts.faulty.increment(1),
            Event::Ping(context) => Session::pong(context, &mut out),
            _ => {}
        })?;
        link.send(&out).await?;
        out.clear();
        link.fill().await?;
    }
}

/// Handles one order. Returns false if it is invalid.
fn learned(desk: &Desk, topic: &[u8], message: &Message<'_>, wall: &Wall) -> bool {
    let known = message.part(0) == topic && message.part(1) == b"DELAY_UNTIL";
    if !known || message.count() < ORDER_PARTS {
        return false;
    }
    let until = wall.time(message.part(3));
    until.is_some_and(|until| desk.keeper.learn(message.part(2), until, wall.now))
}

fn topic(domain: &str) -> Vec<u8> {
    [domain.as_bytes(), b"\0"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::units::Time;

    #[test]
    fn s14_every_message_has_six_frames() {
        let written = |status, identifier: &[u8]| {
            let note = Note {
                status,
                identifier: identifier.into(),
                came: Time(1_795_206_188_293_400_000),
                log_info: Box::default(),
            };
            let mut out = Vec::new();
            let wall = Wall::fixed(Time(0));
            write(Version::Three, b"d\0", &note, &wall, &mut out);
            out.escape_ascii().to_string()
        };
        assert_eq!(
            written(Status::Accepted, b"c"),
            "\\x01\\x02d\\x00\\x01\\x08ACCEPTED\\x01\\x01c\\x01\\r1795206188293\\x01\\x00\\x00\\x00"
        );
        let delayed = Status::Delayed(Time(1_795_206_188_833_000_000));
        assert_eq!(
            written(delayed, b""),
            "\\x01\\x02d\\x00\\x01\\x07DELAYED\\x01\\x00\\x01\\r1795206188293\
             \\x01\\r1795206188833\\x00\\x00"
        );
    }
}
