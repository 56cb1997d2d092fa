//! A request of which it is known by what it is counted, and that is not decided on yet.
//!
//! Between the two somebody else may be asked, who counts for several instances; for them a request
//! has an identifier under each limit, which is the same everywhere. Who is asked: the door's
//! business.

use crate::engine::Rules;
use crate::engine::counted::views::Seen;
use crate::engine::domains::gatekeeper::Judged;
use crate::engine::named::Named;
use evenkeel_core::classify::{self, Attributes, Key, Keys};
use evenkeel_core::limiter::Limiter;
use evenkeel_core::meter::estimate::Foreseen;
use evenkeel_core::units::{Time, Weight};
use std::net::IpAddr;
use std::sync::Arc;

/// A request that [`crate::engine::Lane::begin`] has looked at.
pub struct Begun {
    pub(in crate::engine) rules: Arc<Rules>,
    pub(in crate::engine) keys: Keys,
    pub(in crate::engine) exempt: bool,
    pub(in crate::engine) judged: Option<Judged>,
    pub(in crate::engine) foreseen: Foreseen,
    pub(in crate::engine) agent: Option<Box<str>>,
    pub(in crate::engine) client: IpAddr,
    /// What an operator says that it weighs.
    pub(in crate::engine) weight: Weight,
    pub(in crate::engine) seen: Seen,
    pub(in crate::engine) came: Time,
}

impl Begun {
    /// Its buckets; none if it is exempt.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        self.keys.as_slice()
    }

    /// Where they are counted here.
    #[must_use]
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.rules.limiter
    }

    /// What the request is called everywhere under the limit of each bucket; what may be a secret
    /// is what `veil` makes of its name and value.
    pub fn identifiers(
        &self,
        request: &impl Attributes,
        now: Time,
        veil: impl Fn(&str, &[u8]) -> String,
    ) -> Vec<Vec<u8>> {
        let known = self.rules.known(self.client.to_canonical(), now);
        let named = &Named { request, group: self.rules.group(known) };
        let limits = self.rules.limiter.limits();
        let by = |key: &Key| limits.get(usize::from(key.limit)).map_or(&[][..], |limit| &limit.by);
        self.keys().iter().map(|key| classify::identifier(by(key), named, &veil)).collect()
    }
}
