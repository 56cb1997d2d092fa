//! One bucket of one Envoy: the current, the last sent and the next assignment.
//!
//! A share of a window's hits is sent as a token bucket with that many tokens that does not refill.
//! A new share is preceded by an assignment that denies everything, because Envoy would otherwise
//! carry the tokens left over to the new bucket. A rate is sent as a token bucket that refills.
//! Envoy supports only these two and the blanket rules "allow all" and "deny all", and it ignores
//! fractions of seconds. How shares are computed: `share`.

use super::share::ShareClaim;
use crate::decide::usage::{BucketBound, BucketUsage, CounterStanding};
use crate::rules::RateUnit;
use crate::wire::quota::BucketId;
use crate::wire::quota::rate_limit_quota_response::BucketAction;
use crate::wire::quota::rate_limit_quota_response::bucket_action::{
    AbandonAction, BucketAction as Action, QuotaAssignmentAction,
};
use crate::wire::rate_limit_strategy::{BlanketRule, RequestsPerTimeUnit, Strategy as Written};
use crate::wire::{RateLimitStrategy, TokenBucket};
use evenkeel_core::units::{Nanos, SECOND, Time};
use prost_types::Duration;

/// A year, in seconds: the longest fill interval that Envoy supports.
const FILL_INTERVAL_MAX_SECS: i64 = 365 * 86_400;
/// The shortest time between two reports from which a rate is computed.
const RATE_INTERVAL_MIN: Nanos = Nanos(SECOND / 2);
/// The factor by which the expected demand exceeds the measured rate, in case the rate grows.
const DEMAND_HEADROOM_FACTOR: f64 = 1.25;

/// The rule by which an Envoy decides about the requests of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaStrategy {
    /// Allow every request.
    Allow,
    /// Deny every request.
    Deny,
    /// Allow this number of requests once, then deny.
    Tokens(u32),
    /// Allow the first number of requests in each period of the second number of seconds.
    Rate(u32, u32),
    /// Allow this number of requests in each unit, sent as requests per time unit. Envoy's filter
    /// does not support this form, so it has to be switched on in the settings.
    PerUnit(u32, RateUnit),
}

/// The content of the next message about a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingAction {
    /// A new assignment that replaces the last one.
    Anew(QuotaStrategy),
    /// The last assignment, with a new time to live.
    Extend,
    /// The bucket is abandoned: it is no longer tracked.
    Abandon,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SentAssignment {
    strategy: QuotaStrategy,
    at: Time,
    secs: u32,
}

/// The state of one bucket of one Envoy.
#[derive(Debug)]
pub struct QuotaBucket {
    /// The name of the bucket: keys and values.
    pub name: Box<[(Box<str>, Box<str>)]>,
    /// The limit that applies to it.
    pub bound: BucketBound,
    /// The number of requests that it may still let pass.
    pub held: u64,
    /// The number of requests that it let pass in the current window, as far as reported.
    used_in_window: u64,
    /// The value of `held` at the start of the current window; `None` after the first report in it.
    before: Option<u64>,
    /// The recent rate in requests per second, including refused ones; `None` before the second
    /// report.
    rate: Option<f64>,
    reported: Time,
    /// The time of the last report with a request.
    used: Time,
    /// Whether it has reported its usage and awaits its next share.
    pub due: bool,
    /// Whether it refused requests according to its last report.
    pub hungry: bool,
    /// Whether it had requests since the last assignment was sent.
    touched: bool,
    sent: Option<SentAssignment>,
    pending: Option<PendingAction>,
    /// Whether its stream already lists it among the buckets with a pending message.
    pub listed: bool,
}

impl QuotaBucket {
    /// A bucket whose first report arrives at `now`.
    pub fn new(name: &[(&str, &str)], now: Time) -> QuotaBucket {
        QuotaBucket {
            name: name.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            bound: BucketBound::Free,
            held: 0,
            used_in_window: 0,
            before: None,
            rate: None,
            reported: now,
            used: now,
            due: true,
            hungry: false,
            touched: false,
            sent: None,
            pending: None,
            listed: false,
        }
    }

    /// The usage that a report at `now` describes.
    pub fn used(&self, allowed: u64, denied: u64, now: Time) -> BucketUsage {
        let before = self.before.unwrap_or(self.held);
        BucketUsage { allowed, denied, elapsed: now.since(self.reported), before }
    }

    /// Notes that a window of its limit begins. `steady` means that shares of the limit are rates.
    pub fn begin_window(&mut self, steady: bool) {
        self.used_in_window = 0;
        self.before = Some(self.held);
        self.due |= !steady;
    }

    /// Applies a report. `counted` is the number of its requests that passed in the current window,
    /// and `steady` means that shares of the limit are rates.
    pub fn report(&mut self, used: BucketUsage, counted: u64, steady: bool, now: Time) {
        let all = used.allowed.saturating_add(used.denied);
        let elapsed = used.elapsed;
        if elapsed >= RATE_INTERVAL_MIN {
            let rate = all as f64 / elapsed.as_secs_f64();
            self.rate = Some(self.rate.map_or(rate, |before| (before + rate) / 2.0));
        }
        self.reported = now;
        self.before = None;
        if all > 0 {
            self.used = now;
            self.touched = true;
            self.pending = self.pending.filter(|pending| *pending != PendingAction::Abandon);
        }
        self.hungry = used.denied > 0;
        if !steady {
            self.held = self.held.saturating_sub(counted);
            self.used_in_window = self.used_in_window.saturating_add(counted);
            self.due = true;
        }
    }

    /// The bucket's claim on a limit in the state `standing`. `steady` means that shares are rates;
    /// then nothing is estimated for the time since the last report.
    pub fn claim(&self, steady: bool, standing: &CounterStanding, now: Time) -> ShareClaim {
        let rate = self.rate.unwrap_or(0.0);
        let since = now.since(self.reported).min(standing.begun);
        let unreported = (rate * since.as_secs_f64()) as u64;
        let secs = f64::from(standing.seconds_left);
        ShareClaim {
            held: self.held,
            used: self.used_in_window,
            unreported: if steady { 0 } else { unreported.min(self.held) },
            demand: self.rate.map(|rate| (rate * secs * DEMAND_HEADROOM_FACTOR).ceil() as u64),
            due: self.due,
            hungry: self.hungry,
        }
    }

    /// Assigns `part` of a limit, in addition to the `unreported` requests that it has probably let
    /// pass. Returns true if a message has to be sent.
    pub fn assign(&mut self, part: u64, unreported: u64, strategy: QuotaStrategy) -> bool {
        let same = self.held == part && self.sent.is_some_and(|sent| sent.strategy == strategy);
        self.held = part + unreported;
        self.due = false;
        let idle = same && !self.touched;
        let over = strategy == QuotaStrategy::Deny && self.has_strategy(strategy);
        if !idle && !over {
            self.pending = Some(PendingAction::Anew(strategy));
        }
        !idle && !over
    }

    /// Whether the Envoy has a strategy or will get it with the next message.
    fn has_strategy(&self, strategy: QuotaStrategy) -> bool {
        match self.pending {
            Some(PendingAction::Anew(pending)) => pending == strategy,
            _ => self.sent.is_some_and(|sent| sent.strategy == strategy),
        }
    }

    /// Makes sure that the Envoy has a strategy that is not a share of a limit. Returns true if a
    /// message has to be sent.
    pub fn ensure_strategy(&mut self, strategy: QuotaStrategy) -> bool {
        self.due = false;
        let told = self.has_strategy(strategy);
        if !told {
            self.pending = Some(PendingAction::Anew(strategy));
        }
        !told
    }

    /// Checks whether the assignment has to be renewed, or abandoned because the bucket was unused
    /// for the time `idle`. Returns true if a message has to be sent.
    pub fn check_expiry(&mut self, idle: Nanos, now: Time) -> bool {
        let Some(sent) = self.sent.filter(|_| self.pending.is_none()) else { return false };
        let pending = if now.since(self.used) >= idle {
            PendingAction::Abandon
        } else if now.since(sent.at) >= Nanos(u64::from(sent.secs) * SECOND / 2) {
            PendingAction::Extend
        } else {
            return false;
        };
        self.pending = Some(pending);
        true
    }

    /// Passes the pending messages to `say`, with the time to live in seconds that `secs` returns
    /// for a strategy. Returns false if the bucket was abandoned and is to be removed.
    pub fn emit_actions(
        &mut self,
        secs: impl Fn(QuotaStrategy) -> u32,
        now: Time,
        mut say: impl FnMut(BucketAction),
    ) -> bool {
        let id = || {
            let pairs = self.name.iter();
            let pairs = pairs.map(|(key, value)| (key.to_string(), value.to_string()));
            Some(BucketId { bucket: pairs.collect() })
        };
        let strategy = match (self.pending.take(), self.sent) {
            (Some(PendingAction::Abandon), _) => {
                let action = Some(Action::AbandonAction(AbandonAction {}));
                say(BucketAction { bucket_id: id(), bucket_action: action });
                return false;
            }
            (Some(PendingAction::Anew(strategy)), before) => {
                let before = before.map(|sent| sent.strategy);
                if let (Some(QuotaStrategy::Tokens(_)), QuotaStrategy::Tokens(_)) =
                    (before, strategy)
                {
                    say(assignment(id(), QuotaStrategy::Deny, 1));
                }
                strategy
            }
            (Some(PendingAction::Extend), Some(sent)) => sent.strategy,
            _ => return true,
        };
        let secs = secs(strategy);
        say(assignment(id(), strategy, secs));
        self.sent = Some(SentAssignment { strategy, at: now, secs });
        self.touched = false;
        true
    }
}

fn assignment(bucket_id: Option<BucketId>, strategy: QuotaStrategy, secs: u32) -> BucketAction {
    let action = QuotaAssignmentAction {
        assignment_time_to_live: Some(Duration { seconds: secs.into(), nanos: 0 }),
        rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(written(strategy)) }),
    };
    BucketAction { bucket_id, bucket_action: Some(Action::QuotaAssignmentAction(action)) }
}

fn written(strategy: QuotaStrategy) -> Written {
    let tokens = |tokens, per_fill, seconds| {
        Written::TokenBucket(TokenBucket {
            max_tokens: tokens,
            tokens_per_fill: Some(per_fill),
            fill_interval: Some(Duration { seconds, nanos: 0 }),
        })
    };
    match strategy {
        QuotaStrategy::Allow => Written::BlanketRule(BlanketRule::AllowAll.into()),
        QuotaStrategy::Deny => Written::BlanketRule(BlanketRule::DenyAll.into()),
        QuotaStrategy::Tokens(count) => tokens(count, 1, FILL_INTERVAL_MAX_SECS),
        QuotaStrategy::Rate(count, seconds) => tokens(count, count, seconds.into()),
        QuotaStrategy::PerUnit(count, unit) => Written::RequestsPerTimeUnit(RequestsPerTimeUnit {
            requests_per_time_unit: count.into(),
            time_unit: unit as i32,
        }),
    }
}
