//! Compares the virtual clock with a naive model that keeps every request's cost separately.

use evenkeel_core::meter::{CpuClock, Meter, Reading};
use evenkeel_core::units::{Cost, Nanos, SECOND, Time};
use proptest::prelude::*;

const START: u64 = 1_700_000_000 * SECOND;

/// A model in which every request has its own sum, updated at every event.
struct Naive {
    last: u64,
    cpus: f64,
    running: Vec<f64>,
    total: f64,
}

impl Naive {
    fn advance(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.last) as f64;
        self.last = self.last.max(now);
        let n = self.running.len() as f64;
        if n > 0.0 {
            let pace = (self.cpus / n).min(1.0);
            self.running.iter_mut().for_each(|cost| *cost += elapsed * pace);
            self.total += elapsed * self.cpus.min(n);
        }
    }
}

/// Nanoseconds until the event, index of the request, whether it enters or leaves.
type Event = (i64, usize, bool);

/// Runs the meter and the model, and compares them.
fn compare(cpus: f64, events: &[Event]) -> Result<(), TestCaseError> {
    let mut meter = Meter::new(CpuClock::Shared { cpus });
    // As the meter, it begins long before the first event, which may come before `START`.
    let mut naive = Naive { last: 0, cpus, running: Vec::new(), total: 0.0 };
    let mut readings: Vec<Reading> = Vec::new();
    let (mut now, mut charged) = (START, 0);
    for (step, who, enters) in events {
        now = now.saturating_add_signed(*step);
        naive.advance(now);
        if *enters || readings.is_empty() {
            naive.running.push(0.0);
            readings.push(meter.enter(Time(now)));
        } else {
            let who = who % readings.len();
            let expected = naive.running.swap_remove(who);
            let cost = meter.leave(readings.swap_remove(who), Time(now)).0;
            prop_assert!((cost as f64 - expected).abs() < 10.0, "{cost} for {expected}");
            charged += cost;
        }
        prop_assert_eq!(meter.working() as usize, readings.len());
    }
    let total = meter.total(Time(now)).0;
    for reading in readings {
        charged += meter.leave(reading, Time(now)).0;
    }
    prop_assert!(charged <= total && total - charged <= 2, "{charged} charged of {total}");
    prop_assert!((total as f64 - naive.total).abs() < 100.0, "{total} for {}", naive.total);
    Ok(())
}

fn event() -> impl Strategy<Value = Event> {
    (-1_000..50_000_000_i64, 0..64_usize, any::<bool>())
}

proptest! {
    #[test]
    fn charges_are_the_integral_of_the_processors_at_work(
        cpus in 0.05..12.0_f64,
        events in prop::collection::vec(event(), 1..400),
    ) {
        compare(cpus, &events)?;
    }

    #[test]
    fn by_the_wall_a_request_costs_as_long_as_it_runs(
        spans in prop::collection::vec((0..SECOND, 0..100 * SECOND), 1..50),
    ) {
        let mut meter = Meter::new(CpuClock::Wall);
        let mut events: Vec<(u64, usize, bool)> = Vec::new();
        for (who, (start, length)) in spans.iter().enumerate() {
            events.push((START + start, who, true));
            events.push((START + start + length, who, false));
        }
        events.sort_by_key(|(at, _, enters)| (*at, !enters));
        let mut readings = vec![None; spans.len()];
        for (at, who, enters) in events {
            if enters {
                readings[who] = Some(meter.enter(Time(at)));
            } else if let Some(reading) = readings[who] {
                prop_assert_eq!(meter.leave(reading, Time(at)).0, spans[who].1);
            }
        }
        let sum = spans.iter().map(|(_, length)| length).sum::<u64>();
        prop_assert_eq!(meter.total(Time(START + 200 * SECOND)).0, sum);
    }
}

#[test]
fn what_is_provisional_changes_nobodys_cost_and_shares_with_all() {
    let after = |millis: u64| Time(START + millis * 1_000_000);
    let mut meter = Meter::new(CpuClock::Shared { cpus: 1.0 });
    let alone = meter.enter_provisionally(after(0));
    // Half a second alone, then half a second beside a running request and another one.
    let runs = meter.enter(after(500));
    meter.enter_provisionally(after(500));
    let half = Cost::cpu(Nanos::from_millis(500));
    assert_eq!(meter.leave(runs, after(1_000)), half);
    let third = Cost(half.0 / 3);
    assert_eq!(meter.leave_provisionally(alone, after(1_000)), half.plus(third));
    // Only the time after the client's last transmission counts.
    let other = meter.restart(after(1_000));
    assert_eq!(meter.total(after(1_250)), half, "nothing provisional is charged");
    let cost = meter.leave_provisionally(other, after(1_250));
    assert_eq!(cost, Cost::cpu(Nanos::from_millis(250)));
    meter.confirm(cost);
    assert_eq!(meter.total(after(2_000)), half.plus(cost));
}

/// Two meters before one backend of one processor: each charges half while both have a request
/// there, and together they charge what one meter would.
#[test]
fn requests_of_other_instances_share_the_processors() {
    let after = |millis: u64| Time(START + millis * 1_000_000);
    let cost = |millis| Cost::cpu(Nanos::from_millis(millis));
    for clock in [CpuClock::Shared { cpus: 1.0 }, CpuClock::Cgroup { cpus: 1.0 }] {
        let mut meters = [Meter::new(clock), Meter::new(clock)];
        let first = meters[0].enter(after(0));
        meters[1].set_elsewhere(1, after(0));
        let provisional = meters[1].enter_provisionally(after(0));
        let second = meters[1].enter(after(500));
        meters[0].set_elsewhere(1, after(500));
        assert_eq!(meters[0].leave(first, after(1_500)), cost(1_000));
        meters[1].set_elsewhere(0, after(1_500));
        // Half beside the first, a third beside both, and half beside the second.
        let seems = meters[1].leave_provisionally(provisional, after(1_500));
        assert!(seems.0.abs_diff(cost(250).0 + cost(1_000).0 / 3) <= 2, "{seems:?}");
        assert_eq!(meters[1].leave(second, after(2_000)), cost(1_000));
        let totals = [0, 1].map(|one| meters[one].total(after(3_000)));
        assert_eq!(totals, [cost(1_000); 2], "{clock:?}");
    }
}

/// CPU time that requests of other instances use is not charged to those of this one.
#[test]
fn by_cgroup_other_instances_pay_for_their_own_requests() {
    let mut meter = Meter::new(CpuClock::Cgroup { cpus: 1.0 });
    meter.set_elsewhere(1, Time(START));
    let mut charged = 0;
    for round in 0..100 {
        let at = |millis: u64| Time(START + (round * 1_000 + millis) * 1_000_000);
        let reading = meter.enter(at(0));
        charged += meter.leave(reading, at(100)).0;
        (1..=5).for_each(|part| meter.used(Cost(SECOND / 5), at(part * 200)));
    }
    // Half of a tenth of the time.
    assert!((charged as f64 / 5e9 - 1.0).abs() < 0.05, "{charged}");
    assert_eq!(meter.unpaid(), Cost::ZERO);
}

/// Over millions of pauses and returns, no cost is lost to rounding.
#[test]
fn three_million_events_lose_no_nanosecond() {
    let mut meter = Meter::new(CpuClock::Shared { cpus: 2.3 });
    let (mut now, mut charged) = (START, 0);
    let mut readings: Vec<Reading> = (0..7).map(|_| meter.enter(Time(now))).collect();
    for i in 0..3_000_000_u64 {
        now += (i * 7_919) % 1_009;
        let who = (i * 31 % 7) as usize;
        charged += meter.leave(readings[who], Time(now)).0;
        readings[who] = meter.enter(Time(now));
    }
    let total = meter.total(Time(now)).0;
    charged += readings.iter().map(|r| meter.leave(*r, Time(now)).0).sum::<u64>();
    assert!(total - charged <= 1, "{charged} charged of {total}");
    let expected = (now - START) as f64 * 2.3;
    assert!((total as f64 - expected).abs() < 1_000.0, "{total} for {expected}");
}

/// The backend is idle nine tenths of the time, exactly full, or has four times its capacity.
#[test]
fn at_a_tenth_at_full_and_at_four_times_the_load_everything_is_charged_once() {
    for (cpus, at_once, busy, idle) in [(2.0, 1, 200, 800), (2.0, 2, 1_000, 0), (2.0, 8, 1_000, 0)]
    {
        let mut meter = Meter::new(CpuClock::Shared { cpus });
        let (mut now, mut charged) = (Time(START), 0);
        for _ in 0..100 {
            let readings: Vec<Reading> = (0..at_once).map(|_| meter.enter(now)).collect();
            now = now.plus(Nanos::from_millis(busy));
            charged += readings.iter().map(|r| meter.leave(*r, now).0).sum::<u64>();
            now = now.plus(Nanos::from_millis(idle));
        }
        let seconds = 0.1 * busy as f64 * f64::from(at_once).min(cpus);
        assert_eq!(charged, (seconds * SECOND as f64) as u64);
        assert_eq!(meter.total(now).0, charged);
    }
}

#[test]
fn a_changed_clock_leaves_running_requests_what_they_have() {
    let mut meter = Meter::new(CpuClock::Shared { cpus: 1.0 });
    let at = |seconds| Time(START + seconds * SECOND);
    let readings = [meter.enter(at(0)), meter.enter(at(0))];
    meter.set_clock(CpuClock::Wall, at(2));
    let costs = readings.map(|reading| meter.leave(reading, at(5)).0);
    assert_eq!(costs, [4 * SECOND, 4 * SECOND]);
    meter.set_clock(CpuClock::Shared { cpus: f64::NAN }, at(6));
    let reading = meter.enter(at(6));
    assert!(meter.leave(reading, at(7)).0 <= SECOND);
}

/// A backend of `cpus` with requests that either compute or wait; its CPU time is sampled ten times
/// a second.
struct SampledBackend {
    meter: Meter,
    now: u64,
    cpus: f64,
    computing: Vec<(bool, Reading)>,
    used: f64,
    unseen: f64,
    charged: u64,
}

const SAMPLE_NANOS: u64 = SECOND / 10;

impl SampledBackend {
    fn new(cpus: f64) -> SampledBackend {
        let meter = Meter::new(CpuClock::Cgroup { cpus });
        let mut seen = SampledBackend {
            meter,
            now: START,
            cpus,
            computing: vec![],
            used: 0.0,
            unseen: 0.0,
            charged: 0,
        };
        seen.meter.used(Cost(0), Time(START));
        seen
    }

    fn pass(&mut self, time: u64) {
        let mut left = time;
        while left > 0 {
            let step = left.min(SAMPLE_NANOS - self.now % SAMPLE_NANOS);
            let busy = self.computing.iter().filter(|(computes, _)| *computes).count() as f64;
            let used = busy.min(self.cpus) * step as f64;
            (self.used, self.unseen) = (self.used + used, self.unseen + used);
            self.now += step;
            left -= step;
            if self.now.is_multiple_of(SAMPLE_NANOS) {
                self.meter.used(Cost(self.unseen as u64), Time(self.now));
                self.unseen = 0.0;
            }
        }
    }

    fn begin(&mut self, computes: bool) {
        let reading = self.meter.enter(Time(self.now));
        self.computing.push((computes, reading));
    }

    fn end(&mut self, who: usize) {
        let (_, reading) = self.computing.swap_remove(who % self.computing.len());
        self.charged += self.meter.leave(reading, Time(self.now)).0;
    }
}

/// Milliseconds until the event, whether the request computes, its index, whether it enters.
fn some_event() -> impl Strategy<Value = (u64, bool, usize, bool)> {
    (1_u64..300, any::<bool>(), 0_usize..8, any::<bool>())
}

proptest! {
    #[test]
    fn by_cgroup_all_charges_are_what_was_used_to_within_two_looks(
        cpus in 1_u32..5,
        events in prop::collection::vec(some_event(), 1..400),
    ) {
        let mut seen = SampledBackend::new(f64::from(cpus));
        // One request always runs, so that all CPU time can be charged.
        seen.begin(false);
        for (millis, computes, who, enters) in events {
            seen.pass(millis * SECOND / 1_000);
            if (enters || seen.computing.len() < 2) && seen.computing.len() < 12 {
                seen.begin(computes);
            } else {
                seen.end(who);
            }
            let total = seen.meter.total(Time(seen.now)).0 as f64;
            let unpaid = seen.meter.unpaid().0 as f64;
            let wrong = (seen.used - unpaid - total) / 1e9;
            let used = seen.used / 1e9;
            prop_assert!(wrong.abs() <= 0.15 * f64::from(cpus), "{wrong} s of {used} s");
        }
        let total = seen.meter.total(Time(seen.now)).0;
        while !seen.computing.is_empty() {
            seen.end(0);
        }
        prop_assert!(seen.charged.abs_diff(total) <= 2, "{} charged of {total}", seen.charged);
    }
}

#[test]
fn by_cgroup_short_requests_with_pauses_pay_what_they_use_and_pauses_nobody() {
    let mut seen = SampledBackend::new(2.0);
    for _ in 0..100 {
        seen.begin(true);
        seen.pass(20 * SECOND / 1_000);
        seen.end(0);
        seen.pass(980 * SECOND / 1_000);
    }
    let (used, charged) = (seen.used / 1e9, seen.charged as f64 / 1e9);
    assert!((used - charged).abs() < 0.05, "{charged} of {used}");
    // CPU time without any request.
    seen.meter.used(Cost(3 * SECOND), Time(seen.now + SAMPLE_NANOS));
    assert!((seen.meter.unpaid().0 as f64 / 1e9 - 3.0).abs() < 0.05);
    // Requests that only wait cost almost nothing, once a sample shows it.
    let before = seen.charged;
    for _ in 0..100 {
        seen.begin(false);
        seen.pass(SECOND);
        seen.end(0);
    }
    assert!((seen.charged - before) as f64 / 1e9 < 1.0, "{}", seen.charged - before);
}
