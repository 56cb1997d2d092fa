//! The backends that are named to Envoy for its requests, as endpoint pickers of the Gateway API
//! Inference Extension do it.
//!
//! The choice is that of the proxy: `evenkeel_models::choice`. Envoy connects to the backend, so
//! only its answers show whether one is reachable: an error status without the header that Envoy
//! adds to what a backend has answered. The message to Envoy: `answer`.

use evenkeel_config::settings::ProxySettings;
use evenkeel_engine::{BackendOccupation, SharedBackend, SharedBackends};
use evenkeel_models::affinity::{AffinityBounds, PrefixAffinity, PrefixedPrompt};
use evenkeel_models::choice::{BackendHealth, BackendLoad};
use evenkeel_telemetry::Watch;
use evenkeel_usage::PromptPrefixes;
use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Envoy adds it to the answers of backends, but not to its own.
const MADE_BY_BACKEND: &str = "x-envoy-upstream-service-time";

/// What the threads of the door know of prompts, whatever the settings are.
pub struct EndpointMemory {
    pub affinity: PrefixAffinity,
    pub watch: Arc<Watch>,
}

/// The backends of the settings.
pub struct Endpoints {
    all: Vec<Endpoint>,
    bounds: AffinityBounds,
    memory: Arc<EndpointMemory>,
    /// The place of the backend to prefer among equals.
    next: AtomicUsize,
}

struct Endpoint {
    /// Its address and port.
    name: HeaderValue,
    shared: Arc<SharedBackend>,
    /// Lock order: it is taken while prefixes are looked up, and no lock is taken within it.
    health: Mutex<BackendHealth>,
}

impl Endpoints {
    /// The backends with numeric addresses.
    pub fn new(
        settings: &ProxySettings,
        shared: &SharedBackends,
        memory: &Arc<EndpointMemory>,
    ) -> Endpoints {
        let all = settings.backends.iter().filter_map(|at| {
            let name = HeaderValue::try_from(at.socket()?.to_string()).ok()?;
            Some(Endpoint { name, shared: shared.at(at), health: Mutex::default() })
        });
        Endpoints {
            all: all.collect(),
            bounds: AffinityBounds::of(settings),
            memory: Arc::clone(memory),
            next: AtomicUsize::new(0),
        }
    }

    /// Chooses a backend for a request whose prompt has these prefixes. `now`: in milliseconds.
    pub fn choose(
        self: &Arc<Endpoints>,
        hashes: PromptPrefixes,
        now: u64,
    ) -> Option<ChosenEndpoint> {
        let (affinity, bounds) = (&self.memory.affinity, self.bounds);
        let hashes = if bounds.lead == 0 { PromptPrefixes::default() } else { hashes };
        let prompt = PrefixedPrompt { affinity, hashes, bounds };
        let (count, first) = (self.all.len(), self.next.load(Relaxed));
        let (place, choice) = prompt.choose_backend(count, first, |place| {
            let Endpoint { shared, health, .. } = &self.all[place];
            Some(BackendLoad::of(shared, health.lock().out_until(now)))
        })?;
        self.next.store((place + 1) % count, Relaxed);
        let shared = &self.all[place].shared;
        let forgotten = prompt.note(shared.id());
        if hashes != PromptPrefixes::default() && count > 1 {
            self.memory.watch.proxy.affinity.record(choice.result(), forgotten);
        }
        let occupation = shared.occupy();
        Some(ChosenEndpoint { endpoints: Arc::clone(self), place, _occupation: occupation })
    }
}

/// The backend of one request. The request counts as one of that backend until this is dropped.
pub struct ChosenEndpoint {
    endpoints: Arc<Endpoints>,
    place: usize,
    _occupation: BackendOccupation,
}

impl ChosenEndpoint {
    /// The address and the port.
    pub fn name(&self) -> &HeaderValue {
        &self.endpoints.all[self.place].name
    }

    /// Handles the head of the response. `now`: in milliseconds.
    pub fn handle_answer(&self, status: StatusCode, headers: &HeaderMap, now: u64) {
        // 504 says that this request took too long, not that the backend cannot be reached.
        let is_failure = matches!(status.as_u16(), 502 | 503);
        let mut health = self.endpoints.all[self.place].health.lock();
        if is_failure && !headers.contains_key(MADE_BY_BACKEND) {
            health.note_failure(true, now);
        } else {
            health.note_success();
        }
    }
}
