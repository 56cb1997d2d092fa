//! One bucket of one Envoy: what it may let pass, what it was told last, what it is told next.
//!
//! How an assignment is written: a part of a window's hits is a bucket of as many tokens that does
//! not fill again, and is given anew by ending the one before it first: Envoy carries what is left
//! in a bucket over to the next one otherwise. A rate is a bucket that fills. Envoy knows these two
//! and "all" and "none" only, and reads no fractions of seconds. Who gets how much: `share`.

use super::share::Claim;
use crate::doors::ratelimit::decide::used::{Bound, Standing, Used};
use crate::doors::ratelimit::rules::Unit;
use crate::doors::ratelimit::wire::quota::BucketId;
use crate::doors::ratelimit::wire::quota::rate_limit_quota_response::BucketAction;
use crate::doors::ratelimit::wire::quota::rate_limit_quota_response::bucket_action::{
    AbandonAction, BucketAction as Action, QuotaAssignmentAction,
};
use crate::doors::ratelimit::wire::rate_limit_strategy::{
    BlanketRule, RequestsPerTimeUnit, Strategy as Written,
};
use crate::doors::ratelimit::wire::{RateLimitStrategy, TokenBucket};
use evenkeel_core::units::{Nanos, SECOND, Time};
use prost_types::Duration;

/// A year: the slowest that Envoy fills a bucket.
const SELDOM_SECS: i64 = 365 * 86_400;
/// Reports that follow each other faster than this say nothing about a rate.
const SHORT: Nanos = Nanos(SECOND / 2);
/// What is kept for a rate that grows, in percent of it.
const HEADROOM: f64 = 1.25;

/// What a bucket may let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Everything.
    Allow,
    /// Nothing.
    Deny,
    /// So many requests, and then no more.
    Tokens(u32),
    /// So many requests in so many seconds, again and again.
    Rate(u32, u32),
    /// The same of a unit, written as such.
    PerUnit(u32, Unit),
}

/// What the next message says of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// An assignment in place of the one before.
    Anew(Strategy),
    /// The same for longer.
    Extend,
    /// It is not tracked any more.
    Abandon,
}

/// What an Envoy was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    strategy: Strategy,
    at: Time,
    secs: u32,
}

/// One bucket of one Envoy.
#[derive(Debug)]
pub struct Bucket {
    /// Its name: keys and values.
    pub name: Box<[(Box<str>, Box<str>)]>,
    /// What it meets.
    pub bound: Bound,
    /// What it may still let pass of a limit.
    pub held: u64,
    /// What it has let pass in the limit's window, as far as it has told.
    had: u64,
    /// What it held when that window began, until it tells what became of it.
    before: Option<u64>,
    /// Requests per second of late, refused ones too; `None` before the second report.
    rate: Option<f64>,
    reported: Time,
    /// When it last had a request.
    used: Time,
    /// It has told what it used and waits for what it is due.
    pub due: bool,
    /// It refused requests.
    pub hungry: bool,
    /// Something was used since the last assignment.
    touched: bool,
    sent: Option<Sent>,
    pending: Option<Pending>,
    /// Its stream knows that there is something to be told.
    pub listed: bool,
}

impl Bucket {
    /// A bucket that has its first report at `now`.
    pub fn new(name: &[(&str, &str)], now: Time) -> Bucket {
        Bucket {
            name: name.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            bound: Bound::Free,
            held: 0,
            had: 0,
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

    /// What a report of `now` says that it used.
    pub fn used(&self, allowed: u64, denied: u64, now: Time) -> Used {
        let before = self.before.unwrap_or(self.held);
        Used { allowed, denied, elapsed: now.since(self.reported), before }
    }

    /// A window of its limit begins.
    pub fn begin(&mut self, steady: bool) {
        self.had = 0;
        self.before = Some(self.held);
        self.due |= !steady;
    }

    /// Takes a report over, of which `counted` requests passed in the limit's window.
    pub fn report(&mut self, used: Used, counted: u64, steady: bool, now: Time) {
        let all = used.allowed.saturating_add(used.denied);
        let elapsed = used.elapsed;
        if elapsed >= SHORT {
            let rate = all as f64 / elapsed.as_secs_f64();
            self.rate = Some(self.rate.map_or(rate, |before| (before + rate) / 2.0));
        }
        self.reported = now;
        self.before = None;
        if all > 0 {
            self.used = now;
            self.touched = true;
            self.pending = self.pending.filter(|pending| *pending != Pending::Abandon);
        }
        self.hungry = used.denied > 0;
        if !steady {
            self.held = self.held.saturating_sub(counted);
            self.had = self.had.saturating_add(counted);
            self.due = true;
        }
    }

    /// Its claim on a limit that stands so; as rates, if `steady`.
    pub fn claim(&self, steady: bool, standing: &Standing, now: Time) -> Claim {
        let rate = self.rate.unwrap_or(0.0);
        let since = now.since(self.reported).min(standing.begun);
        let unreported = (rate * since.as_secs_f64()) as u64;
        let secs = f64::from(standing.seconds_left);
        Claim {
            held: self.held,
            used: self.had,
            unreported: if steady { 0 } else { unreported.min(self.held) },
            demand: self.rate.map(|rate| (rate * secs * HEADROOM).ceil() as u64),
            due: self.due,
            hungry: self.hungry,
        }
    }

    /// Gives it `part` of a limit beside what it has `unreported`; true if it has to be told.
    pub fn give(&mut self, part: u64, unreported: u64, strategy: Strategy) -> bool {
        let same = self.held == part && self.sent.is_some_and(|sent| sent.strategy == strategy);
        self.held = part + unreported;
        self.due = false;
        let idle = same && !self.touched;
        let over = strategy == Strategy::Deny && self.is_told(strategy);
        if !idle && !over {
            self.pending = Some(Pending::Anew(strategy));
        }
        !idle && !over
    }

    /// Whether it knows of a strategy, or will.
    fn is_told(&self, strategy: Strategy) -> bool {
        match self.pending {
            Some(Pending::Anew(pending)) => pending == strategy,
            _ => self.sent.is_some_and(|sent| sent.strategy == strategy),
        }
    }

    /// Sees to it that the Envoy knows of a strategy that is no part of a limit; true if it has to
    /// be told.
    pub fn settle(&mut self, strategy: Strategy) -> bool {
        self.due = false;
        let told = self.is_told(strategy);
        if !told {
            self.pending = Some(Pending::Anew(strategy));
        }
        !told
    }

    /// Whether what it was told has to be said again, or taken back for nobody uses it.
    pub fn look(&mut self, idle: Nanos, now: Time) -> bool {
        let Some(sent) = self.sent.filter(|_| self.pending.is_none()) else { return false };
        let pending = if now.since(self.used) >= idle {
            Pending::Abandon
        } else if now.since(sent.at) >= Nanos(u64::from(sent.secs) * SECOND / 2) {
            Pending::Extend
        } else {
            return false;
        };
        self.pending = Some(pending);
        true
    }

    /// What is told of it, for as many seconds as `secs` says of a strategy; false: it is to go.
    pub fn tell(
        &mut self,
        secs: impl Fn(Strategy) -> u32,
        now: Time,
        mut say: impl FnMut(BucketAction),
    ) -> bool {
        let id = || {
            let pairs = self.name.iter();
            let pairs = pairs.map(|(key, value)| (key.to_string(), value.to_string()));
            Some(BucketId { bucket: pairs.collect() })
        };
        let strategy = match (self.pending.take(), self.sent) {
            (Some(Pending::Abandon), _) => {
                let action = Some(Action::AbandonAction(AbandonAction {}));
                say(BucketAction { bucket_id: id(), bucket_action: action });
                return false;
            }
            (Some(Pending::Anew(strategy)), before) => {
                let before = before.map(|sent| sent.strategy);
                if let (Some(Strategy::Tokens(_)), Strategy::Tokens(_)) = (before, strategy) {
                    say(assignment(id(), Strategy::Deny, 1));
                }
                strategy
            }
            (Some(Pending::Extend), Some(sent)) => sent.strategy,
            _ => return true,
        };
        let secs = secs(strategy);
        say(assignment(id(), strategy, secs));
        self.sent = Some(Sent { strategy, at: now, secs });
        self.touched = false;
        true
    }
}

fn assignment(bucket_id: Option<BucketId>, strategy: Strategy, secs: u32) -> BucketAction {
    let action = QuotaAssignmentAction {
        assignment_time_to_live: Some(Duration { seconds: secs.into(), nanos: 0 }),
        rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(written(strategy)) }),
    };
    BucketAction { bucket_id, bucket_action: Some(Action::QuotaAssignmentAction(action)) }
}

fn written(strategy: Strategy) -> Written {
    let tokens = |tokens, per_fill, seconds| {
        Written::TokenBucket(TokenBucket {
            max_tokens: tokens,
            tokens_per_fill: Some(per_fill),
            fill_interval: Some(Duration { seconds, nanos: 0 }),
        })
    };
    match strategy {
        Strategy::Allow => Written::BlanketRule(BlanketRule::AllowAll.into()),
        Strategy::Deny => Written::BlanketRule(BlanketRule::DenyAll.into()),
        Strategy::Tokens(count) => tokens(count, 1, SELDOM_SECS),
        Strategy::Rate(count, seconds) => tokens(count, count, seconds.into()),
        Strategy::PerUnit(count, unit) => Written::RequestsPerTimeUnit(RequestsPerTimeUnit {
            requests_per_time_unit: count.into(),
            time_unit: unit as i32,
        }),
    }
}
