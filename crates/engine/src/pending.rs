//! A request with known keys that is not decided on yet.
//!
//! Before the decision, a store may be asked that counts for several instances. For the store, a
//! request has an identifier under each limit, which is the same in all instances. Which store is
//! asked is up to the door.

use crate::client_network::ClientNetwork;
use crate::domains::gatekeeper::OrderCheck;
use crate::forecast::RequestForecast;
use crate::known_request::KnownRequest;
use crate::open_guard::OpenGuard;
use crate::robots::OwnedStanding;
use crate::rules::EngineRules;
use crate::view::views::ViewKeys;
use evenkeel_core::classify::{self, LimitKey, LimitKeys, RequestAttributes};
use evenkeel_core::limiter::Limiter;
use evenkeel_core::units::{Time, Weight};
use std::net::IpAddr;
use std::sync::Arc;

/// What is known of a request when it arrives and does not change until it has ended.
pub(crate) struct ArrivedRequest {
    pub(crate) rules: Arc<EngineRules>,
    pub(crate) client: IpAddr,
    /// Its expected cost.
    pub(crate) forecast: RequestForecast,
    /// The `User-Agent`, if the notice of a block may have to show it.
    pub(crate) agent: Option<Box<str>>,
    /// Its route and user agent in the lists that no limit counts by.
    pub(crate) seen: ViewKeys,
    pub(crate) came: Time,
    /// Its entry in the list of open requests.
    pub(crate) open: OpenGuard,
}

/// A request between [`crate::EngineLane::begin`] and [`crate::EngineLane::conclude`]. If it may
/// run, its [`crate::Charge`] takes over what is known of it.
pub struct PendingRequest {
    pub(crate) request: ArrivedRequest,
    pub(crate) keys: LimitKeys,
    pub(crate) exempt: bool,
    /// Whether it belongs to a group of strangers that burns.
    pub(crate) burns: bool,
    /// The result of the check for robots, and the name of the robot.
    pub(crate) robot: OwnedStanding,
    /// The weight that an operator has set for its client; one if there is none.
    pub(crate) weight: Weight,
    /// The decision of a gatekeeper, if one has decided.
    pub(crate) judged: Option<OrderCheck>,
}

impl PendingRequest {
    /// The keys of the request's buckets; empty if the request is exempt.
    pub fn keys(&self) -> &[LimitKey] {
        self.keys.as_slice()
    }

    /// The limiter that holds these buckets in this process.
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.request.rules.limiter
    }

    /// The identifier of the request under the limit of each bucket, the same in all instances. A
    /// part that may be secret is replaced by the result of `veil`, called with the part's name and
    /// value.
    pub fn identifiers(
        &self,
        request: &impl RequestAttributes,
        now: Time,
        veil: impl Fn(&str, &[u8]) -> String,
    ) -> Vec<Vec<u8>> {
        let known = self.request.rules.known(self.request.client.to_canonical(), now);
        let (rules, standing) = (&self.request.rules, self.robot.standing());
        let network = ClientNetwork::new(request.address(), &rules.networks);
        let request = KnownRequest::new(request, standing, &network);
        let named = &request.in_group(rules.group(known));
        let limits = self.request.rules.limiter.limits();
        let by =
            |key: &LimitKey| limits.get(usize::from(key.limit)).map_or(&[][..], |limit| &limit.by);
        self.keys().iter().map(|key| classify::identifier(by(key), named, &veil)).collect()
    }
}
