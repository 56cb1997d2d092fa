//! The places that the mesh connects to, and when it tries them again.
//!
//! A place that cannot be reached is tried again after a pause that doubles up to a bound. Each
//! pause is drawn from its upper half, so that instances which were cut off together do not retry
//! in step. A place that leads to a connected instance, whichever side made the connection, is left
//! alone while the connection lasts. A place that leads to this instance itself is left alone for
//! ten minutes. The fifth failure in a row is logged, after two to four seconds, further ones only
//! if the reason changes, and the recovery is logged too. Instances that start a moment later than
//! others thus cause no warning.

use super::wire::Instance;
use crate::discover::{ADDRESSES_MAX, DiscoveredPeers};
use crate::{LinkId, jittered};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// The most discovered places, counted together with the configured ones.
const PLACES_MAX: usize = 4 * ADDRESSES_MAX;
/// The pause before a place that led to this instance itself is tried again. By then it may lead to
/// another instance.
const OWN_PLACE_DELAY: Duration = Duration::from_secs(600);

/// The number of failures in a row from which on they are logged.
const LOGGED_FAILURES_MIN: u32 = 5;

/// A place where an instance may be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MeshPlace {
    /// A configured host and port. A host name is resolved at each attempt.
    Name(String),
    Address(SocketAddr),
}

impl fmt::Display for MeshPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeshPlace::Name(name) => f.write_str(name),
            MeshPlace::Address(address) => write!(f, "{address}"),
        }
    }
}

struct MeshTarget {
    /// The time of the next attempt; `None` during an attempt.
    due: Option<Instant>,
    failures: u32,
    /// The instance that the place led to.
    instance: Option<Instance>,
    /// The latest failure that was logged; empty if there is none.
    told: String,
}

/// All places, configured and discovered.
pub struct MeshTargets {
    places: HashMap<MeshPlace, MeshTarget>,
    /// The addresses that each source of discovery has found.
    found: HashMap<usize, Vec<SocketAddr>>,
    named: HashSet<MeshPlace>,
    again: Duration,
    again_max: Duration,
    own: Instance,
}

impl MeshTargets {
    /// Makes places for these configured names, all of them due. `again` is the first pause,
    /// `again_max` the longest.
    pub fn new(
        names: Vec<String>,
        (again, again_max): (Duration, Duration),
        own: Instance,
    ) -> MeshTargets {
        let named: HashSet<MeshPlace> = names.into_iter().map(MeshPlace::Name).collect();
        let due = evenkeel_runtime::clock::Clock::deadline(Duration::ZERO);
        let places = named.iter().map(|place| (place.clone(), MeshTarget::new(due))).collect();
        MeshTargets { places, found: HashMap::new(), named, again, again_max, own }
    }

    /// Replaces the addresses of a source of discovery.
    pub fn found(&mut self, found: DiscoveredPeers, now: Instant) {
        self.found.insert(found.source, found.addresses);
        let all: HashSet<MeshPlace> =
            self.found.values().flatten().copied().map(MeshPlace::Address).collect();
        let named = &self.named;
        self.places.retain(|place, _| named.contains(place) || all.contains(place));
        for place in all {
            if self.places.len() < PLACES_MAX {
                self.places.entry(place).or_insert_with(|| MeshTarget::new(now));
            }
        }
    }

    /// The time of the next attempt, among the places that lead to no instance in `linked`.
    pub fn due(&self, linked: &HashMap<Instance, LinkId>) -> Option<Instant> {
        self.places.values().filter(|target| target.is_wanted(linked)).filter_map(|t| t.due).min()
    }

    /// Returns the places to try now, and marks them as being tried.
    pub fn take_due(&mut self, linked: &HashMap<Instance, LinkId>, now: Instant) -> Vec<MeshPlace> {
        let mut due = Vec::new();
        for (place, target) in &mut self.places {
            if target.is_wanted(linked) && target.due.is_some_and(|at| at <= now) {
                target.due = None;
                due.push(place.clone());
            }
        }
        due
    }

    /// Records that a place has led to `instance`. `met` is an error if the instance was refused.
    pub fn reached(
        &mut self,
        place: &MeshPlace,
        instance: Instance,
        met: Result<(), String>,
        now: Instant,
    ) {
        if let Err(why) = met {
            return self.failed(place, &why, now);
        }
        let own = instance == self.own;
        let pause = if own { OWN_PLACE_DELAY } else { self.pause(0) };
        let Some(target) = self.places.get_mut(place) else { return };
        target.due = Some(now + pause);
        target.instance = Some(instance);
        if !std::mem::take(&mut target.told).is_empty() {
            tracing::info!(target: "evenkeel::peers", %place, "a peer is reachable again");
        }
    }

    /// Records that a place could not be reached.
    pub fn failed(&mut self, place: &MeshPlace, why: &str, now: Instant) {
        let failures = self.places.get(place).map_or(0, |target| target.failures);
        let pause = self.pause(failures);
        let Some(target) = self.places.get_mut(place) else { return };
        target.due = Some(now + pause);
        target.failures = failures.saturating_add(1);
        target.instance = None;
        if target.told != why && target.failures >= LOGGED_FAILURES_MIN {
            why.clone_into(&mut target.told);
            tracing::warn!(target: "evenkeel::peers", %place, why, "cannot reach a peer yet");
        }
    }

    /// Records that the connection with `instance` has ended. `good` says whether it had lasted.
    pub fn lost(&mut self, instance: &Instance, good: bool, now: Instant) {
        let (again, again_max) = (self.again, self.again_max);
        for target in self.places.values_mut().filter(|t| t.instance.as_ref() == Some(instance)) {
            target.failures = if good { 0 } else { target.failures.saturating_add(1) };
            target.due = Some(now + pause(again, again_max, target.failures));
        }
    }

    /// Adds a place, which is due at once.
    pub fn add(&mut self, place: MeshPlace, now: Instant) {
        self.named.insert(place.clone());
        self.places.insert(place, MeshTarget::new(now));
    }

    /// Removes a place that was added.
    pub fn remove(&mut self, place: &MeshPlace) {
        self.named.remove(place);
        self.places.remove(place);
    }

    /// Makes all places due that have led to `instance`: another one accepts connections there.
    pub fn redial(&mut self, instance: &Instance, now: Instant) {
        for target in self.places.values_mut().filter(|t| t.instance.as_ref() == Some(instance)) {
            *target = MeshTarget { told: std::mem::take(&mut target.told), ..MeshTarget::new(now) };
        }
    }

    fn pause(&self, failures: u32) -> Duration {
        pause(self.again, self.again_max, failures)
    }
}

impl MeshTarget {
    fn new(due: Instant) -> MeshTarget {
        MeshTarget { due: Some(due), failures: 0, instance: None, told: String::new() }
    }

    fn is_wanted(&self, linked: &HashMap<Instance, LinkId>) -> bool {
        !self.instance.is_some_and(|instance| linked.contains_key(&instance))
    }
}

/// A pause after this number of failures: `again` doubled each time, drawn from the upper half.
fn pause(again: Duration, again_max: Duration, failures: u32) -> Duration {
    let most = again.saturating_mul(1 << failures.min(16)).min(again_max);
    jittered(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> MeshTargets {
        let names = names.iter().map(ToString::to_string).collect();
        MeshTargets::new(names, (Duration::from_millis(250), Duration::from_secs(15)), [0; 16])
    }

    fn place(name: &str) -> MeshPlace {
        MeshPlace::Name(name.to_owned())
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_are_not_in_step() {
        let pauses = |failures| {
            let draw = |_| pause(Duration::from_millis(250), Duration::from_secs(15), failures);
            (0..64).map(draw).collect::<HashSet<_>>()
        };
        for (failures, most) in [(0, 250), (1, 500), (5, 8_000), (6, 15_000), (4_000_000, 15_000)] {
            let pauses = pauses(failures);
            let range = Duration::from_millis(most / 2)..=Duration::from_millis(most);
            assert!(pauses.len() > 1 && pauses.iter().all(|pause| range.contains(pause)));
        }
    }

    #[test]
    fn who_is_connected_is_not_tried_again_until_that_ends() {
        let (mut targets, now) = (of(&["a:1", "b:1"]), Instant::now() + Duration::from_secs(1));
        let (mut linked, later) = (HashMap::new(), now + Duration::from_secs(60));
        assert_eq!(targets.take_due(&linked, now).len(), 2);
        assert_eq!(targets.due(&linked), None);
        targets.reached(&place("a:1"), [1; 16], Ok(()), now);
        targets.reached(&place("b:1"), [1; 16], Ok(()), now);
        linked.insert([1; 16], LinkId(1));
        assert_eq!((targets.due(&linked), targets.take_due(&linked, later).len()), (None, 0));
        linked.clear();
        targets.lost(&[1; 16], true, now);
        assert_eq!(targets.take_due(&linked, later).len(), 2);
        targets.failed(&place("a:1"), "no", later);
        assert!(targets.due(&linked).is_some_and(|due| due > later));
        // The place led to this instance itself.
        targets.reached(&place("b:1"), [0; 16], Ok(()), later);
        assert_eq!(targets.take_due(&linked, later + Duration::from_secs(60)), [place("a:1")]);
    }

    #[test]
    fn instances_that_start_some_seconds_later_cause_no_warning() {
        let (mut targets, linked) = (of(&["a:1"]), HashMap::new());
        let begin = targets.due(&linked).expect("tried at once");
        let mut now = begin;
        while targets.places[&place("a:1")].told.is_empty() {
            now = targets.due(&linked).expect("tried again");
            assert_eq!(targets.take_due(&linked, now).len(), 1);
            targets.failed(&place("a:1"), "no", now);
        }
        let after = now - begin;
        assert!(Duration::from_millis(1_800) <= after && after <= Duration::from_secs(4));
    }

    #[test]
    fn what_is_found_replaces_what_the_same_source_found_before() {
        let (mut targets, now) = (of(&["a:1"]), Instant::now() + Duration::from_secs(1));
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut find = |source, ports: &[u16]| {
            let addresses = ports.iter().map(|port| at(*port)).collect();
            targets.found(DiscoveredPeers { source, addresses }, now);
            let mut places: Vec<_> = targets.places.keys().map(ToString::to_string).collect();
            places.sort();
            places.join(" ")
        };
        assert_eq!(find(1, &[1, 2]), "127.0.0.1:1 127.0.0.1:2 a:1");
        assert_eq!(find(2, &[2, 3]), "127.0.0.1:1 127.0.0.1:2 127.0.0.1:3 a:1");
        assert_eq!(find(1, &[]), "127.0.0.1:2 127.0.0.1:3 a:1");
    }
}
