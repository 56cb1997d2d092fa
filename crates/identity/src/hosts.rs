//! The rules that apply to clients because of their host names.
//!
//! Requests never wait for a name: a new client counts by its address, and is queued for a lookup
//! (`lookup`). Results are kept as long as DNS permits, within bounds, and an hour longer while a
//! new lookup fails. The rules are stored instead of the name, so memory is bounded. There are two
//! generations; when the younger one is full, the older one is dropped, and a client that comes
//! again moves into the younger one. Only queued clients are stored, so a flood of addresses evicts
//! others no faster than names can be resolved.

use evenkeel_config::settings::hosts::Hosts;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_telemetry::counts::hosts::HostCounts;
use evenkeel_telemetry::registry::Registry;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use tokio::sync::mpsc;

/// Number of clients in one generation, some 64 bytes each.
const GENERATION: usize = 32_768;
/// Capacity of the lookup queue. Clients beyond it are queued when they come again.
const WANTED_MAX: usize = 1024;
/// The shortest and the longest time for which a result is fresh.
const FRESH: (Nanos, Nanos) = (Nanos::from_secs(60), Nanos::from_secs(86_400));
/// How much longer a result is used if no newer one is available.
const STALE: Nanos = Nanos::from_secs(3_600);
/// Delay before the next lookup of a client after a failure.
const RETRY: Nanos = Nanos::from_secs(60);
/// Delay before a client is queued again if there was no result.
const PATIENCE: Nanos = Nanos::from_secs(30);

/// The rules that apply to a client because of its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Whether the client is neither counted nor held.
    pub exempt: bool,
    /// Index of its group in `merge`.
    group: Option<u16>,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// These rules apply, for this long.
    Answer(Known, Nanos),
    /// No name server answered.
    Nothing,
}

struct Entry {
    known: Known,
    fresh_until: Time,
    usable_until: Time,
}

#[derive(Default)]
struct Kept {
    young: HashMap<IpAddr, Entry>,
    old: HashMap<IpAddr, Entry>,
}

/// The rules for all clients that are known by name.
pub struct KnownHosts {
    settings: Hosts,
    kept: Mutex<Kept>,
    wanted: mpsc::Sender<IpAddr>,
    /// Metrics of lookups.
    pub counts: HostCounts,
}

impl KnownHosts {
    /// Creates an empty table. The receiver yields the clients to look up.
    #[must_use]
    pub fn new(settings: &Hosts, registry: &Registry) -> (KnownHosts, mpsc::Receiver<IpAddr>) {
        let (wanted, receiver) = mpsc::channel(WANTED_MAX);
        let (settings, kept) = (settings.clone(), Mutex::default());
        let hosts = KnownHosts { settings, kept, wanted, counts: HostCounts::new(registry) };
        (hosts, receiver)
    }

    /// The settings that the rules come from.
    #[must_use]
    pub fn settings(&self) -> &Hosts {
        &self.settings
    }

    /// The rules for `client`. Queues it for a lookup if they are unknown or no longer fresh.
    /// Invariant: `client` is in canonical form.
    #[must_use]
    pub fn of(&self, client: IpAddr, now: Time) -> Known {
        let mut kept = self.kept.lock();
        let Some(entry) = kept.find(client) else {
            if self.want(client) {
                let entry = Entry {
                    known: Known::default(),
                    fresh_until: now.plus(PATIENCE),
                    usable_until: now,
                };
                kept.keep(client, entry);
            }
            return Known::default();
        };
        if now >= entry.fresh_until && self.want(client) {
            entry.fresh_until = now.plus(PATIENCE);
        }
        entry.usable(now)
    }

    /// Queues a client for a lookup. Returns false and counts it if the queue is full.
    fn want(&self, client: IpAddr) -> bool {
        let noted = self.wanted.try_send(client).is_ok();
        if !noted {
            self.counts.left_out.increment(1);
        }
        noted
    }

    /// Stores the result of a lookup. Returns the new rules if the client is now in a group and was
    /// in none before.
    pub fn learn(&self, client: IpAddr, found: Found, now: Time) -> Option<Known> {
        let mut kept = self.kept.lock();
        let before = kept.find(client).map(|entry| entry.usable(now)).unwrap_or_default();
        match found {
            Found::Nothing => {
                if let Some(entry) = kept.find(client) {
                    entry.fresh_until = now.plus(RETRY);
                }
                None
            }
            Found::Answer(known, fresh) => {
                let fresh_until = now.plus(fresh.max(FRESH.0).min(FRESH.1));
                let usable_until = fresh_until.plus(STALE);
                kept.keep(client, Entry { known, fresh_until, usable_until });
                (before.group.is_none() && known.group.is_some()).then_some(known)
            }
        }
    }

    /// Whether any rule applies to `name`, which must be in lower case.
    #[must_use]
    pub fn matters(&self, name: &str) -> bool {
        self.means(name) != Known::default()
    }

    /// The rules for clients with this confirmed name.
    #[must_use]
    pub fn means(&self, name: &str) -> Known {
        let exempt = self.settings.exempt.iter().any(|pattern| pattern.matches(name));
        let group = self.settings.merge.iter().position(|merge| merge.pattern.matches(name));
        Known { exempt, group: group.and_then(|at| u16::try_from(at).ok()) }
    }

    /// The name of the group under which a client is counted, if it is in one.
    #[must_use]
    pub fn group(&self, known: Known) -> Option<&str> {
        let merge = self.settings.merge.get(usize::from(known.group?))?;
        Some(&merge.name)
    }
}

impl Entry {
    fn usable(&self, now: Time) -> Known {
        if now < self.usable_until { self.known } else { Known::default() }
    }
}

impl Kept {
    /// Finds a client and moves it into the younger generation.
    fn find(&mut self, client: IpAddr) -> Option<&mut Entry> {
        if !self.young.contains_key(&client) {
            let entry = self.old.remove(&client)?;
            self.keep(client, entry);
        }
        self.young.get_mut(&client)
    }

    fn keep(&mut self, client: IpAddr, entry: Entry) {
        if self.young.len() >= GENERATION && !self.young.contains_key(&client) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(client, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_config::settings::hosts::{HostPattern, Merge};

    fn at(second: u64) -> Time {
        Time::ZERO.plus(Nanos::from_secs(1_000_000 + second))
    }

    fn client(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    fn hosts() -> (KnownHosts, mpsc::Receiver<IpAddr>) {
        let pattern = |text| HostPattern::parse(text).expect("a pattern");
        let merge = Merge { pattern: pattern("*.googlebot.com"), name: "googlebot.com".into() };
        let settings = Hosts {
            exempt: vec![pattern("*.stonehenge.com")],
            merge: vec![merge],
            resolver: Vec::new(),
        };
        KnownHosts::new(&settings, &Registry::default())
    }

    #[test]
    fn nobody_waits_and_everybody_is_looked_up_once() {
        let (hosts, mut wanted) = hosts();
        for _ in 0..3 {
            assert_eq!(hosts.of(client(1), at(0)), Known::default());
        }
        assert_eq!(wanted.try_recv().ok(), Some(client(1)));
        assert!(wanted.try_recv().is_err(), "once");
        assert_eq!(hosts.of(client(1), at(31)), Known::default());
        assert_eq!(wanted.try_recv().ok(), Some(client(1)), "nothing was heard");
    }

    #[test]
    fn what_was_found_counts_as_long_as_it_may_and_a_while_longer() {
        let (hosts, mut wanted) = hosts();
        let google = hosts.means("x.googlebot.com");
        assert_eq!(hosts.group(google), Some("googlebot.com"));
        let found = Found::Answer(google, Nanos::from_secs(300));
        let _ = hosts.of(client(1), at(0));
        assert_eq!(hosts.learn(client(1), found, at(1)), Some(google), "the level moves");
        assert_eq!(hosts.of(client(1), at(300)), google);
        wanted.try_recv().expect("the first time");
        assert!(wanted.try_recv().is_err(), "fresh");
        assert_eq!(hosts.of(client(1), at(301)), google, "stale");
        assert_eq!(wanted.try_recv().ok(), Some(client(1)));
        assert_eq!(hosts.learn(client(1), found, at(302)), None, "it was in the group before");
        let _ = hosts.of(client(1), at(700));
        assert_eq!(hosts.learn(client(1), Found::Nothing, at(701)), None);
        assert_eq!(hosts.of(client(1), at(702)), google, "while DNS is away");
        assert_eq!(hosts.of(client(1), at(602 + 3_600)), Known::default(), "not for ever");
        let gone = Found::Answer(Known::default(), Nanos::from_secs(0));
        assert_eq!(hosts.learn(client(1), gone, at(5_000)), None);
        assert_eq!(hosts.of(client(1), at(5_001)), Known::default());
        assert!(hosts.means("www.stonehenge.com").exempt);
        assert!(!hosts.matters("stonehenge.com") && !hosts.matters("www.example.com"));
    }

    #[test]
    fn a_flood_of_addresses_takes_no_more_memory_than_there_is() {
        let (hosts, mut wanted) = hosts();
        let found = Found::Answer(hosts.means("x.googlebot.com"), Nanos::from_secs(86_400));
        hosts.learn(client(0), found, at(0));
        for number in 1..4 * GENERATION as u32 {
            let _ = hosts.of(client(number), at(1));
            let _ = wanted.try_recv();
            assert_ne!(hosts.of(client(0), at(1)), Known::default(), "who asks is kept");
        }
        let kept = hosts.kept.lock();
        assert!(kept.young.len() + kept.old.len() <= 2 * GENERATION);
    }

    #[test]
    fn beyond_what_can_be_looked_up_nobody_is_kept() {
        let (hosts, _wanted) = hosts();
        (0..5_000).for_each(|number| assert!(!hosts.of(client(number), at(0)).exempt));
        assert_eq!(hosts.kept.lock().young.len(), WANTED_MAX);
        assert_eq!(hosts.counts.left_out.get(), 5_000 - WANTED_MAX as u64);
    }
}
