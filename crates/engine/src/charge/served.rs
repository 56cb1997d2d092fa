//! Accounts of requests that another program serves: how long they wait before they run, and which
//! cost is reported afterwards.
//!
//! This module measures no time: the program that serves a request reports how long it took. The
//! `check` door uses these accounts.

use super::Charge;
use crate::outcome::DecisionDetails;
use crate::rules::{RequestRefusal, refusal};
use evenkeel_config::settings::CostSource;
use evenkeel_core::limit::{LimitAction, RefusalKind};
use evenkeel_core::limiter::Reason;
use evenkeel_core::meter::Measure;
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_telemetry::counts::tiers::Tier;

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
    /// Whether the wait also ends as soon as there is room
    /// ([`EngineLane::has_room`](crate::EngineLane::has_room)).
    pub while_busy: bool,
}

impl Charge {
    /// Records that the request has waited for `waited` before it ran.
    pub fn mark_waited(&mut self, waited: Nanos) {
        self.report.waited = waited;
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
        if self.report.delayed || (self.report.reported && self.request.rules.shadow) {
            let until = self.report.delayed.then(|| self.ticket.starts_at())?;
            return Some(StartWait { until, while_busy: false });
        }
        let now = self.lane.0.now();
        let in_shadow = self.debt_wait(true, now);
        if let Some((reason, verdict)) = in_shadow.filter(|_| !self.report.reported) {
            self.report(verdict, true, reason, DecisionDetails::default());
            self.report.tier = Tier::Debt;
        }
        let (reason, verdict) = self.debt_wait(false, now)?;
        self.report(verdict, self.request.rules.shadow, reason, DecisionDetails::default());
        self.report.tier = Tier::Debt;
        let (until, while_busy) = (now.plus(reason.wait), verdict == "queue");
        (!self.request.rules.shadow).then_some(StartWait { until, while_busy })
    }

    /// The longest debt under limits that hold, else, while the backend has no room, under limits
    /// that queue; and the verdict that is logged for it. `shadow`: of limits in shadow.
    fn debt_wait(&self, shadow: bool, now: Time) -> Option<(Reason, &'static str)> {
        let limiter = &self.request.rules.limiter;
        let debt = |action| limiter.debt(&self.ticket, action, shadow, now);
        let held = debt(LimitAction::Hold).map(|reason| (reason, "delay"));
        let queued = || debt(LimitAction::Queue).filter(|_| !self.lane.has_room());
        held.or_else(|| Some((queued()?, "queue")))
    }

    /// The refusal of a request that would have to wait and finds no place to wait in.
    pub fn crowded_out(&self, wait: StartWait) -> RequestRefusal {
        let now = self.lane.0.now();
        let debt = |action| self.request.rules.limiter.debt(&self.ticket, action, false, now);
        let reason =
            [LimitAction::Delay, LimitAction::Hold, LimitAction::Queue].into_iter().find_map(debt);
        let left = wait.until.since(now);
        match reason {
            Some(reason) => refusal(&self.request.rules, reason, left),
            // The debt has been paid in the meantime.
            None => RequestRefusal {
                limit: "waiting".to_owned(),
                retry_after_secs: left.retry_after_secs(),
                kind: RefusalKind::Busy,
                waiting_room: None,
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
        self.work.tell(cost, measure);
        cost
    }

    /// The cost of `took`, of an account that was on the virtual clock for `counted`. The clock
    /// also runs while the front waits for a slow client. So the clock gives the average share of
    /// the backend that the request had, and the report gives the time for which it had it. A
    /// request that was never on the clock is charged the reported time in full.
    fn cost_of(&self, took: Nanos, counted: Nanos) -> Cost {
        let share =
            if counted == Nanos::ZERO { 1.0 } else { self.work.cost.0 as f64 / counted.0 as f64 };
        match self.request.rules.cost {
            CostSource::Wall => Cost::cpu(took),
            CostSource::Shared
            | CostSource::Tokens
            | CostSource::Header(_)
            | CostSource::Cgroup(_) => Cost((took.0 as f64 * share.min(1.0)) as u64),
        }
    }
}
