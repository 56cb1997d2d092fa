//! The rate limit quota service: Envoys decide by themselves, within the share that they were
//! assigned.
//!
//! Each Envoy reports from time to time how many requests it let pass, and gets an assignment of
//! how many may pass next. The name of a bucket is matched against the same rules as descriptors,
//! and its usage is charged to the same counters. This module holds the lock and the metrics; the
//! protocol is in `grpc::quota_stream`, the state in `state`.

pub mod bucket;
pub mod share;
pub mod state;

use super::decide::RatelimitDecider;
use super::wire::quota::RateLimitQuotaResponse;
use super::wire::reports::UsageReports;
use evenkeel_config::settings::RlqsSettings;
use evenkeel_core::key::KeySeed;
use evenkeel_telemetry::metrics::{RLQS_BUCKETS, RLQS_LEFT_OUT, RLQS_REPORTS, RLQS_STREAMS};
use evenkeel_telemetry::registry::{Counter, Gauge, Registry};
use parking_lot::Mutex;
use state::{DomainError, QuotaMoment, QuotaState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Waker;

/// The service, shared by all threads.
pub struct QuotaService {
    decider: Arc<RatelimitDecider>,
    /// The state of all streams. Invariant: this lock is never held across an `await`.
    book: Mutex<QuotaState>,
    ending: AtomicBool,
    counts: QuotaCounts,
}

struct QuotaCounts {
    streams: Gauge,
    buckets: Gauge,
    reports: Counter,
    /// The number of streams refused, and of buckets not tracked, because there were too many.
    left_out: [Counter; 2],
}

/// One Envoy's stream in the service; closed when dropped.
pub struct QuotaMember {
    quotas: Arc<QuotaService>,
    stream: u64,
}

impl QuotaService {
    /// A service without streams that charges to the counters of `decider`.
    pub fn new(
        settings: RlqsSettings,
        decider: Arc<RatelimitDecider>,
        seed: KeySeed,
        registry: &Registry,
    ) -> Arc<QuotaService> {
        let counts = QuotaCounts {
            streams: registry.gauge(&RLQS_STREAMS, &[]),
            buckets: registry.gauge(&RLQS_BUCKETS, &[]),
            reports: registry.counter(&RLQS_REPORTS, &[]),
            left_out: ["stream", "bucket"].map(|what| registry.counter(&RLQS_LEFT_OUT, &[what])),
        };
        let (book, ending) = (Mutex::new(QuotaState::new(settings, seed)), AtomicBool::new(false));
        Arc::new(QuotaService { decider, book, ending, counts })
    }

    fn moment(&self) -> QuotaMoment {
        QuotaMoment { steady: self.decider.steady_now(), wall: self.decider.now() }
    }

    /// Opens a stream for an Envoy; `None` if there are too many streams.
    #[must_use]
    pub fn open_stream(self: &Arc<QuotaService>) -> Option<QuotaMember> {
        let stream = self.book.lock().open();
        if stream.is_none() {
            self.counts.left_out[0].increment(1);
        }
        stream.map(|stream| QuotaMember { quotas: Arc::clone(self), stream })
    }

    /// Updates assignments and metrics. To be called once a second.
    pub fn tick(&self) {
        let moment = self.moment();
        let mut book = self.book.lock();
        book.tick(&self.decider, moment);
        let (streams, buckets) = book.sizes();
        drop(book);
        let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.counts.streams.set(signed(streams));
        self.counts.buckets.set(signed(buckets));
    }

    /// Ends all streams; their Envoys connect to another instance.
    pub fn end_streams(&self) {
        self.ending.store(true, Relaxed);
        self.book.lock().wake_all();
    }

    /// Whether streams are to end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }
}

impl QuotaMember {
    /// The service that this stream belongs to.
    pub fn quotas(&self) -> &QuotaService {
        &self.quotas
    }

    /// Processes a report of the Envoy.
    pub fn report(&self, reports: UsageReports<'_>) -> Result<(), DomainError> {
        let quotas = &self.quotas;
        let moment = quotas.moment();
        let taken = quotas.book.lock().report(self.stream, reports, &quotas.decider, moment)?;
        quotas.counts.reports.increment(taken.reports as u64);
        quotas.counts.left_out[1].increment(taken.left_out as u64);
        Ok(())
    }

    /// Returns the assignments that are pending now. If there are none, `waker` is woken when there
    /// are.
    #[must_use]
    pub fn take_actions(&self, waker: &Waker) -> Option<RateLimitQuotaResponse> {
        let moment = self.quotas.moment();
        let bucket_action = self.quotas.book.lock().take_actions(self.stream, waker, moment);
        (!bucket_action.is_empty()).then_some(RateLimitQuotaResponse { bucket_action })
    }
}

impl Drop for QuotaMember {
    fn drop(&mut self) {
        self.quotas.book.lock().close(self.stream);
    }
}
