//! A bucket with its count in the store: the question to the store, and its answer.
//!
//! The formulas are those of `evenkeel_core::bucket`, implemented in `script/account.lua`. Times
//! are sent as durations, so no clock has to agree with the server's. Rates are converted here, so
//! that the script sees times (on a grid: hits) and no rates. An answer raises the bucket of this
//! process too, which decides while there is no answer. Charges that are reported later:
//! `pending::charges`.

use super::script::{self, ScriptQuestion, ServerRefusal};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::grid::GridBucket;
use evenkeel_core::bucket::history::RequestHistory;
use evenkeel_core::bucket::sliding::SlidingWindow;
use evenkeel_core::classify::LimitKey;
use evenkeel_core::limit::LimitUnit;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::limiter::remote::StoreBucketState;
use evenkeel_core::units::{Cost, Nanos, SECOND, Time};
use redis::{Pipeline, Value};
use std::sync::Arc;

/// The script's numbers are exact for integers up to this value.
const EXACT_MAX: u64 = 1 << 53;

/// One bucket, with the question about it and the answer.
#[derive(Clone)]
pub struct StoreAccount {
    /// The bucket's key in the store.
    pub name: String,
    /// The limiter that counts the bucket in this process.
    pub home: Arc<Limiter>,
    /// The bucket's key in that limiter.
    pub key: LimitKey,
    /// The bucket's algorithm.
    pub algorithm: Algorithm,
    /// The amount that must fit into the bucket.
    pub need: Cost,
    /// The amount to charge.
    pub cost: Cost,
    /// The time of the charge by this process's clock. It is in the future if the request is
    /// delayed.
    pub at: Time,
    /// The longest wait with which the amount is charged; `None` to charge it whatever the wait.
    pub patience: Option<Nanos>,
    /// Takes back an earlier charge instead of charging: the duration by which it moved the bucket,
    /// and its time by the server's clock.
    pub back: Option<(Nanos, Time)>,
    /// The answer of the store; `None` if there is none and this process decides.
    pub word: Option<StoreBucketState>,
    /// Whether the decision of this process must be reported to the store.
    pub owes: bool,
    /// The time at which the bucket was known here to be full, by this process's clock, before the
    /// charges reported with it. For a store that has lost the bucket. Zero if unknown.
    pub known: Time,
    /// When `known` was determined.
    pub known_at: Time,
    /// The deficit of the bucket if it had only the charges reported here.
    pub least: Time,
    /// The times of requests that are reported together, for a history.
    pub times: Vec<Time>,
}

/// The algorithm by which the store counts. Reservations stay in the process of the request; the
/// store gets the final cost.
fn stored(algorithm: &Algorithm) -> Algorithm {
    match algorithm {
        Algorithm::Quota(quota) => Algorithm::Debt(*quota.bucket()),
        other => other.clone(),
    }
}

impl StoreAccount {
    /// Makes a question about the bucket `key` of `home`: may `cost` be charged now?
    #[must_use]
    pub fn new(
        name: String,
        home: &Arc<Limiter>,
        key: LimitKey,
        cost: Cost,
        now: Time,
    ) -> StoreAccount {
        let algorithm = home.limits().get(usize::from(key.limit));
        StoreAccount {
            name,
            home: Arc::clone(home),
            key,
            algorithm: algorithm.map_or_else(free, |limit| stored(&limit.algorithm)),
            need: cost,
            cost,
            at: now,
            patience: Some(Nanos::ZERO),
            back: None,
            word: None,
            owes: false,
            known: Time::ZERO,
            known_at: Time::ZERO,
            least: Time::ZERO,
            times: Vec::new(),
        }
    }

    /// The unit in which the bucket counts.
    #[must_use]
    pub fn unit(&self) -> LimitUnit {
        let limit = self.home.limits().get(usize::from(self.key.limit));
        limit.map_or(LimitUnit::Cpu, |limit| limit.unit)
    }

    /// The report that takes back the charge that the store has made, if it has made one.
    #[must_use]
    pub fn refund(&self) -> Option<StoreAccount> {
        let word = self.word.filter(|word| word.charged)?;
        let moved = word.after.minus(word.before);
        let back = Some((moved, word.clock));
        (moved > Nanos::ZERO).then(|| StoreAccount { back, cost: Cost::ZERO, ..self.clone() })
    }

    /// Adds the arguments for this bucket to a script call.
    fn push(&self, call: &mut Pipeline, now: Time) {
        let kind = match (&self.back, &self.algorithm) {
            (Some(_), _) => "r",
            (_, Algorithm::Debt(_) | Algorithm::Quota(_) | Algorithm::Fixed(_)) => "d",
            (_, Algorithm::Grid(_)) => "g",
            (_, Algorithm::Sliding(_)) => "s",
            (_, Algorithm::History(_)) => "h",
        };
        call.arg(kind).arg(self.patience.map_or(-1, |patience| signed(patience.0)));
        match &self.algorithm {
            Algorithm::Debt(debt) => match self.back {
                Some((moved, asked)) => {
                    call.arg(moved.0);
                    moment(call, asked);
                    call.arg(reach(debt));
                }
                None => self.push_debt(call, debt, now),
            },
            Algorithm::Grid(grid) => self.push_grid(call, grid, now),
            Algorithm::Sliding(sliding) => self.push_sliding(call, sliding, now),
            Algorithm::History(history) => self.push_history(call, history, now),
            // No account has these: `stored` replaces quotas, and the rate limit service counts its
            // windows as counters.
            Algorithm::Quota(_) | Algorithm::Fixed(_) => (0..8).for_each(|_| _ = call.arg(0)),
        }
    }

    fn push_debt(&self, call: &mut Pipeline, debt: &DebtBucket, now: Time) {
        let time = |cost| debt.rate().time_for(cost).0;
        call.arg(time(self.need)).arg(time(self.cost)).arg(ahead(self.at, now));
        call.arg(ahead(self.least.max(self.at), now));
        self.push_known(call, now);
        call.arg(time(debt.burst())).arg(reach(debt));
    }

    fn push_known(&self, call: &mut Pipeline, now: Time) {
        let at = self.known_at.min(now);
        call.arg(signed(self.known.since(now).0)).arg(ahead(at, now));
    }

    fn push_grid(&self, call: &mut Pipeline, grid: &GridBucket, now: Time) {
        let [mut tokens, mut period, burst] = grid.numbers();
        if tokens.saturating_mul(period) > EXACT_MAX {
            (tokens, period) = (1, period / tokens);
        }
        call.arg(self.need.whole_hits()).arg(self.cost.whole_hits()).arg(ahead(self.at, now));
        call.arg(ahead(self.least.max(self.at), now));
        self.push_known(call, now);
        call.arg(tokens).arg(period).arg(burst);
        moment(call, Time(now.0 / period * period));
    }

    fn push_sliding(&self, call: &mut Pipeline, sliding: &SlidingWindow, now: Time) {
        let part = sliding.part();
        call.arg(self.cost.0).arg(ahead(self.at, now)).arg(sliding.round().0);
        call.arg(sliding.window().0).arg(sliding.max().0).arg(part.0).arg(sliding.parts());
        let number = now.0 / part.0;
        call.arg(number);
        moment(call, Time(number * part.0));
    }

    fn push_history(&self, call: &mut Pipeline, history: &RequestHistory, now: Time) {
        call.arg(history.interval().0).arg(history.burst());
        match self.times.as_slice() {
            [] => _ = call.arg(1).arg(ahead(self.at, now)),
            times => {
                call.arg(times.len());
                times.iter().for_each(|at| _ = call.arg(ahead(*at, now)));
            }
        }
    }
}

/// An algorithm that never refuses, for a key of a limit that does not exist.
fn free() -> Algorithm {
    let pace = evenkeel_core::units::ExactRate::ONE_PER_SECOND;
    Algorithm::Debt(DebtBucket::new(pace.rate(), Cost(u64::MAX)))
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

/// The nanoseconds from `now` to `at`; negative if `at` is in the past.
fn ahead(at: Time, now: Time) -> i64 {
    signed(at.since(now).0) - signed(now.since(at).0)
}

fn reach(debt: &DebtBucket) -> i64 {
    debt.reach().map_or(-1, |reach| signed(reach.0))
}

fn moment(call: &mut Pipeline, at: Time) {
    call.arg(at.0 / SECOND).arg(at.0 % SECOND);
}

/// The options of a call for buckets.
#[derive(Clone, Copy)]
pub struct AccountCallOptions {
    /// Charge no bucket if one of them would have to wait for too long.
    pub all_or_none: bool,
    /// The current time by this process's clock.
    pub now: Time,
}

impl ScriptQuestion for StoreAccount {
    type Answer = (Nanos, Nanos, bool);
    type How = AccountCallOptions;

    fn name(&self) -> &str {
        &self.name
    }

    fn call(
        pipeline: &mut Pipeline,
        asks: &[StoreAccount],
        places: &[usize],
        how: AccountCallOptions,
    ) {
        let call = script::ACCOUNT.call(pipeline, places.iter().map(|at| asks[*at].name.as_str()));
        call.arg(u8::from(how.all_or_none));
        places.iter().for_each(|at| asks[*at].push(call, how.now));
    }

    fn read(value: &Value, count: usize) -> Result<(Time, Vec<Self::Answer>), ServerRefusal> {
        let (now, numbers) = script::numbers(value, 3 * count)?;
        let nanos = |n: i64| Nanos(u64::try_from(n).unwrap_or(0));
        let (answers, _) = numbers.as_chunks::<3>();
        let answers = answers
            .iter()
            .map(|[before, after, charged]| (nanos(*before), nanos(*after), *charged == 1));
        Ok((now, answers.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_script_does_not_answer_is_refused_or_bounded() {
        let numbers =
            |numbers: &[i64]| Value::Array(numbers.iter().map(|n| Value::Int(*n)).collect());
        let read = |value: &Value| StoreAccount::read(value, 1);
        let good = read(&numbers(&[7, 5, 1, 2, 1]));
        assert_eq!(good, Ok((Time(7_000_005_000), vec![(Nanos(1), Nanos(2), true)])));
        let odd = read(&numbers(&[7, 5, -1, i64::MAX, 2]));
        assert_eq!(odd.map(|(_, answers)| answers[0]), {
            Ok((Nanos(0), Nanos(i64::MAX as u64), false))
        });
        for wrong in [Value::Nil, numbers(&[]), numbers(&[7, 5, 1, 2]), numbers(&[-7, 5, 1, 2, 1])]
        {
            assert!(matches!(read(&wrong), Err(ServerRefusal::Wrong(_))), "{wrong:?}");
        }
    }

    #[test]
    fn fuzz_whatever_a_server_answers_is_read_whole_or_refused() {
        evenkeel_fuzz::fuzz().with_type::<(Vec<i64>, u8)>().for_each(|(numbers, count)| {
            let value = Value::Array(numbers.iter().map(|n| Value::Int(*n)).collect());
            let count = usize::from(*count);
            let fits = numbers.len() >= 2 + 3 * count && numbers[..2].iter().all(|n| *n >= 0);
            let read = StoreAccount::read(&value, count).map(|(_, answers)| answers.len());
            assert_eq!(read.ok(), fits.then_some(count));
            let fits = numbers.len() >= 2 + 2 * count && numbers[..2].iter().all(|n| *n >= 0);
            let read = script::CounterAsk::read(&value, count).map(|(_, answers)| answers.len());
            assert_eq!(read.ok(), fits.then_some(count));
        });
    }
}
