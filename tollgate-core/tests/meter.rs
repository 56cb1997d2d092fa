//! The virtual clock against a naive model that keeps every request's cost on its own.

use proptest::prelude::*;
use tollgate_core::meter::{Clock, Meter, Reading};
use tollgate_core::units::{Nanos, SECOND, Time};

const START: u64 = 1_700_000_000 * SECOND;

/// Every request with its own sum, brought up to date at every event.
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

/// After how many nanoseconds, who, whether to enter.
type Event = (i64, usize, bool);

/// Runs both and compares.
fn compare(cpus: f64, events: &[Event]) -> Result<(), TestCaseError> {
    let mut meter = Meter::new(Clock::Shared { cpus });
    let mut naive = Naive { last: START, cpus, running: Vec::new(), total: 0.0 };
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
        let mut meter = Meter::new(Clock::Wall);
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

/// Millions of pauses and returns: nothing is lost to rounding.
#[test]
fn three_million_events_lose_no_nanosecond() {
    let mut meter = Meter::new(Clock::Shared { cpus: 2.3 });
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

/// The backend idles nine tenths of the time, is just full, has four times what it can do.
#[test]
fn at_a_tenth_at_full_and_at_four_times_the_load_everything_is_charged_once() {
    for (cpus, at_once, busy, idle) in [(2.0, 1, 200, 800), (2.0, 2, 1_000, 0), (2.0, 8, 1_000, 0)]
    {
        let mut meter = Meter::new(Clock::Shared { cpus });
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
    let mut meter = Meter::new(Clock::Shared { cpus: 1.0 });
    let at = |seconds| Time(START + seconds * SECOND);
    let readings = [meter.enter(at(0)), meter.enter(at(0))];
    meter.set_clock(Clock::Wall, at(2));
    let costs = readings.map(|reading| meter.leave(reading, at(5)).0);
    assert_eq!(costs, [4 * SECOND, 4 * SECOND]);
    meter.set_clock(Clock::Shared { cpus: f64::NAN }, at(6));
    let reading = meter.enter(at(6));
    assert!(meter.leave(reading, at(7)).0 <= SECOND);
}
