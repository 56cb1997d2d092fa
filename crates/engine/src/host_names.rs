//! Clients by host name: a request with the group of its client, and the transfer of a debt when a
//! name becomes known.
//!
//! The lookup itself is in `identity::lookup`. A client cannot choose the text of its key: the key
//! is the name of the configured group that matches, which `merge` gives it.

use super::{Engine, EngineRules};
use evenkeel_config::settings::hosts::HostSettings;
use evenkeel_core::classify::{self, RequestAttributes};
use evenkeel_core::key::KeyHash;
use evenkeel_core::limit::{KeyPart, Limit};
use evenkeel_core::units::Time;
use evenkeel_identity::hosts::{HostDirectory, HostPolicy};
use evenkeel_identity::lookup;
use evenkeel_telemetry::registry::Registry;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The queue of addresses to look up, until a lookup task takes it.
pub(super) struct NameLookups {
    hosts: Arc<HostDirectory>,
    wanted: mpsc::Receiver<IpAddr>,
}

/// A request together with the group of its client; `None` if the client is in no known group.
pub(super) struct GroupedRequest<'a, R> {
    pub(super) request: &'a R,
    pub(super) group: Option<&'a str>,
}

impl<R: RequestAttributes> RequestAttributes for GroupedRequest<'_, R> {
    fn address(&self) -> IpAddr {
        self.request.address()
    }

    fn method(&self) -> &str {
        self.request.method()
    }

    fn path(&self) -> &str {
        self.request.path()
    }

    fn vhost(&self) -> &str {
        self.request.vhost()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.request.header(name)
    }

    fn cookies(&self) -> impl Iterator<Item = &[u8]> {
        self.request.cookies()
    }

    fn group(&self) -> Option<&str> {
        self.group
    }
}

/// The readable name of a client's key, if the address and the group are enough to make it.
pub(super) fn name(
    limit: &Limit,
    hash: KeyHash,
    client: IpAddr,
    group: Option<&str>,
) -> Option<String> {
    let enough = |part: &KeyPart| {
        matches!(part, KeyPart::Ip { .. } | KeyPart::Host | KeyPart::Cookie(_) | KeyPart::All)
    };
    let client = ClientAttributes(client.to_canonical(), group);
    limit.by.iter().all(enough).then(|| classify::name(limit, &client, hash))
}

/// A client as attributes: only the address and the group are set.
struct ClientAttributes<'a>(IpAddr, Option<&'a str>);

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

impl Engine {
    /// The task that looks up the names of clients. The caller runs it beside its other tasks.
    /// `None` if no setting needs names, or if the task was taken already.
    pub fn lookups(self: &Arc<Engine>) -> Option<impl Future<Output = ()> + Send + 'static> {
        let NameLookups { hosts, wanted } = self.lookups.lock().take()?;
        let (engine, clock) = (Arc::downgrade(self), self.clock);
        let told = move |client, known| {
            if let Some(engine) = engine.upgrade() {
                engine.merge_group_debt(client, known);
            }
        };
        Some(lookup::serve(Arc::downgrade(&hosts), wanted, clock, told))
    }

    /// Moves the debt of a client's address to the group that the client counts as. Called when the
    /// group becomes known, and again at the end of each request that may have begun before. Locks
    /// only the buckets concerned.
    pub(super) fn merge_group_debt(&self, client: IpAddr, known: HostPolicy) {
        if known == HostPolicy::default() {
            return;
        }
        let rules = self.rules.load();
        let Some(group) = rules.hosts.as_ref().and_then(|hosts| hosts.group(known)) else { return };
        let now = self.clock.now();
        for (index, limit) in rules.limiter.limits().iter().enumerate() {
            // For a key of several parts the other parts are unknown here.
            if *limit.by == [KeyPart::Host] {
                let hash =
                    |group| classify::hash(limit, &rules.seed, &ClientAttributes(client, group));
                rules.limiter.merge(index, hash(None), hash(Some(group)), now);
            }
        }
    }
}

/// The table of client names under `settings`. If the settings are the same as before, the old
/// table is kept. Otherwise the table is new, and comes with the queue of addresses to look up.
pub(super) fn hosts(
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

impl EngineRules {
    /// The group that a client counts as, and whether it is exempt by name. Locks [`HostDirectory`]
    /// for a moment.
    pub(super) fn known(&self, client: IpAddr, now: Time) -> HostPolicy {
        self.hosts.as_ref().map(|hosts| hosts.of(client, now)).unwrap_or_default()
    }

    /// The name of the group that a client counts as, if any.
    pub(super) fn group(&self, known: HostPolicy) -> Option<&str> {
        self.hosts.as_ref().and_then(|hosts| hosts.group(known))
    }
}
