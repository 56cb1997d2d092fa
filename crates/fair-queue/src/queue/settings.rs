//! The settings of a queue, and what the core needs to know of them.
//!
//! A value out of its range is replaced by the nearest possible one, because a service must not
//! fail to start for that.

use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::condition::Condition;
use evenkeel_core::limit::{KEYS_MAX, KeyPart, Limit, LimitUnit};
use evenkeel_core::queue::concurrency::ConcurrencySearch;
use evenkeel_core::queue::standing::KnownClients;
use evenkeel_core::queue::{QueueSettings, WorkUnit};
use evenkeel_core::units::{Cost, CpuShare, ExactRate, Nanos, Weight};
use std::time::Duration;

/// The largest number of slots.
const SLOTS_MAX: usize = 1_000_000;
/// The smallest part of the slots that a client can be given.
const SHARE_MIN: f64 = 1e-6;

/// The number of requests that run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// The number at which most requests end per second, found by measuring. It begins with one
    /// for each processor, and is never lower.
    Auto,
    /// This number, 1 to 1 000 000. Too low: the service is idle while requests wait. Too high:
    /// requests slow each other down, in no fair order.
    Fixed(usize),
}

/// The settings of a [`FairQueue`](crate::FairQueue).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FairQueueSettings {
    /// The number of requests that run at once. Default: [`Slots::Auto`].
    pub slots: Slots,
    /// The longest time that a request waits. Too short: refusals instead of waits. Too long:
    /// clients give up first. Default: 30 s.
    pub wait_max: Duration,
    /// The number of requests that may wait, some 500 bytes each. Beyond it, the newest request of
    /// the client with most of them is refused. Too low: bursts are refused. Too high: memory.
    /// Default: 4096.
    pub len_max: usize,
    /// The part of all slots that a client may use for a long time, above 0 and at most 1. A client
    /// that has used more waits behind all others, which get nine tenths of the time. Too low:
    /// ordinary clients are in debt. Too high: no client ever is. Default: 0.25.
    pub share: f64,
    /// The time that a client can use before `share` applies to it. Too short: a client with a few
    /// long requests is in debt. Too long: a heavy client is in credit for long. Default: 30 s.
    pub burst: Duration,
    /// The number of clients with a remembered use, 24 bytes each, allocated at the start; 1 to
    /// 268 435 456. Too low: small debts are forgiven early. Default: 65 536.
    pub clients_max: usize,
}

impl Default for FairQueueSettings {
    fn default() -> FairQueueSettings {
        FairQueueSettings {
            slots: Slots::Auto,
            wait_max: Duration::from_secs(30),
            len_max: 4_096,
            share: 0.25,
            burst: Duration::from_secs(30),
            clients_max: 65_536,
        }
    }
}

/// A duration as the core counts it.
pub(super) fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

impl FairQueueSettings {
    /// The number of slots at the start. `cpus`: the number of processors.
    fn slots(&self, cpus: usize) -> usize {
        match self.slots {
            Slots::Auto => cpus,
            Slots::Fixed(slots) => slots,
        }
        .clamp(1, SLOTS_MAX)
    }

    pub(super) fn bounds(&self, cpus: usize) -> QueueSettings {
        let concurrency = self.slots(cpus);
        QueueSettings {
            concurrency,
            reserve: 0,
            len_max: self.len_max,
            wait_max: nanos(self.wait_max),
            known: KnownClients::Off,
            cpus_milli: 1_000 * concurrency as u64,
            unit: WorkUnit::CpuTime,
            workers: (self.slots != Slots::Auto).then_some(concurrency),
        }
    }

    pub(super) fn search(&self, cpus: usize) -> Option<ConcurrencySearch> {
        (self.slots == Slots::Auto).then(|| ConcurrencySearch::new(cpus as f64))
    }

    /// The limit that decides which clients are in debt.
    pub(super) fn limit(&self, cpus: usize) -> Limit {
        let share = if self.share.is_nan() { 1.0 } else { self.share.clamp(SHARE_MIN, 1.0) };
        let share = CpuShare::new(share).and_then(|share| share.of(self.slots(cpus) as f64));
        let rate = share.unwrap_or_else(|| ExactRate::ONE_PER_SECOND.rate());
        let burst = Cost::cpu(nanos(self.burst.max(Duration::from_millis(1))));
        Limit {
            name: "fair queue".into(),
            by: vec![KeyPart::Tag],
            when: Condition::default(),
            unit: LimitUnit::Cpu,
            algorithm: Algorithm::Debt(DebtBucket::new(rate, burst)),
            action: None,
            weight: Weight::ONE,
            keys_max: self.clients_max.clamp(1, KEYS_MAX),
            shadow: false,
        }
    }
}
