//! Sends spans to a collector in batches, as long as the program runs.
//!
//! A batch is sent when it is full, or when its oldest span has waited long enough. If the
//! collector is unreachable, the batch is tried again several times with growing pauses, and then
//! dropped. In the meantime, new spans wait in the bounded queue; `trace` drops the ones that do
//! not fit. At shutdown, the pending spans are sent within a time limit; the rest is dropped. Lost
//! spans are counted. A failure is logged once until the next success.

use super::client::{OtlpClient, OtlpDeliveryError, TRACES_SERVICE};
use evenkeel_config::settings::otlp::TracesSettings;
use evenkeel_runtime::thread::OwnedThread;
use evenkeel_telemetry::metrics::{TRACE_FAILURES, TRACE_SPANS};
use evenkeel_telemetry::otlp::wire::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, InstrumentationScope, KeyValue,
    Resource, ResourceSpans, ScopeSpans, Span, text,
};
use evenkeel_telemetry::registry::{Counter, Registry};
use prost::Message;
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

/// The maximum number of attempts to send a batch.
const ATTEMPTS_MAX: u32 = 6;
/// The pause before the second attempt; each further pause is twice the one before.
const FIRST_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The maximum time to send the last spans when the program ends, a message that is on its way
/// included.
const SHUTDOWN_SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The running thread. When it is dropped, it sends the pending spans for one second at most, and
/// ends.
pub type SpanExporterThread = OwnedThread<watch::Sender<()>>;

/// The sender of spans, with its queue and its counters.
pub struct SpanExporter {
    settings: TracesSettings,
    client: OtlpClient,
    spans: Receiver<Span>,
    /// The spans of the next message.
    batch: Vec<Span>,
    /// The number of spans in the message that is on its way.
    in_flight: u64,
    sent: Counter,
    dropped: Counter,
    refused: Counter,
    failures: Counter,
    told: bool,
}

impl SpanExporter {
    /// Makes an exporter that sends the spans from the queue `spans`.
    #[must_use]
    pub fn new(
        settings: TracesSettings,
        spans: Receiver<Span>,
        registry: &Registry,
    ) -> SpanExporter {
        let [sent, dropped, refused] =
            ["sent", "dropped", "refused"].map(|what| registry.counter(&TRACE_SPANS, &[what]));
        let failures = registry.counter(&TRACE_FAILURES, &[]);
        let client = OtlpClient::new(settings.collector.clone(), TRACES_SERVICE);
        let batch = Vec::new();
        SpanExporter {
            settings,
            client,
            spans,
            batch,
            in_flight: 0,
            sent,
            dropped,
            refused,
            failures,
            told: false,
        }
    }

    /// Starts to send, on a thread with its own runtime.
    ///
    /// # Errors
    /// Returns the error of the system if the thread or its runtime cannot be created.
    pub fn start(self) -> io::Result<SpanExporterThread> {
        let (stop, stopping) = watch::channel(());
        OwnedThread::serve("traces", stop, (), move || self.run(stopping))
    }

    /// Sends until the sender of `stop` is dropped; then sends the pending spans once, within
    /// [`SHUTDOWN_SEND_TIMEOUT`], and counts those that are lost.
    async fn run(mut self, stop: watch::Receiver<()>) {
        let mut stopped = stop.clone();
        let limit = async {
            let _ = stopped.changed().await;
            tokio::time::sleep(SHUTDOWN_SEND_TIMEOUT).await;
        };
        tokio::select! {
            () = self.send(stop) => {}
            () = limit => {}
        }
        self.drop_pending();
    }

    async fn send(&mut self, mut stop: watch::Receiver<()>) {
        loop {
            let stopped = tokio::select! {
                more = self.gather() => !more,
                _ = stop.changed() => true,
            };
            if stopped || self.deliver(&mut stop).await {
                break;
            }
        }
        self.send_pending().await;
    }

    /// Sends the spans that are pending when the program ends.
    async fn send_pending(&mut self) {
        loop {
            while self.batch.len() < self.settings.batch_max
                && let Ok(span) = self.spans.try_recv()
            {
                self.batch.push(span);
            }
            if self.batch.is_empty() {
                return;
            }
            let request = self.request();
            match self.client.deliver(&request).await {
                Ok(answer) => self.taken(&answer),
                Err(_) => self.lose(),
            }
        }
    }

    /// Counts the spans that the collector has not accepted before the end of the program.
    fn drop_pending(&mut self) {
        let mut lost = self.in_flight + self.batch.len() as u64;
        self.spans.close();
        while self.spans.try_recv().is_ok() {
            lost += 1;
        }
        self.dropped.increment(lost);
        if lost > 0 {
            tracing::warn!(
                target: "evenkeel::traces", lost,
                "the program ends before the collector has accepted all spans"
            );
        }
    }

    /// Counts the spans of the last message as dropped.
    fn lose(&mut self) {
        self.dropped.increment(std::mem::take(&mut self.in_flight));
    }

    /// Collects a batch until it is full or the interval is over; false if the queue is closed and
    /// empty.
    async fn gather(&mut self) -> bool {
        let max = self.settings.batch_max;
        if self.spans.recv_many(&mut self.batch, max).await == 0 {
            return false;
        }
        let mut end = pin!(tokio::time::sleep(self.settings.every));
        while self.batch.len() < max {
            let room = max - self.batch.len();
            tokio::select! {
                count = self.spans.recv_many(&mut self.batch, room) => if count == 0 { break },
                () = end.as_mut() => break,
            }
        }
        true
    }

    /// Tries to send the batch until it is accepted or dropped; true if the program ends.
    async fn deliver(&mut self, stop: &mut watch::Receiver<()>) -> bool {
        let request = self.request();
        for attempt in 1..=ATTEMPTS_MAX {
            let error = match self.client.deliver(&request).await {
                Ok(answer) => {
                    self.taken(&answer);
                    return false;
                }
                Err(error) => error,
            };
            self.failures.increment(1);
            self.tell(&error);
            if !error.is_transient() {
                self.refused.increment(std::mem::take(&mut self.in_flight));
                return false;
            }
            let pause = FIRST_RETRY_PAUSE * (1 << (attempt - 1));
            if attempt < ATTEMPTS_MAX {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    _ = stop.changed() => break,
                }
            }
        }
        self.lose();
        stop.has_changed().is_err()
    }

    fn taken(&mut self, answer: &[u8]) {
        let answer = ExportTraceServiceResponse::decode(answer).unwrap_or_default();
        let part = answer.partial_success.unwrap_or_default();
        let count = std::mem::take(&mut self.in_flight);
        let refused = u64::try_from(part.rejected_spans).unwrap_or(0).min(count);
        self.sent.increment(count - refused);
        self.refused.increment(refused);
        if std::mem::take(&mut self.told) {
            let endpoint = &self.settings.collector.endpoint;
            tracing::info!(
                target: "evenkeel::traces", %endpoint, "the collector accepts spans again"
            );
        }
    }

    fn tell(&mut self, error: &OtlpDeliveryError) {
        if !std::mem::replace(&mut self.told, true) {
            let endpoint = &self.settings.collector.endpoint;
            tracing::warn!(
                target: "evenkeel::traces", %endpoint, %error,
                "the collector does not accept spans: they are kept for a while and then dropped"
            );
        }
    }

    /// The batch as a message; its spans are then in flight.
    fn request(&mut self) -> ExportTraceServiceRequest {
        let spans = std::mem::take(&mut self.batch);
        self.in_flight = spans.len() as u64;
        let named = |(key, value): &(String, String)| text(key, value.as_str());
        let service = text("service.name", self.settings.service.as_str());
        let attributes: Vec<KeyValue> =
            std::iter::once(service).chain(self.settings.attributes.iter().map(named)).collect();
        let scope = InstrumentationScope {
            name: "evenkeel".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        let resource = Some(Resource { attributes });
        let resource_spans = vec![ResourceSpans { resource, scope_spans }];
        ExportTraceServiceRequest { resource_spans }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_config::settings::otlp::{CollectorSettings, OtlpEndpoint, OtlpProtocol};
    use evenkeel_config::settings::tls::ClientTls;
    use evenkeel_core::units::Time;
    use evenkeel_telemetry::otlp::trace::Tracer;
    use http::HeaderMap;
    use std::io::Read;
    use std::net::TcpListener;

    /// The collector never answers, and its timeout is longer than any test may take.
    #[test]
    fn a_silent_collector_does_not_delay_the_end_and_lost_spans_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let authority = listener.local_addr().expect("an address").to_string();
        let collector = CollectorSettings {
            endpoint: OtlpEndpoint { tls: false, authority, path: String::new() },
            protocol: OtlpProtocol::Http,
            headers: Vec::new(),
            gzip: false,
            timeout: Duration::from_secs(3_600),
            tls: ClientTls::default(),
        };
        let settings = TracesSettings {
            collector,
            service: "test".to_owned(),
            attributes: Vec::new(),
            sampling: 1.0,
            every: Duration::from_millis(1),
            queue_max: 16,
            batch_max: 2,
        };
        let registry = Registry::default();
        let (tracer, spans) = Tracer::new(1.0, settings.queue_max, &registry);
        let now = Time::ZERO;
        for _ in 0..5 {
            let span = tracer.begin(&HeaderMap::new(), "call", now).expect("sampled");
            tracer.end(span, Vec::new(), None, now);
        }
        let thread = SpanExporter::new(settings, spans, &registry).start().expect("it starts");
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.read_exact(&mut [0; 1]).expect("a message");
        drop(thread);
        let counted = |result| registry.counter(&TRACE_SPANS, &[result]).get();
        assert_eq!((counted("sent"), counted("dropped")), (0, 5));
    }
}
