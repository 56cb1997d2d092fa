//! Reports the outcome of a request: counts and logs it, or notes it for a replay.
//!
//! No decision is made here. The form of the log line and the counters: `evenkeel_telemetry`.

use crate::lane::{EngineLane, PlaybackNote};
use crate::rules::{EngineRules, RequestRefusal};
use crate::view::overrides::{Override, OverrideEffect};
use evenkeel_core::classify::{self, LimitKey, RequestAttributes};
use evenkeel_core::key::KeyHasher;
use evenkeel_core::limit::RefusalKind;
use evenkeel_core::limiter::{Reason, ShadowEffect, Ticket};
use evenkeel_core::meter::Measure;
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_telemetry::decision::{Decision, DeniedRequest, QueueRefusal};
use std::net::IpAddr;
use std::sync::Arc;

/// The verdict of a rule that denies requests.
const DENY: &str = "deny";
/// The name in place of a limit's if an operator's order denies a request.
const OVERRIDE: &str = "override";

/// The part of a decision that only some verdicts have.
#[derive(Clone, Copy, Default)]
pub(crate) struct DecisionDetails {
    /// The cost of the request so far, and how it was measured; `None` before the request ran.
    pub(crate) cost: Option<(Cost, Measure)>,
    /// Why the queue refused the request.
    pub(crate) refused: Option<QueueRefusal>,
}

impl DecisionDetails {
    pub(crate) fn of_cost(cost: Cost, measure: Measure) -> DecisionDetails {
        DecisionDetails { cost: Some((cost, measure)), refused: None }
    }
}

impl EngineLane {
    /// Counts and logs a request that was held, delayed, queued or refused, or would have been in
    /// shadow (`shadow`). `verdict`: `hold`, `delay`, `queue` or `reject`. Locks the books of the
    /// lane for a moment.
    pub(crate) fn report(
        &self,
        (verdict, shadow): (&'static str, bool),
        rules: &Arc<EngineRules>,
        client: IpAddr,
        reason: Reason,
        details: DecisionDetails,
    ) {
        if let Some(notes) = &self.0.notes {
            return notes.lock().push(PlaybackNote { verdict, reason, shadow });
        }
        let index = usize::from(reason.key.limit);
        let name = self.0.books.lock().name(rules, index, reason.key.hash);
        let limit = rules.limiter.limits().get(index);
        let name = name.or_else(|| {
            let known = rules.known(client.to_canonical(), self.0.now());
            rules.name(limit?, reason.key.hash, client, known)
        });
        let decision = Decision {
            verdict,
            limit: limit.map_or("", |limit| &limit.name),
            key: name.as_deref().unwrap_or("?"),
            client: Some(client),
            level: reason.level,
            wait: reason.wait,
            cost: details.cost,
            refused: details.refused,
            denied: None,
            shadow,
        };
        self.0.engine.watch.record_decision(&decision, self.0.now());
    }

    /// Counts and logs that a rule denies a request. Returns the refusal unless in shadow.
    pub(crate) fn report_denial(
        &self,
        rules: &EngineRules,
        index: usize,
        request: &impl RequestAttributes,
    ) -> Option<RequestRefusal> {
        let client = request.address();
        let rule = rules.denials.get(index)?;
        let shadow = rules.shadow || rule.shadow;
        if let Some(notes) = &self.0.notes {
            let limit = rules.limiter.limits().len() + index;
            let mut hasher = KeyHasher::new(&rules.seed);
            hasher.address(client.to_canonical());
            let key = LimitKey { limit: limit as u8, hash: hasher.finish() };
            let reason = Reason { key, level: None, wait: Nanos::ZERO };
            notes.lock().push(PlaybackNote { verdict: DENY, reason, shadow });
        } else {
            let key = client.to_canonical().to_string();
            self.record_denial((&rule.name, &key), request, shadow);
        }
        (!shadow).then(|| denied(rule.name.to_string()))
    }

    /// As [`EngineLane::report_order_denial`], if the order about a group denies its requests.
    pub(crate) fn report_group_denial(
        &self,
        said: &Override,
        request: &impl RequestAttributes,
    ) -> Option<RequestRefusal> {
        let OverrideEffect::Deny(_) = said.effect else { return None };
        Some(self.report_order_denial(said, request))
    }

    /// Counts and logs that an operator's order denies a request. Returns the refusal, with the
    /// number of the order.
    pub(crate) fn report_order_denial(
        &self,
        said: &Override,
        request: &impl RequestAttributes,
    ) -> RequestRefusal {
        self.record_denial((OVERRIDE, &said.key), request, false);
        denied(format!("{OVERRIDE} {}", said.id))
    }

    fn record_denial(
        &self,
        (limit, key): (&str, &str),
        request: &impl RequestAttributes,
        shadow: bool,
    ) {
        let path = classify::readable(request.path().as_bytes());
        let agent = classify::readable(request.header("user-agent").unwrap_or_default());
        let decision = Decision {
            verdict: DENY,
            limit,
            key,
            client: Some(request.address()),
            level: None,
            wait: Nanos::ZERO,
            cost: None,
            refused: None,
            denied: Some(DeniedRequest { path: &path, agent: &agent }),
            shadow,
        };
        self.0.engine.watch.record_decision(&decision, self.0.now());
    }

    /// Logs the action that limits in shadow would have taken on an admitted request. Returns
    /// whether there is one. `latest` is the request's bucket furthest in debt.
    pub(crate) fn report_shadows(
        &self,
        rules: &Arc<EngineRules>,
        ticket: &Ticket,
        latest: Option<LimitKey>,
        client: IpAddr,
        now: Time,
    ) -> bool {
        let shadowed = ticket.shadowed();
        if let Some(ShadowEffect { action, reason }) = shadowed {
            let details = DecisionDetails::default();
            self.report((action.name(), true), rules, client, reason, details);
        }
        let behind = match rules.shadow {
            true => latest,
            false => rules.limiter.furthest_in_shadow_debt(ticket.keys(), now),
        };
        if let Some(key) = behind {
            // In shadow the length of the wait is unknown, but the bucket that causes it is known.
            let reason = rules.limiter.standing_without_own(ticket, key, now);
            self.report(("queue", true), rules, client, reason, DecisionDetails::default());
        }
        behind.is_some() || shadowed.is_some()
    }
}

fn denied(limit: String) -> RequestRefusal {
    RequestRefusal { limit, retry_after_secs: 0, kind: RefusalKind::Denied, waiting_room: None }
}
