//! Discovery of peers: the addresses of a DNS name, looked up repeatedly, and the instances that
//! announce themselves on the local network.
//!
//! The result of a source replaces its earlier result. If a lookup fails, the earlier result stays.
//! Nothing here connects to an instance, and a discovered address proves nothing: an instance has
//! to show that it belongs to the cluster when it is connected to. The own address is among the
//! results, and `mesh` recognises it.

use super::mesh::wire::Instance;
use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::lookup_ip::LookupIp;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{ResolverBuilder, TokioResolver};
use mdns_sd::{IfKind, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo};
use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV6};
use std::time::Duration;
use tokio::sync::mpsc;

/// The most addresses of one source. Further ones are left out.
pub const ADDRESSES_MAX: usize = 1_024;
/// The time to wait for one answer. `ATTEMPTS` is the number of times a server is asked.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;
/// A name is looked up again when its answer expires, within this range of seconds.
const LOOKUP_INTERVAL_SECS: std::ops::RangeInclusive<u32> = 1..=30;
/// The pause after a failed lookup.
const FAILED_LOOKUP_DELAY: Duration = Duration::from_secs(5);
/// The mDNS service type of instances.
const SERVICE_TYPE: &str = "_evenkeel._tcp.local.";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredPeers {
    pub source: usize,
    /// All addresses that the source knows of.
    pub addresses: Vec<SocketAddr>,
}

/// Completes a resolver: the system's is [`TokioResolver::builder_tokio`].
pub fn resolver(
    mut builder: ResolverBuilder<TokioRuntimeProvider>,
) -> Result<TokioResolver, NetError> {
    let options = builder.options_mut();
    options.timeout = ANSWER_TIMEOUT;
    options.attempts = ATTEMPTS;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    // The name is looked up only after its answer has expired, so a cache is of no use.
    options.cache_size = 0;
    builder.build()
}

/// Looks up `authority`, a name and a port, until the receiver is dropped.
pub async fn dns(
    source: usize,
    authority: String,
    resolver: TokioResolver,
    found: mpsc::Sender<DiscoveredPeers>,
) {
    let (name, port) = authority.rsplit_once(':').unwrap_or((&authority, ""));
    let port = port.parse().unwrap_or(0);
    let mut failing = false;
    loop {
        let pause = match resolver.lookup_ip(name).await {
            Ok(lookup) => {
                failing = false;
                let addresses = addresses(&lookup, port);
                if found.send(DiscoveredPeers { source, addresses }).await.is_err() {
                    return;
                }
                Duration::from_secs(again(&lookup).into())
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(
                        target: "evenkeel::peers", name, %error,
                        "no addresses were found for this name; the previous ones stay in use"
                    );
                }
                FAILED_LOOKUP_DELAY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = found.closed() => return,
        }
    }
}

fn addresses(lookup: &LookupIp, port: u16) -> Vec<SocketAddr> {
    let mut all: Vec<_> = lookup.iter().map(|ip| SocketAddr::new(ip, port)).collect();
    all.sort_unstable();
    all.dedup();
    all.truncate(ADDRESSES_MAX);
    all
}

fn again(lookup: &LookupIp) -> u32 {
    let shortest = lookup.as_lookup().answers().iter().map(|record| record.ttl).min();
    shortest.unwrap_or_default().clamp(*LOOKUP_INTERVAL_SECS.start(), *LOOKUP_INTERVAL_SECS.end())
}

/// The announcement of this instance on the local network, and the subscription to those of others.
pub struct LocalDiscovery {
    daemon: ServiceDaemon,
    heard: mdns_sd::Receiver<ServiceEvent>,
    cluster: String,
}

impl LocalDiscovery {
    /// Announces that `instance` of `cluster` listens on `listen`, and browses for other instances.
    /// A loopback address is announced on loopback alone.
    pub fn announce(
        instance: &Instance,
        cluster: &str,
        listen: SocketAddr,
    ) -> Result<LocalDiscovery, mdns_sd::Error> {
        let daemon = ServiceDaemon::new()?;
        let name: String = instance.iter().map(|byte| format!("{byte:02x}")).collect();
        let host = format!("evenkeel-{name}.local.");
        let txt = [("cluster", cluster)];
        let any = listen.ip().is_unspecified();
        let address = if any { String::new() } else { listen.ip().to_string() };
        let service = ServiceInfo::new(
            SERVICE_TYPE,
            &name,
            &host,
            address.as_str(),
            listen.port(),
            &txt[..],
        )?;
        let service = if any { service.enable_addr_auto() } else { service };
        if listen.ip().is_loopback() {
            daemon.disable_interface(IfKind::All)?;
            daemon.enable_interface(IfKind::Name("lo".to_owned()))?;
        }
        daemon.register(service)?;
        let heard = daemon.browse(SERVICE_TYPE)?;
        Ok(LocalDiscovery { daemon, heard, cluster: cluster.to_owned() })
    }

    /// Sends the known addresses after each change, until the receiver is dropped.
    pub async fn listen(self, source: usize, found: mpsc::Sender<DiscoveredPeers>) {
        let mut known = BTreeMap::new();
        loop {
            let event = tokio::select! {
                event = self.heard.recv_async() => event,
                () = found.closed() => return,
            };
            let Ok(event) = event else { return };
            if note(&mut known, event, &self.cluster) {
                let mut addresses: Vec<_> = known.values().flatten().copied().collect();
                addresses.truncate(ADDRESSES_MAX);
                if found.send(DiscoveredPeers { source, addresses }).await.is_err() {
                    return;
                }
            }
        }
    }
}

impl Drop for LocalDiscovery {
    fn drop(&mut self) {
        // The daemon withdraws the announcement. An error means that it has already ended.
        let _ = self.daemon.shutdown();
    }
}

/// Applies an event to the known instances. Returns whether anything changed.
fn note(known: &mut BTreeMap<String, Vec<SocketAddr>>, event: ServiceEvent, cluster: &str) -> bool {
    match event {
        ServiceEvent::ServiceResolved(service) if ours(&service, cluster) => {
            if known.len() >= ADDRESSES_MAX && !known.contains_key(&service.fullname) {
                return false;
            }
            let mut all: Vec<_> =
                service.addresses.iter().map(|ip| scoped(ip, service.port)).collect();
            all.sort_unstable();
            all.truncate(8);
            known.insert(service.fullname.clone(), all.clone()) != Some(all)
        }
        ServiceEvent::ServiceRemoved(_, name) => known.remove(&name).is_some(),
        _ => false,
    }
}

/// A link-local address is valid only together with the index of its network.
fn scoped(ip: &ScopedIp, port: u16) -> SocketAddr {
    match ip {
        ScopedIp::V6(v6) if v6.addr().is_unicast_link_local() => {
            SocketAddrV6::new(*v6.addr(), port, 0, v6.scope_id().index).into()
        }
        ip => SocketAddr::new(ip.to_ip_addr(), port),
    }
}

fn ours(service: &ResolvedService, cluster: &str) -> bool {
    service.is_valid() && service.get_property_val_str("cluster") == Some(cluster)
}
