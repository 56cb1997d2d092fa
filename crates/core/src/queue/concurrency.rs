//! Finds the number of requests that a backend can work on at once, from measurements alone.
//!
//! Below its capacity, a backend with more in flight completes more, in proportion, and each
//! request takes as long as before. Above it, no more is completed, and each request takes longer.
//! So the limit probes upwards (`Rise`): it grows by half each second (doubles in the very first
//! search) until both signs of congestion are seen. Then it probes downwards (`Fall`) until that
//! does harm, and stays steady (`Settle`, `Rest`). Now and then it dithers (`Sway`) a little to
//! both sides, to check itself.
//!
//! ```text
//! Rise -> Fall -> Rest -> Sway -> Rest ...        Rest, Sway -> Rise when times have changed
//! ```
//!
//! Completions drive the search, so it needs no timer, and no request is rejected for it. Without a
//! backlog the limit restricts no request, so it stays; it only probes downwards now and then,
//! because requests may wait inside the backend. For chance see `evidence`, for very brief requests
//! `brief_requests`, for the reasons docs/adr/0004. Costs some nanoseconds a request and 72 kB.

mod brief_requests;
mod evidence;
mod latency;

use crate::meter::estimate::RouteHash;
use crate::units::{Nanos, Time};
use alloc::vec::Vec;
use brief_requests::BriefRequestDetector;
use evidence::{Evidence, GainVerdict, WindowSample};
use latency::RouteLatencies;

/// The upper bound of the limit.
pub const CONCURRENCY_MAX: usize = 1_024;
/// The shortest window.
const WINDOW: Nanos = Nanos::from_secs(1);
/// The shortest window while it probes upwards and at least [`QUICK_WINDOW_REQUESTS_MIN`] requests
/// end.
const WINDOW_QUICK: Nanos = Nanos::from_millis(100);
/// The number of requests (and four times the limit) at which chance has little influence.
const QUICK_WINDOW_REQUESTS_MIN: u32 = 512;
/// The longest window, if few requests end; twice this while it probes downwards or dithers.
const WINDOW_MAX: Nanos = Nanos::from_secs(4);
/// The number of requests (and the limit) that is enough to end a window.
const WINDOW_REQUESTS_ENOUGH: u32 = 64;
/// The number of requests below which a window is not judged, however long it is.
const WINDOW_REQUESTS_MIN: u32 = 16;
/// A window that is older than this begins again.
const WINDOW_AGE_MAX: Nanos = Nanos::from_secs(30);
/// Request times have changed if they are this many times the usual ones, or as much shorter.
const CHANGED_TIMES_RATIO: f64 = 1.5;
/// The number of windows in a row in which they must have changed.
const CHANGED_WINDOWS: u32 = 2;
/// The number of requests from which on times may show, before a window ends, that the first step
/// up does not help: with two workers, a light request waits for a heavy one during that step.
const EARLY_CHECK_REQUESTS_MIN: u32 = 4;
/// The number of windows of an upward probe that are compared with each other.
const PROBE_UP_WINDOWS_MAX: usize = 3;
/// After [`PROBE_UP_WINDOWS_MAX`] windows, less than this part of the possible gain is congestion,
/// whatever times show: the quick requests of a route may be those that do not need the scarce
/// resource.
const PROBE_UP_GAIN_MIN: f64 = 0.25;
/// In the first search, if few requests end: times show congestion if they have risen by this part
/// of what the limit did. Chance moves times less than the number of completions.
const CLEAR_TIMES_GROWTH_PART: f64 = 0.8;
/// The number of windows for which the limit is steady.
const STEADY_WINDOWS: u32 = 12;
/// Each further rest at the floor in a row is doubled this many times more. Before a backend with
/// few workers, a limit of one more makes requests wait.
const FLOOR_REST_DOUBLINGS_STEP: u32 = 2;
/// The upper bound of `ConcurrencySearch::idle`. The first rest is not doubled, so a rest is at
/// most [`STEADY_WINDOWS`] windows doubled four times.
const FLOOR_REST_DOUBLINGS_MAX: u32 = 6;
/// Requests may wait inside the backend if the mean number in flight is at least this many times
/// the floor.
const CROWDED_FLOOR_RATIO: f64 = 1.5;
/// The number of windows with that many in flight after which a lower limit is tried. It doubles
/// each time that this is in vain.
const CROWDED_WINDOWS_MIN: u32 = 8;
/// The upper bound of the doublings of [`CROWDED_WINDOWS_MIN`].
const CROWDED_DOUBLINGS_MAX: u32 = 5;
/// The number of further windows that a downward probe measures at one limit if the result is
/// undecided.
const UNDECIDED_WINDOWS_MAX: u32 = 2;
/// A downward probe that completes more than this many times what was completed before means that
/// the backend is faster now. (Or it was thrashing, so this is believed only a few times.)
const FASTER_BACKEND_RATIO: f64 = 1.2;
/// The number of downward probes that may be broken off before the limit is steady.
const PROBE_RETRIES_MAX: u32 = 2;
/// Divisors of the limit that give the step of a dither: in windows of fewer than
/// [`DITHER_REQUESTS`]`.0` requests, of fewer than `.1`, and of more. Few requests need a wide step
/// to show a difference.
const DITHER_STEP_DIVISORS: (usize, usize, usize) = (4, 6, 8);
/// The numbers of requests in a window at which the step of a dither becomes smaller.
const DITHER_REQUESTS: (u32, u32) = (150, 400);

const _: () = {
    assert!(WINDOW_QUICK.0 < WINDOW.0 && WINDOW.0 < WINDOW_MAX.0);
    // The longest window, which is twice WINDOW_MAX, ends before it is too old.
    assert!(2 * WINDOW_MAX.0 < WINDOW_AGE_MAX.0);
    assert!(WINDOW_REQUESTS_MIN <= WINDOW_REQUESTS_ENOUGH);
    assert!(WINDOW_REQUESTS_ENOUGH <= QUICK_WINDOW_REQUESTS_MIN);
    assert!(EARLY_CHECK_REQUESTS_MIN < WINDOW_REQUESTS_MIN, "early is before a window ends");
    assert!(FLOOR_REST_DOUBLINGS_MAX - FLOOR_REST_DOUBLINGS_STEP == 4, "its doc says four");
    assert!(STEADY_WINDOWS.leading_zeros() > FLOOR_REST_DOUBLINGS_MAX, "a rest fits its number");
    assert!(CROWDED_WINDOWS_MIN.leading_zeros() > CROWDED_DOUBLINGS_MAX);
    assert!(PROBE_UP_GAIN_MIN < CLEAR_TIMES_GROWTH_PART && CLEAR_TIMES_GROWTH_PART < 1.0);
    assert!(4 * CONCURRENCY_MAX <= u32::MAX as usize, "limits are compared with counts");
};

/// The phase of the search.
#[derive(Clone, Debug)]
enum SearchPhase {
    /// Probes upwards: the limit grows by half each window (doubles in the first search) while that
    /// helps. Holds the last windows, at most [`PROBE_UP_WINDOWS_MAX`].
    Rise(Vec<WindowSample>),
    /// Probes downwards: two fifths less each time, as long as that does no harm.
    Fall(DownProbe),
    /// Steady for this many more windows.
    Rest(u32),
    /// Steady since now, for this many windows. The first of them serves to learn the usual times.
    Settle(u32),
    /// Dithers: a little less and a little more in turn.
    Sway(DitherProbe),
}

#[derive(Clone, Copy, Debug)]
struct DownProbe {
    /// The measurement with more in flight, from before the probe.
    top: WindowSample,
    /// The limit before the present one, which did no harm.
    above: usize,
    /// The limit when the probe began.
    origin: usize,
    /// The measurements at the present limit so far, and (`windows`) the number of undecided
    /// windows.
    seen: Option<WindowSample>,
    windows: u32,
}

#[derive(Clone, Copy, Debug)]
struct DitherProbe {
    home: usize,
    step: usize,
    last: Option<WindowSample>,
    evidence: Evidence,
    /// The number of verdicts in a row for more (positive) or for less (negative).
    trend: i32,
}

/// Finds the number of requests that a backend can work on at once.
///
/// Invariant: `least <= floor <= limit <= ceiling`, where `least` is the number of processors.
#[derive(Clone, Debug)]
pub struct ConcurrencySearch {
    limit: usize,
    /// The lower bound of `limit`. It is `least`, or more while requests are brief.
    floor: usize,
    least: usize,
    /// The limit from before it was raised because requests are brief.
    limit_before_brief: Option<usize>,
    /// The upper bound of `limit`: the backend accepts no more.
    ceiling: usize,
    course: SearchPhase,
    latency: RouteLatencies,
    brief: BriefRequestDetector,
    /// When the present window began.
    since: Option<Time>,
    /// The number of requests still to end that may have begun under another limit. They are
    /// ignored until they have ended, or until the time `until`.
    stale: usize,
    until: Time,
    /// The number of requests of this window that ended while others waited.
    backlogged: u32,
    /// The number of downward probes in a row that were broken off because more was possible.
    retries: u32,
    /// The number of doublings of the next rest at the floor, before the cap.
    idle: u32,
    /// The time that the requests that ended in this window spent with the backend, in nanoseconds.
    spent: u64,
    /// The number of windows in a row with many requests in flight and no backlog, and
    /// (`tried_in_vain`) how often a lower limit was tried in vain.
    crowded: u32,
    tried_in_vain: u32,
    /// The limit at which the last upward probe began.
    from: usize,
    /// The window before this one.
    last: Option<WindowSample>,
    /// The number of windows in a row in which times have differed from the usual ones.
    changed_windows: u32,
}

impl ConcurrencySearch {
    /// Begins with one request for each of `cpus` processors, rounded up, and never goes below
    /// that. More would suit a backend that waits a lot. But before a backend with few workers,
    /// requests would wait inside it before the costs of their routes are known, seem costly for
    /// that reason, and be sent so seldom that the mistake is not noticed for long.
    #[must_use]
    pub fn new(cpus: f64) -> ConcurrencySearch {
        let whole = cpus as usize;
        let floor =
            whole.saturating_add(usize::from((whole as f64) < cpus)).clamp(1, CONCURRENCY_MAX);
        ConcurrencySearch {
            limit: floor,
            floor,
            least: floor,
            limit_before_brief: None,
            ceiling: CONCURRENCY_MAX,
            course: SearchPhase::Rise(Vec::new()),
            latency: RouteLatencies::new(),
            brief: BriefRequestDetector::default(),
            since: None,
            stale: 0,
            until: Time::ZERO,
            backlogged: 0,
            retries: 0,
            idle: 0,
            spent: 0,
            crowded: 0,
            tried_in_vain: 0,
            from: 0,
            last: None,
            changed_windows: 0,
        }
    }

    /// The number of requests to send to the backend at once, for [`Queue::set_concurrency`].
    /// Changes only in `handle_done` and `set_ceiling`.
    ///
    /// [`Queue::set_concurrency`]: super::Queue::set_concurrency
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.limit
    }

    /// Sets the number of requests that the backend accepts, from [`Queue::accepted_max`]; `None`:
    /// unknown. The limit never exceeds it, unless it is below the number of processors.
    ///
    /// [`Queue::accepted_max`]: super::Queue::accepted_max
    pub fn set_ceiling(&mut self, most: Option<usize>, now: Time) {
        self.ceiling = most.unwrap_or(CONCURRENCY_MAX).clamp(self.least, CONCURRENCY_MAX);
        self.floor = self.floor.min(self.ceiling);
        if self.limit > self.ceiling {
            self.set(self.ceiling, now);
        }
    }

    /// Notes that `running` requests are with the backend from now on.
    pub fn handle_running(&mut self, running: usize, now: Time) {
        self.brief.run(running, now);
    }

    /// Notes that the backend has worked on a request of `route` for `elapsed`. `waiting`: whether
    /// other requests were waiting for a slot at that time. Not to be called for aborted or
    /// upgraded requests.
    pub fn handle_done(&mut self, route: RouteHash, elapsed: Nanos, waiting: bool, now: Time) {
        if self.brief.note(elapsed, self.least, now) {
            self.adapt_floor(now);
        }
        if self.skip_stale(now) {
            return;
        }
        let since = *self.since.get_or_insert(now);
        if now.since(since) > WINDOW_AGE_MAX {
            return self.begin(now);
        }
        self.latency.note(route, elapsed);
        self.spent = self.spent.saturating_add(elapsed.0);
        self.backlogged += u32::from(waiting);
        if self.is_in_vain() {
            return self.leave(now);
        }
        let age = now.since(since);
        let careful = matches!(self.course, SearchPhase::Fall(_) | SearchPhase::Sway(_));
        let longest = if careful { WINDOW_MAX.plus(WINDOW_MAX) } else { WINDOW_MAX };
        let enough = self.latency.count() >= WINDOW_REQUESTS_ENOUGH.max(self.limit as u32);
        let few = self.latency.count() < WINDOW_REQUESTS_MIN;
        let plenty = self.latency.count() >= QUICK_WINDOW_REQUESTS_MIN.max(4 * self.limit as u32);
        let rising = matches!(self.course, SearchPhase::Rise(_));
        let window = if rising && plenty { WINDOW_QUICK } else { WINDOW };
        if (age >= window && enough) || (age >= longest && !few) {
            self.end(age, now);
        }
    }

    /// Adapts the floor, and with it the limit, to whether requests are brief.
    fn adapt_floor(&mut self, now: Time) {
        let floor = self.brief.room(self.least).clamp(self.least, self.ceiling);
        let before = core::mem::replace(&mut self.floor, floor);
        let limit = match self.limit_before_brief {
            _ if floor == before => return,
            // No higher limit was found to be of use, so the earlier limit is restored.
            Some(limit) if floor == self.least && self.limit == before => limit,
            _ => self.limit.max(floor),
        };
        self.limit_before_brief = (limit > self.limit).then_some(self.limit);
        if limit == self.limit {
            return;
        }
        (self.changed_windows, self.last) = (0, None);
        if limit > self.limit {
            self.course = SearchPhase::Rise(Vec::new());
            self.set(limit, now);
        } else {
            self.rest_at(limit, now);
        }
        self.begin(now);
    }

    /// Whether the first step above the floor is already seen not to help.
    fn is_in_vain(&self) -> bool {
        let least = match &self.course {
            SearchPhase::Rise(trail) if trail.len() == 1 => trail[0].limit,
            SearchPhase::Sway(sway) => sway.home,
            _ => return false,
        };
        let count = self.latency.count();
        if least != self.floor || self.limit == least || count < EARLY_CHECK_REQUESTS_MIN {
            return false;
        }
        let growth = self.limit as f64 / least as f64;
        2 * self.backlogged >= count && self.latency.is_slower(1.0 + 0.5 * (growth - 1.0))
    }

    /// Returns to the floor, about which there is nothing more to learn.
    fn leave(&mut self, now: Time) {
        (self.changed_windows, self.last) = (0, None);
        self.rest_at(self.floor, now);
        self.begin(now);
    }

    /// Counts down and returns true if a request that ends may have begun under an earlier limit.
    fn skip_stale(&mut self, now: Time) -> bool {
        if self.stale == 0 {
            return false;
        }
        self.stale -= 1;
        if self.stale == 0 || now >= self.until {
            self.stale = 0;
            self.since = Some(now);
        }
        true
    }

    fn begin(&mut self, now: Time) {
        self.since = Some(now);
        (self.backlogged, self.spent) = (0, 0);
        self.latency.clear();
    }

    /// Ends a window and evaluates it.
    fn end(&mut self, age: Nanos, now: Time) {
        let count = self.latency.count();
        self.latency.meet();
        if self.limit == self.floor {
            self.latency.set_baseline();
        }
        let rate = self.latency.work() / age.as_secs_f64().max(1e-9);
        let seen = WindowSample { limit: self.limit, rate, count };
        if u64::from(self.backlogged) * 2 >= u64::from(count) {
            self.crowded = 0;
            self.judge(seen, now);
        } else {
            self.stop_probe(now);
            self.look_for_inner_queue(seen, self.spent as f64 / age.0.max(1) as f64, now);
        }
        self.begin(now);
    }

    /// Ends a probe, because there is no backlog and so the limit is not what limits.
    fn stop_probe(&mut self, now: Time) {
        self.latency.learn();
        self.last = None;
        match &mut self.course {
            SearchPhase::Rise(trail) => trail.clear(),
            SearchPhase::Rest(_) | SearchPhase::Settle(_) => {}
            SearchPhase::Fall(DownProbe { above: home, .. })
            | SearchPhase::Sway(DitherProbe { home, .. }) => {
                let home = *home;
                self.rest_at(home, now);
            }
        }
    }

    /// Probes downwards for requests that wait inside the backend, if there is no backlog and
    /// `there` (the mean number in flight) is large: when requests take longer than before, and
    /// every so often.
    fn look_for_inner_queue(&mut self, seen: WindowSample, there: f64, now: Time) {
        let slower = self.latency.is_slower(CHANGED_TIMES_RATIO);
        self.changed_windows = if slower { self.changed_windows + 1 } else { 0 };
        if there < CROWDED_FLOOR_RATIO * self.floor as f64 {
            self.crowded = 0;
            return;
        }
        self.crowded += 1;
        if self.crowded >= CROWDED_WINDOWS_MIN << self.tried_in_vain
            || self.changed_windows >= CHANGED_WINDOWS
        {
            let limit = (there as usize).saturating_add(1).min(self.limit);
            self.start_probe_down(WindowSample { limit, ..seen }, now);
        }
    }

    fn judge(&mut self, seen: WindowSample, now: Time) {
        let ratio = self.latency.ratio();
        if self.last.replace(seen).is_some_and(|last| !seen.can_follow(&last)) {
            return self.start_over(seen, now);
        }
        match core::mem::replace(&mut self.course, SearchPhase::Rest(0)) {
            SearchPhase::Rise(trail) => self.probe_up(trail, seen, ratio, now),
            SearchPhase::Fall(fall) => self.probe_down(fall, seen, now),
            SearchPhase::Settle(windows) => {
                self.latency.learn_anew();
                (self.changed_windows, self.last) = (0, None);
                self.course = SearchPhase::Rest(windows - 1);
            }
            course => {
                let odd = ratio >= CHANGED_TIMES_RATIO || ratio * CHANGED_TIMES_RATIO <= 1.0;
                self.changed_windows = if odd { self.changed_windows + 1 } else { 0 };
                if self.changed_windows >= CHANGED_WINDOWS {
                    return self.probe_up(Vec::new(), seen, ratio, now);
                }
                if !odd {
                    self.latency.learn();
                }
                match course {
                    SearchPhase::Rest(left @ 1..) => self.course = SearchPhase::Rest(left - 1),
                    SearchPhase::Sway(sway) => self.dither(sway, seen, now),
                    _ => self.start_dither(self.limit, 0, seen, now),
                }
            }
        }
    }

    /// Searches again because the backend has changed. An upward probe returns to where it began.
    fn start_over(&mut self, seen: WindowSample, now: Time) {
        match &mut self.course {
            SearchPhase::Rise(trail) if !trail.is_empty() => {
                let from = self.from;
                trail.clear();
                self.last = None;
                self.set(from, now);
            }
            _ => self.probe_up(Vec::new(), seen, 1.0, now),
        }
    }

    /// Continues an upward probe, or ends it on congestion. Congestion has two signs, and needs
    /// both: completions have grown by less than half of what the limit has, and times by more than
    /// half of it.
    fn probe_up(
        &mut self,
        mut trail: Vec<WindowSample>,
        seen: WindowSample,
        ratio: f64,
        now: Time,
    ) {
        self.changed_windows = 0;
        if trail.is_empty() {
            self.latency.take_as_usual();
            self.from = seen.limit;
        }
        let first_search = self.from == self.floor;
        let congested = trail.first().is_some_and(|first| {
            let part = |part: f64| 1.0 + part * (seen.growth(first) - 1.0);
            let helped = match seen.likely_above(part(0.5), first) {
                None if trail.len() < PROBE_UP_WINDOWS_MAX - 1 => {
                    !first_search
                        || seen.count >= WINDOW_REQUESTS_ENOUGH
                        || ratio < part(CLEAR_TIMES_GROWTH_PART)
                }
                sure => sure.unwrap_or(seen.rate > part(0.5) * first.rate),
            };
            let in_vain = trail.len() == PROBE_UP_WINDOWS_MAX
                && seen.rate < part(PROBE_UP_GAIN_MIN) * first.rate;
            (ratio >= part(0.5) && !helped) || in_vain
        });
        if congested || seen.limit >= self.ceiling {
            let top = trail.last().map_or(seen, |last| last.with(seen));
            return self.start_probe_down(WindowSample { limit: seen.limit, ..top }, now);
        }
        trail.push(seen);
        if trail.len() > PROBE_UP_WINDOWS_MAX {
            trail.remove(0);
        }
        self.course = SearchPhase::Rise(trail);
        let step = if first_search { seen.limit } else { (seen.limit / 2).max(1) };
        self.set(seen.limit + step, now);
    }

    /// Begins a downward probe from `top.limit`.
    fn start_probe_down(&mut self, top: WindowSample, now: Time) {
        if top.limit <= self.floor {
            return self.rest_at(self.floor, now);
        }
        (self.changed_windows, self.crowded) = (0, 0);
        let (above, origin) = (top.limit, self.limit);
        self.course = SearchPhase::Fall(DownProbe { top, above, origin, seen: None, windows: 0 });
        self.set(less(above), now);
    }

    fn probe_down(&mut self, fall: DownProbe, seen: WindowSample, now: Time) {
        let DownProbe { top, above, .. } = fall;
        let part = seen.limit as f64 / above.max(1) as f64;
        if seen.surely_above(FASTER_BACKEND_RATIO, &top) == Some(true) && self.take_retry() {
            self.course = SearchPhase::Rise(Vec::new());
            return self.set(above, now);
        }
        let seen = fall.seen.map_or(seen, |before| before.with(seen));
        let harmless = (1.0 + part) / 2.0;
        let verdict = match seen.surely_above(harmless, &top) {
            None if fall.windows < UNDECIDED_WINDOWS_MAX => {
                let windows = fall.windows + 1;
                self.course = SearchPhase::Fall(DownProbe { seen: Some(seen), windows, ..fall });
                return;
            }
            verdict => verdict.unwrap_or(seen.rate > harmless * top.rate),
        };
        let first = above == top.limit;
        if !verdict {
            self.latency.set_baseline();
        }
        if first {
            self.tried_in_vain =
                if verdict { 0 } else { (self.tried_in_vain + 1).min(CROWDED_DOUBLINGS_MAX) };
        }
        if !verdict && first && self.take_retry() {
            // The very first step does harm, so the backend was not congested, or only just.
            self.course = SearchPhase::Rise(Vec::new());
            self.set(fall.origin, now);
        } else if !verdict {
            self.rest_at(knee(&seen, &top, above), now);
        } else if seen.limit <= self.floor {
            self.rest_at(self.floor, now);
        } else {
            let above = seen.limit;
            self.course = SearchPhase::Fall(DownProbe { above, seen: None, windows: 0, ..fall });
            self.set(less(above), now);
        }
    }

    /// Counts a downward probe that is broken off. Returns whether it may be.
    fn take_retry(&mut self) -> bool {
        self.retries += 1;
        self.retries <= PROBE_RETRIES_MAX
    }

    fn rest_at(&mut self, limit: usize, now: Time) {
        self.set(limit, now);
        self.retries = 0;
        self.idle = if limit > self.floor {
            0
        } else {
            (self.idle + FLOOR_REST_DOUBLINGS_STEP).min(FLOOR_REST_DOUBLINGS_MAX)
        };
        self.course = SearchPhase::Settle(
            STEADY_WINDOWS << (self.idle.saturating_sub(FLOOR_REST_DOUBLINGS_STEP)),
        );
    }

    /// Begins to dither about `home`, by a wider step if a window has few requests.
    fn start_dither(&mut self, home: usize, trend: i32, seen: WindowSample, now: Time) {
        let divisor = match seen.count {
            few if few < DITHER_REQUESTS.0 => DITHER_STEP_DIVISORS.0,
            some if some < DITHER_REQUESTS.1 => DITHER_STEP_DIVISORS.1,
            _ => DITHER_STEP_DIVISORS.2,
        };
        let step = (home / divisor).max(1);
        let evidence = Evidence::default();
        self.course = SearchPhase::Sway(DitherProbe { home, step, last: None, evidence, trend });
        self.set(home.saturating_sub(step), now);
    }

    fn dither(&mut self, mut sway: DitherProbe, seen: WindowSample, now: Time) {
        let DitherProbe { home, step, .. } = sway;
        let Some(last) = sway.last.replace(seen).filter(|last| last.limit != seen.limit) else {
            let low = home.saturating_sub(step).max(self.floor);
            self.course = SearchPhase::Sway(sway);
            return self.set(if seen.limit == low { home + step } else { low }, now);
        };
        let (low, high) = if last.limit < seen.limit { (last, seen) } else { (seen, last) };
        match sway.evidence.weigh(&low, &high) {
            None => self.course = SearchPhase::Sway(sway),
            Some(GainVerdict::Nothing) => self.go_down(&sway, low, high, now),
            Some(verdict) => self.go_up(&sway, low, high, verdict, now),
        }
    }

    fn go_up(
        &mut self,
        sway: &DitherProbe,
        low: WindowSample,
        high: WindowSample,
        verdict: GainVerdict,
        now: Time,
    ) {
        let trend = sway.trend.max(0) + 1;
        if sway.trend < 0 {
            self.rest_at(high.limit, now);
        } else if trend > 2 && verdict == GainVerdict::Much {
            self.latency.take_as_usual();
            self.course = SearchPhase::Rise(alloc::vec![low]);
            self.set(high.limit + (high.limit / 2).max(1), now);
        } else {
            self.start_dither(high.limit, trend, high, now);
        }
    }

    fn go_down(&mut self, sway: &DitherProbe, low: WindowSample, high: WindowSample, now: Time) {
        if sway.trend > 0 || sway.home <= self.floor {
            self.rest_at(sway.home, now);
        } else if sway.trend < 0 {
            self.start_probe_down(WindowSample { limit: low.limit, ..low.with(high) }, now);
        } else {
            self.start_dither(low.limit, -1, low, now);
        }
    }

    fn set(&mut self, limit: usize, now: Time) {
        let limit = limit.clamp(self.floor, self.ceiling);
        if limit != self.limit {
            self.stale = self.limit.min(limit);
            self.until = now.plus(WINDOW_AGE_MAX);
            self.limit = limit;
        }
    }
}

/// The next limit of a downward probe: two fifths less, and at least one less.
fn less(limit: usize) -> usize {
    limit - (limit * 2 / 5).max(1)
}

/// The limit at which the completion rate stops growing, if `low` is below it and `top` above it.
/// Adds a fifth, because the bend is never sharp, and keeps near `above`.
fn knee(low: &WindowSample, top: &WindowSample, above: usize) -> usize {
    let sharp = low.limit as f64 * top.rate / low.rate.max(1e-9);
    let least = (low.limit + above).div_ceil(2);
    ((sharp * 1.2 + 0.5) as usize).clamp(least, above + above / 4)
}
