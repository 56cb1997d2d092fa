//! Starts the transport that the settings name, with its protection.
//!
//! A mesh is protected by certificates, else by a key derived from the secret. With neither it is
//! confined to this machine. The messages of a group are sealed with the secret. The transports:
//! `mesh`, `multicast`, `nats`.

use super::mesh::connection::{MeshSecurity, MeshTimeouts};
use super::seal::{GroupSeal, SealError, SenderId};
use super::traffic::Traffic;
use super::{RunningTransport, mesh, multicast, nats};
use arc_swap::ArcSwap;
use aws_lc_rs::rand;
use evenkeel_config::secret::{self, SecretError};
use evenkeel_config::settings::peers::{PeerTransport, PeersSettings, PeersTls};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::registry::Registry;
use evenkeel_tls::PeerTlsConfigs;
use evenkeel_tls::pem::TlsFileError;
use evenkeel_tls::reload::LiveValue;
use std::net::TcpListener;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum TransportStartError {
    #[error("peers: {0}")]
    Secret(#[from] SecretError),
    #[error("peers: {0}")]
    Tls(#[from] TlsFileError),
    #[error("peers: cannot create a key: {0}")]
    Seal(#[from] SealError),
    #[error("peers: the system provides no random numbers")]
    Random,
    #[error(transparent)]
    Mesh(#[from] mesh::MeshStartError),
    #[error(transparent)]
    Multicast(#[from] multicast::MulticastStartError),
    #[error(transparent)]
    Nats(#[from] nats::NatsStartError),
}

/// Starts the transport on the current runtime. It ends when the result is dropped. After an error
/// no task is left running. `listener`: the socket of a mesh; without one it opens its own.
pub async fn start(
    settings: &PeersSettings,
    listener: Option<TcpListener>,
    clock: Clock,
    registry: &Registry,
) -> Result<RunningTransport, TransportStartError> {
    let traffic = Traffic::new(registry);
    let secret = settings.secret_file.as_deref().map(secret::token).transpose()?;
    // The name of this instance: it must be different at each start, because keys are derived from
    // it.
    let mut own = SenderId::default();
    rand::fill(&mut own).map_err(|_| TransportStartError::Random)?;
    let seal = || {
        let secret = secret.as_deref().unwrap_or_default().as_bytes();
        let now = clock.now().0 / 1_000_000;
        GroupSeal::new(secret, &settings.cluster, own, settings.nodes_max, now)
    };
    match &settings.via {
        PeerTransport::Mesh { listen, join, mdns } => {
            let (security, live) = security(settings, secret.as_deref(), clock, registry)?;
            let plan = mesh::MeshPlan {
                listen: *listen,
                listener,
                join: join.clone(),
                mdns: *mdns,
                resolver: None,
                cluster: settings.cluster.clone(),
                security,
                links_max: settings.nodes_max,
                timing: MeshTimeouts::default(),
                traffic,
                live,
                instance: own,
                clock,
            };
            let (transport, address) = mesh::start(plan).await?;
            tracing::info!(target: "evenkeel::peers", listen = %address, "mesh open");
            Ok(transport)
        }
        PeerTransport::Multicast { group, interface, hops } => {
            let plan =
                multicast::MulticastPlan { group: *group, interface: *interface, hops: *hops };
            Ok(multicast::start(plan, seal()?, clock, traffic)?)
        }
        PeerTransport::Nats { servers, credentials_file } => {
            let credentials = credentials_file.as_deref().map(secret::credentials).transpose()?;
            let plan = nats::NatsPlan {
                servers: servers.clone(),
                credentials,
                tls: settings.tls.clone(),
                cluster: settings.cluster.clone(),
            };
            Ok(nats::start(plan, seal()?, clock, traffic).await?)
        }
    }
}

fn security(
    settings: &PeersSettings,
    secret: Option<&str>,
    clock: Clock,
    registry: &Registry,
) -> Result<(MeshSecurity, Option<LiveValue<PeerTlsConfigs>>), TlsFileError> {
    if let Some(PeersTls { cert, key, ca }) = &settings.tls {
        let paths = vec![cert.clone(), key.clone(), ca.clone()];
        let live = LiveValue::load("peers", paths, evenkeel_tls::peers, clock.now(), registry)?;
        return Ok((MeshSecurity::Tls(live.running()), Some(live)));
    }
    let Some(secret) = secret else { return Ok((MeshSecurity::Plain, None)) };
    let ends = evenkeel_tls::peers_by_secret(secret.as_bytes(), &settings.cluster)?;
    Ok((MeshSecurity::Tls(Arc::new(ArcSwap::from_pointee(ends))), None))
}
