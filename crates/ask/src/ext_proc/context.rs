//! The state that the streams of a door share: the settings, and the parts of each thread.
//!
//! A reload replaces the settings; streams that are open keep those that they began with. The
//! limits and the queue are the engine's.

use super::endpoints::Endpoints;
use evenkeel_config::settings::{CostSource, ProxySettings, TokenSettings};
use evenkeel_engine::EngineLane;
use evenkeel_grpc::held_bytes::ByteBudget;
use evenkeel_identity::address::ProxyTrust;
use evenkeel_runtime::clock::Clock;
use evenkeel_store::redis::StoreLane;
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::time::Duration;

/// The settings of `proxy` that this door uses beside the limits and the queue.
pub struct ExchangeSettings {
    /// Whose word counts about the addresses of clients.
    pub trust: ProxyTrust,
    /// Whether clients get the header in which the backend states the cost.
    pub keep_cost_header: bool,
    /// Whether event streams keep their slots to their end.
    pub charge_streams: bool,
    /// For how long a backend may work after its client has disconnected.
    pub abort_linger: Duration,
    /// The longest wait for a turn.
    pub wait_max: Duration,
    /// The weights and prices of tokens, if costs are counted in them.
    pub tokens: Option<Arc<TokenSettings>>,
    /// Whether a limit counts by something in bodies.
    pub counts_by_body: bool,
    /// The bytes of a body that are read before the decision, if that depends on it.
    pub body_bytes_max: usize,
    /// The backends to choose from, if they are named to Envoy.
    pub endpoints: Option<Arc<Endpoints>>,
}

/// The least of [`ExchangeSettings::body_bytes_max`].
pub const BEGINNING_BYTES: usize = 64 << 10;

impl ExchangeSettings {
    pub fn of(proxy: &ProxySettings, endpoints: Option<Arc<Endpoints>>) -> ExchangeSettings {
        ExchangeSettings {
            trust: ProxyTrust::new(&proxy.trusted_networks(), &proxy.client_address),
            keep_cost_header: proxy.keep_cost_header,
            charge_streams: proxy.charge_streams,
            abort_linger: proxy.timeouts.abort_linger,
            wait_max: Duration::from_nanos(proxy.queue.wait_max.0),
            tokens: (proxy.cost == CostSource::Tokens).then(|| Arc::new(proxy.tokens.clone())),
            counts_by_body: proxy.counts_by_body(),
            body_bytes_max: proxy.bounds.body_buffer.max(BEGINNING_BYTES),
            endpoints,
        }
    }
}

/// The state of a thread for its streams.
pub struct ExchangeThread {
    /// Decides on requests.
    pub lane: EngineLane,
    pub clock: Clock,
    /// The store that limits are counted in, if there is one.
    pub store: Option<Rc<StoreLane>>,
    /// The bytes of incomplete messages of all threads.
    pub pieces: ByteBudget,
    /// The bytes of bodies that all threads hold until their requests are decided on.
    pub bodies: ByteBudget,
    /// Has logged that Envoy sends no bodies, although tokens are counted.
    pub without_bodies: Arc<Once>,
}

impl ExchangeThread {
    /// Logs once that a request to a language model passes without its bodies.
    pub fn warn_of_bodies(&self) {
        self.without_bodies.call_once(|| {
            tracing::warn!(
                target: "evenkeel::ext_proc",
                "Envoy does not send the bodies of requests and responses: tokens are estimated",
            );
        });
    }
}
