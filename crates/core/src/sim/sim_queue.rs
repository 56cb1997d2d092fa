//! The admission queue before a simulated backend, and the learned costs that it uses.
//!
//! [`Queue`] and [`Estimates`] are the code that serves real requests; this module calls them as a
//! door does. The waiting of the clients is simulated in `sim`.

use super::client::SimClient;
use crate::classify::{self, LimitKeys, RequestAttributes};
use crate::key::{KeyHash, KeyHasher, network};
use crate::limiter::Limiter;
use crate::meter::estimate::{Estimates, OwnRoute, RouteHash};
use crate::queue::concurrency::ConcurrencySearch;
use crate::queue::standing::{Visit, VisitPass, WaitingRoomEntry};
use crate::queue::{Arrival, Queue, QueuePlace, QueueSettings, RequestId};
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
    /// What the request has in common with others.
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
            place: latest.map_or(QueuePlace::Credit, QueuePlace::Debt),
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
    queue: Queue,
    estimates: Estimates,
    /// Measures the concurrency of the backend, unless the scene defines it.
    auto: Option<ConcurrencySearch>,
    swarm: SwarmFinder,
    flights: BTreeMap<RequestId, u64>,
    ids: BTreeMap<u64, RequestId>,
    /// When the ages of running requests were last considered.
    ticked: Time,
}

impl SimQueue {
    pub fn new(settings: QueueSettings) -> SimQueue {
        SimQueue {
            queue: Queue::new(settings),
            estimates: Estimates::new(ROUTES_MAX).with_clients(OWN_MAX),
            auto: None,
            swarm: SwarmFinder::default(),
            flights: BTreeMap::new(),
            ids: BTreeMap::new(),
            ticked: Time::ZERO,
        }
    }

    pub fn handle_arrival(&mut self, flight: u64, request: &SimQueueRequest, now: Time) {
        let SimQueueRequest { client, place, weight, own, is_guess, estimate, .. } = *request;
        self.report_running(now);
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
        let id = self.queue.handle_arrival(arrival, now);
        self.flights.insert(id, flight);
        self.ids.insert(flight, id);
    }

    /// Whether a request belongs to a group that burns.
    fn burns(&mut self, request: &SimQueueRequest, now: Time) -> bool {
        let Some(history) = self.queue.client_history() else { return false };
        let pressure = self.queue.pressure_since();
        let served = history.served(request.client, pressure, now);
        if pressure.is_none() {
            self.swarm.handle_pressure_end();
            if served.is_none() {
                return false;
            }
        }
        self.swarm.handle_request(served, &request.properties, request.estimate, now)
    }

    /// Uses the measured concurrency of the backend instead of the one in the settings.
    pub fn use_auto_concurrency(&mut self, cpus: f64) {
        let auto = ConcurrencySearch::new(cpus);
        self.queue.set_concurrency(auto.concurrency());
        self.auto = Some(auto);
    }

    /// Tells the search which part of the processors' time is used, and takes over its result.
    pub fn handle_processor_use(&mut self, part: f64, now: Time) {
        if let Some(auto) = &mut self.auto {
            auto.handle_processor_use(part, now);
            self.adopt();
        }
    }

    pub fn concurrency(&self) -> usize {
        self.queue.settings().concurrency
    }

    pub fn accepted_max(&self) -> Option<usize> {
        self.queue.accepted_max()
    }

    pub fn handle_done(
        &mut self,
        flight: u64,
        request: &SimQueueRequest,
        done: SimCompletion,
        now: Time,
    ) {
        let SimCompletion { cost, elapsed } = done;
        if let Some(auto) = &mut self.auto {
            let waiting = self.queue.waiting() > 0;
            auto.set_ceiling(self.queue.accepted_max(), now);
            match self.ids.get(&flight).is_some_and(|id| self.queue.stays(*id)) {
                true => auto.handle_stay_end(request.route, elapsed),
                false => auto.handle_done(request.route, elapsed, waiting, now),
            }
            self.adopt();
        }
        let known = self.forget(flight);
        if known.is_some_and(|id| self.queue.handle_done(id, cost, now)) {
            let learned = self.estimates.learn_request(request.route, request.own, cost, now);
            for (route, estimate) in learned.into_iter().flatten() {
                self.queue.handle_estimate(route, estimate);
            }
        }
    }

    /// Handles a client that disconnects. A running request is removed later, by `handle_done`.
    pub fn handle_cancel(&mut self, flight: u64) {
        let Some(id) = self.ids.get(&flight).copied() else { return };
        if self.queue.handle_cancel(id) != crate::queue::CancelOutcome::Running {
            self.forget(flight);
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        self.queue.handle_timeout(now);
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.queue.poll_timeout()
    }

    pub fn poll_dispatch(&mut self, now: Time) -> Option<u64> {
        if self.queue.waiting() > 0 && now.since(self.ticked) >= TICK {
            let auto = self.auto.as_ref();
            let stays = |route, age| auto.is_some_and(|auto| auto.stays(route, age));
            self.queue.handle_ages(now, stays);
            self.ticked = now;
        }
        let id = self.queue.poll_dispatch(now)?;
        self.report_running(now);
        self.flights.get(&id).copied()
    }

    /// Tells the search the number of running requests, and takes over its result.
    fn report_running(&mut self, now: Time) {
        if let Some(auto) = &mut self.auto {
            auto.handle_running(self.queue.in_flight() - self.queue.staying(), now);
            self.adopt();
        }
    }

    /// Takes over the result of the search.
    fn adopt(&mut self) {
        let Some(auto) = &self.auto else { return };
        if auto.concurrency() != self.queue.settings().concurrency {
            self.queue.set_concurrency(auto.concurrency());
        }
    }

    pub fn poll_refused(&mut self) -> Option<u64> {
        let id = self.queue.poll_refused()?.id;
        let flight = self.flights.get(&id).copied()?;
        self.forget(flight);
        Some(flight)
    }

    pub fn poll_waiting_room(&mut self) -> Option<(u64, WaitingRoomEntry)> {
        let entry = self.queue.poll_waiting_room()?;
        let flight = self.flights.get(&entry.id).copied()?;
        self.forget(flight);
        Some((flight, entry))
    }

    /// The pass that comes with the response.
    pub fn pass_of(&self, flight: u64) -> Option<VisitPass> {
        self.queue.pass_of(*self.ids.get(&flight)?)
    }

    fn forget(&mut self, flight: u64) -> Option<RequestId> {
        let id = self.ids.remove(&flight)?;
        self.flights.remove(&id);
        Some(id)
    }
}
