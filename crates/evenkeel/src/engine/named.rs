//! Clients by name: a request as its client's group has it, and what happens when a name becomes
//! known.
//!
//! Nothing is looked up here (`client::lookup`), and no name of anybody's own choosing becomes a
//! key: only what `merge` calls those who match.

use super::{Engine, Rules};
use crate::client::hosts::{Known, KnownHosts};
use crate::client::lookup;
use crate::config::settings::hosts::Hosts;
use crate::watch::registry::Registry;
use evenkeel_core::classify::{self, Attributes};
use evenkeel_core::key::KeyHash;
use evenkeel_core::limit::{Limit, Part};
use evenkeel_core::units::Time;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Who is to be looked up, until somebody does it.
pub(super) struct Lookups {
    hosts: Arc<KnownHosts>,
    wanted: mpsc::Receiver<IpAddr>,
}

/// A request whose client is known by name, perhaps.
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

/// What a key of a client is called, where that takes no more of a request than who sent it.
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

/// A client, of which only the address and the group are looked at.
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
    /// What looks up clients' names, to be run beside everything else; `None` if nobody's name
    /// matters, or somebody does it already.
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

    /// What a client owes by its address, the group that it counts as owes, if it does: when that
    /// becomes known, and when a request ends that began before.
    pub(super) fn named(&self, client: IpAddr, known: Known) {
        if known == Known::default() {
            return;
        }
        let rules = self.rules.load();
        let Some(group) = rules.hosts.as_ref().and_then(|hosts| hosts.group(known)) else { return };
        let now = self.clock.now();
        for (index, limit) in rules.limiter.limits().iter().enumerate() {
            // Keys of several parts cannot be told: nobody knows the others.
            if *limit.by == [Part::Host] {
                let hash = |group| classify::hash(limit, &rules.seed, &Client(client, group));
                rules.limiter.merge(index, hash(None), hash(Some(group)), now);
            }
        }
    }
}

/// What is known of clients' names under `settings`: what was known `before` if they are the same;
/// else nothing yet, and who is to be looked up.
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
    /// What a client counts as.
    pub(super) fn known(&self, client: IpAddr, now: Time) -> Known {
        self.hosts.as_ref().map(|hosts| hosts.of(client, now)).unwrap_or_default()
    }

    /// The name that it counts as, if any.
    pub(super) fn group(&self, known: Known) -> Option<&str> {
        self.hosts.as_ref().and_then(|hosts| hosts.group(known))
    }
}
