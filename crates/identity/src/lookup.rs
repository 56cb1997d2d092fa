//! Looks up the host names of clients: reverse DNS, confirmed by a forward lookup.
//!
//! The owner of a network can give its addresses any name, so a name is only used if it resolves to
//! the client's address. Names without rules are not confirmed. Lookups run in the background,
//! bounded in number and time; the results go to `hosts`.

use super::hosts::{HostDirectory, HostPolicy, LookupResult};
use evenkeel_config::settings::hosts::HostSettings;
use evenkeel_core::units::Nanos;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::counts::hosts::LookupOutcome;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

/// Maximum number of concurrent lookups.
const LOOKUPS_MAX: usize = 32;
/// Timeout for all queries about one client.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of one query. The next constant is the number of attempts.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
const QUERY_ATTEMPTS_MAX: usize = 2;
/// Maximum number of names of one address that are confirmed.
const NAMES_MAX: usize = 4;
/// How long the absence of a name is cached.
const ABSENT_NAME_TTL: Nanos = Nanos::from_secs(600);

/// Looks up the clients that `hosts` requests, until `hosts` is dropped. Calls `told` for clients
/// that are now counted in a group.
pub async fn serve(
    hosts: Weak<HostDirectory>,
    mut wanted: mpsc::Receiver<IpAddr>,
    clock: Clock,
    told: impl Fn(IpAddr, HostPolicy) + Clone + Send + Sync + 'static,
) {
    let Some(resolver) = hosts.upgrade().and_then(|hosts| start(hosts.settings())) else { return };
    let places = Arc::new(Semaphore::new(LOOKUPS_MAX));
    while let Some(client) = wanted.recv().await {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (resolver, hosts, told) = (resolver.clone(), hosts.clone(), told.clone());
        tokio::spawn(async move {
            let Some(hosts) = hosts.upgrade() else { return };
            let found =
                tokio::time::timeout(LOOKUP_TIMEOUT, look_up(&resolver, &hosts, client)).await;
            let found = found.ok().flatten();
            hosts.counts.record_lookup(found.map(|(_, how)| how));
            let found = found.map_or(LookupResult::Nothing, |(found, _)| found);
            if let Some(known) = hosts.learn(client, found, clock.now()) {
                told(client, known);
            }
            drop(place);
        });
    }
}

fn start(settings: &HostSettings) -> Option<TokioResolver> {
    let builder = if settings.resolver.is_empty() {
        TokioResolver::builder_tokio()
    } else {
        let servers = settings.resolver.iter().copied().map(server).collect();
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let mut builder =
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        builder.options_mut().use_hosts_file = ResolveHosts::Never;
        Ok(builder)
    };
    let resolver = builder.and_then(|mut builder| {
        limit(builder.options_mut());
        builder.build()
    });
    let failed = |error: &NetError| {
        tracing::warn!(
            target: "evenkeel::hosts", %error,
            "host names are not looked up, so `host:` patterns match no client; list name servers \
             in `resolver`"
        );
    };
    resolver.inspect_err(failed).ok()
}

fn server(address: SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    server.connections.iter_mut().for_each(|connection| connection.port = address.port());
    server
}

fn limit(options: &mut ResolverOpts) {
    options.timeout = QUERY_TIMEOUT;
    options.attempts = QUERY_ATTEMPTS_MAX;
    // `hosts` caches the results.
    options.cache_size = 0;
}

/// Looks up a client. `None` if no name server answered.
async fn look_up(
    resolver: &TokioResolver,
    hosts: &HostDirectory,
    client: IpAddr,
) -> Option<(LookupResult, LookupOutcome)> {
    let nothing =
        |fresh| Some((LookupResult::Answer(HostPolicy::default(), fresh), LookupOutcome::Other));
    let names = match resolver.reverse_lookup(client).await {
        Ok(lookup) => lookup,
        Err(error) => return nothing(absent(&error)?),
    };
    let fresh = freshness(&names);
    let mut forged = false;
    for record in names.answers().iter().take(NAMES_MAX) {
        let RData::PTR(name) = &record.data else { continue };
        let text = readable(&name.0);
        if !hosts.is_name_used(&text) {
            continue;
        }
        if let Some(confirmed) = confirm_name(resolver, &name.0, client).await? {
            let known = hosts.policy_for_name(&text);
            return Some((
                LookupResult::Answer(known, fresh.min(confirmed)),
                LookupOutcome::Confirmed,
            ));
        }
        forged = true;
    }
    let outcome = if forged { LookupOutcome::Forged } else { LookupOutcome::Other };
    Some((LookupResult::Answer(HostPolicy::default(), fresh), outcome))
}

/// Checks whether `name` resolves to `client`, and returns for how long that is valid. The outer
/// `None` means that no name server answered.
async fn confirm_name(
    resolver: &TokioResolver,
    name: &Name,
    client: IpAddr,
) -> Option<Option<Nanos>> {
    let mut name = name.clone();
    name.set_fqdn(true);
    let kind = if client.is_ipv4() { RecordType::A } else { RecordType::AAAA };
    let lookup = match resolver.lookup(name, kind).await {
        Ok(lookup) => lookup,
        Err(error) => return absent(&error).map(|_| None),
    };
    let is_client = |data: &RData| match data {
        RData::A(address) => IpAddr::V4(address.0) == client,
        RData::AAAA(address) => IpAddr::V6(address.0) == client,
        _ => false,
    };
    let found = lookup.answers().iter().any(|record| is_client(&record.data));
    Some(found.then(|| freshness(&lookup)))
}

/// How long to cache the absence of records. `None` if the error does not mean absence.
fn absent(error: &NetError) -> Option<Nanos> {
    error.is_no_records_found().then_some(ABSENT_NAME_TTL)
}

fn freshness(lookup: &Lookup) -> Nanos {
    let shortest = lookup.answers().iter().map(|record| record.ttl).min();
    Nanos::from_secs(shortest.unwrap_or_default().into())
}

/// The name in lower case, without the dot at its end.
fn readable(name: &Name) -> String {
    let text = name.to_ascii().to_ascii_lowercase();
    text.strip_suffix('.').map(str::to_owned).unwrap_or(text)
}
