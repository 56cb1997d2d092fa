//! How many requests a backend can work on at once, found from what is measured.
//!
//! Below what it can do, more in flight is more completed per second, in proportion, and each
//! request takes as long as before. Above, no more is completed, and each takes longer. So the
//! limit rises by half each second (at the very first it doubles) until both are seen: congested.
//! Then it falls until that does harm, and rests there. Now and then it sways a little to both
//! sides, to see whether it still is where it should be; when the requests of its routes take half
//! as long again as they used to (or less by as much), it looks for its place anew.
//!
//! ```text
//! Rise -> Fall -> Rest -> Sway -> Rest ...        Rest, Sway -> Rise when times have changed
//! ```
//!
//! What a second shows is a matter of chance, the more so the fewer requests end in it: see
//! `evidence`. Nothing is ever rejected to find out. Driven by completions alone, it needs no
//! timer. Without a backlog the limit is not what decides, and stays; but those whom it lets in may
//! wait inside the backend, so it falls for a try when they take longer than fewer did, and now and
//! then. Where requests are so brief that nobody notices how many are there, a few always have
//! room: see `brief`. Takes some nanoseconds and 67 kB.

mod brief;
mod evidence;
mod latency;

use crate::meter::estimate::RouteHash;
use crate::units::{Nanos, Time};
use alloc::vec::Vec;
use brief::Brief;
use evidence::{Evidence, Seen, Verdict};
use latency::Latency;

/// The most that is ever allowed.
pub const CEILING: usize = 1_024;
/// The shortest stretch of time that is judged.
const WINDOW: Nanos = Nanos::from_secs(1);
/// The same while it looks for its place and so many end that chance has little say.
const WINDOW_QUICK: Nanos = Nanos::from_millis(100);
/// How many these are.
const PLENTY: u32 = 512;
/// The longest, where little comes to judge by.
const WINDOW_MAX: Nanos = Nanos::from_secs(4);
/// So many requests (and as many as are in flight) are enough for a window.
const ENOUGH: u32 = 64;
/// Fewer say nothing, however long it took.
const FEW: u32 = 16;
/// With fewer in this time a window begins anew.
const PAUSE: Nanos = Nanos::from_secs(30);
/// Times have changed when they are so many times what they were, or one in so many.
const CHANGED: f64 = 1.5;
/// For how many windows in a row they must have.
const CHANGED_WINDOWS: u32 = 2;
/// From so many requests on, times may show that one more at once is in vain before a window ends:
/// before a backend of two workers, each second that it lasts a light request waits for a heavy
/// one.
const GLIMPSE: u32 = 4;
/// How many windows of a rise are compared with each other.
const TRAIL: usize = 3;
/// After so many, less than this part of what was possible is congestion, whatever times say: the
/// quick ones of a route may be those that need nothing of what is short.
const IN_VAIN: f64 = 0.25;
/// What part of the growth of the limit times must have risen by to be believed where few requests
/// end: of these there are enough at once, and chance moves them less than it does their number.
const CLEAR: f64 = 0.8;
/// How many windows the limit rests.
const REST: u32 = 12;
/// Each time that it comes to rest at the least there is once more, it does so for longer: twice,
/// this many times. Before a backend with few workers a limit of one more makes people wait.
const IDLE: u32 = 2;
/// At most so many times.
const IDLE_MAX: u32 = 6;
/// So many times as many with the backend as it has processors may wait inside it.
const CROWD: f64 = 1.5;
/// After so many windows with that many it is tried whether fewer would do, twice as long after
/// each time in vain, at most so often doubled.
const AGAIN: u32 = 8;
const AGAIN_DOUBLED: u32 = 5;
/// A fall goes on for at most so many windows in doubt at one limit.
const DOUBT: u32 = 2;
/// More than this many times what was completed before a fall is not for the fall: the backend is
/// faster now. (Or it thrashed: so that is believed a few times only.)
const FASTER: f64 = 1.2;
/// How often a fall is broken off, to rise once more, until the limit rests.
const RETRIES: u32 = 2;

/// What it is about to find out.
#[derive(Clone, Debug)]
enum Course {
    /// Half as much again each window, twice as much in the first search, while it helps; the
    /// windows so far.
    Rise(Vec<Seen>),
    /// Two fifths less each time, as long as it does no harm.
    Fall(Fall),
    /// As it is, until so many windows are over.
    Rest(u32),
    /// It has just begun to rest, and will for so many windows.
    Settle(u32),
    /// A little less and a little more in turns.
    Sway(Sway),
}

#[derive(Clone, Copy, Debug)]
struct Fall {
    /// What was completed when more were in flight.
    top: Seen,
    /// The limit before the present one, which did no harm yet.
    above: usize,
    /// The limit when it began.
    origin: usize,
    /// What the present limit has shown so far, and in how many windows.
    seen: Option<Seen>,
    windows: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sway {
    home: usize,
    step: usize,
    last: Option<Seen>,
    evidence: Evidence,
    /// How many verdicts in a row said more (above zero) or less (below).
    trend: i32,
}

/// Finds how many requests a backend can work on at once.
#[derive(Clone, Debug)]
pub struct Concurrency {
    limit: usize,
    /// The least there is, and what it is where requests are not brief.
    floor: usize,
    least: usize,
    /// What the limit was before it was raised because they are.
    without: Option<usize>,
    /// No more than this is of use.
    ceiling: usize,
    course: Course,
    latency: Latency,
    brief: Brief,
    /// Since when the window runs.
    since: Option<Time>,
    /// How many requests are still to end that began under another limit, which was until then.
    stale: usize,
    until: Time,
    /// Requests of this window that ended while others waited.
    backlogged: u32,
    /// How many falls in a row were broken off because there was more to be had.
    retries: u32,
    /// How often the next rest at the least there is is doubled, and by [`IDLE`] more.
    idle: u32,
    /// How long all have been with the backend that ended in this window, in nanoseconds.
    spent: u64,
    /// For how many windows in a row it was crowded without anybody waiting, and how often it was
    /// in vain to try fewer.
    crowded: u32,
    tried_in_vain: u32,
    /// Where the last rise began.
    from: usize,
    /// The window before.
    last: Option<Seen>,
    /// For how many windows times have been unlike what they were.
    odd: u32,
}

impl Concurrency {
    /// Begins with one request for each of `cpus` processors, and never goes below that. Beginning
    /// with more would be right for a backend that waits a lot; before one with few workers
    /// requests would wait inside it while nothing is known of their routes, seem costly for it,
    /// and be sent so seldom that this is not seen to be wrong for long.
    #[must_use]
    pub fn new(cpus: f64) -> Concurrency {
        let whole = cpus as usize;
        let floor = whole.saturating_add(usize::from((whole as f64) < cpus)).clamp(1, CEILING);
        Concurrency {
            limit: floor,
            floor,
            least: floor,
            without: None,
            ceiling: CEILING,
            course: Course::Rise(Vec::new()),
            latency: Latency::new(),
            brief: Brief::default(),
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
            odd: 0,
        }
    }

    /// How many requests to send to the backend at once: [`Queue::set_concurrency`] wants it.
    /// Changes in `handle_done` only.
    ///
    /// [`Queue::set_concurrency`]: super::Queue::set_concurrency
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.limit
    }

    /// The backend takes in no more than `most`, which [`Queue::taken_in`] says; `None`: nothing is
    /// known of it.
    ///
    /// [`Queue::taken_in`]: super::Queue::taken_in
    pub fn set_most(&mut self, most: Option<usize>, now: Time) {
        self.ceiling = most.unwrap_or(CEILING).clamp(self.least, CEILING);
        self.floor = self.floor.min(self.ceiling);
        if self.limit > self.ceiling {
            self.set(self.ceiling, now);
        }
    }

    /// From now on so many requests are with the backend.
    pub fn handle_running(&mut self, running: usize, now: Time) {
        self.brief.run(running, now);
    }

    /// The backend has worked on a request of `route` for `elapsed`. `waiting`: whether others
    /// were waiting for a slot then. Aborted and upgraded requests are not to be told of.
    pub fn handle_done(&mut self, route: RouteHash, elapsed: Nanos, waiting: bool, now: Time) {
        if self.brief.note(elapsed, self.least, now) {
            self.make_room(now);
        }
        if self.is_stale(now) {
            return;
        }
        let since = *self.since.get_or_insert(now);
        if now.since(since) > PAUSE {
            return self.begin(now);
        }
        self.latency.note(route, elapsed);
        self.spent = self.spent.saturating_add(elapsed.0);
        self.backlogged += u32::from(waiting);
        if self.is_in_vain() {
            return self.leave(now);
        }
        let age = now.since(since);
        let careful = matches!(self.course, Course::Fall(_) | Course::Sway(_));
        let longest = if careful { WINDOW_MAX.plus(WINDOW_MAX) } else { WINDOW_MAX };
        let enough = self.latency.count() >= ENOUGH.max(self.limit as u32);
        let few = self.latency.count() < FEW;
        let plenty = self.latency.count() >= PLENTY.max(4 * self.limit as u32);
        let rising = matches!(self.course, Course::Rise(_));
        let window = if rising && plenty { WINDOW_QUICK } else { WINDOW };
        if (age >= window && enough) || (age >= longest && !few) {
            self.end(age, now);
        }
    }

    /// The least there is goes by whether requests are brief.
    fn make_room(&mut self, now: Time) {
        let floor = self.brief.room(self.least).clamp(self.least, self.ceiling);
        let before = core::mem::replace(&mut self.floor, floor);
        let limit = match self.without {
            _ if floor == before => return,
            // Nothing was found beyond, so it is as it was.
            Some(limit) if floor == self.least && self.limit == before => limit,
            _ => self.limit.max(floor),
        };
        self.without = (limit > self.limit).then_some(self.limit);
        if limit == self.limit {
            return;
        }
        (self.odd, self.last) = (0, None);
        if limit > self.limit {
            self.course = Course::Rise(Vec::new());
            self.set(limit, now);
        } else {
            self.rest_at(limit, now);
        }
        self.begin(now);
    }

    /// Whether the first step above the least there is shows already that it does not help.
    fn is_in_vain(&self) -> bool {
        let least = match &self.course {
            Course::Rise(trail) if trail.len() == 1 => trail[0].limit,
            Course::Sway(sway) => sway.home,
            _ => return false,
        };
        let count = self.latency.count();
        if least != self.floor || self.limit == least || count < GLIMPSE {
            return false;
        }
        let growth = self.limit as f64 / least as f64;
        2 * self.backlogged >= count && self.latency.is_slower(1.0 + 0.5 * (growth - 1.0))
    }

    /// Back to the least there is, of which all is known that there is to know.
    fn leave(&mut self, now: Time) {
        (self.odd, self.last) = (0, None);
        self.rest_at(self.floor, now);
        self.begin(now);
    }

    /// Whether what ends now belongs to the time before the limit was changed.
    fn is_stale(&mut self, now: Time) -> bool {
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

    /// A window is over.
    fn end(&mut self, age: Nanos, now: Time) {
        let count = self.latency.count();
        self.latency.meet();
        if self.limit == self.floor {
            self.latency.compare_with();
        }
        let rate = self.latency.work() / age.as_secs_f64().max(1e-9);
        let seen = Seen { limit: self.limit, rate, count };
        if u64::from(self.backlogged) * 2 >= u64::from(count) {
            self.crowded = 0;
            self.judge(seen, now);
        } else {
            self.stop_trying(now);
            self.look_for_crowd(seen, self.spent as f64 / age.0.max(1) as f64, now);
        }
        self.begin(now);
    }

    /// Nobody waits, so the limit is not what decides.
    fn stop_trying(&mut self, now: Time) {
        self.latency.learn();
        self.last = None;
        match &mut self.course {
            Course::Rise(trail) => trail.clear(),
            Course::Rest(_) | Course::Settle(_) => {}
            Course::Fall(Fall { above: home, .. }) | Course::Sway(Sway { home, .. }) => {
                let home = *home;
                self.rest_at(home, now);
            }
        }
    }

    /// Where nobody waits here, all that come may wait inside the backend: `there` are with it in
    /// the mean. Whether fewer would get as much done is tried when these took less time, and now
    /// and then.
    fn look_for_crowd(&mut self, seen: Seen, there: f64, now: Time) {
        let slower = self.latency.is_slower(CHANGED);
        self.odd = if slower { self.odd + 1 } else { 0 };
        if there < CROWD * self.floor as f64 {
            self.crowded = 0;
            return;
        }
        self.crowded += 1;
        if self.crowded >= AGAIN << self.tried_in_vain || self.odd >= CHANGED_WINDOWS {
            let limit = (there as usize).saturating_add(1).min(self.limit);
            self.fall_from(Seen { limit, ..seen }, now);
        }
    }

    fn judge(&mut self, seen: Seen, now: Time) {
        let ratio = self.latency.ratio();
        if self.last.replace(seen).is_some_and(|last| !seen.can_follow(&last)) {
            return self.start_over(seen, now);
        }
        match core::mem::replace(&mut self.course, Course::Rest(0)) {
            Course::Rise(trail) => self.rise(trail, seen, ratio, now),
            Course::Fall(fall) => self.fall(fall, seen, now),
            Course::Settle(windows) => {
                self.latency.learn_anew();
                (self.odd, self.last) = (0, None);
                self.course = Course::Rest(windows - 1);
            }
            course => {
                let odd = ratio >= CHANGED || ratio * CHANGED <= 1.0;
                self.odd = if odd { self.odd + 1 } else { 0 };
                if self.odd >= CHANGED_WINDOWS {
                    return self.rise(Vec::new(), seen, ratio, now);
                }
                if !odd {
                    self.latency.learn();
                }
                match course {
                    Course::Rest(left @ 1..) => self.course = Course::Rest(left - 1),
                    Course::Sway(sway) => self.sway(sway, seen, now),
                    _ => self.sway_about(self.limit, 0, seen, now),
                }
            }
        }
    }

    /// It is another backend now. What was risen to on the way is worth nothing.
    fn start_over(&mut self, seen: Seen, now: Time) {
        match &mut self.course {
            Course::Rise(trail) if !trail.is_empty() => {
                let from = self.from;
                trail.clear();
                self.last = None;
                self.set(from, now);
            }
            _ => self.rise(Vec::new(), seen, 1.0, now),
        }
    }

    /// Congested is when both are seen: what is completed has grown by less than half of what the
    /// limit has, and times by more than half of it.
    fn rise(&mut self, mut trail: Vec<Seen>, seen: Seen, ratio: f64, now: Time) {
        self.odd = 0;
        if trail.is_empty() {
            self.latency.take_as_usual();
            self.from = seen.limit;
        }
        let first_search = self.from == self.floor;
        let congested = trail.first().is_some_and(|first| {
            let part = |part: f64| 1.0 + part * (seen.growth(first) - 1.0);
            let helped = match seen.likely_above(part(0.5), first) {
                None if trail.len() < TRAIL - 1 => {
                    !first_search || seen.count >= ENOUGH || ratio < part(CLEAR)
                }
                sure => sure.unwrap_or(seen.rate > part(0.5) * first.rate),
            };
            let in_vain = trail.len() == TRAIL && seen.rate < part(IN_VAIN) * first.rate;
            (ratio >= part(0.5) && !helped) || in_vain
        });
        if congested || seen.limit >= self.ceiling {
            let top = trail.last().map_or(seen, |last| last.with(seen));
            return self.fall_from(Seen { limit: seen.limit, ..top }, now);
        }
        trail.push(seen);
        if trail.len() > TRAIL {
            trail.remove(0);
        }
        self.course = Course::Rise(trail);
        let step = if first_search { seen.limit } else { (seen.limit / 2).max(1) };
        self.set(seen.limit + step, now);
    }

    /// From `top.limit` down.
    fn fall_from(&mut self, top: Seen, now: Time) {
        if top.limit <= self.floor {
            return self.rest_at(self.floor, now);
        }
        (self.odd, self.crowded) = (0, 0);
        let (above, origin) = (top.limit, self.limit);
        self.course = Course::Fall(Fall { top, above, origin, seen: None, windows: 0 });
        self.set(less(above), now);
    }

    fn fall(&mut self, fall: Fall, seen: Seen, now: Time) {
        let Fall { top, above, .. } = fall;
        let part = seen.limit as f64 / above.max(1) as f64;
        if seen.surely_above(FASTER, &top) == Some(true) && self.may_retry() {
            self.course = Course::Rise(Vec::new());
            return self.set(above, now);
        }
        let seen = fall.seen.map_or(seen, |before| before.with(seen));
        let harmless = (1.0 + part) / 2.0;
        let verdict = match seen.surely_above(harmless, &top) {
            None if fall.windows < DOUBT => {
                let windows = fall.windows + 1;
                self.course = Course::Fall(Fall { seen: Some(seen), windows, ..fall });
                return;
            }
            verdict => verdict.unwrap_or(seen.rate > harmless * top.rate),
        };
        let first = above == top.limit;
        if !verdict {
            self.latency.compare_with();
        }
        if first {
            self.tried_in_vain =
                if verdict { 0 } else { (self.tried_in_vain + 1).min(AGAIN_DOUBLED) };
        }
        if !verdict && first && self.may_retry() {
            // The very first step does harm, so it was not congested, or only just.
            self.course = Course::Rise(Vec::new());
            self.set(fall.origin, now);
        } else if !verdict {
            self.rest_at(knee(&seen, &top, above), now);
        } else if seen.limit <= self.floor {
            self.rest_at(self.floor, now);
        } else {
            let above = seen.limit;
            self.course = Course::Fall(Fall { above, seen: None, windows: 0, ..fall });
            self.set(less(above), now);
        }
    }

    /// A few times, until the limit rests again.
    fn may_retry(&mut self) -> bool {
        self.retries += 1;
        self.retries <= RETRIES
    }

    fn rest_at(&mut self, limit: usize, now: Time) {
        self.set(limit, now);
        self.retries = 0;
        self.idle = if limit > self.floor { 0 } else { (self.idle + IDLE).min(IDLE_MAX) };
        self.course = Course::Settle(REST << (self.idle.saturating_sub(IDLE)));
    }

    /// Sways about `home`, the wider the less a window shows.
    fn sway_about(&mut self, home: usize, trend: i32, seen: Seen, now: Time) {
        let part = match seen.count {
            0..150 => 4,
            150..400 => 6,
            _ => 8,
        };
        let step = (home / part).max(1);
        let evidence = Evidence::default();
        self.course = Course::Sway(Sway { home, step, last: None, evidence, trend });
        self.set(home.saturating_sub(step), now);
    }

    fn sway(&mut self, mut sway: Sway, seen: Seen, now: Time) {
        let Sway { home, step, .. } = sway;
        let Some(last) = sway.last.replace(seen).filter(|last| last.limit != seen.limit) else {
            let low = home.saturating_sub(step).max(self.floor);
            self.course = Course::Sway(sway);
            return self.set(if seen.limit == low { home + step } else { low }, now);
        };
        let (low, high) = if last.limit < seen.limit { (last, seen) } else { (seen, last) };
        match sway.evidence.weigh(&low, &high) {
            None => self.course = Course::Sway(sway),
            Some(Verdict::Nothing) => self.go_down(&sway, low, high, now),
            Some(verdict) => self.go_up(&sway, low, high, verdict, now),
        }
    }

    fn go_up(&mut self, sway: &Sway, low: Seen, high: Seen, verdict: Verdict, now: Time) {
        let trend = sway.trend.max(0) + 1;
        if sway.trend < 0 {
            self.rest_at(high.limit, now);
        } else if trend > 2 && verdict == Verdict::Much {
            self.latency.take_as_usual();
            self.course = Course::Rise(alloc::vec![low]);
            self.set(high.limit + (high.limit / 2).max(1), now);
        } else {
            self.sway_about(high.limit, trend, high, now);
        }
    }

    fn go_down(&mut self, sway: &Sway, low: Seen, high: Seen, now: Time) {
        if sway.trend > 0 || sway.home <= self.floor {
            self.rest_at(sway.home, now);
        } else if sway.trend < 0 {
            self.fall_from(Seen { limit: low.limit, ..low.with(high) }, now);
        } else {
            self.sway_about(low.limit, -1, low, now);
        }
    }

    fn set(&mut self, limit: usize, now: Time) {
        let limit = limit.clamp(self.floor, self.ceiling);
        if limit != self.limit {
            self.stale = self.limit.min(limit);
            self.until = now.plus(PAUSE);
            self.limit = limit;
        }
    }
}

/// Two fifths less.
fn less(limit: usize) -> usize {
    limit - (limit * 2 / 5).max(1)
}

/// Where what is completed stops to grow: as `low` is below it and `top` above. A fifth more, for
/// the bend is never sharp.
fn knee(low: &Seen, top: &Seen, above: usize) -> usize {
    let sharp = low.limit as f64 * top.rate / low.rate.max(1e-9);
    let least = (low.limit + above).div_ceil(2);
    ((sharp * 1.2 + 0.5) as usize).clamp(least, above + above / 4)
}
