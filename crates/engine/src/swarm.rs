//! The common properties of a swarm: makes the properties of a request, and names the groups that
//! burn.
//!
//! Which groups burn is decided in `evenkeel_core::swarm`, and where their requests wait in
//! `evenkeel_core::queue`. Without pressure, the only work for a request is to look up how often
//! its client was served. The lock here is taken alone, and only under pressure or to count a
//! returning client.

mod name;

use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::fact::ClientFact;
use evenkeel_core::key::{KeyHash, KeyHasher, KeySeed, network};
use evenkeel_core::queue::ClientHistory;
use evenkeel_core::swarm::{BurningGroup, PROPERTIES_MAX, Properties, SwarmFinder, SwarmGroup};
use evenkeel_core::units::{Cost, Time};
use evenkeel_telemetry::pressure::BurningNotice;
use name::GroupName;
use parking_lot::Mutex;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bits of an address that are a network: of IPv4, and of IPv6.
const NETWORK_BITS: (u8, u8) = (16, 32);

/// A kind of property, in the order of the core's properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PropertyKind {
    Network,
    Fact(ClientFact),
    UserAgent,
    AcceptLanguage,
}

const KINDS: [PropertyKind; PROPERTIES_MAX] = [
    PropertyKind::Network,
    PropertyKind::Fact(ClientFact::Asn),
    PropertyKind::Fact(ClientFact::Ja4),
    PropertyKind::Fact(ClientFact::H2),
    PropertyKind::Fact(ClientFact::Rtt),
    PropertyKind::Fact(ClientFact::Fetch),
    PropertyKind::UserAgent,
    PropertyKind::AcceptLanguage,
];

/// A group that burns, with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct BurningReport {
    /// The group that the name describes.
    pub group: SwarmGroup,
    /// The common properties of its requests, in words.
    pub name: String,
    /// The same as a condition of the configuration.
    pub when: String,
    /// Its part of what strangers have asked for in the last half minute, from 0 to 1.
    pub cost_part: f64,
    /// The largest part of returning clients that may be like it, from 0 to 1.
    pub clients_part: f64,
    /// Since when it burns.
    pub since: Time,
    /// The beginning of the pressure under which it burns.
    pub pressure: Time,
}

impl BurningReport {
    /// By what an operator's order names the group: a hash of what its requests have in common.
    #[must_use]
    pub fn key(&self) -> KeyHash {
        let mut hasher = DefaultHasher::new();
        self.group.hash(&mut hasher);
        KeyHash::from_bits(hasher.finish())
    }

    fn log(&self) {
        BurningNotice {
            group: &self.name,
            when: &self.when,
            cost_part: self.cost_part,
            clients_part: self.clients_part,
        }
        .log();
    }

    fn new(name: &GroupName, burning: &BurningGroup, pressure: Option<Time>) -> BurningReport {
        BurningReport {
            group: burning.group,
            name: name.words.clone(),
            when: name.when.clone(),
            cost_part: burning.cost_milli as f64 / 1e3,
            clients_part: burning.clients_milli as f64 / 1e3,
            since: burning.since,
            pressure: pressure.unwrap_or(burning.since),
        }
    }
}

/// The facts that decide whether a request belongs to a group.
pub(crate) struct SwarmContext<'a> {
    pub(crate) seed: &'a KeySeed,
    pub(crate) history: &'a ClientHistory,
    /// Since when there is pressure, if there is.
    pub(crate) pressure: Option<Time>,
    pub(crate) now: Time,
}

/// The groups of the strangers at one backend.
#[derive(Default)]
pub(crate) struct SwarmWatch(Mutex<SwarmState>);

#[derive(Default)]
struct SwarmState {
    finder: SwarmFinder,
    pressure: Option<Time>,
    /// The groups that burn, with their names, as far as one of their requests has come since.
    names: Vec<(BurningGroup, GroupName)>,
}

impl SwarmWatch {
    /// Counts a request of `client`, which is expected to cost `cost`. Returns whether it burns.
    pub(crate) fn handle_request(
        &self,
        request: &impl RequestAttributes,
        (client, cost): (KeyHash, Cost),
        context: SwarmContext<'_>,
    ) -> bool {
        let SwarmContext { seed, history, pressure, now } = context;
        let returning = history.returning(client, pressure, now);
        let is_counted = match returning {
            Some(one) => SwarmFinder::counts_client(one.served, one.known_for),
            None => pressure.is_some(),
        };
        if !is_counted {
            return false;
        }
        let properties = properties(request, seed);
        let mut state = self.0.lock();
        state.note_pressure(pressure);
        let is_returning = returning.is_some();
        let burns = state.finder.handle_request(is_returning, client, &properties, cost, now);
        let named = if burns { state.name(&properties, request) } else { None };
        drop(state);
        named.iter().for_each(BurningReport::log);
        burns
    }

    /// The groups that burn, the one with the greatest cost first. One of which no request has come
    /// since has no name and is left out.
    pub(crate) fn burning(&self) -> Vec<BurningReport> {
        let state = self.0.lock();
        let named = |burning: &BurningGroup| {
            let (named, name) = state.names.iter().find(|(named, _)| named.id == burning.id)?;
            let named = BurningGroup { group: named.group, ..*burning };
            Some(BurningReport::new(name, &named, state.pressure))
        };
        state.finder.burning().iter().filter_map(named).collect()
    }
}

impl SwarmState {
    /// Forgets what strangers had in common when the pressure ends, or a new one begins.
    fn note_pressure(&mut self, pressure: Option<Time>) {
        if self.pressure != pressure {
            self.pressure = pressure;
            self.finder.handle_pressure_end();
            self.names.clear();
        }
    }

    /// Names the group that a request burns in, if it has no name or has changed. Forgets the names
    /// of groups that no longer burn. Returns what is to be logged: each group once.
    fn name(
        &mut self,
        properties: &Properties,
        request: &impl RequestAttributes,
    ) -> Option<BurningReport> {
        let burning = self.finder.burning();
        let burns = burning.iter().find(|one| one.group.contains(properties))?;
        let named = self.names.iter().position(|(named, _)| named.id == burns.id);
        if named.is_some_and(|at| self.names[at].0.group == burns.group) {
            return None;
        }
        let name = GroupName::new(&burns.group, request);
        let report = BurningReport::new(&name, burns, self.pressure);
        self.names.retain(|(named, _)| {
            burning.iter().any(|one| one.id == named.id && one.id != burns.id)
        });
        self.names.push((*burns, name));
        named.is_none().then_some(report)
    }
}

/// The properties of a request. What is unknown is no property; a header that is absent is one.
pub(crate) fn properties(request: &impl RequestAttributes, seed: &KeySeed) -> Properties {
    let mut properties = Properties::default();
    for (kind, (place, property)) in KINDS.iter().zip(properties.iter_mut().enumerate()) {
        let mut hasher = KeyHasher::new(seed);
        hasher.part(&[place as u8]);
        match kind {
            PropertyKind::Network => hasher.address(own_network(request)),
            PropertyKind::Fact(fact) => match request.fact(*fact) {
                Some(text) => hasher.part(text.as_bytes()),
                None => continue,
            },
            PropertyKind::UserAgent => header(&mut hasher, request.header("user-agent")),
            PropertyKind::AcceptLanguage => header(&mut hasher, request.header("accept-language")),
        }
        *property = Some(hasher.finish());
    }
    properties
}

fn own_network(request: &impl RequestAttributes) -> std::net::IpAddr {
    network(request.address(), NETWORK_BITS.0, NETWORK_BITS.1)
}

/// An absent header has no part, so that it differs from an empty one.
fn header(hasher: &mut KeyHasher, value: Option<&[u8]>) {
    value.into_iter().for_each(|value| hasher.part(value));
}
