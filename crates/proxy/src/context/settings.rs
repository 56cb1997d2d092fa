//! The settings of the proxy in the form that a thread uses, except for its backends
//! (`worker.rs`).
//!
//! They are replaced as a whole on reload; a request keeps the settings that it began with.

use evenkeel_config::settings::{
    CostSource, HttpsRedirect, ProxyBounds, ProxySettings, ProxyTimeouts, TokenSettings,
};
use evenkeel_core::fact::FactSet;
use evenkeel_identity::address::ProxyTrust;
use evenkeel_identity::refusal_pages::RefusalPageSet;
use evenkeel_identity::waiting_room::SharedWaitingRoom;
use evenkeel_models::affinity::AffinityBounds;
use std::sync::Arc;
use std::time::Duration;

/// The bound of a head in bytes if the settings have none, because hyper needs a number.
pub(crate) const HEADER_BYTES_MAX: usize = 1 << 20;

pub(crate) struct ThreadSettings {
    /// Protocols that may be switched to.
    pub(crate) upgrades: Vec<String>,
    pub(crate) trust: ProxyTrust,
    /// The facts about clients that limits or conditions name.
    pub(crate) facts: FactSet,
    pub(crate) timeouts: ProxyTimeouts,
    pub(crate) bounds: ProxyBounds,
    pub(crate) keep_cost_header: bool,
    /// The weights and prices of tokens, if costs are counted in them.
    pub(crate) tokens: Option<Arc<TokenSettings>>,
    /// Whether a limit counts by something in bodies.
    pub(crate) counts_by_body: bool,
    /// How a backend is chosen by the prefix of a prompt; `None` if there is no choice.
    pub(crate) affinity: Option<AffinityBounds>,
    /// Whether streams keep their slots and are charged to their end.
    pub(crate) charge_streams: bool,
    /// Whether answers contain the client's quotas.
    pub(crate) headers: bool,
    /// Whether HTTP/2 is offered to clients.
    pub(crate) http2: bool,
    /// Which plain requests are sent to `https://`.
    pub(crate) redirect: Option<HttpsRedirect>,
    pub(crate) waiting_room: SharedWaitingRoom,
    /// Pages for requests that are refused or fail.
    pub(crate) pages: RefusalPageSet,
}

/// The bounds of the choice by prefixes, if there is a choice.
fn affinity(settings: &ProxySettings) -> Option<AffinityBounds> {
    let chooses = settings.cost == CostSource::Tokens && settings.backends.len() > 1;
    chooses.then(|| AffinityBounds::of(settings))
}

impl ThreadSettings {
    /// Whether the decision on a request depends on its body.
    pub(crate) fn decides_by_body(&self) -> bool {
        self.tokens.is_some() || self.counts_by_body
    }

    pub(crate) fn new(settings: &ProxySettings, room: &SharedWaitingRoom) -> ThreadSettings {
        ThreadSettings {
            upgrades: settings.upgrades.clone(),
            trust: ProxyTrust::new(&settings.trusted_networks(), &settings.client_address),
            facts: settings.facts,
            timeouts: settings.timeouts,
            bounds: settings.bounds,
            keep_cost_header: settings.keep_cost_header,
            tokens: (settings.cost == CostSource::Tokens)
                .then(|| Arc::new(settings.tokens.clone())),
            counts_by_body: settings.counts_by_body(),
            affinity: affinity(settings),
            charge_streams: settings.charge_streams,
            headers: settings.headers,
            http2: settings.http2,
            redirect: settings.redirect.clone(),
            waiting_room: room.clone(),
            pages: RefusalPageSet::new(&settings.pages),
        }
    }

    /// Returns the interval of the sweep: an eighth of the shortest timeout, between 5 and 500 ms.
    pub(crate) fn tick(&self) -> Duration {
        let timeouts = [self.timeouts.header, self.timeouts.idle, self.timeouts.backend];
        let shortest = timeouts.into_iter().filter(|timeout| !timeout.is_zero()).min();
        let eighth = shortest.unwrap_or(Duration::MAX) / 8;
        eighth.clamp(Duration::from_millis(5), Duration::from_millis(500))
    }

    /// Returns the maximum size of a head, in bytes.
    pub(crate) fn header_bytes(&self) -> usize {
        match self.bounds.header_bytes {
            0 => HEADER_BYTES_MAX,
            bytes => bytes,
        }
    }
}
