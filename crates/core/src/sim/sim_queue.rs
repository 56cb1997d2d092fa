//! The admission queue before a simulated backend, and the learned costs that it uses.
//!
//! [`Admission`] and [`Estimates`] are the code that serves real requests; this module calls them
//! as a door does. The waiting of the clients is simulated in `sim`.

use super::client::SimClient;
use crate::classify::{self, LimitKey, LimitKeys, RequestAttributes};
use crate::key::{KeyHash, KeyHasher, network};
use crate::limiter::Limiter;
use crate::meter::estimate::{Estimates, OwnRoute, RouteHash};
use crate::queue::admission::{Admission, AdmissionOutcome};
use crate::queue::concurrency::ConcurrencySearch;
use crate::queue::standing::{Visit, VisitPass};
use crate::queue::{Arrival, CancelOutcome, DebtFlow, QueuePlace, QueueSettings, RequestId};
use crate::swarm::{Properties, SwarmFinder};
use crate::units::{Cost, Nanos, Time, Weight};
use alloc::collections::BTreeMap;

/// The maximum number of routes with learned costs, and of pairs of a route and a client.
const ROUTES_MAX: usize = 1_024;
const OWN_MAX: usize = 4_096;
/// How often a door considers the ages of running requests.
const TICK: Nanos = Nanos::from_millis(250);

/// The attributes of a request that the queue needs.
pub(super) struct SimQueueRequest {
    client: KeyHash,
    place: QueuePlace,
    weight: Weight,
    route: RouteHash,
    own: Option<OwnRoute>,
    is_guess: bool,
    pub visit: Visit,
    pub accepts_waiting_page: bool,
    /// The properties that the request shares with others.
    properties: Properties,
    /// The estimated cost; zero without a queue.
    pub estimate: Cost,
}

impl SimQueueRequest {
    /// A request of `client`, before it is charged.
    pub fn of(
        client: &SimClient,
        keys: &LimitKeys,
        limiter: &Limiter,
        gate: Option<&SimQueue>,
        now: Time,
    ) -> SimQueueRequest {
        let latest = limiter.furthest_in_debt(keys, now);
        let route = RouteHash::of(&super::SEED, client.method(), client.path());
        let nobody = KeyHash::from_bits(0);
        let key = keys.as_slice().first().map(|key| key.hash);
        let forecast = gate.map(|gate| gate.estimates.forecast(route, key)).unwrap_or_default();
        SimQueueRequest {
            client: key.unwrap_or(nobody),
            place: latest.map_or(QueuePlace::Credit, |LimitKey { limit, hash }| {
                QueuePlace::Debt(DebtFlow { limit: limit.into(), hash })
            }),
            weight: classify::weight(limiter.limits(), keys),
            route,
            own: forecast.own,
            is_guess: forecast.is_guess,
            visit: Visit::Unknown,
            accepts_waiting_page: false,
            properties: properties(client),
            estimate: forecast.cost,
        }
    }
}

/// The network and the user agent of a client.
fn properties(client: &SimClient) -> Properties {
    let hash = |of: &dyn Fn(&mut KeyHasher)| {
        let mut hasher = KeyHasher::new(&super::SEED);
        of(&mut hasher);
        Some(hasher.finish())
    };
    let mut properties = Properties::default();
    properties[0] = hash(&|hasher| hasher.address(network(client.address, 16, 32)));
    properties[1] = hash(&|hasher| hasher.part(client.agent.as_bytes()));
    properties
}

/// The result of a request that the backend has finished.
pub(super) struct SimCompletion {
    pub cost: Cost,
    /// Time that the backend worked on the request.
    pub elapsed: Nanos,
}

/// The queue, and the mapping between its request ids and those of the simulation.
pub(super) struct SimQueue {
    admission: Admission,
    settings: QueueSettings,
    estimates: Estimates,
    swarm: SwarmFinder,
    flights: BTreeMap<RequestId, u64>,
    ids: BTreeMap<u64, RequestId>,
    /// When the ages of running requests were last considered.
    ticked: Time,
}

impl SimQueue {
    pub fn new(settings: QueueSettings) -> SimQueue {
        SimQueue {
            admission: Admission::new(settings, None),
            settings,
            estimates: Estimates::new(ROUTES_MAX).with_clients(OWN_MAX),
            swarm: SwarmFinder::default(),
            flights: BTreeMap::new(),
            ids: BTreeMap::new(),
            ticked: Time::ZERO,
        }
    }

    pub fn handle_arrival(&mut self, flight: u64, request: &SimQueueRequest, now: Time) {
        let SimQueueRequest { client, place, weight, own, is_guess, estimate, .. } = *request;
        let route = Some(request.route);
        let (visit, accepts_waiting_page) = (request.visit, request.accepts_waiting_page);
        let burns = self.burns(request, now);
        let arrival = Arrival {
            burns,
            client,
            place,
            estimate,
            is_guess,
            route,
            own,
            weight,
            visit,
            accepts_waiting_page,
        };
        let id = self.admission.handle_arrival(arrival, now);
        self.flights.insert(id, flight);
        self.ids.insert(flight, id);
    }

    /// Whether a request belongs to a group that burns.
    fn burns(&mut self, request: &SimQueueRequest, now: Time) -> bool {
        let queue = self.admission.queue();
        let Some(history) = queue.client_history() else { return false };
        let pressure = queue.pressure_since();
        let returning = history.returning(request.client, pressure, now);
        if pressure.is_none() {
            self.swarm.handle_pressure_end();
        }
        let is_counted = match returning {
            Some(one) => SwarmFinder::counts_client(one.served, one.known_for),
            None => pressure.is_some(),
        };
        let SimQueueRequest { client, ref properties, estimate, .. } = *request;
        is_counted
            && self.swarm.handle_request(returning.is_some(), client, properties, estimate, now)
    }

    /// Uses the measured concurrency of the backend instead of the one in the settings.
    pub fn use_auto_concurrency(&mut self, cpus: f64) {
        let search = ConcurrencySearch::new(cpus);
        self.admission.set_settings(self.settings, Some(search), Time::ZERO);
    }

    /// Tells the search which part of the processors' time is used, and takes over its result.
    pub fn handle_processor_use(&mut self, part: f64, now: Time) {
        self.admission.handle_processor_use(part, now);
    }

    pub fn concurrency(&self) -> usize {
        self.admission.concurrency()
    }

    pub fn accepted_max(&self) -> Option<usize> {
        self.admission.queue().accepted_max()
    }

    pub fn handle_done(
        &mut self,
        flight: u64,
        request: &SimQueueRequest,
        done: SimCompletion,
        now: Time,
    ) {
        let SimCompletion { cost, elapsed } = done;
        let Some(id) = self.forget(flight) else { return };
        if self.admission.handle_done(id, cost, Some((request.route, elapsed)), now) {
            let learned = self.estimates.learn_request(request.route, request.own, cost, now);
            for (route, estimate) in learned.into_iter().flatten() {
                self.admission.handle_estimate(route, estimate);
            }
        }
    }

    /// Handles a client that disconnects. A running request is removed later, by `handle_done`.
    pub fn handle_cancel(&mut self, flight: u64) {
        let Some(id) = self.ids.get(&flight).copied() else { return };
        if self.admission.handle_cancel(id) != CancelOutcome::Running {
            self.forget(flight);
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        self.admission.handle_timeout(now);
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.admission.poll_timeout()
    }

    /// The next request that gets a slot, or none.
    pub fn poll(&mut self, now: Time) -> Option<(u64, AdmissionOutcome)> {
        if self.admission.queue().waiting() > 0 && now.since(self.ticked) >= TICK {
            self.admission.handle_ages(now);
            self.ticked = now;
        }
        loop {
            let outcome = self.admission.poll(now)?;
            let Some(flight) = self.flights.get(&outcome.id()).copied() else { continue };
            if !matches!(outcome, AdmissionOutcome::Slot(_)) {
                self.forget(flight);
            }
            return Some((flight, outcome));
        }
    }

    /// The pass that comes with the response.
    pub fn pass_of(&self, flight: u64) -> Option<VisitPass> {
        self.admission.queue().pass_of(*self.ids.get(&flight)?)
    }

    fn forget(&mut self, flight: u64) -> Option<RequestId> {
        let id = self.ids.remove(&flight)?;
        self.flights.remove(&id);
        Some(id)
    }
}
