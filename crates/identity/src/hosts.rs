//! The rules that apply to clients because of their host names.
//!
//! Requests never wait for a name: a new client counts by its address, and is queued for a lookup
//! (`lookup`). Results are kept as long as DNS permits, within bounds, and an hour longer while a
//! new lookup fails. The rules are stored instead of the name, so memory is bounded. There are two
//! generations; when the younger one is full, the older one is dropped, and a client that comes
//! again moves into the younger one. Only queued clients are stored, so a flood of addresses evicts
//! others no faster than names can be resolved.

use evenkeel_config::settings::hosts::{HostPattern, HostSettings};
use evenkeel_config::settings::robots::ROBOTS_MAX;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_telemetry::counts::hosts::HostCounts;
use evenkeel_telemetry::registry::Registry;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use tokio::sync::mpsc;

/// Number of clients in one generation, some 64 bytes each.
const GENERATION_CLIENTS_MAX: usize = 32_768;
/// Capacity of the lookup queue. Clients beyond it are queued when they come again.
const LOOKUP_QUEUE_MAX: usize = 1024;
/// The shortest and the longest time for which a result is fresh.
const FRESH_TIME_BOUNDS: (Nanos, Nanos) = (Nanos::from_secs(60), Nanos::from_secs(86_400));
/// How much longer a result is used if no newer one is available.
const STALE_TIME: Nanos = Nanos::from_secs(3_600);
/// Delay before the next lookup of a client after a failure.
const LOOKUP_RETRY_DELAY: Nanos = Nanos::from_secs(60);
/// Delay before a client is queued again if there was no result.
const LOOKUP_RESULT_TIMEOUT: Nanos = Nanos::from_secs(30);

/// The rules that apply to a client because of its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostPolicy {
    /// Whether the client is neither counted nor held.
    pub exempt: bool,
    /// Index of its group in `merge`.
    group: Option<u16>,
    /// The robots that have a host of this name, a bit for each.
    pub robots: u64,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// These rules apply, for this long.
    Answer(HostPolicy, Nanos),
    /// No name server answered.
    Nothing,
}

struct HostEntry {
    known: HostPolicy,
    fresh_until: Time,
    usable_until: Time,
}

#[derive(Default)]
struct HostCache {
    young: HashMap<IpAddr, HostEntry>,
    old: HashMap<IpAddr, HostEntry>,
}

/// The rules for all clients that are known by name.
pub struct HostDirectory {
    settings: HostSettings,
    kept: Mutex<HostCache>,
    wanted: mpsc::Sender<IpAddr>,
    /// Metrics of lookups.
    pub counts: HostCounts,
}

impl HostDirectory {
    /// Creates an empty table. The receiver yields the clients to look up.
    #[must_use]
    pub fn new(
        settings: &HostSettings,
        registry: &Registry,
    ) -> (HostDirectory, mpsc::Receiver<IpAddr>) {
        let (wanted, receiver) = mpsc::channel(LOOKUP_QUEUE_MAX);
        let (settings, kept) = (settings.clone(), Mutex::default());
        let hosts = HostDirectory { settings, kept, wanted, counts: HostCounts::new(registry) };
        (hosts, receiver)
    }

    /// The settings that the rules come from.
    #[must_use]
    pub fn settings(&self) -> &HostSettings {
        &self.settings
    }

    /// The rules for `client`; the default if they are not known yet. Queues it for a lookup if
    /// they are unknown or no longer fresh. Invariant: `client` is in canonical form.
    #[must_use]
    pub fn of(&self, client: IpAddr, now: Time) -> HostPolicy {
        self.known(client, now).unwrap_or_default()
    }

    /// As [`HostDirectory::of`], but `None` until a lookup of the client has ended.
    #[must_use]
    pub fn known(&self, client: IpAddr, now: Time) -> Option<HostPolicy> {
        let mut kept = self.kept.lock();
        let Some(entry) = kept.find(client) else {
            if self.queue_lookup(client) {
                let entry = HostEntry {
                    known: HostPolicy::default(),
                    fresh_until: now.plus(LOOKUP_RESULT_TIMEOUT),
                    usable_until: now,
                };
                kept.keep(client, entry);
            }
            return None;
        };
        if now >= entry.fresh_until && self.queue_lookup(client) {
            entry.fresh_until = now.plus(LOOKUP_RESULT_TIMEOUT);
        }
        entry.usable(now)
    }

    /// Queues a client for a lookup. Returns false and counts it if the queue is full.
    fn queue_lookup(&self, client: IpAddr) -> bool {
        let noted = self.wanted.try_send(client).is_ok();
        if !noted {
            self.counts.left_out.increment(1);
        }
        noted
    }

    /// Stores the result of a lookup. Returns the new rules if the client is now in a group and was
    /// in none before.
    pub fn learn(&self, client: IpAddr, found: LookupResult, now: Time) -> Option<HostPolicy> {
        let mut kept = self.kept.lock();
        let before = kept.find(client).and_then(|entry| entry.usable(now)).unwrap_or_default();
        match found {
            LookupResult::Nothing => {
                if let Some(entry) = kept.find(client) {
                    entry.fresh_until = now.plus(LOOKUP_RETRY_DELAY);
                }
                None
            }
            LookupResult::Answer(known, fresh) => {
                let fresh_until = now.plus(fresh.max(FRESH_TIME_BOUNDS.0).min(FRESH_TIME_BOUNDS.1));
                let usable_until = fresh_until.plus(STALE_TIME);
                kept.keep(client, HostEntry { known, fresh_until, usable_until });
                (before.group.is_none() && known.group.is_some()).then_some(known)
            }
        }
    }

    /// Whether any rule applies to `name`, which must be in lower case.
    #[must_use]
    pub fn is_name_used(&self, name: &str) -> bool {
        self.policy_for_name(name) != HostPolicy::default()
    }

    /// The rules for clients with this confirmed name.
    #[must_use]
    pub fn policy_for_name(&self, name: &str) -> HostPolicy {
        let exempt = self.settings.exempt.iter().any(|pattern| pattern.matches(name));
        let group = self.settings.merge.iter().position(|merge| merge.pattern.matches(name));
        let robot = |hosts: &[HostPattern]| hosts.iter().any(|pattern| pattern.matches(name));
        let robots = self.settings.robots.iter().take(ROBOTS_MAX).enumerate();
        let robots = robots.filter(|(_, hosts)| robot(hosts)).fold(0, |all, (at, _)| all | 1 << at);
        HostPolicy { exempt, group: group.and_then(|at| u16::try_from(at).ok()), robots }
    }

    /// The name of the group under which a client is counted, if it is in one.
    #[must_use]
    pub fn group(&self, known: HostPolicy) -> Option<&str> {
        let merge = self.settings.merge.get(usize::from(known.group?))?;
        Some(&merge.name)
    }
}

impl HostEntry {
    fn usable(&self, now: Time) -> Option<HostPolicy> {
        (now < self.usable_until).then_some(self.known)
    }
}

impl HostCache {
    /// Finds a client and moves it into the younger generation.
    fn find(&mut self, client: IpAddr) -> Option<&mut HostEntry> {
        if !self.young.contains_key(&client) {
            let entry = self.old.remove(&client)?;
            self.keep(client, entry);
        }
        self.young.get_mut(&client)
    }

    fn keep(&mut self, client: IpAddr, entry: HostEntry) {
        if self.young.len() >= GENERATION_CLIENTS_MAX && !self.young.contains_key(&client) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(client, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_config::settings::hosts::HostMerge;

    fn at(second: u64) -> Time {
        Time::ZERO.plus(Nanos::from_secs(1_000_000 + second))
    }

    fn client(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    fn hosts() -> (HostDirectory, mpsc::Receiver<IpAddr>) {
        let pattern = |text| HostPattern::parse(text).expect("a pattern");
        let merge = HostMerge { pattern: pattern("*.googlebot.com"), name: "googlebot.com".into() };
        let settings = HostSettings {
            exempt: vec![pattern("*.stonehenge.com")],
            merge: vec![merge],
            robots: vec![vec![pattern("*.bot.test")], vec![pattern("*.test"), pattern("x.org")]],
            resolver: Vec::new(),
        };
        HostDirectory::new(&settings, &Registry::default())
    }

    #[test]
    fn nobody_waits_and_everybody_is_looked_up_once() {
        let (hosts, mut wanted) = hosts();
        for _ in 0..3 {
            assert_eq!(hosts.of(client(1), at(0)), HostPolicy::default());
        }
        assert_eq!(wanted.try_recv().ok(), Some(client(1)));
        assert!(wanted.try_recv().is_err(), "once");
        assert_eq!(hosts.of(client(1), at(31)), HostPolicy::default());
        assert_eq!(wanted.try_recv().ok(), Some(client(1)), "nothing was heard");
    }

    #[test]
    fn what_was_found_counts_as_long_as_it_may_and_a_while_longer() {
        let (hosts, mut wanted) = hosts();
        let google = hosts.policy_for_name("x.googlebot.com");
        assert_eq!(hosts.group(google), Some("googlebot.com"));
        let found = LookupResult::Answer(google, Nanos::from_secs(300));
        let _ = hosts.of(client(1), at(0));
        assert_eq!(hosts.learn(client(1), found, at(1)), Some(google), "the level moves");
        assert_eq!(hosts.of(client(1), at(300)), google);
        wanted.try_recv().expect("the first time");
        assert!(wanted.try_recv().is_err(), "fresh");
        assert_eq!(hosts.of(client(1), at(301)), google, "stale");
        assert_eq!(wanted.try_recv().ok(), Some(client(1)));
        assert_eq!(hosts.learn(client(1), found, at(302)), None, "it was in the group before");
        let _ = hosts.of(client(1), at(700));
        assert_eq!(hosts.learn(client(1), LookupResult::Nothing, at(701)), None);
        assert_eq!(hosts.of(client(1), at(702)), google, "while DNS is away");
        assert_eq!(hosts.of(client(1), at(602 + 3_600)), HostPolicy::default(), "not for ever");
        let gone = LookupResult::Answer(HostPolicy::default(), Nanos::from_secs(0));
        assert_eq!(hosts.learn(client(1), gone, at(5_000)), None);
        assert_eq!(hosts.of(client(1), at(5_001)), HostPolicy::default());
        assert!(hosts.policy_for_name("www.stonehenge.com").exempt);
        assert!(!hosts.is_name_used("stonehenge.com") && !hosts.is_name_used("www.example.com"));
    }

    #[test]
    fn the_robots_of_a_name_are_a_bit_each_and_unknown_until_a_lookup_has_ended() {
        let (hosts, _wanted) = hosts();
        let robots = |name| hosts.policy_for_name(name).robots;
        assert_eq!([robots("a.bot.test"), robots("a.test"), robots("x.org")], [3, 2, 2]);
        assert!(hosts.is_name_used("a.test") && !hosts.is_name_used("y.org"));
        assert_eq!(hosts.known(client(1), at(0)), None);
        assert_eq!(hosts.learn(client(1), LookupResult::Nothing, at(1)), None);
        assert_eq!(hosts.known(client(1), at(2)), None, "no name server answered");
        let none = LookupResult::Answer(HostPolicy::default(), Nanos::from_secs(300));
        hosts.learn(client(1), none, at(3));
        assert_eq!(hosts.known(client(1), at(4)), Some(HostPolicy::default()));
    }

    #[test]
    fn a_flood_of_addresses_takes_no_more_memory_than_there_is() {
        let (hosts, mut wanted) = hosts();
        let found = LookupResult::Answer(
            hosts.policy_for_name("x.googlebot.com"),
            Nanos::from_secs(86_400),
        );
        hosts.learn(client(0), found, at(0));
        for number in 1..4 * GENERATION_CLIENTS_MAX as u32 {
            let _ = hosts.of(client(number), at(1));
            let _ = wanted.try_recv();
            assert_ne!(hosts.of(client(0), at(1)), HostPolicy::default(), "who asks is kept");
        }
        let kept = hosts.kept.lock();
        assert!(kept.young.len() + kept.old.len() <= 2 * GENERATION_CLIENTS_MAX);
    }

    #[test]
    fn beyond_what_can_be_looked_up_nobody_is_kept() {
        let (hosts, _wanted) = hosts();
        (0..5_000).for_each(|number| assert!(!hosts.of(client(number), at(0)).exempt));
        assert_eq!(hosts.kept.lock().young.len(), LOOKUP_QUEUE_MAX);
        assert_eq!(hosts.counts.left_out.get(), 5_000 - LOOKUP_QUEUE_MAX as u64);
    }
}
