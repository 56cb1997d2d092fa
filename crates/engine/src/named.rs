//! Clients by host name: a request with the group of its client, and the transfer of a debt when a
//! name becomes known.
//!
//! The lookup itself is in `client::lookup`. A client cannot choose the text of its key: the key is
//! the name of the configured group that matches, which `merge` gives it.

use super::{Engine, Rules};
use evenkeel_config::settings::hosts::Hosts;
use evenkeel_core::classify::{self, Attributes};
use evenkeel_core::key::KeyHash;
use evenkeel_core::limit::{Limit, Part};
use evenkeel_core::units::Time;
use evenkeel_identity::hosts::{Known, KnownHosts};
use evenkeel_identity::lookup;
use evenkeel_telemetry::registry::Registry;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The queue of addresses to look up, until a lookup task takes it.
pub(super) struct Lookups {
    hosts: Arc<KnownHosts>,
    wanted: mpsc::Receiver<IpAddr>,
}

/// A request together with the group of its client; `None` if the client is in no known group.
pub(super) struct Named<'a, R> {
    pub(super) request: &'a R,
    pub(super) group: Option<&'a str>,
}

impl<R: Attributes> Attributes for Named<'_, R> {
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
    let enough =
        |part: &Part| matches!(part, Part::Ip { .. } | Part::Host | Part::Cookie(_) | Part::All);
    let client = Client(client.to_canonical(), group);
    limit.by.iter().all(enough).then(|| classify::name(limit, &client, hash))
}

/// A client as attributes: only the address and the group are set.
struct Client<'a>(IpAddr, Option<&'a str>);

impl Attributes for Client<'_> {
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
        let Lookups { hosts, wanted } = self.lookups.lock().take()?;
        let (engine, clock) = (Arc::downgrade(self), self.clock);
        let told = move |client, known| {
            if let Some(engine) = engine.upgrade() {
                engine.named(client, known);
            }
        };
        Some(lookup::serve(Arc::downgrade(&hosts), wanted, clock, told))
    }

    /// Moves the debt of a client's address to the group that the client counts as. Called when the
    /// group becomes known, and again at the end of each request that may have begun before. Locks
    /// only the buckets concerned.
    pub(super) fn named(&self, client: IpAddr, known: Known) {
        if known == Known::default() {
            return;
        }
        let rules = self.rules.load();
        let Some(group) = rules.hosts.as_ref().and_then(|hosts| hosts.group(known)) else { return };
        let now = self.clock.now();
        for (index, limit) in rules.limiter.limits().iter().enumerate() {
            // For a key of several parts the other parts are unknown here.
            if *limit.by == [Part::Host] {
                let hash = |group| classify::hash(limit, &rules.seed, &Client(client, group));
                rules.limiter.merge(index, hash(None), hash(Some(group)), now);
            }
        }
    }
}

/// The table of client names under `settings`. If the settings are the same as before, the old
/// table is kept. Otherwise the table is new, and comes with the queue of addresses to look up.
pub(super) fn hosts(
    settings: &Hosts,
    before: Option<&Arc<KnownHosts>>,
    registry: &Registry,
) -> (Option<Arc<KnownHosts>>, Option<Lookups>) {
    if !settings.matter() {
        return (None, None);
    }
    if let Some(before) = before.filter(|before| before.settings() == settings) {
        return (Some(Arc::clone(before)), None);
    }
    let (hosts, wanted) = KnownHosts::new(settings, registry);
    let hosts = Arc::new(hosts);
    (Some(Arc::clone(&hosts)), Some(Lookups { hosts, wanted }))
}

impl Rules {
    /// The group that a client counts as, and whether it is exempt by name. Locks [`KnownHosts`]
    /// for a moment.
    pub(super) fn known(&self, client: IpAddr, now: Time) -> Known {
        self.hosts.as_ref().map(|hosts| hosts.of(client, now)).unwrap_or_default()
    }

    /// The name of the group that a client counts as, if any.
    pub(super) fn group(&self, known: Known) -> Option<&str> {
        self.hosts.as_ref().and_then(|hosts| hosts.group(known))
    }
}
