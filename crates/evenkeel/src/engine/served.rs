//! Accounts of requests that somebody else serves: how long they wait before they run, and what is
//! told of their cost afterwards. And the notice of a block, which an account's end may start.
//!
//! It measures nothing: whoever serves a request says what it took. Who asks so: the `check` door.

mod playback;
pub(super) mod ruling;

pub use playback::Note;

use super::{Charge, Lane, Refusal, Rules, refusal};
use crate::config::settings::CostSource;
use crate::watch::counts::tiers::Tier;
use crate::watch::decision::notice::Notice;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::{Attributes, Keys};
use evenkeel_core::limit::Action;
use evenkeel_core::limiter::Blocked;
use evenkeel_core::meter::Measure;
use evenkeel_core::units::{Cost, Nanos, Time};
use ruling::Ruling;

/// The longest part of a `User-Agent` that a notice shows, in bytes.
const AGENT_BYTES_MAX: usize = 200;

/// What is told of a request that somebody else has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// What it cost.
    Cost(Cost),
    /// How long it took; what that cost depends on what ran beside it.
    Time(Nanos),
    /// Nothing; requests like it cost so much.
    Nothing(Cost),
}

/// How long a request waits before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// No longer than until then.
    pub until: Time,
    /// Not even so long if there is room ([`Lane::has_room`]).
    pub while_busy: bool,
}

impl Lane {
    /// Whether the backend works on fewer requests than it can run at once.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let engine = &self.0.engine;
        let working = engine.meter.lock().working() as usize;
        working < engine.gate.crowd().concurrency
    }
}

impl Charge {
    /// It has waited for so long before it ran.
    pub fn has_waited(&mut self, waited: Nanos) {
        self.waited = waited;
        self.leave_gate();
    }

    /// How long a request must wait before it runs, at a door that can hold no answer and cannot
    /// say when a slot is free again: what would be held waits first, for as long; what would be
    /// queued waits while the backend has no room, at most until its debt is paid.
    pub fn wait_first(&mut self) -> Option<Wait> {
        let own = self.own_wait();
        let Some(until) = self.gated_until() else { return own };
        // Where there is room by then, nothing is left to wait for.
        let own = own.filter(|own| !own.while_busy).map_or(until, |own| own.until);
        Some(Wait { until: until.max(own), while_busy: false })
    }

    /// How long it must wait by the limits.
    fn own_wait(&mut self) -> Option<Wait> {
        if self.delayed || (self.reported && self.rules.shadow) {
            let until = self.delayed.then(|| self.ticket.starts_at())?;
            return Some(Wait { until, while_busy: false });
        }
        let now = self.lane.0.now();
        let debt = |action, shadow| self.rules.limiter.debt(&self.ticket, action, shadow, now);
        let wait = |shadow| match debt(Action::Hold, shadow) {
            Some(reason) => Some((reason, false)),
            None => Some((debt(Action::Queue, shadow).filter(|_| !self.lane.has_room())?, true)),
        };
        if let Some((reason, while_busy)) = wait(true).filter(|_| !self.reported) {
            let verdict = if while_busy { "queue" } else { "delay" };
            let ruling = Ruling::new(verdict, true);
            self.lane.report(ruling, &self.rules, self.client, reason, None);
            self.reported = true;
            self.tier = Tier::Debt;
        }
        let (reason, while_busy) = wait(false)?;
        let verdict = if while_busy { "queue" } else { "delay" };
        let ruling = Ruling::new(verdict, self.rules.shadow);
        self.lane.report(ruling, &self.rules, self.client, reason, None);
        self.reported = true;
        self.tier = Tier::Debt;
        let until = now.plus(reason.wait);
        (!self.rules.shadow).then_some(Wait { until, while_busy })
    }

    /// What a client is told that would have to wait and finds no place to.
    #[must_use]
    pub fn crowded_out(&self, wait: Wait) -> Refusal {
        let now = self.lane.0.now();
        let debt = |action| self.rules.limiter.debt(&self.ticket, action, false, now);
        let reason = [Action::Delay, Action::Hold, Action::Queue].into_iter().find_map(debt);
        let left = wait.until.since(now);
        match reason {
            Some(reason) => refusal(&self.rules, reason, left),
            // It is paid meanwhile.
            None => Refusal {
                limit: "waiting".to_owned(),
                retry_after_secs: left.retry_after_secs(),
                by_rate: false,
            },
        }
    }

    /// Closes the account of a request that was let in `elapsed` ago and has counted as running for
    /// `counted` of it. Returns what was charged.
    pub fn close(mut self, told: Told, elapsed: Nanos, counted: Nanos) -> Cost {
        self.rest();
        let (cost, measure) = match told {
            Told::Cost(cost) => (cost, Measure::Report),
            Told::Time(took) => (self.cost_of(took.min(elapsed), counted), Measure::Report),
            Told::Nothing(cost) => (cost, Measure::Estimate),
        };
        self.whole = measure != Measure::Estimate;
        self.told = Some((cost, measure));
        cost
    }

    /// What `took` cost out of an account that was on the virtual clock for `counted`. That clock
    /// has run also while the front waited for a slow client: it says how much of the backend a
    /// request had on average, and the report how long it had it. Of one that was never on it
    /// nothing is known but that.
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

    /// Tells that this request's cost has started a block.
    pub(super) fn notice(&self, block: Blocked, measure: Measure, now: Time) {
        let index = usize::from(block.key.limit);
        let limits = self.rules.limiter.limits();
        let Some(limit) = limits.get(index) else { return };
        let Algorithm::Sliding(window) = &limit.algorithm else { return };
        let name = self.lane.0.books.lock().name(index, block.key.hash);
        let notice = Notice {
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
        self.lane.0.engine.watch.blocked(&notice, now);
    }
}

/// What a notice may have to say of a request: its `User-Agent`, if it is counted in windows.
pub(super) fn agent(rules: &Rules, keys: &Keys, request: &impl Attributes) -> Option<Box<str>> {
    let limits = rules.limiter.limits();
    let mut counting = keys.as_slice().iter().filter_map(|key| limits.get(usize::from(key.limit)));
    counting.find(|limit| matches!(limit.algorithm, Algorithm::Sliding(_)))?;
    let agent = request.header("user-agent")?;
    let shown = &agent[..agent.len().min(AGENT_BYTES_MAX)];
    Some(String::from_utf8_lossy(shown).into())
}
