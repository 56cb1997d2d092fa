//! Clients by host name: the table of names, and the readable name of a client without its request.
//!
//! A client cannot choose the text of its key: the key is the name of the configured group that
//! matches, which `merge` gives it. The lookup itself is in `identity::lookup`, the task that runs
//! it in `lookups`. A request with the group of its client: `known_request`.

use crate::client_network::ClientNetwork;
use crate::known_request::KnownRequest;
use evenkeel_config::settings::hosts::HostSettings;
use evenkeel_core::classify::{self, RequestAttributes};
use evenkeel_core::fact::ClientFact;
use evenkeel_core::key::KeyHash;
use evenkeel_core::limit::{KeyPart, Limit};
use evenkeel_identity::hosts::HostDirectory;
use evenkeel_identity::networks::live::NetworkTables;
use evenkeel_identity::robots::RobotStanding;
use evenkeel_telemetry::registry::Registry;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The queue of addresses to look up, until a lookup task takes it.
pub(crate) struct NameLookups {
    pub(crate) hosts: Arc<HostDirectory>,
    pub(crate) wanted: mpsc::Receiver<IpAddr>,
}

/// The readable name of a client's key, if the address and the group are enough to make it.
pub(crate) fn name(
    limit: &Limit,
    hash: KeyHash,
    client: IpAddr,
    group: Option<&str>,
    networks: &NetworkTables,
) -> Option<String> {
    let enough = |part: &KeyPart| match part {
        KeyPart::Fact(fact) => matches!(fact, ClientFact::Asn | ClientFact::Country),
        KeyPart::Ip { .. } | KeyPart::Host | KeyPart::Cookie(_) => true,
        KeyPart::ApiKey | KeyPart::All => true,
        _ => false,
    };
    let client = ClientAttributes(client.to_canonical(), group);
    let network = ClientNetwork::new(client.0, networks);
    let client = KnownRequest::new(&client, RobotStanding::None, &network);
    let client = client.in_group(group);
    limit.by.iter().all(enough).then(|| classify::name(&limit.by, &client, hash))
}

/// A client as attributes: only the address and the group are set.
pub(crate) struct ClientAttributes<'a>(pub(crate) IpAddr, pub(crate) Option<&'a str>);

impl RequestAttributes for ClientAttributes<'_> {
    fn address(&self) -> IpAddr {
        self.0
    }

    fn method(&self) -> &'static str {
        ""
    }

    fn path(&self) -> &'static str {
        "/"
    }

    fn vhost(&self) -> &'static str {
        ""
    }

    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }

    fn group(&self) -> Option<&str> {
        self.1
    }
}

/// The table of client names under `settings`. If the settings are the same as before, the old
/// table is kept. Otherwise the table is new, and comes with the queue of addresses to look up.
pub(crate) fn hosts(
    settings: &HostSettings,
    before: Option<&Arc<HostDirectory>>,
    registry: &Registry,
) -> (Option<Arc<HostDirectory>>, Option<NameLookups>) {
    if !settings.needs_names() {
        return (None, None);
    }
    if let Some(before) = before.filter(|before| before.settings() == settings) {
        return (Some(Arc::clone(before)), None);
    }
    let (hosts, wanted) = HostDirectory::new(settings, registry);
    let hosts = Arc::new(hosts);
    (Some(Arc::clone(&hosts)), Some(NameLookups { hosts, wanted }))
}
