//! A simulated backend: processors, workers, and requests that need CPU time.
//!
//! A request takes a worker when one is free, in order of arrival, and keeps it to the end. The
//! [`SimScheduling`] defines how workers share the processors. Only CPU time is simulated: no disk,
//! no memory, no network. As in every state machine of this crate, `handle_*` takes events and
//! `poll_*` returns their results.

use crate::units::{Cost, Nanos, Time};
use alloc::collections::VecDeque;

/// The way in which workers share the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimScheduling {
    /// All busy workers get an equal share, at most one processor each, as in an operating system.
    Shared,
    /// Each processor runs one request to its end; the other requests wait.
    Fifo,
}

/// The backend; idle after construction.
#[derive(Clone, Debug)]
pub struct SimBackend {
    cores: f64,
    slots: usize,
    /// All requests in order of arrival: the first `slots` run, the others wait.
    jobs: VecDeque<SimJob>,
    finished: VecDeque<FinishedJob>,
    last: Time,
    used: f64,
}

#[derive(Clone, Debug)]
struct SimJob {
    id: u64,
    demand: f64,
    left: f64,
}

/// A finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedJob {
    /// The id passed to [`SimBackend::handle_request`].
    pub id: u64,
    /// CPU time that the request used.
    pub used: Nanos,
}

/// A request counts as done if this much CPU time or less is left, in nanoseconds: below rounding
/// errors.
const DONE_NANOS_MAX: f64 = 1e-3;

impl SimBackend {
    /// A backend of `cores` processors (fractions are quotas; at least 0.001) and `workers` workers
    /// (at least one).
    #[must_use]
    pub fn new(cores: f64, workers: usize, order: SimScheduling) -> SimBackend {
        let cores = cores.max(0.001);
        let slots = match order {
            SimScheduling::Shared => workers,
            SimScheduling::Fifo => workers.min(ceil(cores) as usize),
        };
        SimBackend {
            cores,
            slots: slots.max(1),
            jobs: VecDeque::new(),
            finished: VecDeque::new(),
            last: Time::ZERO,
            used: 0.0,
        }
    }

    /// Changes the number of processors from `now` on (fractions are quotas; at least 0.001), for
    /// instance because other programs use them.
    pub fn set_cores(&mut self, cores: f64, now: Time) {
        self.handle_timeout(now);
        self.cores = cores.max(0.001);
    }

    /// Handles the arrival of a request that needs `demand` of CPU time.
    pub fn handle_request(&mut self, id: u64, demand: Nanos, now: Time) {
        self.handle_timeout(now);
        let demand = demand.0 as f64;
        self.jobs.push_back(SimJob { id, demand, left: demand });
    }

    /// Stops the work on a request. Returns the CPU time that it has used; `None` if it is done or
    /// unknown.
    pub fn handle_cancel(&mut self, id: u64, now: Time) -> Option<Nanos> {
        self.handle_timeout(now);
        let place = self.jobs.iter().position(|job| job.id == id)?;
        let job = self.jobs.remove(place)?;
        Some(job.used())
    }

    /// Advances the time to `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(next) = self.poll_timeout().filter(|next| *next <= now) {
            self.work_until(next);
        }
        self.work_until(now);
    }

    /// Returns the next finished request, if there is one.
    pub fn poll_finished(&mut self) -> Option<FinishedJob> {
        self.finished.pop_front()
    }

    /// Time at which the next request will be done, if nothing else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let least = self.running().map(|job| job.left).min_by(f64::total_cmp)?;
        Some(self.last.plus(Nanos(ceil(least.max(0.0) / self.pace()))))
    }

    /// Total CPU time used so far.
    #[must_use]
    pub fn used(&self) -> Cost {
        Cost(self.used as u64)
    }

    fn running(&self) -> impl Iterator<Item = &SimJob> {
        self.jobs.iter().take(self.slots)
    }

    /// Share of a processor that each running request has.
    fn pace(&self) -> f64 {
        let running = self.jobs.len().min(self.slots).max(1);
        (self.cores / running as f64).min(1.0)
    }

    /// Works until `now`, which must not be later than the end of the next request.
    fn work_until(&mut self, now: Time) {
        let done = now.since(self.last).0 as f64 * self.pace();
        self.last = self.last.max(now);
        for job in self.jobs.iter_mut().take(self.slots) {
            self.used += done.min(job.left);
            job.left -= done.min(job.left);
        }
        let mut place = 0;
        while place < self.jobs.len().min(self.slots) {
            if self.jobs[place].left > DONE_NANOS_MAX {
                place += 1;
            } else if let Some(job) = self.jobs.remove(place) {
                self.finished.push_back(FinishedJob { id: job.id, used: job.used() });
            }
        }
    }
}

impl SimJob {
    fn used(&self) -> Nanos {
        Nanos((self.demand - self.left + 0.5) as u64)
    }
}

/// Rounds up to a whole number.
fn ceil(x: f64) -> u64 {
    let whole = x as u64;
    if (whole as f64) < x { whole.saturating_add(1) } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn ends(mut backend: SimBackend, demands: &[u64]) -> Vec<(u64, u64)> {
        for (id, demand) in demands.iter().enumerate() {
            backend.handle_request(id as u64, Nanos::from_millis(*demand), Time::ZERO);
        }
        let mut ends = Vec::new();
        while let Some(next) = backend.poll_timeout() {
            backend.handle_timeout(next);
            while let Some(done) = backend.poll_finished() {
                assert_eq!(done.used, Nanos::from_millis(demands[done.id as usize]));
                ends.push((done.id, next.0 / 1_000_000));
            }
        }
        assert_eq!(backend.used().0, demands.iter().sum::<u64>() * 1_000_000);
        ends
    }

    #[test]
    fn shared_processors_slow_everybody_down_alike() {
        let backend = SimBackend::new(1.0, 8, SimScheduling::Shared);
        assert_eq!(ends(backend, &[10, 20, 30]), [(0, 30), (1, 50), (2, 60)]);
        let backend = SimBackend::new(2.0, 8, SimScheduling::Shared);
        assert_eq!(ends(backend, &[10, 20]), [(0, 10), (1, 20)]);
        let backend = SimBackend::new(0.5, 8, SimScheduling::Shared);
        assert_eq!(ends(backend, &[10]), [(0, 20)]);
    }

    #[test]
    fn who_finds_no_worker_waits_for_one() {
        let backend = SimBackend::new(1.0, 2, SimScheduling::Shared);
        assert_eq!(ends(backend, &[10, 10, 10]), [(0, 20), (1, 20), (2, 30)]);
        let backend = SimBackend::new(1.0, 8, SimScheduling::Fifo);
        assert_eq!(ends(backend, &[10, 20, 30]), [(0, 10), (1, 30), (2, 60)]);
    }

    #[test]
    fn a_cancelled_request_stops_where_it_is() {
        let mut backend = SimBackend::new(1.0, 2, SimScheduling::Shared);
        backend.handle_request(1, Nanos(100), Time(0));
        assert_eq!(backend.handle_cancel(1, Time(40)), Some(Nanos(40)));
        assert_eq!(backend.handle_cancel(1, Time(40)), None);
        assert_eq!(backend.poll_timeout(), None);
    }
}
