//! Spans: the trace to which a request belongs, when it began and ended, and whether it is sampled.
//!
//! The caller of a request decides whether it is traced, if its headers say so (W3C trace context,
//! or Zipkin's B3 as Envoy sends it). Otherwise the trace id decides, so that all programs in a
//! trace decide alike. A finished span goes into a bounded queue without waiting; `spans` empties
//! the queue. If tracing is off, there is no [`Tracer`] and no code of this file runs.

use super::wire::{KeyValue, Span, SpanKind, Status, StatusCode};
use crate::metrics::TRACE_SPANS;
use crate::registry::{Counter, Registry};
use evenkeel_core::units::Time;
use http::HeaderMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::mpsc;

/// The maximum size of a `tracestate` that is passed on, in bytes; the standard requires this size.
const STATE_BYTES_MAX: usize = 512;

/// Makes spans and queues them. Clones share the queue and the random numbers.
#[derive(Clone, Debug)]
pub struct Tracer(Arc<TracerState>);

#[derive(Debug)]
struct TracerState {
    queue: mpsc::Sender<Span>,
    /// Traces with a number below this are sampled, if the caller has not decided.
    below: u64,
    /// The start of the sequence of random numbers, and the current position in it.
    seed: u64,
    row: AtomicU64,
    dropped: Counter,
}

/// The trace context that a caller sent with a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceParent {
    trace: [u8; 16],
    /// The span of the caller; `None` if the caller only sent a sampling decision.
    span: Option<[u8; 8]>,
    /// Whether the caller samples the trace; `None` if Evenkeel must decide.
    sampled: Option<bool>,
    state: String,
}

/// A span that has begun and not ended.
#[derive(Clone, Debug)]
pub struct OpenSpan {
    span: Span,
}

impl Tracer {
    /// Makes a tracer that samples the share `sampling` of requests, from 0 to 1. Also returns the
    /// queue of its finished spans, which holds `queue_max` spans.
    pub fn new(
        sampling: f64,
        queue_max: usize,
        registry: &Registry,
    ) -> (Tracer, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(queue_max);
        let mut seed = [0; 8];
        // Without randomness numbers of spans repeat those of other processes, which harms traces
        // only.
        let _ = aws_lc_rs::rand::fill(&mut seed);
        let shared = TracerState {
            queue,
            below: (sampling * (1_u64 << 63) as f64) as u64,
            seed: u64::from_le_bytes(seed),
            row: AtomicU64::new(0),
            dropped: registry.counter(&TRACE_SPANS, &["dropped"]),
        };
        (Tracer(Arc::new(shared)), spans)
    }

    /// Begins the span of a request with these headers; `None` if the request is not sampled.
    #[must_use]
    pub fn begin(&self, headers: &HeaderMap, name: &str, now: Time) -> Option<OpenSpan> {
        let parent = TraceParent::of(headers).unwrap_or_default();
        let trace = match parent.span {
            Some(_) => parent.trace,
            None => joined(self.random().to_be_bytes(), self.random().to_be_bytes()),
        };
        if !parent.sampled.unwrap_or_else(|| self.samples(&trace)) {
            return None;
        }
        Some(OpenSpan {
            span: Span {
                trace_id: trace.to_vec(),
                span_id: self.random().to_be_bytes().to_vec(),
                trace_state: parent.state,
                parent_span_id: parent.span.map(Vec::from).unwrap_or_default(),
                name: name.to_owned(),
                kind: SpanKind::Server as i32,
                start_time_unix_nano: now.0,
                ..Span::default()
            },
        })
    }

    /// Begins a span inside another one.
    #[must_use]
    pub fn within(&self, outer: &OpenSpan, name: &str, now: Time) -> OpenSpan {
        OpenSpan {
            span: Span {
                trace_id: outer.span.trace_id.clone(),
                span_id: self.random().to_be_bytes().to_vec(),
                trace_state: outer.span.trace_state.clone(),
                parent_span_id: outer.span.span_id.clone(),
                name: name.to_owned(),
                kind: SpanKind::Internal as i32,
                start_time_unix_nano: now.0,
                ..Span::default()
            },
        }
    }

    /// Ends a span; `fault` is the error message if Evenkeel caused an error.
    pub fn end(&self, open: OpenSpan, attributes: Vec<KeyValue>, fault: Option<String>, now: Time) {
        let mut span = open.span;
        span.end_time_unix_nano = now.0.max(span.start_time_unix_nano);
        span.attributes = attributes;
        span.status = fault.map(|message| Status { message, code: StatusCode::Error as i32 });
        if self.0.queue.try_send(span).is_err() {
            self.0.dropped.increment(1);
        }
    }

    fn samples(&self, trace: &[u8; 16]) -> bool {
        let [.., a, b, c, d, e, f, g, h] = *trace;
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1 < self.0.below
    }

    /// The next number of a sequence with a random start and practically no repetition. It is never
    /// zero, which means "no id" in a span.
    fn random(&self) -> u64 {
        let step = self.0.row.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0.seed.wrapping_add(step);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).max(1)
    }
}

impl TraceParent {
    /// Parses the trace context in the headers of a request; `None` if there is none or it is
    /// invalid.
    pub fn of(headers: &HeaderMap) -> Option<TraceParent> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let standard = text("traceparent").and_then(TraceParent::standard);
        if let Some(parent) = standard {
            let state = headers.get_all("tracestate").iter().filter_map(|v| v.to_str().ok());
            let state = state.collect::<Vec<_>>().join(",");
            let fits = state.len() <= STATE_BYTES_MAX;
            return Some(TraceParent { state: if fits { state } else { String::new() }, ..parent });
        }
        if let Some(single) = text("b3") {
            return TraceParent::b3_single(single);
        }
        let sampled = match (text("x-b3-flags"), text("x-b3-sampled")) {
            (Some("1"), _) => Some(true),
            (_, written) => written.and_then(decided),
        };
        TraceParent::b3(text("x-b3-traceid"), text("x-b3-spanid"), sampled)
    }

    /// Parses `00-TRACE-SPAN-FLAGS`. Later versions may have more fields at the end.
    fn standard(text: &str) -> Option<TraceParent> {
        let mut parts = text.split('-');
        let version: [u8; 1] = hex(parts.next()?)?;
        let (trace, span) = (hex(parts.next()?)?, hex(parts.next()?)?);
        let [flags]: [u8; 1] = hex(parts.next()?)?;
        let more = parts.next().is_some();
        let proper = version != [0xff] && !(version == [0] && more);
        let proper = proper && trace != [0; 16] && span != [0; 8];
        proper.then_some(TraceParent {
            trace,
            span: Some(span),
            sampled: Some(flags & 1 == 1),
            state: String::new(),
        })
    }

    /// Parses `TRACE-SPAN-SAMPLED-PARENT`, with the last two optional, or a sampling decision
    /// alone.
    fn b3_single(text: &str) -> Option<TraceParent> {
        let mut parts = text.split('-');
        let first = parts.next()?;
        match parts.next() {
            None => TraceParent::b3(None, None, decided(first)),
            Some(span) => TraceParent::b3(Some(first), Some(span), parts.next().and_then(decided)),
        }
    }

    fn b3(trace: Option<&str>, span: Option<&str>, sampled: Option<bool>) -> Option<TraceParent> {
        let trace = trace.and_then(|text| match text.len() {
            16 => hex(text).map(|low| joined([0; 8], low)),
            _ => hex(text),
        });
        let span = span.and_then(hex);
        match trace.zip(span).filter(|(trace, span)| *trace != [0; 16] && *span != [0; 8]) {
            Some((trace, span)) => {
                Some(TraceParent { trace, span: Some(span), sampled, state: String::new() })
            }
            None => sampled.map(|_| TraceParent { sampled, ..TraceParent::default() }),
        }
    }
}

fn decided(text: &str) -> Option<bool> {
    match text {
        "1" | "d" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

fn joined(high: [u8; 8], low: [u8; 8]) -> [u8; 16] {
    let number = u128::from(u64::from_be_bytes(high)) << 64 | u128::from(u64::from_be_bytes(low));
    number.to_be_bytes()
}

/// Parses exactly `2 * N` hexadecimal digits in lower case.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
