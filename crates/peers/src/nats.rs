//! NATS transport: messages on a subject that all instances of a cluster subscribe to,
//! `evenkeel.CLUSTER`.
//!
//! For many instances: each has one connection, and NATS makes the copies. Every frame is one
//! sealed message (`seal`), so a publisher needs the secret to be believed. The client reconnects
//! by itself when its server becomes unreachable. In the meantime frames are dropped and counted,
//! and each instance counts alone. NATS stores no messages: a late message would be of no use.

use super::group::PeerGroup;
use super::seal::GroupSeal;
use super::traffic::Traffic;
use super::{EVENTS_MAX, ORDERS_MAX, RunningTransport, TransportOrder, jittered};
use async_nats::{Client, ConnectOptions, Event, ServerAddr, Subscriber};
use evenkeel_config::settings::peers::{NatsServer, PeersTls};
use evenkeel_runtime::clock::Clock;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::StreamExt;

/// The longest frame, in bytes. NATS carries messages of a million bytes by default.
pub const FRAME_BYTES_MAX: usize = 16 * 1024;
/// The number of messages that wait to be written.
const QUEUED_MESSAGES_MAX: usize = 256;
/// The time within which a server must accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which a silent server is pinged. The connection is given up after about twice
/// this time.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// The longest pause between two attempts to connect.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub struct NatsPlan {
    /// The servers, of which one is used at a time.
    pub servers: Vec<NatsServer>,
    /// `user:password`, or a token.
    pub credentials: Option<String>,
    /// The client certificate, and the authority of the servers' certificates.
    pub tls: Option<PeersTls>,
    /// A part of the subject.
    pub cluster: String,
}

#[derive(Debug, thiserror::Error)]
pub enum NatsStartError {
    #[error("peers: {0} is not a valid address of a NATS server: {1}")]
    Address(String, std::io::Error),
    #[error("peers: NATS: {0}")]
    Client(String),
}

/// Begins to connect, and retries for as long as the transport runs. An unreachable server is no
/// error, only settings that can never work.
pub async fn start(
    plan: NatsPlan,
    seal: GroupSeal,
    clock: Clock,
    traffic: Traffic,
) -> Result<RunningTransport, NatsStartError> {
    let (happened, happens) = mpsc::channel(16);
    let subject = format!("evenkeel.{}", plan.cluster);
    let addresses: Vec<ServerAddr> = plan.servers.iter().map(address).collect::<Result<_, _>>()?;
    let client = options(plan, happened).connect(addresses).await;
    let client = client.map_err(|error| NatsStartError::Client(error.to_string()))?;
    let heard = client.subscribe(subject.clone()).await;
    let heard = heard.map_err(|error| NatsStartError::Client(error.to_string()))?;
    let (events, told) = mpsc::channel(EVENTS_MAX);
    let (orders, obeyed) = mpsc::channel(ORDERS_MAX);
    let group = PeerGroup::new(seal, clock, traffic, events, FRAME_BYTES_MAX);
    let nats = Nats { subject, client, heard, happens, group, told: String::new() };
    tokio::spawn(nats.run(obeyed));
    let frame_max = FRAME_BYTES_MAX;
    Ok(RunningTransport { events: told, orders, urgent: None, frame_max, reliable: false })
}

fn address(server: &NatsServer) -> Result<ServerAddr, NatsStartError> {
    let text = server.to_string();
    text.parse().map_err(|error| NatsStartError::Address(text, error))
}

fn options(plan: NatsPlan, happened: mpsc::Sender<Event>) -> ConnectOptions {
    let mut options = ConnectOptions::new()
        .name("evenkeel")
        .no_echo()
        .retry_on_initial_connect()
        .connection_timeout(CONNECT_TIMEOUT)
        .ping_interval(PING_INTERVAL)
        .client_capacity(QUEUED_MESSAGES_MAX)
        .subscription_capacity(EVENTS_MAX)
        .reconnect_delay_callback(pause)
        .event_callback(move |event| {
            let happened = happened.clone();
            async move {
                // The channel is closed only if the transport has ended, and then the event does
                // not matter.
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

/// The pause before a reconnect. It doubles from 100 ms up to [`RECONNECT_DELAY_MAX`], and is drawn
/// from its upper half.
fn pause(attempts: usize) -> Duration {
    let doubled = 100_u64 << attempts.saturating_sub(1).min(10);
    let most = Duration::from_millis(doubled).min(RECONNECT_DELAY_MAX);
    jittered(most)
}

struct Nats {
    subject: String,
    client: Client,
    heard: Subscriber,
    happens: mpsc::Receiver<Event>,
    group: PeerGroup,
    /// The latest error that was logged.
    told: String,
}

impl Nats {
    async fn run(mut self, mut orders: mpsc::Receiver<TransportOrder>) {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    None => return,
                    Some(
                        TransportOrder::Drop { .. }
                        | TransportOrder::Redial { .. }
                        | TransportOrder::Accept(_),
                    ) => {}
                    Some(TransportOrder::Send { link, bytes }) => {
                        if let Some(message) = self.group.message(link, &bytes) {
                            self.send(message).await;
                        }
                    }
                },
                Some(message) = self.heard.next() => {
                    self.group.handle_message(&message.payload, &message.subject);
                }
                Some(event) = self.happens.recv() => self.tell(event).await,
            }
        }
    }

    /// Gives a message to the client if it has room, and drops the message otherwise.
    async fn send(&mut self, message: Vec<u8>) {
        let bytes = message.len();
        let publish = self.client.publish(self.subject.clone(), message.into());
        match tokio::time::timeout(Duration::ZERO, publish).await {
            Ok(Ok(())) => self.group.count_sent(bytes),
            Ok(Err(_)) | Err(_) => self.group.count_lost(),
        }
    }

    /// Logs an error, unless it is the same as the last one since the client was connected.
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
                    target: "evenkeel::peers",
                    "NATS is unreachable: this instance counts alone until it answers"
                );
                self.group.down("NATS is unreachable").await;
            }
            Event::SlowConsumer(_) => self.group.traffic.missed.increment(1),
            Event::ServerError(error) => self.warn(&error.to_string(), "NATS refused an operation"),
            Event::ClientError(error) => self.warn(&error.to_string(), "NATS cannot be used"),
            Event::LameDuckMode | Event::Draining => {}
        }
    }
}

#[cfg(test)]
mod tests;
