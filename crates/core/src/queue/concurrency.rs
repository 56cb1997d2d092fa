//! Finds the number of requests that a backend can work on at once, from measurements alone.
//!
//! Throughput grows with the requests in flight up to a knee. Beyond the knee requests only wait
//! inside the backend, where the queue cannot order them. The knee is not known: it may be the
//! number of processors, or many times that if requests wait for a database. So the search keeps a
//! probability for each possible knee (`belief`), sets the limit to the median, and compares
//! windows under two limits (`window`) to learn more.
//!
//! - **At the start**, and after a pause, the limit doubles with each round (as many completions
//!   as the limit) while a higher one may well help, as TCP's slow start does.
//! - **Then** the limit stays at the median. If the knee may be far above or below, the limit goes
//!   there for one window and back for the next. So each experiment has a window before and after
//!   it, and a disturbance of the machine affects all of them.
//! - **Evidence fades** in minutes. What is believed without evidence: that the knee is the number
//!   of processors, unless the processors are idle while requests wait.
//! - **If times change** by more than chance and limit explain, the backend has changed, and a
//!   higher knee is considered again.
//! - **A request that stays** for much longer than usual has a slot of its own (`stays`).
//!
//! Completions drive the rest of the search, so it needs no timer. No request is rejected for it.
//! For very brief requests see `brief_requests`, for the reasons and figures docs/adr/0004.

mod belief;
mod brief_requests;
mod window;

use super::{BriefSlots, WorkUnit};
use crate::meter::estimate::RouteHash;
use crate::units::{Cost, Nanos, Time};
use belief::KneeBelief;
use brief_requests::BriefRequestDetector;
use window::{InFlight, LimitWindow, UsualTimes};

/// The upper bound of the limit.
pub const CONCURRENCY_MAX: usize = 1_024;
/// The time constant with which evidence fades, in seconds. Shorter: limits above the knee are
/// tried more often. Longer: an error lasts longer.
const MEMORY_SECS: f64 = 300.0;
/// A higher limit is tried if it is needed with this probability, and a lower one if it is
/// sufficient with this probability.
const DOUBT: f64 = 0.1;
/// Only limits that differ by this factor are tried.
const STEP_MIN: f64 = 1.4;
/// A window ends when this many requests have ended, and as many again as were in flight.
const WINDOW_REQUESTS: usize = 8;
/// The shortest window, in seconds.
const WINDOW_SECS_MIN: f64 = 0.1;
/// The longest window in seconds, if half of [`WINDOW_REQUESTS`] have ended in it.
const WINDOW_SECS_MAX: f64 = 4.0;
/// The backend has changed if times differ from the usual ones by a variance this many times
/// larger than by chance, in two windows in a row.
const CHANGE_MIN: f64 = 12.0;
/// How fast the estimate of the noise may grow: it is limited to this many times the present one.
const NOISE_GROWTH_MAX: f64 = 3.0;
/// The weight of the latest result in the estimate of the noise.
const NOISE_WEIGHT: f64 = 1.0 / 8.0;
/// If no request ends for this many times the usual gap, the backend stands still, which says
/// nothing about the limit.
const STALL_GAPS: f64 = 4.0;
/// After a pause of this length without a request the search starts again, in seconds.
const PAUSE_SECS: f64 = 30.0;
/// A request stays if it has been with the backend for this many times what its route usually
/// takes, and for the least time, or if it has been there for the longest time, in seconds. Busy
/// processors say nothing against it, because other programs may use them.
const STAY_RATIO: f64 = 4.0;
const STAY_SECS_MIN: f64 = 1.0;
const STAY_SECS_MAX: f64 = 10.0;
/// The number at which the search starts with language models, and that at which it expects the
/// knee: an engine works on several requests at a time.
const MODEL_LIMIT_START: usize = 4;
const MODEL_KNEE_EXPECTED: f64 = 16.0;
/// The least size of a request to a language model, in thousands of tokens.
const SIZE_MIN: f64 = 1e-3;
/// Processors that are busy for more than this part of the time may be what limits.
const BUSY_PART: f64 = 0.9;

const _: () = {
    assert!(WINDOW_SECS_MIN < WINDOW_SECS_MAX && WINDOW_SECS_MAX < PAUSE_SECS);
    assert!(DOUBT < 0.5 && STEP_MIN < 2.0 && BUSY_PART < 1.0);
};

/// The phase of the search.
#[derive(Clone, Debug)]
enum SearchPhase {
    /// The limit doubles while that may help. Holds the rounds so far, appended to each other.
    Start(Option<LimitWindow>),
    /// The limit rests at the median, and experiments are made now and then. Holds the previous
    /// window, and whether the next experiment may go up.
    Steady(Option<LimitWindow>, bool),
}

/// Finds the number of requests that a backend can work on at once.
///
/// Invariant: `least <= limit <= ceiling`, where `least` is the number of processors, or 1 before
/// language models.
#[derive(Clone, Debug)]
pub struct ConcurrencySearch {
    unit: WorkUnit,
    limit: usize,
    least: usize,
    /// The limit at the start, and after a pause.
    begins: usize,
    /// The upper bound of `limit`: the backend accepts no more.
    ceiling: usize,
    brief: BriefRequestDetector,
    phase: SearchPhase,
    belief: KneeBelief,
    /// What is believed without evidence, and the knee that is expected then.
    prior: KneeBelief,
    expected: f64,
    /// How many times the variance of results is larger than by chance. At least 1.
    noise: f64,
    usual: UsualTimes,
    window: LimitWindow,
    /// Whether times were not the usual ones in the previous window.
    changed: bool,
    in_flight: InFlight,
    /// The number of requests still to end that began under another limit. They are ignored.
    stale: usize,
    /// When the last request ended.
    ended: Time,
    /// The mean gap between two ends, each weighted by its length, in seconds.
    gap: f64,
    /// When the use of the processors was last reported, and the time that all requests had spent
    /// in flight then, in seconds.
    reported: Time,
    held_reported: f64,
}

impl ConcurrencySearch {
    /// Begins with one request for each of `cpus` processors, rounded up, and never goes below
    /// that.
    #[must_use]
    pub fn new(cpus: f64) -> ConcurrencySearch {
        let whole = cpus as usize;
        let least =
            whole.saturating_add(usize::from((whole as f64) < cpus)).clamp(1, CONCURRENCY_MAX);
        ConcurrencySearch::beginning(WorkUnit::CpuTime, least, least, least as f64)
    }

    /// Finds the number of requests that language models can work on at once, by the tokens that
    /// they process in a second.
    #[must_use]
    pub fn for_tokens() -> ConcurrencySearch {
        ConcurrencySearch::beginning(WorkUnit::Tokens, 1, MODEL_LIMIT_START, MODEL_KNEE_EXPECTED)
    }

    fn beginning(unit: WorkUnit, least: usize, begins: usize, expected: f64) -> ConcurrencySearch {
        let in_flight = InFlight::none();
        let prior = KneeBelief::prior(least as f64, expected);
        ConcurrencySearch {
            unit,
            limit: begins,
            least,
            begins,
            ceiling: CONCURRENCY_MAX,
            brief: BriefRequestDetector::default(),
            phase: SearchPhase::Start(None),
            belief: prior.clone(),
            prior,
            expected,
            noise: 1.0,
            usual: UsualTimes::new(),
            window: LimitWindow::new(&in_flight, Time::ZERO),
            in_flight,
            changed: false,
            stale: 0,
            ended: Time::ZERO,
            gap: 0.0,
            reported: Time::ZERO,
            held_reported: 0.0,
        }
    }

    /// The number of requests to send to the backend at once, for [`Queue::set_concurrency`].
    /// Changes only in the other methods.
    ///
    /// [`Queue::set_concurrency`]: super::Queue::set_concurrency
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.limit
    }

    /// The slots for requests that are known to be brief, for [`Queue::set_brief_slots`]. Changes
    /// only in [`handle_done`](Self::handle_done).
    ///
    /// [`Queue::set_brief_slots`]: super::Queue::set_brief_slots
    #[must_use]
    pub fn brief_slots(&self) -> BriefSlots {
        let slots = self.brief.slots(self.least);
        BriefSlots { count: slots.count.min(self.ceiling), ..slots }
    }

    /// The least concurrency: one request for each processor.
    #[must_use]
    pub fn concurrency_min(&self) -> usize {
        self.least
    }

    /// Sets the number of requests that the backend accepts, from [`Queue::accepted_max`]; `None`:
    /// unknown. The limit never exceeds it, unless it is below the number of processors.
    ///
    /// [`Queue::accepted_max`]: super::Queue::accepted_max
    pub fn set_ceiling(&mut self, most: Option<usize>, now: Time) {
        self.ceiling = most.unwrap_or(CONCURRENCY_MAX).clamp(self.least, CONCURRENCY_MAX);
        if self.limit > self.ceiling {
            self.set_limit(self.ceiling as f64, now);
        }
    }

    /// Notes that a request has arrived. To be called before it gets a slot: after a pause, the
    /// search starts again.
    pub fn handle_arrival(&mut self, now: Time) {
        let pause = now.since(self.in_flight.last).as_secs_f64();
        if self.in_flight.running == 0 && pause > PAUSE_SECS {
            self.start_again(now);
            self.in_flight.run(0, now);
        }
    }

    /// Notes that `running` requests are with the backend from now on.
    pub fn handle_running(&mut self, running: usize, now: Time) {
        if self.in_flight.running == 0 {
            if running == 0 {
                // The pause continues.
                return;
            }
            self.handle_arrival(now);
        }
        self.in_flight.run(running, now);
        self.window.note_in_flight(&self.in_flight);
    }

    /// Notes which part of the processors' time was used since the last call, from 0 to 1. Only to
    /// be called if the backend runs on these processors. Idle ones while requests wait mean that
    /// the limit is too low or that the backend waits for something else. Busy ones may be busy
    /// with other programs.
    pub fn handle_processor_use(&mut self, busy: f64, now: Time) {
        self.handle_running(self.in_flight.running, now);
        let held = self.in_flight.held_at(now);
        let spent = held - core::mem::replace(&mut self.held_reported, held);
        let age = now.since(core::mem::replace(&mut self.reported, now)).as_secs_f64();
        let level = spent / age.max(1e-9);
        if level <= 0.0 {
            return;
        }
        let expected =
            if busy < BUSY_PART { level / busy.max(1e-3) } else { level.min(self.expected) };
        self.expected = expected.clamp(self.least as f64, CONCURRENCY_MAX as f64);
        let prior = KneeBelief::prior(self.least as f64, self.expected);
        if matches!(self.phase, SearchPhase::Start(_)) {
            self.belief.replace_prior(&self.prior, &prior);
        }
        self.prior = prior;
    }

    /// Whether a request of `route` that has been with the backend for `age` stays: it hangs, or it
    /// takes much longer than usual. The limit does not include it from then on: it is not to be
    /// counted in [`handle_running`](Self::handle_running), and its end is to be given to
    /// [`handle_stay_end`](Self::handle_stay_end) instead of [`handle_done`](Self::handle_done).
    #[must_use]
    pub fn stays(&self, route: Option<RouteHash>, age: Nanos) -> bool {
        self.unit == WorkUnit::CpuTime && age.as_secs_f64() > self.stay_secs(route)
    }

    /// The time after which a request of `route` stays, in seconds.
    fn stay_secs(&self, route: Option<RouteHash>) -> f64 {
        let usual = route.map_or(0.0, |route| self.usual.mean(route));
        (STAY_RATIO * usual).clamp(STAY_SECS_MIN, STAY_SECS_MAX)
    }

    /// Notes that the backend has worked on a request that stayed, for `elapsed`. If many of a
    /// route do, that is what they usually take.
    pub fn handle_stay_end(&mut self, route: RouteHash, elapsed: Nanos) {
        let counted = elapsed.as_secs_f64().min(self.stay_secs(Some(route)));
        self.usual.note(route, counted);
    }

    /// Notes that the backend has worked on a request of `route` for `elapsed`, and that it has
    /// cost `cost`. `waiting`: whether other requests were waiting for a slot at that time. Not to
    /// be called for aborted or upgraded requests.
    pub fn handle_done(
        &mut self,
        route: RouteHash,
        elapsed: Nanos,
        cost: Cost,
        waiting: bool,
        now: Time,
    ) {
        let floor = self.floor();
        let size = match self.unit {
            WorkUnit::CpuTime => {
                let InFlight { running, .. } = self.in_flight;
                self.brief.note(elapsed, (self.in_flight.held_at(now), running), self.least, now);
                1.0
            }
            WorkUnit::Tokens => cost.as_units().max(SIZE_MIN),
        };
        if self.floor() != floor {
            self.follow_floor(floor.max(self.floor()), now);
        }
        self.handle_running(self.in_flight.running, now);
        let starts = matches!(self.phase, SearchPhase::Start(_));
        if self.stood_still(elapsed, now) && !starts && self.stale == 0 {
            self.stale = self.in_flight.running;
        }
        if self.stale > 0 {
            self.stale -= 1;
            if self.stale == 0 {
                self.window = LimitWindow::new(&self.in_flight, now);
            }
            return;
        }
        self.window.note_end(route, elapsed, size, waiting, &mut self.usual);
        let enough =
            self.limit.min(self.window.running_max) + if starts { 0 } else { WINDOW_REQUESTS };
        let (age, count) = (self.window.age, self.window.count as usize);
        if (age >= WINDOW_SECS_MIN && count >= enough)
            || (age >= WINDOW_SECS_MAX && count >= WINDOW_REQUESTS / 2)
        {
            self.end_window(now);
        }
    }

    /// Goes on from a limit that another search has found for the same backend.
    pub fn start_from(&mut self, limit: usize, now: Time) {
        self.expected = (limit as f64).clamp(self.least as f64, CONCURRENCY_MAX as f64);
        self.prior = KneeBelief::prior(self.least as f64, self.expected);
        self.belief = self.prior.clone();
        self.phase = SearchPhase::Steady(None, true);
        self.set_limit(self.expected, now);
    }

    /// Begins a new search. A limit that was wrong must not outlive the pause.
    fn start_again(&mut self, now: Time) {
        self.phase = SearchPhase::Start(None);
        self.belief.mix(&self.prior, 0.5);
        self.set_limit(self.begins as f64, now);
        (self.stale, self.gap) = (0, 0.0);
        self.window = LimitWindow::new(&self.in_flight, now);
    }

    /// The floor has changed, and is or was as high as `floor`. With so few requests at once,
    /// handing them over takes as long as the work, so what was learned there means nothing. A much
    /// higher limit was found because more got done with more requests.
    fn follow_floor(&mut self, floor: usize, now: Time) {
        if self.limit as f64 >= STEP_MIN * floor as f64 {
            return;
        }
        self.belief = self.prior.clone();
        self.usual.begin_anew();
        self.phase = SearchPhase::Steady(None, false);
        self.set_limit(self.floor() as f64, now);
    }

    /// The lower bound of the limit: more than the processors if requests are brief.
    fn floor(&self) -> usize {
        self.brief.room(self.least).max(self.least).min(self.ceiling)
    }

    /// Whether no request has ended for much longer than usual before the one that ends now, which
    /// took `elapsed`.
    fn stood_still(&mut self, elapsed: Nanos, now: Time) -> bool {
        let gap = now.since(core::mem::replace(&mut self.ended, now)).as_secs_f64();
        if self.gap <= 0.0 {
            self.gap = elapsed.as_secs_f64();
            return false;
        }
        let most = STALL_GAPS * self.gap;
        let counted = gap.min(most);
        self.gap += (counted - self.gap) * counted / (counted + WINDOW_SECS_MAX);
        gap > most && gap > WINDOW_SECS_MIN
    }

    fn end_window(&mut self, now: Time) {
        let next = LimitWindow::new(&self.in_flight, now);
        let window = core::mem::replace(&mut self.window, next);
        self.belief.mix(&self.prior, window.age / (window.age + MEMORY_SECS));
        match core::mem::replace(&mut self.phase, SearchPhase::Start(None)) {
            SearchPhase::Start(rounds) => self.end_round(rounds, window, now),
            SearchPhase::Steady(previous, may_rise) => {
                self.notice_change(&window);
                let (next, rises_next) = self.next_limit(previous.as_ref(), &window, may_rise);
                self.phase = SearchPhase::Steady(Some(window), rises_next);
                self.set_limit(next, now);
            }
        }
    }

    /// Ends a round of the start.
    fn end_round(&mut self, rounds: Option<LimitWindow>, round: LimitWindow, now: Time) {
        if !round.was_bound() {
            // There is room for all requests. A higher limit is for later.
            if self.limit > self.least {
                self.phase = SearchPhase::Steady(None, true);
            }
            return;
        }
        let rounds = match rounds {
            None => round,
            Some(mut rounds) => {
                self.belief.learn(&rounds.compare(&round, &self.usual), 1.0);
                rounds.append(&round);
                rounds
            }
        };
        let limit = self.limit as f64;
        let hope = self.belief.quantile(1.0 - DOUBT).min(self.ceiling as f64);
        if hope >= STEP_MIN * limit {
            self.phase = SearchPhase::Start(Some(rounds));
            self.set_limit(hope.min(2.0 * limit), now);
            // The next round counts all that end in it, or doubling would take twice as long.
            self.stale = 0;
        } else {
            self.phase = SearchPhase::Steady(None, true);
            let middle = self.belief.quantile(0.5);
            // Rounds overlap, so they find a knee that is rather too high than too low.
            self.belief.mix(&KneeBelief::even(self.least as f64, middle), 0.5);
            self.set_limit(middle, now);
        }
    }

    /// Considers higher knees if the backend has changed.
    fn notice_change(&mut self, window: &LimitWindow) {
        let (off, chance) = window.change(&self.usual);
        let changed = off > CHANGE_MIN * self.noise * chance;
        if changed && self.changed {
            self.usual.begin_anew();
            let above = KneeBelief::above(self.least as f64, self.belief.quantile(0.5));
            self.belief.mix(&above, 0.5);
        }
        self.changed = changed && !self.changed;
        self.usual.note_level(window);
    }

    /// Learns from the last two windows. Returns the limit of the next one, and whether the
    /// experiment after that may go up.
    fn next_limit(
        &mut self,
        previous: Option<&LimitWindow>,
        window: &LimitWindow,
        may_rise: bool,
    ) -> (f64, bool) {
        if let Some(previous) = previous {
            let lower = if previous.level() < window.level() { previous } else { window };
            if lower.was_bound() {
                let result = previous.compare(window, &self.usual);
                let surprise = self.belief.learn(&result, self.noise);
                let counted = surprise.min(NOISE_GROWTH_MAX * self.noise);
                self.noise = (self.noise + NOISE_WEIGHT * (counted - self.noise)).max(1.0);
            }
        }
        let limit = self.limit as f64;
        let is_bound = window.was_bound();
        let [low, middle, high] = [DOUBT, 0.5, 1.0 - DOUBT].map(|part| self.belief.quantile(part));
        // Without a backlog, what is in flight is what matters.
        let home = if is_bound { middle } else { middle.min(window.level()) };
        let home = home.clamp(limit / 2.0, 2.0 * limit);
        let rises = is_bound && high >= STEP_MIN * home;
        let falls = STEP_MIN * low <= home;
        if is_bound && rounded(home) != self.limit {
            (home, may_rise)
        } else if rises && (may_rise || !falls) {
            (high.min(2.0 * home), false)
        } else if falls {
            (low.max(home / 2.0), true)
        } else if is_bound {
            (home, may_rise)
        } else {
            (limit.min(2.0 * window.running_max as f64), may_rise)
        }
    }

    fn set_limit(&mut self, limit: f64, now: Time) {
        let limit = rounded(limit).clamp(self.floor(), self.ceiling);
        if limit != self.limit {
            self.stale = self.in_flight.running;
            self.limit = limit;
            self.window = LimitWindow::new(&self.in_flight, now);
        }
    }
}

/// The nearest whole number.
fn rounded(number: f64) -> usize {
    (number + 0.5) as usize
}
