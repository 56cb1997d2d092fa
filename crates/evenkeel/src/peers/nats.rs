//! NATS: messages to a subject that all instances of a cluster listen to, `evenkeel.CLUSTER`.
//!
//! For many instances: each has one connection, and NATS makes the copies. Every frame is one
//! sealed message (`seal`), so who may publish there needs the secret to be believed. The client
//! comes back by itself when its server goes away; meanwhile frames are dropped and counted, and
//! everybody counts alone. Nothing is kept by NATS: a message that is late is of no use.

use super::group::Group;
use super::seal::Seal;
use super::traffic::Traffic;
use super::{BOUNDS, Order, Transport};
use crate::clock::Clock;
use crate::config::settings::peers::{NatsServer, PeersTls};
use async_nats::{Client, ConnectOptions, Event, ServerAddr, Subscriber};
use aws_lc_rs::rand;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::StreamExt;

/// The longest frame, in bytes: NATS carries a million by default.
pub const FRAME_BYTES_MAX: usize = 16 * 1024;
/// Messages that wait to be written.
const QUEUED_MAX: usize = 256;
/// For a server to take a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How often a server that says nothing is asked whether it is there; it has twice as long.
const PING: Duration = Duration::from_secs(10);
/// The longest pause between two attempts to connect.
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// Which NATS, and as whom.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The servers, of which one is used at a time.
    pub servers: Vec<NatsServer>,
    /// `user:password`, or a token.
    pub credentials: Option<String>,
    /// What is shown to the servers, and which authority they must be of.
    pub tls: Option<PeersTls>,
    /// To whom we belong.
    pub cluster: String,
}

/// NATS cannot be used so.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The name of a server is none.
    #[error("peers: {0} cannot be the address of a NATS server: {1}")]
    Address(String, std::io::Error),
    /// What the client says.
    #[error("peers: NATS: {0}")]
    Client(String),
}

/// Begins to connect, and goes on trying for as long as it runs.
///
/// # Errors
/// [`StartError`] if that can never work; that nobody answers is no error.
pub async fn start(
    plan: Plan,
    seal: Seal,
    clock: Clock,
    traffic: Traffic,
) -> Result<Transport, StartError> {
    let (happened, happens) = mpsc::channel(16);
    let subject = format!("evenkeel.{}", plan.cluster);
    let addresses: Vec<ServerAddr> = plan.servers.iter().map(address).collect::<Result<_, _>>()?;
    let client = options(plan, happened).connect(addresses).await;
    let client = client.map_err(|error| StartError::Client(error.to_string()))?;
    let heard = client.subscribe(subject.clone()).await;
    let heard = heard.map_err(|error| StartError::Client(error.to_string()))?;
    let (events, told) = mpsc::channel(BOUNDS.events_max);
    let (orders, obeyed) = mpsc::channel(BOUNDS.orders_max);
    let group = Group::new(seal, clock, traffic, events, FRAME_BYTES_MAX);
    let nats = Nats { subject, client, heard, happens, group, told: String::new() };
    tokio::spawn(nats.run(obeyed));
    Ok(Transport { events: told, orders, frame_max: FRAME_BYTES_MAX, reliable: false })
}

fn address(server: &NatsServer) -> Result<ServerAddr, StartError> {
    let text = server.to_string();
    text.parse().map_err(|error| StartError::Address(text, error))
}

fn options(plan: Plan, happened: mpsc::Sender<Event>) -> ConnectOptions {
    let mut options = ConnectOptions::new()
        .name("evenkeel")
        .no_echo()
        .retry_on_initial_connect()
        .connection_timeout(CONNECT)
        .ping_interval(PING)
        .client_capacity(QUEUED_MAX)
        .subscription_capacity(BOUNDS.events_max)
        .reconnect_delay_callback(pause)
        .event_callback(move |event| {
            let happened = happened.clone();
            async move {
                // Without room for it somebody does not listen, and it does not matter.
                let _ = happened.send(event).await;
            }
        });
    if let Some(credentials) = plan.credentials {
        options = match credentials.split_once(':') {
            Some((user, password)) => {
                options.user_and_password(user.to_owned(), password.to_owned())
            }
            None => options.token(credentials),
        };
    }
    if let Some(tls) = plan.tls {
        options = options.add_root_certificates(tls.ca).add_client_certificate(tls.cert, tls.key);
    }
    options
}

/// Doubles from 100 ms to its bound, and is drawn from the upper half.
fn pause(attempts: usize) -> Duration {
    let doubled = 100_u64 << attempts.saturating_sub(1).min(10);
    let most = Duration::from_millis(doubled).min(AGAIN_MAX);
    let mut byte = [0];
    let drawn = rand::fill(&mut byte).map_or(255, |()| byte[0]);
    most / 2 + most.mul_f64(f64::from(drawn) / 510.0)
}

struct Nats {
    subject: String,
    client: Client,
    heard: Subscriber,
    happens: mpsc::Receiver<Event>,
    group: Group,
    /// What was told last of what goes wrong.
    told: String,
}

impl Nats {
    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    None => return,
                    Some(Order::Drop { .. }) => {}
                    Some(Order::Send { link, bytes }) => {
                        if let Some(message) = self.group.message(link, &bytes) {
                            self.send(message).await;
                        }
                    }
                },
                Some(message) = self.heard.next() => {
                    self.group.heard(&message.payload, &message.subject);
                }
                Some(event) = self.happens.recv() => self.tell(event).await,
            }
        }
    }

    /// Gives it to the client if that has room, and drops it else.
    async fn send(&mut self, message: Vec<u8>) {
        let bytes = message.len();
        let publish = self.client.publish(self.subject.clone(), message.into());
        match tokio::time::timeout(Duration::ZERO, publish).await {
            Ok(Ok(())) => self.group.sent(bytes),
            Ok(Err(_)) | Err(_) => self.group.lost(),
        }
    }

    /// Says the same once, until it is connected again.
    fn warn(&mut self, error: &str, what: &'static str) {
        if self.told != error {
            error.clone_into(&mut self.told);
            tracing::warn!(target: "evenkeel::peers", error, "{what}");
        }
    }

    async fn tell(&mut self, event: Event) {
        match event {
            Event::Connected => {
                let server = self.client.server_info();
                let peer = format!("{} at {}:{}", self.subject, server.host, server.port);
                tracing::info!(target: "evenkeel::peers", %peer, "connected to NATS");
                self.told.clear();
                self.group.up(peer).await;
            }
            Event::Disconnected | Event::Closed => {
                tracing::warn!(
                    target: "evenkeel::peers", "NATS is away: counting alone until it is back"
                );
                self.group.down("NATS is away").await;
            }
            Event::SlowConsumer(_) => self.group.traffic.missed.increment(1),
            Event::ServerError(error) => self.warn(&error.to_string(), "NATS refuses something"),
            Event::ClientError(error) => self.warn(&error.to_string(), "NATS cannot be used yet"),
            Event::LameDuckMode | Event::Draining => {}
        }
    }
}

#[cfg(test)]
mod tests;
