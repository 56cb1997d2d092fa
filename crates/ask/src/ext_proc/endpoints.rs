//! The backends that are named to Envoy for its requests, as endpoint pickers of the Gateway API
//! Inference Extension do it.
//!
//! The choice is that of the proxy: `evenkeel_models::choice`. Envoy connects to the backend, so
//! only its answers show whether one is reachable: an error status without the header that Envoy
//! adds to what a backend has answered, and details of it if Envoy sends them. The message to
//! Envoy: `answer`.

use super::head::MessageHead;
use evenkeel_config::settings::ProxySettings;
use evenkeel_engine::{BackendOccupation, SharedBackend, SharedBackends};
use evenkeel_models::affinity::{AffinityBounds, PrefixAffinity, PrefixedPrompt};
use evenkeel_models::choice::{BackendHealth, BackendLoad};
use evenkeel_telemetry::Watch;
use evenkeel_usage::PromptPrefixes;
use http::HeaderValue;
use parking_lot::Mutex;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Envoy adds it to the answers of backends, but not to its own.
const MADE_BY_BACKEND: &str = "x-envoy-upstream-service-time";

/// Words in Envoy's details of its own answers if it could not connect to the backend.
const UNREACHABLE: [&str; 2] = ["connection_failure", "connection_timeout"];

/// Facts about prompts that the threads of the door share, independent of the settings.
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
    at: SocketAddr,
    /// Its address and port.
    name: HeaderValue,
    shared: Arc<SharedBackend>,
    /// Lock order: taken during a lookup of prefixes, and no lock is taken within it.
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
            let (address, shared) = (at.socket()?, shared.at(at));
            let name = HeaderValue::try_from(address.to_string()).ok()?;
            Some(Endpoint { at: address, name, shared, health: Mutex::default() })
        });
        Endpoints {
            all: all.collect(),
            bounds: AffinityBounds::of(settings),
            memory: Arc::clone(memory),
            next: AtomicUsize::new(0),
        }
    }

    /// Chooses a backend of `subset` for a request with these prefixes of its prompt.
    /// `now`: in milliseconds.
    pub fn choose(
        self: &Arc<Endpoints>,
        hashes: PromptPrefixes,
        subset: &EndpointSubset,
        now: u64,
    ) -> Option<ChosenEndpoint> {
        let (affinity, bounds) = (&self.memory.affinity, self.bounds);
        let hashes = if bounds.lead == 0 { PromptPrefixes::default() } else { hashes };
        let prompt = PrefixedPrompt { affinity, hashes, bounds };
        let (count, first) = (self.all.len(), self.next.load(Relaxed));
        let (place, choice) = prompt.choose_backend(count, first, |place| {
            let Endpoint { at, shared, health, .. } = &self.all[place];
            if !subset.contains(*at) {
                return None;
            }
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

/// The backends that Envoy allows for one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointSubset(Option<Vec<HintedEndpoint>>);

/// A backend as Envoy names it: with its port, or all with this address.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HintedEndpoint {
    Socket(SocketAddr),
    Address(IpAddr),
}

impl EndpointSubset {
    /// The backends of these names; all of them if there are no names. A name that is no address
    /// is that of no backend.
    pub fn of(names: Option<Vec<&[u8]>>) -> EndpointSubset {
        let named = |name: &[u8]| {
            let name = std::str::from_utf8(name).ok()?;
            let socket = name.parse().map(HintedEndpoint::Socket);
            socket.or_else(|_| name.parse().map(HintedEndpoint::Address)).ok()
        };
        EndpointSubset(names.map(|names| names.into_iter().filter_map(named).collect()))
    }

    fn contains(&self, at: SocketAddr) -> bool {
        self.0.as_ref().is_none_or(|all| {
            all.iter().any(|hinted| match hinted {
                HintedEndpoint::Socket(socket) => *socket == at,
                HintedEndpoint::Address(address) => *address == at.ip(),
            })
        })
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

    /// Handles the head of the response. `details`: what Envoy says about it, if it does. `now`: in
    /// milliseconds.
    pub fn handle_answer(&self, head: &MessageHead, details: Option<&[u8]>, now: u64) {
        // 504 says that this request took too long, not that the backend cannot be reached.
        let is_failure = matches!(head.status.as_u16(), 502 | 503);
        let mut health = self.endpoints.all[self.place].health.lock();
        if is_failure && !head.headers.contains_key(MADE_BY_BACKEND) {
            // A connection that breaks is no sign that another one cannot be made.
            health.note_failure(details.is_some_and(is_unreachable), now);
        } else {
            health.note_success();
        }
    }
}

/// Whether these details of Envoy's answer say that no connection could be made.
fn is_unreachable(details: &[u8]) -> bool {
    let details = String::from_utf8_lossy(details);
    UNREACHABLE.iter().any(|word| details.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subset_names_backends_with_and_without_their_ports() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let of = |names: &[&'static str]| {
            EndpointSubset::of(Some(names.iter().map(|name| name.as_bytes()).collect()))
        };
        let subset = of(&["10.0.0.1:80", "10.0.0.2", "[2001:db8::1]:80", "models:80"]);
        for inside in ["10.0.0.1:80", "10.0.0.2:1", "10.0.0.2:80", "[2001:db8::1]:80"] {
            assert!(subset.contains(at(inside)), "{inside}");
        }
        assert!(!subset.contains(at("10.0.0.1:81")) && !subset.contains(at("10.0.0.3:80")));
        assert!(!of(&[]).contains(at("10.0.0.1:80")));
        assert!(EndpointSubset::of(None).contains(at("10.0.0.1:80")));
    }

    #[test]
    fn only_a_connection_that_could_not_be_made_shows_that_a_backend_is_unreachable() {
        let unreachable = [
            "upstream_reset_before_response_started{remote_connection_failure|refused}",
            "upstream_reset_before_response_started{connection_timeout}",
        ];
        assert!(unreachable.iter().all(|details| is_unreachable(details.as_bytes())));
        assert!(!is_unreachable(b"upstream_reset_before_response_started{connection_termination}"));
        assert!(!is_unreachable(b"via_upstream"));
    }
}
