//! The streams of all Envoys, their buckets, and the limits that buckets of several streams share.
//!
//! Each stream belongs to one Envoy. A limit with few buckets is divided anew at every report, one
//! with many buckets once a second, so that the cost of a report is bounded. This module neither
//! waits nor queues: a message is made when its Envoy is ready to read it, so a slow Envoy gets the
//! latest state. The time is passed in. How usage is charged: `decide::usage`. How shares are
//! computed: `share`.

use super::bucket::{QuotaBucket, QuotaStrategy};
use super::share::{self, ShareClaim};
use crate::decide::RatelimitDecider;
use crate::decide::usage::{BucketBound, BucketUsage, CounterStanding};
use crate::rules::{RateUnit, RuleLimit};
use crate::wire::quota::rate_limit_quota_response::BucketAction;
use crate::wire::reports::{UsageReport, UsageReports};
use evenkeel_config::settings::RlqsSettings;
use evenkeel_core::key::{KeyHash, KeyHasher, KeySeed};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_core::windows::{WindowAlgorithm, WindowLength};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::task::Waker;

/// The maximum number of buckets of one stream; further ones are not tracked.
pub const BUCKETS_PER_STREAM_MAX: usize = 10_000;
/// The maximum number of buckets with which a limit is divided at every report. With more buckets
/// it is divided once a second.
const PROMPT_BUCKETS_MAX: usize = 64;
/// The longest window, in seconds, whose shares are rates: reports are too slow to divide its hits.
const RATE_WINDOW_MAX_SECS: u32 = 10;
/// The time by which an assignment outlives its window, so that the next one can arrive.
const GRACE_SECS: u32 = 5;
/// The maximum number of buckets in one message.
const ACTIONS_MAX: usize = 1_000;

/// A moment by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaMoment {
    /// The monotonic time, by which assignments expire.
    pub steady: Time,
    /// The system's time, which windows follow.
    pub wall: Time,
}

/// The number of a bucket's stream, and the hash of its name. Two names of one stream share a hash
/// with a probability of about one in 2^63.
type BucketKey = (u64, u64);

#[derive(Default)]
struct EnvoyStream {
    domain: Box<str>,
    buckets: Vec<u64>,
    /// Hashes of the buckets with a pending message. Invariant: a bucket is in this list if and
    /// only if its `listed` is true.
    pending: Vec<u64>,
    waker: Option<Waker>,
}

struct SharedLimit {
    limit: RuleLimit,
    members: Vec<BucketKey>,
    /// The end of the window in which it was last divided, in seconds since the epoch.
    end: u32,
    /// Whether it has to be divided anew.
    stale: bool,
}

/// The result of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportOutcome {
    /// The number of buckets in the report.
    pub reports: usize,
    /// The number of buckets that are not tracked.
    pub left_out: usize,
}

/// The domain of a message is missing, or differs from the domain of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the first message of a stream must name a domain, and the others the same or none")]
pub struct DomainError;

/// The state of all streams.
pub struct QuotaState {
    settings: RlqsSettings,
    seed: KeySeed,
    streams: HashMap<u64, EnvoyStream>,
    buckets: HashMap<BucketKey, QuotaBucket, RandomState>,
    pools: HashMap<KeyHash, SharedLimit, RandomState>,
    next: u64,
}

impl QuotaState {
    /// A state without streams.
    pub fn new(settings: RlqsSettings, seed: KeySeed) -> QuotaState {
        let (streams, buckets, pools) = Default::default();
        QuotaState { settings, seed, streams, buckets, pools, next: 0 }
    }

    /// Opens a stream and returns its number; `None` if there are too many.
    pub fn open(&mut self) -> Option<u64> {
        if self.streams.len() >= self.settings.streams_max {
            return None;
        }
        self.next += 1;
        self.streams.insert(self.next, EnvoyStream::default());
        Some(self.next)
    }

    /// Closes a stream and frees the shares of its buckets for the others.
    pub fn close(&mut self, stream: u64) {
        let Some(gone) = self.streams.remove(&stream) else { return };
        for name in gone.buckets {
            self.remove((stream, name));
        }
    }

    /// The number of streams and the number of buckets.
    pub fn sizes(&self) -> (usize, usize) {
        (self.streams.len(), self.buckets.len())
    }

    /// Processes one message of a stream.
    ///
    /// # Errors
    /// [`DomainError`]; no usage was charged.
    pub fn report(
        &mut self,
        stream: u64,
        reports: UsageReports<'_>,
        decider: &RatelimitDecider,
        moment: QuotaMoment,
    ) -> Result<ReportOutcome, DomainError> {
        let Some(own) = self.streams.get_mut(&stream) else { return Ok(ReportOutcome::default()) };
        if own.domain.is_empty() {
            own.domain = reports.domain.into();
        }
        if own.domain.is_empty() || !(reports.domain.is_empty() || *own.domain == *reports.domain) {
            return Err(DomainError);
        }
        let domain = own.domain.clone();
        let mut taken = ReportOutcome { reports: reports.usages.len(), left_out: reports.left_out };
        for usage in reports.usages {
            let tracked = self.report_bucket(stream, &domain, usage, decider, moment);
            taken.left_out += usize::from(!tracked);
        }
        Ok(taken)
    }

    /// Processes the report of one bucket. Returns false if the bucket is not tracked; its usage is
    /// charged nevertheless.
    fn report_bucket(
        &mut self,
        stream: u64,
        domain: &str,
        mut usage: UsageReport<'_>,
        decider: &RatelimitDecider,
        moment: QuotaMoment,
    ) -> bool {
        let id = (stream, self.hash(&usage.name));
        let known = self.buckets.contains_key(&id);
        if !known && self.has_room(stream) {
            self.buckets.insert(id, QuotaBucket::new(&usage.name, moment.steady));
            self.streams.entry(stream).or_default().buckets.push(id.1);
        }
        let UsageReport { allowed, denied, .. } = usage;
        let untracked = BucketUsage { allowed, denied, elapsed: Nanos::ZERO, before: 0 };
        let used = self.buckets.get(&id);
        let used = used.map_or(untracked, |bucket| bucket.used(allowed, denied, moment.steady));
        let (bound, counted) = decider.charge(domain, &mut usage.name, used, moment.wall);
        self.bind(id, bound);
        if let BucketBound::Limit(key, _) = bound {
            self.note_window(key, moment);
        }
        let Some(bucket) = self.buckets.get_mut(&id) else { return false };
        let steady =
            matches!(bound, BucketBound::Limit(_, limit) if is_steady(&self.settings, limit));
        bucket.report(used, counted, steady, moment.steady);
        match bound {
            BucketBound::Free if bucket.ensure_strategy(QuotaStrategy::Allow) => {
                self.list_pending(id)
            }
            BucketBound::Free => {}
            BucketBound::Limit(key, _) => self.note_change(key, decider, moment),
        }
        true
    }

    fn has_room(&self, stream: u64) -> bool {
        let own = self.streams.get(&stream).map_or(usize::MAX, |stream| stream.buckets.len());
        self.buckets.len() < self.settings.buckets_max && own < BUCKETS_PER_STREAM_MAX
    }

    /// Adds a bucket to the limit that applies to it, which may differ from the last one after a
    /// reload of the rules.
    fn bind(&mut self, id: BucketKey, bound: BucketBound) {
        let Some(bucket) = self.buckets.get_mut(&id) else { return };
        let before = std::mem::replace(&mut bucket.bound, bound);
        let key = |bound| match bound {
            BucketBound::Free => None,
            BucketBound::Limit(key, _) => Some(key),
        };
        if key(before) != key(bound) {
            bucket.held = 0;
            bucket.due = true;
            self.leave(id, before);
        }
        if let BucketBound::Limit(key, limit) = bound {
            let fresh = || SharedLimit { limit, members: Vec::new(), end: 0, stale: true };
            let pool = self.pools.entry(key).or_insert_with(fresh);
            pool.stale |= pool.limit != limit;
            pool.limit = limit;
            if before != bound && !pool.members.contains(&id) {
                pool.members.push(id);
            }
        }
    }

    fn leave(&mut self, id: BucketKey, bound: BucketBound) {
        let BucketBound::Limit(key, _) = bound else { return };
        let Some(pool) = self.pools.get_mut(&key) else { return };
        pool.members.retain(|member| *member != id);
        pool.stale = true;
        if pool.members.is_empty() {
            self.pools.remove(&key);
        }
    }

    fn remove(&mut self, id: BucketKey) {
        if let Some(bucket) = self.buckets.remove(&id) {
            self.leave(id, bucket.bound);
        }
    }

    /// Marks a limit as changed. It is divided now or, if many buckets share it, at the next tick.
    fn note_change(&mut self, key: KeyHash, decider: &RatelimitDecider, moment: QuotaMoment) {
        let Some(pool) = self.pools.get_mut(&key) else { return };
        pool.stale = true;
        if pool.members.len() <= PROMPT_BUCKETS_MAX {
            self.share_out(key, decider, moment);
        }
    }

    /// Divides limits anew, renews assignments and abandons unused buckets. To be called once a
    /// second.
    pub fn tick(&mut self, decider: &RatelimitDecider, moment: QuotaMoment) {
        let keys: Vec<KeyHash> = self.pools.keys().copied().collect();
        for key in keys {
            self.share_out(key, decider, moment);
        }
        let idle = self.settings.idle.as_nanos();
        let idle = Nanos(u64::try_from(idle).unwrap_or(u64::MAX));
        let looked = self.buckets.iter_mut();
        let told = looked
            .filter_map(|(id, bucket)| bucket.check_expiry(idle, moment.steady).then_some(*id));
        let told: Vec<BucketKey> = told.collect();
        told.into_iter().for_each(|id| self.list_pending(id));
    }

    /// Notes when a new window of a limit has begun.
    fn note_window(&mut self, key: KeyHash, moment: QuotaMoment) {
        let Some(pool) = self.pools.get_mut(&key) else { return };
        let end = pool.limit.length.window(moment.wall).end;
        if std::mem::replace(&mut pool.end, end) == end {
            return;
        }
        pool.stale = true;
        let steady = is_steady(&self.settings, pool.limit);
        for id in &pool.members {
            self.buckets.get_mut(id).into_iter().for_each(|bucket| bucket.begin_window(steady));
        }
    }

    /// Divides a limit if anything has changed.
    fn share_out(&mut self, key: KeyHash, decider: &RatelimitDecider, moment: QuotaMoment) {
        self.note_window(key, moment);
        let Some(pool) = self.pools.get_mut(&key) else { return };
        let limit = pool.limit;
        let mut standing = decider.standing(key, limit, moment.wall);
        let steady = is_steady(&self.settings, limit);
        if steady {
            standing.left = limit.requests;
            standing.seconds_left = seconds(limit, standing);
        }
        let total = u64::from(standing.left);
        let claim = |bucket: &QuotaBucket| bucket.claim(steady, &standing, moment.steady);
        // Every member has its bucket. One claim for each member keeps the two lists aligned.
        let claims = pool.members.iter().map(|id| self.buckets.get(id).map(claim));
        let claims: Vec<ShareClaim> = claims.map(Option::unwrap_or_default).collect();
        let held: u64 = claims.iter().map(|claim| claim.held).sum();
        let wanting = claims.iter().any(|claim| claim.hungry || claim.due);
        if !std::mem::take(&mut pool.stale) && !wanting && held <= total {
            return;
        }
        let members = pool.members.clone();
        let given = share::balance(total, &claims);
        for ((id, claim), part) in members.into_iter().zip(&claims).zip(given) {
            let Some(part) = part else { continue };
            let strategy = strategy(&self.settings, limit, part, standing.seconds_left);
            let bucket = self.buckets.get_mut(&id);
            if bucket.is_some_and(|bucket| bucket.assign(part, claim.unreported, strategy)) {
                self.list_pending(id);
            }
        }
    }

    /// Lists a bucket among those with a pending message, and wakes its stream.
    fn list_pending(&mut self, (stream, name): BucketKey) {
        let bucket = self.buckets.get_mut(&(stream, name));
        let listed = bucket.is_none_or(|bucket| std::mem::replace(&mut bucket.listed, true));
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        if !listed {
            stream.pending.push(name);
        }
        stream.waker.iter().for_each(Waker::wake_by_ref);
    }

    /// Returns the pending messages of a stream, for at most `ACTIONS_MAX` buckets; the next call
    /// returns further ones. If there are none, `waker` is woken when there are.
    pub fn take_actions(
        &mut self,
        stream: u64,
        waker: &Waker,
        moment: QuotaMoment,
    ) -> Vec<BucketAction> {
        let mut actions = Vec::new();
        let Some(own) = self.streams.get_mut(&stream) else { return actions };
        own.waker = Some(waker.clone());
        let rest = own.pending.len().saturating_sub(ACTIONS_MAX);
        let names = own.pending.split_off(rest);
        for name in names {
            self.take_actions_of((stream, name), moment, &mut actions);
        }
        actions
    }

    fn take_actions_of(
        &mut self,
        id: BucketKey,
        moment: QuotaMoment,
        actions: &mut Vec<BucketAction>,
    ) {
        let Some(bucket) = self.buckets.get_mut(&id) else { return };
        bucket.listed = false;
        let length = match bucket.bound {
            BucketBound::Limit(_, limit) => {
                Some(limit.length.window(moment.wall).left(moment.wall))
            }
            BucketBound::Free => None,
        };
        let all = u32::try_from(self.settings.ttl.as_secs()).unwrap_or(u32::MAX).max(1);
        let secs = |strategy| match (strategy, length) {
            (QuotaStrategy::Tokens(_) | QuotaStrategy::Deny, Some(left)) => {
                all.min(left + GRACE_SECS)
            }
            _ => all,
        };
        if !bucket.emit_actions(secs, moment.steady, |action| actions.push(action)) {
            self.remove(id);
            if let Some(stream) = self.streams.get_mut(&id.0) {
                stream.buckets.retain(|name| *name != id.1);
            }
        }
    }

    /// Wakes every stream, so that each one can end.
    pub fn wake_all(&self) {
        let wakers = self.streams.values().filter_map(|stream| stream.waker.as_ref());
        wakers.for_each(Waker::wake_by_ref);
    }

    fn hash(&self, name: &[(&str, &str)]) -> u64 {
        let mut hasher = KeyHasher::new(&self.seed);
        for (key, value) in name {
            hasher.part(key.as_bytes());
            hasher.part(value.as_bytes());
        }
        hasher.finish().bits()
    }
}

/// The length of a limit's window, in seconds; for calendar months the time left in it.
fn seconds(limit: RuleLimit, standing: CounterStanding) -> u32 {
    match limit.length {
        WindowLength::Seconds(seconds) => seconds,
        WindowLength::Months(_) => standing.seconds_left,
    }
}

/// Whether shares of a limit are rates and not parts of its window's hits.
fn is_steady(rlqs: &RlqsSettings, limit: RuleLimit) -> bool {
    let short =
        matches!(limit.length, WindowLength::Seconds(seconds) if seconds <= RATE_WINDOW_MAX_SECS);
    short || limit.algorithm == WindowAlgorithm::Bucket || per_unit(rlqs, limit).is_some()
}

/// The unit in which shares of a limit are sent, if they are sent as requests per time unit.
fn per_unit(rlqs: &RlqsSettings, limit: RuleLimit) -> Option<RateUnit> {
    let whole = limit.length == WindowLength::Seconds(limit.unit.seconds());
    (rlqs.per_unit && whole && limit.unit != RateUnit::Week).then_some(limit.unit)
}

/// How a part of a limit is written in an assignment.
fn strategy(rlqs: &RlqsSettings, limit: RuleLimit, part: u64, secs: u32) -> QuotaStrategy {
    let part = u32::try_from(part).unwrap_or(u32::MAX);
    match per_unit(rlqs, limit) {
        _ if part == 0 => QuotaStrategy::Deny,
        Some(unit) => QuotaStrategy::PerUnit(part, unit),
        None if is_steady(rlqs, limit) => QuotaStrategy::Rate(part, secs),
        None => QuotaStrategy::Tokens(part),
    }
}
