//! Spans: who asked, when it began and ended, and whether anybody wants to know.
//!
//! Whether a request is traced is decided by its caller, if that says so (W3C trace context, or
//! Zipkin's B3 as Envoy sends it), else by the number of the trace, so that all who see a trace
//! decide alike. A span that has ended goes into a bounded queue without waiting; `spans` empties
//! it. Where nothing is traced there is no [`Tracer`], and nothing of this runs.

use super::wire::{KeyValue, Span, SpanKind, Status, StatusCode};
use crate::watch::metrics::TRACE_SPANS;
use crate::watch::registry::{Counter, Registry};
use evenkeel_core::units::Time;
use http::HeaderMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::mpsc;

/// The longest state of other tracers that is passed on, in bytes: what the standard asks for.
const STATE_BYTES_MAX: usize = 512;

/// Makes spans and hands them on. Clones share all.
#[derive(Clone, Debug)]
pub struct Tracer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: mpsc::Sender<Span>,
    /// Traces whose number is below are traced, where the caller has not decided.
    below: u64,
    /// Where the row of random numbers began, and how far it is.
    seed: u64,
    row: AtomicU64,
    dropped: Counter,
}

/// What a caller says of the trace that it is part of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parent {
    trace: [u8; 16],
    /// Nobody: it has only decided.
    span: Option<[u8; 8]>,
    /// Whether it is traced there; `None`: that is for us to say.
    sampled: Option<bool>,
    state: String,
}

/// A span that has begun.
#[derive(Clone, Debug)]
pub struct Open {
    span: Span,
}

impl Tracer {
    /// One that traces this part of requests, 0 to 1, and the queue that spans come out of.
    #[must_use]
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
        let shared = Shared {
            queue,
            below: (sampling * (1_u64 << 63) as f64) as u64,
            seed: u64::from_le_bytes(seed),
            row: AtomicU64::new(0),
            dropped: registry.counter(&TRACE_SPANS, &["dropped"]),
        };
        (Tracer(Arc::new(shared)), spans)
    }

    /// Begins the span of a request with these headers, if it is to be traced.
    #[must_use]
    pub fn begin(&self, headers: &HeaderMap, name: &str, now: Time) -> Option<Open> {
        let parent = Parent::of(headers).unwrap_or_default();
        let trace = match parent.span {
            Some(_) => parent.trace,
            None => joined(self.random().to_be_bytes(), self.random().to_be_bytes()),
        };
        if !parent.sampled.unwrap_or_else(|| self.samples(&trace)) {
            return None;
        }
        Some(Open {
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

    /// Begins a span within another.
    #[must_use]
    pub fn within(&self, outer: &Open, name: &str, now: Time) -> Open {
        Open {
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

    /// Ends a span; `fault` is what went wrong, if it was our doing.
    pub fn end(&self, open: Open, attributes: Vec<KeyValue>, fault: Option<String>, now: Time) {
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

    /// The next of a row that begins anywhere and has no number twice. Never zero, which would
    /// mean no number at all.
    fn random(&self) -> u64 {
        let step = self.0.row.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0.seed.wrapping_add(step);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).max(1)
    }
}

impl Parent {
    /// What the headers of a request say; `None`: nothing, or nothing proper.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Parent> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let standard = text("traceparent").and_then(Parent::standard);
        if let Some(parent) = standard {
            let state = headers.get_all("tracestate").iter().filter_map(|v| v.to_str().ok());
            let state = state.collect::<Vec<_>>().join(",");
            let fits = state.len() <= STATE_BYTES_MAX;
            return Some(Parent { state: if fits { state } else { String::new() }, ..parent });
        }
        if let Some(single) = text("b3") {
            return Parent::b3_single(single);
        }
        let sampled = match (text("x-b3-flags"), text("x-b3-sampled")) {
            (Some("1"), _) => Some(true),
            (_, written) => written.and_then(decided),
        };
        Parent::b3(text("x-b3-traceid"), text("x-b3-spanid"), sampled)
    }

    /// `00-TRACE-SPAN-FLAGS`; later versions may have more behind it.
    fn standard(text: &str) -> Option<Parent> {
        let mut parts = text.split('-');
        let version: [u8; 1] = hex(parts.next()?)?;
        let (trace, span) = (hex(parts.next()?)?, hex(parts.next()?)?);
        let [flags]: [u8; 1] = hex(parts.next()?)?;
        let more = parts.next().is_some();
        let proper = version != [0xff] && !(version == [0] && more);
        let proper = proper && trace != [0; 16] && span != [0; 8];
        proper.then_some(Parent {
            trace,
            span: Some(span),
            sampled: Some(flags & 1 == 1),
            state: String::new(),
        })
    }

    /// `TRACE-SPAN-SAMPLED-PARENT`, of which the last two may be missing; or a decision alone.
    fn b3_single(text: &str) -> Option<Parent> {
        let mut parts = text.split('-');
        let first = parts.next()?;
        match parts.next() {
            None => Parent::b3(None, None, decided(first)),
            Some(span) => Parent::b3(Some(first), Some(span), parts.next().and_then(decided)),
        }
    }

    fn b3(trace: Option<&str>, span: Option<&str>, sampled: Option<bool>) -> Option<Parent> {
        let trace = trace.and_then(|text| match text.len() {
            16 => hex(text).map(|low| joined([0; 8], low)),
            _ => hex(text),
        });
        let span = span.and_then(hex);
        match trace.zip(span).filter(|(trace, span)| *trace != [0; 16] && *span != [0; 8]) {
            Some((trace, span)) => {
                Some(Parent { trace, span: Some(span), sampled, state: String::new() })
            }
            None => sampled.map(|_| Parent { sampled, ..Parent::default() }),
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

/// Bytes that are written as just so many hexadecimal digits in lower case.
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
