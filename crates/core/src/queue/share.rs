//! The queue's record of a request while it waits, and while it runs.
//!
//! How tags are assigned: `tiers`. The request as callers see it: `request`.

use super::known_clients::{Charged, LineAccount, Standing};
use super::place::Place;
use super::request::{Arrival, RequestId};
use super::turns::{HeadRequest, RequestSize, Tag, length};
use crate::key::KeyHash;
use crate::meter::estimate::{OwnRoute, RouteHash};
use crate::units::{Cost, Time, Weight};
use alloc::boxed::Box;

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct WaitingRequest {
    pub since: Time,
    pub client: KeyHash,
    pub place: Place,
    /// `None`: that of an unknown client. In a box, because only requests under
    /// pressure have one.
    account: Option<Box<LineAccount>>,
    pub accepts_waiting_page: bool,
    pub estimate: Cost,
    pub is_guess: bool,
    pub route: Option<RouteHash>,
    pub own: Option<OwnRoute>,
    pub weight: Weight,
}

impl WaitingRequest {
    /// A request that arrives with this standing.
    pub fn new(arrival: &Arrival, standing: Standing, now: Time) -> WaitingRequest {
        let mut waiting = WaitingRequest {
            since: now,
            client: standing.client,
            place: standing.place,
            account: None,
            accepts_waiting_page: arrival.accepts_waiting_page,
            estimate: arrival.estimate,
            is_guess: arrival.is_guess,
            route: arrival.route,
            own: arrival.own,
            weight: arrival.weight,
        };
        waiting.set_account(standing.account);
        waiting
    }

    fn plain_account(&self) -> LineAccount {
        LineAccount::plain(self.client, self.since)
    }

    /// Its place in line, and where its cost is charged.
    pub fn account(&self) -> LineAccount {
        self.account.as_deref().copied().unwrap_or_else(|| self.plain_account())
    }

    pub fn set_account(&mut self, account: LineAccount) {
        self.account = (account != self.plain_account()).then(|| Box::new(account));
    }

    /// The first request of its client, as `turns` needs it.
    pub fn head(&self, id: RequestId) -> HeadRequest {
        let WaitingRequest { since, estimate, is_guess, weight, .. } = *self;
        let base = self.account().base;
        HeadRequest { is_known: !is_guess, id, estimate, weight, base, since }
    }
}

/// A running request, with what the fair scheduler needs to know of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedShare {
    pub client: KeyHash,
    pub place: Place,
    pub account: LineAccount,
    /// What was charged there.
    pub charged: Cost,
    pub estimate: Cost,
    pub is_guess: bool,
    pub route: Option<RouteHash>,
    pub own: Option<OwnRoute>,
    pub weight: Weight,
    /// The finish tag of its flow, set when it goes into service.
    pub finish: Tag,
    /// In debt: the finish tag of its client among the clients of the bucket.
    pub inner: Tag,
    /// The number of requests with the backend when it was sent, itself included.
    pub count: usize,
    /// Whether it uses a reserved slot.
    pub beside: bool,
    /// Whether it was light compared with the requests in service when it was sent.
    pub is_light: bool,
    /// When it was sent to the backend.
    pub sent: Time,
    /// Whether it has been there for so long that a slot was added.
    pub stays: bool,
    /// The number of requests that had been sent, itself included.
    pub order: u64,
    /// The cost, by then, of a request that had been with the backend from the start.
    pub clock: Cost,
    /// Its cost so far, if that is many times its estimate; else zero.
    pub overrun: Cost,
    /// Whether it ran in credit when the pressure began, and its client was not here before.
    pub is_stranger: bool,
}

impl QueuedShare {
    /// The share of a request that is sent to the backend. It has no tags yet.
    pub fn new(waiting: &WaitingRequest) -> QueuedShare {
        QueuedShare {
            client: waiting.client,
            place: waiting.place,
            account: waiting.account(),
            charged: Cost::ZERO,
            estimate: waiting.estimate,
            is_guess: waiting.is_guess,
            route: waiting.route,
            own: waiting.own,
            weight: waiting.weight,
            finish: 0,
            inner: 0,
            count: 0,
            beside: false,
            is_light: false,
            sent: Time::ZERO,
            stays: false,
            order: 0,
            clock: Cost::ZERO,
            overrun: Cost::ZERO,
            is_stranger: false,
        }
    }

    /// Whether the expected cost of the request is that of `route`, which may be the route as its
    /// client uses it.
    pub fn follows(&self, route: RouteHash) -> bool {
        let is_known = self.own.is_some_and(|own| own.is_known);
        (self.is_guess && route == RouteHash::UNKNOWN)
            || self.own.is_some_and(|own| own.hash == route)
            || (!is_known && self.route == Some(route))
    }

    /// The length that the request adds to a tag.
    pub fn size(&self) -> Tag {
        length(self.estimate, self.weight)
    }

    /// What counts among the requests in service of its tier: its finish tag and its size, both
    /// with what it has cost beyond its estimate.
    pub fn in_service(&self) -> (Tag, Tag) {
        let (size, overrun) = (self.size(), length(self.overrun, self.weight));
        (self.finish.saturating_add(overrun.saturating_sub(size)), size.max(overrun))
    }

    /// The same among the requests in service of its bucket.
    pub fn in_bucket(&self) -> (Tag, Tag) {
        QueuedShare { finish: self.inner, ..*self }.in_service()
    }

    /// `cost`, to be charged to the stamp of its client.
    pub fn charge(&self, cost: Cost) -> Charged {
        let QueuedShare { account: LineAccount { known_as, milli, .. }, weight, .. } = *self;
        Charged { known_as, cost, weight, milli }
    }

    pub fn request_size(&self) -> RequestSize {
        RequestSize { length: self.size(), is_guess: self.is_guess }
    }
}
