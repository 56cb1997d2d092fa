//! The decision on a request: its keys, the gatekeeper, the limits, and the account that it opens.
//!
//! A request is pending between [`EngineLane::begin`] and [`EngineLane::conclude`]; in between, a
//! store may be asked. The decision itself is the core's (`evenkeel_core::limiter`). How long a
//! request waits and what it is charged: `charge`.

use crate::charge::slot::{self, QueueSlot};
use crate::charge::{Charge, DelayReport};
use crate::client_network::ClientNetwork;
use crate::domains::gatekeeper::OrderCheck;
use crate::engine::{Engine, KeyedRequest};
use crate::forecast::RequestForecast;
use crate::known_request::KnownRequest;
use crate::lane::EngineLane;
use crate::open_guard::OpenGuard;
use crate::outcome::DecisionDetails;
use crate::pending::{ArrivedRequest, PendingRequest};
use crate::robots::OwnedStanding;
use crate::rules::{EngineRules, RequestRefusal, refusal};
use crate::swarm::{self, SwarmContext};
use crate::view::overrides::{GroupOrders, Override};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::{LimitKeys, RequestAttributes};
use evenkeel_core::limit::{LimitUnit, RefusalKind};
use evenkeel_core::limiter::remote::StoreBucketState;
use evenkeel_core::limiter::{Reason, Verdict};
use evenkeel_core::units::{Cost, Time};
use evenkeel_telemetry::counts::tiers::Tier;
use std::net::IpAddr;
use std::sync::Arc;

/// The part of a `User-Agent` that a notice shows, in bytes.
const AGENT_BYTES_MAX: usize = 200;

/// The decision on a request.
#[expect(clippy::large_enum_variant, reason = "nearly all pass; a box is an allocation for each")]
pub enum AskOutcome {
    /// The request may run, perhaps only after [`Charge::delay_until`].
    Pass(Charge),
    /// The request may not run.
    Refused(RequestRefusal),
}

impl EngineLane {
    /// Decides on one request. Counts and logs the outcome.
    #[must_use]
    pub fn ask(&self, request: &impl RequestAttributes) -> AskOutcome {
        match self.begin(request) {
            Ok(begun) => self.conclude(begun, &[]),
            Err(refusal) => AskOutcome::Refused(refusal),
        }
    }

    /// Finds the buckets that a request is counted by. A store that counts for several instances
    /// may then be asked before the lane [concludes](EngineLane::conclude).
    ///
    /// # Errors
    /// A rule, an operator's order or a gatekeeper refuses the request. The refusal is already
    /// counted and logged.
    pub fn begin(
        &self,
        request: &impl RequestAttributes,
    ) -> Result<PendingRequest, RequestRefusal> {
        let now = self.0.now();
        let client = request.address();
        let robots = self.0.engine.robots.load();
        let standing = robots.as_ref().map(|robots| self.0.engine.standing(robots, request, now));
        let standing = standing.unwrap_or_default();
        let network = ClientNetwork::new(client, self.0.engine.networks());
        let request = &KnownRequest::new(request, standing, &network);
        // Lock order: the books are locked, and `enter` locks `HostDirectory`.
        let entering = self.0.books.lock().enter(request, now);
        let KeyedRequest { rules, keys, exempt, denied, weight, refused, orders, seen, place } =
            entering;
        let open = OpenGuard::new(&self.0.books, place);
        if let Some(refusal) = denied.and_then(|at| self.report_denial(&rules, at, request)) {
            return Err(refusal);
        }
        if let Some(said) = refused {
            return Err(self.report_order_denial(&said, request));
        }
        let order = self.group_order(&rules, &keys, &orders, request, now);
        if let Some(refusal) = order.and_then(|said| self.report_group_denial(said, request)) {
            return Err(refusal);
        }
        let judged = self.judged(&rules, request, exempt, now)?;
        let forecast = RequestForecast::of(&rules, &self.0.engine.estimates, &keys, request);
        let burns = !exempt && self.burns(&rules, &keys, request, forecast.reserved.work, now);
        let burns = burns || order.is_some();
        let agent = agent(&rules, &keys, request);
        let request = ArrivedRequest { rules, client, forecast, agent, seen, came: now, open };
        let robot = OwnedStanding::new(standing);
        Ok(PendingRequest { request, keys, exempt, burns, robot, weight, judged })
    }

    /// Decides on a request. `words` holds the answers of a store about the request's buckets, in
    /// the order of its keys. It is empty if there is no store or no answer.
    #[must_use]
    pub fn conclude(
        &self,
        begun: PendingRequest,
        words: &[Option<StoreBucketState>],
    ) -> AskOutcome {
        let (rules, client) = (&begun.request.rules, begun.request.client);
        let now = self.0.now();
        let latest = rules.queues.then(|| rules.limiter.furthest_in_debt(&begun.keys, now));
        let latest = latest.flatten();
        let slot = QueueSlot::of(&begun, latest);
        let estimate = begun.request.forecast.reserved;
        let mut asked = rules.limiter.ask_with_remote(&begun.keys, words, estimate, now);
        // Used in its place, because it is large.
        let (verdict, ticket) = (asked.0, &mut asked.1);
        if let Some(refusal) = self.report_verdict(rules, verdict, client) {
            return AskOutcome::Refused(refusal);
        }
        let denied = matches!(verdict, Verdict::Deny { .. });
        if denied {
            ticket.exclude_from_charges();
        }
        let in_shadow = self.report_shadows(rules, ticket, latest, client, now);
        if rules.hits && !denied {
            // Without the limits in shadow that would have refused the request.
            let counted = ticket.counted();
            let hit = |unit| (unit == LimitUnit::Hits).then(|| Cost::hits(1));
            self.0.books.lock().spend(rules, &counted, hit);
        }
        let shadow = rules.shadow;
        let passage = begun.judged.map(|judged| judged.pass(Some(client)));
        let starts =
            passage.as_ref().and_then(|passage| passage.until).max(Some(ticket.starts_at()));
        let report = DelayReport {
            reported: verdict != Verdict::Allow || in_shadow,
            delayed: matches!(verdict, Verdict::Delay(_)) && !shadow,
            waited: starts.unwrap_or(now).since(now),
            tier: Tier::of(latest.is_some() || in_shadow || verdict != Verdict::Allow),
        };
        AskOutcome::Pass(Charge::open(self.clone(), begun.request, asked.1, slot, report, passage))
    }

    /// Counts and logs a verdict that is not `Allow`. Returns the refusal unless in shadow.
    fn report_verdict(
        &self,
        rules: &Arc<EngineRules>,
        verdict: Verdict,
        client: IpAddr,
    ) -> Option<RequestRefusal> {
        let report = |outcome, reason| {
            let details = DecisionDetails::default();
            self.report((outcome, rules.shadow), rules, client, reason, details);
        };
        match verdict {
            Verdict::Deny { reason, retry_after } => {
                // The log shows how long the client has to wait, which may be less than it takes to
                // pay the whole debt.
                report("reject", Reason { wait: retry_after, ..reason });
                (!rules.shadow).then(|| refusal(rules, reason, retry_after))
            }
            Verdict::Delay(reason) => {
                report("delay", reason);
                None
            }
            Verdict::Allow => None,
        }
    }

    /// Asks the first gatekeeper with a condition that matches the request, if there is one.
    ///
    /// # Errors
    /// The gatekeeper refuses the request. The refusal is already counted and logged.
    fn judged(
        &self,
        rules: &EngineRules,
        request: &KnownRequest<'_, impl RequestAttributes>,
        exempt: bool,
        now: Time,
    ) -> Result<Option<OrderCheck>, RequestRefusal> {
        let keepers = &self.0.engine.gatekeepers;
        if exempt || keepers.is_empty() {
            return Ok(None);
        }
        let client = request.address();
        let known = rules.known(client.to_canonical(), now);
        let named = request.in_group(rules.group(known));
        let keeper = keepers.iter().find(|keeper| keeper.applies_to(&named));
        let Some(keeper) = keeper else { return Ok(None) };
        let judged = keeper.judge(keeper.identifier(&named), rules.shadow, now);
        let judged = judged.noting(keeper.log_info(&named));
        let Some(wait) = judged.refused() else { return Ok(Some(judged)) };
        judged.refuse(Some(client));
        Err(RequestRefusal {
            limit: keeper.domain.clone(),
            retry_after_secs: wait.retry_after_secs(),
            kind: RefusalKind::Busy,
            waiting_room: None,
        })
    }

    /// Whether the requests of this lane may be of strangers, if the queue remembers clients.
    fn sees_strangers(&self, rules: &EngineRules) -> bool {
        self.0.takes_slots && rules.queues && !rules.shadow
    }

    /// Whether a request belongs to a group of strangers that burns. Counts the request.
    fn burns(
        &self,
        rules: &EngineRules,
        keys: &LimitKeys,
        request: &impl RequestAttributes,
        cost: Cost,
        now: Time,
    ) -> bool {
        let Engine { gate, swarm, .. } = &*self.0.engine;
        let history = gate.history();
        let Some(history) = history.as_ref().filter(|_| self.sees_strangers(rules)) else {
            return false;
        };
        let client = slot::client(rules, keys, request.address());
        let (seed, pressure) = (&rules.seed, gate.pressure_since());
        let context = SwarmContext { seed, history, pressure, now };
        swarm.handle_request(request, (client, cost), context)
    }

    /// An operator's order for the group of strangers that the request belongs to.
    fn group_order<'a>(
        &self,
        rules: &EngineRules,
        keys: &LimitKeys,
        orders: &'a GroupOrders,
        request: &impl RequestAttributes,
        now: Time,
    ) -> Option<&'a Override> {
        if orders.is_empty() || !self.sees_strangers(rules) {
            return None;
        }
        // Where the queue remembers no clients, all would be strangers.
        let history = self.0.engine.gate.history();
        let history = history.as_ref()?;
        let client = slot::client(rules, keys, request.address());
        let is_returning = |pressure| history.returning(client, Some(pressure), now).is_some();
        orders.find(&swarm::properties(request, &rules.seed), is_returning, now)
    }
}

/// The `User-Agent` that the notice of a block may have to show, if a limit counts the request in a
/// sliding window.
fn agent(
    rules: &EngineRules,
    keys: &LimitKeys,
    request: &impl RequestAttributes,
) -> Option<Box<str>> {
    let limits = rules.limiter.limits();
    let mut counting = keys.as_slice().iter().filter_map(|key| limits.get(usize::from(key.limit)));
    counting.find(|limit| matches!(limit.algorithm, Algorithm::Sliding(_)))?;
    let agent = request.header("user-agent")?;
    let shown = &agent[..agent.len().min(AGENT_BYTES_MAX)];
    Some(String::from_utf8_lossy(shown).into())
}
