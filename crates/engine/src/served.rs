//! Accounts of requests that another program serves: how long they wait before they run, and which
//! cost is reported afterwards. Also the notice of a block, which the end of any account may start.
//!
//! This module measures no time: the program that serves a request reports how long it took. The
//! `check` door uses these accounts.

mod playback;
pub(super) mod ruling;

pub use playback::PlaybackNote;

use super::{Charge, EngineLane, EngineRules, RequestRefusal, refusal};
use evenkeel_config::settings::CostSource;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::{LimitKeys, RequestAttributes};
use evenkeel_core::limit::LimitAction;
use evenkeel_core::limiter::BlockStarted;
use evenkeel_core::meter::Measure;
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_telemetry::counts::tiers::Tier;
use evenkeel_telemetry::decision::notice::BlockNotice;
use ruling::ReportedOutcome;

/// The part of a `User-Agent` that a notice shows, in bytes.
const AGENT_BYTES_MAX: usize = 200;

/// The report on a request that another program has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedReport {
    /// The cost is reported.
    Cost(Cost),
    /// The duration is reported. The cost depends on what ran at the same time.
    Time(Nanos),
    /// There is no report. The estimate is the usual cost of such requests.
    Nothing(Cost),
}

/// How long a request waits before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartWait {
    /// The latest end of the wait.
    pub until: Time,
    /// Whether the wait also ends as soon as there is room ([`EngineLane::has_room`]).
    pub while_busy: bool,
}

impl EngineLane {
    /// Whether the backend works on fewer requests than it can run at once. Locks the meter and
    /// then the gate, one after the other.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let engine = &self.0.engine;
        let working = engine.meter.lock().working() as usize;
        working < engine.gate.stats().concurrency
    }
}

impl Charge {
    /// Records that the request has waited for `waited` before it ran.
    pub fn mark_waited(&mut self, waited: Nanos) {
        self.waited = waited;
        self.leave_gate();
    }

    /// How long a request must wait before it runs, at a door that can neither hold an answer nor
    /// say when a slot is free. If the action is `hold`, the request waits first, for the same
    /// time. If it is `queue`, the request waits while the backend has no room, and at most until
    /// its debt is paid.
    pub fn wait_first(&mut self) -> Option<StartWait> {
        let own = self.own_wait();
        let Some(until) = self.gated_until() else { return own };
        // By then, if there is room, there is no other reason to wait.
        let own = own.filter(|own| !own.while_busy).map_or(until, |own| own.until);
        Some(StartWait { until: until.max(own), while_busy: false })
    }

    /// The wait that the limits demand, without that of a gatekeeper.
    fn own_wait(&mut self) -> Option<StartWait> {
        if self.delayed || (self.reported && self.rules.shadow) {
            let until = self.delayed.then(|| self.ticket.starts_at())?;
            return Some(StartWait { until, while_busy: false });
        }
        let now = self.lane.0.now();
        let debt = |action, shadow| self.rules.limiter.debt(&self.ticket, action, shadow, now);
        let wait = |shadow| match debt(LimitAction::Hold, shadow) {
            Some(reason) => Some((reason, false)),
            None => {
                Some((debt(LimitAction::Queue, shadow).filter(|_| !self.lane.has_room())?, true))
            }
        };
        if let Some((reason, while_busy)) = wait(true).filter(|_| !self.reported) {
            let verdict = if while_busy { "queue" } else { "delay" };
            let ruling = ReportedOutcome::new(verdict, true);
            self.lane.report(ruling, &self.rules, self.client, reason, None);
            self.reported = true;
            self.tier = Tier::Debt;
        }
        let (reason, while_busy) = wait(false)?;
        let verdict = if while_busy { "queue" } else { "delay" };
        let ruling = ReportedOutcome::new(verdict, self.rules.shadow);
        self.lane.report(ruling, &self.rules, self.client, reason, None);
        self.reported = true;
        self.tier = Tier::Debt;
        let until = now.plus(reason.wait);
        (!self.rules.shadow).then_some(StartWait { until, while_busy })
    }

    /// The refusal of a request that would have to wait and finds no place to wait in.
    #[must_use]
    pub fn crowded_out(&self, wait: StartWait) -> RequestRefusal {
        let now = self.lane.0.now();
        let debt = |action| self.rules.limiter.debt(&self.ticket, action, false, now);
        let reason =
            [LimitAction::Delay, LimitAction::Hold, LimitAction::Queue].into_iter().find_map(debt);
        let left = wait.until.since(now);
        match reason {
            Some(reason) => refusal(&self.rules, reason, left),
            // The debt has been paid in the meantime.
            None => RequestRefusal {
                limit: "waiting".to_owned(),
                retry_after_secs: left.retry_after_secs(),
                by_rate: false,
            },
        }
    }

    /// Closes the account of a request that was admitted `elapsed` ago and was on the virtual clock
    /// for `counted` of that time. Returns the cost that is charged.
    pub fn close(mut self, told: ServedReport, elapsed: Nanos, counted: Nanos) -> Cost {
        self.rest();
        let (cost, measure) = match told {
            ServedReport::Cost(cost) => (cost, Measure::Report),
            ServedReport::Time(took) => (self.cost_of(took.min(elapsed), counted), Measure::Report),
            ServedReport::Nothing(cost) => (cost, Measure::Estimate),
        };
        self.whole = measure != Measure::Estimate;
        self.told = Some((cost, measure));
        cost
    }

    /// The cost of `took`, of an account that was on the virtual clock for `counted`. The clock
    /// also runs while the front waits for a slow client. So the clock gives the average share of
    /// the backend that the request had, and the report gives the time for which it had it. A
    /// request that was never on the clock is charged the reported time in full.
    fn cost_of(&self, took: Nanos, counted: Nanos) -> Cost {
        let share =
            if counted == Nanos::ZERO { 1.0 } else { self.cost.0 as f64 / counted.0 as f64 };
        match self.rules.cost {
            CostSource::Wall => Cost::cpu(took),
            CostSource::Shared | CostSource::Header(_) | CostSource::Cgroup(_) => {
                Cost((took.0 as f64 * share.min(1.0)) as u64)
            }
        }
    }

    /// Logs and counts that the cost of this request has started a block.
    pub(super) fn notice(&self, block: BlockStarted, measure: Measure, now: Time) {
        let index = usize::from(block.key.limit);
        let limits = self.rules.limiter.limits();
        let Some(limit) = limits.get(index) else { return };
        let Algorithm::Sliding(window) = &limit.algorithm else { return };
        let name = self.lane.0.books.lock().name(&self.rules, index, block.key.hash);
        let notice = BlockNotice {
            limit: &limit.name,
            key: name.as_deref().unwrap_or("?"),
            client: self.client,
            sum: block.sum,
            max: window.max(),
            window: window.window(),
            measure,
            agent: self.agent.as_deref().unwrap_or_default(),
            shadow: self.rules.shadow || limit.shadow,
        };
        self.lane.0.engine.watch.record_block(&notice, now);
    }
}

/// The `User-Agent` that the notice of a block may have to show, if a limit counts the request in a
/// sliding window.
pub(super) fn agent(
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
