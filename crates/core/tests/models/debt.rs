//! The debt bucket: Tempomat's cases with Evenkeel's expected values, a naive integrator, and the
//! most important property: opening and cancelling holds never leaves a bucket fuller.

use crate::{at, secs};
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::units::{Cost, CpuShare, Nanos, Rate, SECOND, Time};
use proptest::prelude::*;

/// A bucket that refills `rate` CPU-seconds a second, up to `burst` CPU-seconds.
fn bucket(rate: f64, burst: u64) -> DebtBucket {
    let rate = CpuShare::new(rate).and_then(|share| share.of(1.0)).expect("a rate");
    DebtBucket::new(rate, Cost::cpu(Nanos::from_secs(burst)))
}

fn cpu(seconds: f64) -> Cost {
    Cost::cpu(secs(seconds))
}

/// The level in CPU-seconds.
fn level(debt: &DebtBucket, full_at: Time, now: Time) -> f64 {
    debt.level(full_at, now) as f64 / SECOND as f64
}

/// A client that sends each request when the response to the last one is released. Returns for each
/// request the level at its start after its charge, and its total time.
fn one_by_one(debt: &DebtBucket, mut full_at: Time, mut start: Time, cost: f64) -> Vec<(f64, f64)> {
    let each = (0..40).map(|_| {
        full_at = debt.charge(full_at, cpu(cost), start).0;
        let took = debt.wait(full_at, Cost::ZERO, start).max(secs(cost));
        let left = level(debt, full_at, start);
        start = start.plus(took);
        (left, took.as_secs_f64())
    });
    each.collect()
}

#[test]
fn t3_the_first_request_is_not_held() {
    let debt = bucket(0.5, 30);
    let (full_at, moved) = debt.charge(Time::ZERO, cpu(2.0), at(100.0));
    assert_eq!(level(&debt, full_at, at(100.0)), 28.0);
    assert_eq!(debt.wait(full_at, Cost::ZERO, at(100.0)), Nanos::ZERO);
    assert_eq!(moved, secs(4.0));
}

#[test]
fn t4_back_to_back_requests_settle_at_the_rate() {
    let took = one_by_one(&bucket(0.5, 30), Time::ZERO, at(100.0), 2.0);
    for (index, (left, total)) in took.iter().enumerate() {
        let expected = match index + 1 {
            1 => (28.0, 2.0),
            k @ 2..=30 => (29.0 - k as f64, 2.0),
            _ => (-2.0, 4.0),
        };
        assert_eq!((*left, *total), expected, "request {}", index + 1);
    }
}

#[test]
fn t5_sequential_requests_after_29_cpu_seconds() {
    let debt = bucket(0.5, 30);
    let full_at = debt.charge(Time::ZERO, cpu(29.0), at(100.0)).0;
    let took = one_by_one(&debt, full_at, at(101.0), 1.0);
    let expected = [(0.5, 1.0), (0.0, 1.0), (-0.5, 1.0), (-1.0, 2.0), (-1.0, 2.0), (-1.0, 2.0)];
    assert_eq!(took[..6], expected);
}

/// `workers` clients that each send a request of one CPU-second as soon as their last one was
/// released. Costs are charged when they are known, after a second. Returns requests a second and
/// the mean hold.
fn closed_loop(debt: &DebtBucket, workers: usize, requests: usize) -> (f64, f64) {
    let begin = at(100.0);
    let mut full_at = debt.charge(Time::ZERO, debt.burst(), begin).0;
    let mut starts = vec![begin; workers];
    let (mut held, mut end) = (0.0, begin);
    for _ in 0..requests {
        starts.sort();
        let start = starts[0];
        full_at = debt.charge(full_at, cpu(1.0), start).0;
        let took = debt.wait(full_at, Cost::ZERO, start).max(secs(1.0));
        held += took.minus(secs(1.0)).as_secs_f64();
        end = start.plus(took);
        starts[0] = end;
    }
    (requests as f64 / end.since(begin).as_secs_f64(), held / requests as f64)
}

#[test]
fn t6_parallel_requests_share_one_rate() {
    for workers in 1..=3_usize {
        let (rate, hold) = closed_loop(&bucket(1.0, 30), workers, 3_000);
        assert!((rate - 1.0).abs() < 0.01, "{workers} workers: {rate} requests a second");
        assert!((hold - (workers - 1) as f64).abs() < 0.01, "{workers} workers: held {hold} s");
    }
}

#[test]
fn t7_parallel_requests_are_let_go_one_rate_apart() {
    let debt = bucket(0.5, 30);
    let mut full_at = debt.charge(Time::ZERO, cpu(30.0), at(100.0)).0;
    for nth in 1..=20 {
        full_at = debt.charge(full_at, cpu(1.0), at(100.0)).0;
        let wait = debt.wait(full_at, Cost::ZERO, at(100.0));
        assert_eq!(wait, secs(f64::from(2 * nth)), "request {nth}");
    }
}

#[test]
fn t11_a_crawler_is_held_once_its_burst_is_gone() {
    let took = one_by_one(&bucket(0.1, 120), Time::ZERO, at(100.0), 4.0);
    // Each request takes 4 and refills 0.4: the 34th is the first to leave the level below zero.
    let first = took.iter().position(|(left, _)| *left < 0.0);
    assert_eq!(first, Some(33));
    assert!(took[..33].iter().all(|(_, total)| *total == 4.0));
    assert_eq!(took[39], (-4.0, 40.0), "ten times slower, the rate being a tenth");
}

#[test]
fn t12_less_than_a_millisecond_is_charged_too() {
    let debt = bucket(1.0, 30);
    let (full_at, moved) = debt.charge(Time::ZERO, cpu(0.000_9), at(100.0));
    assert_eq!(moved, Nanos(900_000));
    assert_eq!(debt.level(full_at, at(100.0)), 30_000_000_000 - 900_000);
}

#[test]
fn t13_more_than_the_burst_is_charged_in_full() {
    let debt = bucket(0.5, 30);
    let exactly = debt.charge(Time::ZERO, cpu(30.0), at(100.0)).0;
    assert_eq!(level(&debt, exactly, at(100.0)), 0.0);
    assert_eq!(debt.wait(exactly, Cost::ZERO, at(100.0)), Nanos::ZERO);
    let more = debt.charge(Time::ZERO, cpu(31.0), at(100.0)).0;
    assert_eq!(level(&debt, more, at(100.0)), -1.0);
    assert_eq!(debt.wait(more, Cost::ZERO, at(100.0)), secs(2.0));
}

#[test]
fn t14_charges_out_of_order_grant_no_refill_twice() {
    let debt = bucket(0.5, 30);
    let drained = debt.charge(Time::ZERO, cpu(30.0), at(100.0)).0;
    let (p, q) = ((cpu(10.0), at(100.0)), (cpu(0.5), at(109.0)));
    for order in [[p, q], [q, p]] {
        let charged =
            order.iter().fold(drained, |state, (c, start)| debt.charge(state, *c, *start).0);
        assert_eq!(debt.wait(charged, Cost::ZERO, at(110.0)), secs(11.0));
    }
}

#[test]
fn t23_debt_outlives_a_minute_of_silence() {
    let debt = bucket(0.5, 30);
    let full_at = debt.charge(Time::ZERO, cpu(80.0), at(100.0)).0;
    assert_eq!(debt.wait(full_at, Cost::ZERO, at(100.0)), secs(100.0));
    assert_eq!(debt.wait(full_at, Cost::ZERO, at(161.0)), secs(39.0));
}

#[test]
fn new_numbers_leave_what_was_spent_spent() {
    let (old, new) = (bucket(0.5, 30), bucket(0.1, 60));
    let full_at = old.charge(Time::ZERO, cpu(35.0), at(100.0)).0;
    assert_eq!(level(&old, full_at, at(104.0)), -3.0);
    let under_new = new.short_of(old.missing(full_at, at(104.0)), at(104.0));
    assert_eq!(level(&new, under_new, at(104.0)), 27.0);
    // A bucket that is full with the old parameters is full with the new ones.
    assert_eq!(new.short_of(old.missing(at(99.0), at(100.0)), at(100.0)), Time::ZERO);
}

/// A bucket that keeps every charge and integrates from the beginning for each result. Its unit is
/// the refill time of a cost in whole nanoseconds, so nothing is rounded.
#[derive(Default)]
struct Integrator {
    charges: Vec<(Time, u64)>,
}

impl Integrator {
    /// The level at `now` of a bucket with the capacity `depth`.
    fn level(&self, depth: i128, now: Time) -> i128 {
        let (mut level, mut clock) = (depth, 0);
        let refill = |level: i128, clock: u64, to: u64| {
            let passed = to.saturating_sub(clock);
            ((level + i128::from(passed)).min(depth), clock.max(to))
        };
        for (start, cost) in &self.charges {
            (level, clock) = refill(level, clock, start.0);
            level -= i128::from(*cost);
        }
        refill(level, clock, now.0).0
    }
}

/// Whole nanoseconds per nano-unit of cost, and a bucket at this rate, so that nothing is rounded.
fn exact() -> impl Strategy<Value = (u64, DebtBucket)> {
    (1..50_u64, 0..40_000_u64).prop_map(|(slope, burst)| {
        let rate = Rate::per(Cost(1), Nanos(slope)).expect("a rate");
        (slope, DebtBucket::new(rate, Cost(burst)))
    })
}

/// An operation on a bucket.
#[derive(Clone, Debug)]
enum Event {
    /// Time passes, in nanoseconds.
    Pass(u64),
    /// Charges a request that started `ago` nanoseconds earlier.
    Charge { cost: u64, ago: u64 },
    /// Opens a hold for a request that started `ago` nanoseconds earlier.
    Open { estimate: u64, ago: u64 },
    /// Raises one of the open holds, as at the head of a response.
    Raise { which: usize, by: u64 },
    /// Settles one of the open holds at this many hundredths of its estimate.
    Settle { which: usize, hundredths: u64 },
}

/// Sequences in which costs, refill and passing time are of one order of magnitude. The bucket is
/// sometimes full and sometimes in debt, and holds span both.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let ago = || prop_oneof![2 => Just(0), 1 => 0..30_000_u64];
    let settled = prop_oneof![2 => Just(0), 2 => 0..100_u64, 1 => Just(100)];
    let event = prop_oneof![
        3 => (0..20_000_u64).prop_map(Event::Pass),
        3 => (0..2_000_u64, ago()).prop_map(|(cost, ago)| Event::Charge { cost, ago }),
        3 => (0..2_000_u64, ago()).prop_map(|(estimate, ago)| Event::Open { estimate, ago }),
        1 => (any::<usize>(), 0..2_000_u64).prop_map(|(which, by)| Event::Raise { which, by }),
        3 => (any::<usize>(), settled)
            .prop_map(|(which, hundredths)| Event::Settle { which, hundredths }),
    ];
    prop::collection::vec(event, 1..60)
}

/// An open hold.
struct Hold {
    start: Time,
    estimate: Cost,
    moved: Nanos,
    /// The true cost to which it is settled.
    truth: Cost,
}

/// One bucket that receives all operations, and two that receive fewer.
struct HoldModel {
    debt: DebtBucket,
    now: Time,
    /// The bucket in which every hold is opened and settled.
    held: Time,
    /// The bucket without holds.
    untouched: Time,
    /// The bucket in which each hold is a charge of the true cost from the beginning.
    foreseen: Time,
    open: Vec<Hold>,
    opened: u64,
}

impl HoldModel {
    fn new(debt: DebtBucket) -> HoldModel {
        let now = Time(1_000_000);
        let (held, untouched, foreseen) = (Time::ZERO, Time::ZERO, Time::ZERO);
        HoldModel { debt, now, held, untouched, foreseen, open: Vec::new(), opened: 0 }
    }

    fn charge(&mut self, cost: Cost, start: Time) {
        for state in [&mut self.held, &mut self.untouched, &mut self.foreseen] {
            *state = self.debt.charge_capped(*state, cost, start, self.now).0;
        }
    }

    fn open(&mut self, estimate: Cost, truth: Cost, start: Time) {
        let (after, moved) = self.debt.hold(self.held, estimate, start, self.now);
        self.held = after;
        let estimate = self.debt.held(estimate, moved);
        self.foreseen = self.debt.charge_capped(self.foreseen, truth, start, self.now).0;
        self.opened += 1;
        self.open.push(Hold { start, estimate, moved, truth });
    }

    fn raise(&mut self, which: usize, by: Cost) {
        let count = self.open.len().max(1);
        if let Some(hold) = self.open.get_mut(which % count) {
            let (after, further) = self.debt.charge_capped(self.held, by, hold.start, self.now);
            self.held = after;
            hold.estimate = hold.estimate.plus(by);
            hold.moved = hold.moved.plus(further);
            self.opened += 1;
        }
    }

    fn settle(&mut self, which: usize) {
        if self.open.is_empty() {
            return;
        }
        let hold = self.open.swap_remove(which % self.open.len());
        let over = hold.estimate.minus(hold.truth);
        self.held = self.debt.refund(self.held, over, hold.moved, hold.start, self.now);
        let more = hold.truth.minus(hold.estimate);
        self.held = self.debt.charge_capped(self.held, more, hold.start, self.now).0;
    }

    /// Checks that the bucket is not fuller than the other two, except for `slack` nanoseconds.
    fn check(&self, slack: u64) -> Result<(), TestCaseError> {
        let held = self.held.max(self.now);
        prop_assert!(held >= self.untouched.max(self.now), "fuller than without holds");
        let foreseen = self.foreseen.max(self.now);
        // Holds leave some room below a cap. Cost that exceeds this room is charged when the hold
        // is settled.
        let more = |hold: &Hold| self.debt.rate().time_for(hold.truth.minus(hold.estimate)).0;
        let slack = slack + self.open.iter().map(more).sum::<u64>();
        let slack = slack + self.debt.reach().map_or(0, |reach| reach.0 / 32 + 1);
        prop_assert!(
            held.0 + slack >= foreseen.0,
            "fuller than with the true costs: {held:?} {foreseen:?}",
        );
        Ok(())
    }
}

/// Runs `events`. The true cost of each hold is taken from the `Settle` events in turn.
fn run(debt: DebtBucket, events: &[Event], slack: u64) -> Result<(), TestCaseError> {
    let mut truths = events.iter().filter_map(|event| match event {
        Event::Settle { hundredths, .. } => Some(*hundredths),
        _ => None,
    });
    let mut three = HoldModel::new(debt);
    for event in events {
        match *event {
            Event::Pass(time) => three.now = three.now.plus(Nanos(time)),
            Event::Charge { cost, ago } => three.charge(Cost(cost), three.now.minus(Nanos(ago))),
            Event::Open { estimate, ago } => {
                let truth = Cost(estimate * truths.next().unwrap_or(0) / 100);
                three.open(Cost(estimate), truth, three.now.minus(Nanos(ago)));
            }
            Event::Raise { which, by } => three.raise(which, Cost(by)),
            Event::Settle { which, .. } => three.settle(which),
        }
        three.check(slack * three.opened)?;
    }
    while !three.open.is_empty() {
        three.settle(0);
        three.check(slack * three.opened)?;
    }
    Ok(())
}

/// The opposite of `run`: holds that are opened and cancelled at once leave no trace.
#[test]
fn a_hold_cancelled_at_once_leaves_no_trace() {
    let debt = bucket(0.5, 30);
    for full_at in [Time::ZERO, at(90.0), at(100.0), at(500.0)] {
        let (held, moved) = debt.charge(full_at, cpu(3.0), at(100.0));
        let after = debt.refund(held, cpu(3.0), moved, at(100.0), at(100.0));
        assert_eq!(after.max(at(100.0)), full_at.max(at(100.0)));
    }
}

/// A client that stops is in credit again after the time that the cap defines.
#[test]
fn a_debt_stops_at_its_cap() {
    let debt = bucket(0.5, 30).capped(cpu(10.0));
    let mut full_at = Time::ZERO;
    for _ in 0..1_000 {
        full_at = debt.charge_capped(full_at, cpu(1.0), at(100.0), at(100.0)).0;
    }
    assert_eq!(debt.level(full_at, at(100.0)), -10 * 1_000_000_000);
    assert_eq!(debt.wait(full_at, Cost::ZERO, at(100.0)), Nanos::from_secs(20));
}

/// An amount that the cap forgave during a hold is not forgiven a second time when the hold is
/// taken back.
#[test]
fn a_hold_at_the_cap_is_not_taken_back() {
    let debt = bucket(1.0, 30).capped(cpu(10.0));
    let (full_at, moved) = debt.charge_capped(at(135.0), cpu(5.0), at(100.0), at(100.0));
    let full_at = debt.charge_capped(full_at, cpu(5.0), at(100.0), at(100.0)).0;
    assert_eq!(debt.refund(full_at, cpu(5.0), moved, at(100.0), at(101.0)), full_at);
    let (full_at, moved) = debt.charge_capped(at(120.0), cpu(5.0), at(100.0), at(100.0));
    assert_eq!(debt.refund(full_at, cpu(5.0), moved, at(100.0), at(100.0)), at(120.0));
}

/// Holds that are requested at once and never used leave no trace, however many there are.
#[test]
fn holds_alone_never_reach_the_cap_and_are_all_taken_back() {
    let debt = bucket(0.5, 30).capped(cpu(10.0));
    let (start, mut full_at, mut holds) = (at(100.0), at(90.0), Vec::new());
    for _ in 0..50 {
        let (after, moved) = debt.hold(full_at, cpu(3.0), start, start);
        full_at = after;
        holds.push(moved);
    }
    assert!(debt.level(full_at, start) < -8 * 1_000_000_000, "nearly at the cap");
    assert_eq!(holds.last(), Some(&Nanos::ZERO));
    for moved in holds {
        full_at = debt.refund(full_at, debt.held(cpu(3.0), moved), moved, start, start);
    }
    assert!(full_at <= start.plus(Nanos(100)), "but for rounding: {full_at:?}");
}

/// The reason why the start of a hold must not be after the time of its charge: the refill in
/// between would be given back a second time.
#[test]
fn what_was_refilled_meanwhile_is_not_given_back() {
    let debt = bucket(1.0, 30);
    let (held, moved) = debt.charge(Time::ZERO, cpu(2.0), at(100.0));
    let busy = debt.charge(held, cpu(5.0), at(105.0)).0;
    assert_eq!(debt.refund(busy, cpu(2.0), moved, at(100.0), at(105.0)), at(110.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_hold_ever_leaves_a_bucket_fuller((_, debt) in exact(), events in events()) {
        run(debt, &events, 0)?;
    }

    /// The same with a cap on debts, however low.
    #[test]
    fn nor_does_a_cap_on_debts(
        (_, debt) in exact(), debt_max in 0..20_000_u64, events in events(),
    ) {
        run(debt.capped(Cost(debt_max)), &events, 0)?;
    }

    /// The same at any rate. The charge and the refund of a hold are rounded separately to whole
    /// nanoseconds.
    #[test]
    fn nor_at_rates_that_are_rounded(
        cost in 1..5_000_u64, period in 1..5_000_u64, events in events(),
    ) {
        let rate = Rate::per(Cost(cost), Nanos(period)).expect("a rate");
        run(DebtBucket::new(rate, Cost(10_000)), &events, 2)?;
    }

    #[test]
    fn it_is_what_an_integrator_says((slope, debt) in exact(), events in events()) {
        let depth = i128::from(debt.burst().0 * slope);
        let (mut now, mut full_at) = (Time(1_000_000), Time::ZERO);
        let mut model = Integrator::default();
        for event in events {
            match event {
                Event::Pass(time) => now = now.plus(Nanos(time)),
                Event::Charge { cost, ago } | Event::Open { estimate: cost, ago } => {
                    let start = now.minus(Nanos(ago));
                    full_at = debt.charge(full_at, Cost(cost), start).0;
                    model.charges.push((start, cost * slope));
                }
                Event::Raise { .. } | Event::Settle { .. } => {}
            }
            let level = model.level(depth, now);
            let missing = depth - i128::from(full_at.since(now).0);
            prop_assert_eq!(missing, level);
            prop_assert_eq!(i128::from(debt.wait(full_at, Cost::ZERO, now).0), (-level).max(0));
            let wait_for_ten = i128::from(debt.wait(full_at, Cost(10), now).0);
            prop_assert_eq!(wait_for_ten, (i128::from(10 * slope) - level).max(0));
            // Units of cost are coarser than nanoseconds, so the level is rounded to the nearest
            // unit.
            let off = i128::from(debt.level(full_at, now)) * i128::from(slope) - level;
            prop_assert!(off.abs() <= i128::from(slope));
        }
    }

    /// Charges may arrive in any order, and none of them makes a wait shorter.
    #[test]
    fn a_charge_never_shortens_a_wait((_, debt) in exact(), events in events()) {
        let (mut now, mut full_at) = (Time(1_000_000), Time::ZERO);
        for event in events {
            match event {
                Event::Pass(time) => now = now.plus(Nanos(time)),
                Event::Charge { cost, ago } | Event::Open { estimate: cost, ago } => {
                    let before = full_at;
                    full_at = debt.charge(full_at, Cost(cost), now.minus(Nanos(ago))).0;
                    prop_assert!(full_at >= before);
                }
                Event::Raise { .. } | Event::Settle { .. } => {}
            }
        }
    }

    #[test]
    fn a_reload_keeps_what_was_spent(
        old in exact(), new in exact(), spent in 0..100_000_u64, later in 0..1_000_000_u64,
    ) {
        let ((_, old), (_, new)) = (old, new);
        let now = Time(1_000_000 + later);
        let full_at = old.charge(Time::ZERO, Cost(spent), Time(1_000_000)).0;
        let converted = new.short_of(old.missing(full_at, now), now);
        let spent = |debt: &DebtBucket, state| debt.burst().0 as i64 - debt.level(state, now);
        prop_assert_eq!(spent(&new, converted), spent(&old, full_at));
    }
}
