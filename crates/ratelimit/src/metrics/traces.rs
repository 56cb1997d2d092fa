//! The spans of a traced call: one for the call, and one for the decision in it.
//!
//! The span of the call follows OpenTelemetry's conventions for servers. The span of the decision
//! has the name and the attributes that the reference server gives it; as there, it shows the
//! values of descriptors to everyone with access to the traces. Without a tracer, none of this
//! runs. How spans are sent: `export::otlp`.

use crate::decide::DecisionError;
use crate::wire::view::RequestView;
use crate::wire::{Code, Response};
use evenkeel_core::units::Time;
use evenkeel_telemetry::otlp::trace::{OpenSpan, Tracer};
use evenkeel_telemetry::otlp::wire::{KeyValue, number, text};
use http::HeaderMap;
use std::fmt::Write;

const DECISION_SPAN_NAME: &str = "ShouldRateLimit Execution";
/// The maximum length of a request as text, in bytes; a longer text is cut.
const REQUEST_BYTES_MAX: usize = 1_024;
/// The maximum length of a domain, key or value in that text, in bytes.
const PART_BYTES_MAX: usize = 256;
/// The gRPC status codes for errors of the server.
const SERVER_ERROR_CODES: [i64; 6] = [2, 4, 12, 13, 14, 15];

pub struct TracedCall<'t> {
    tracer: &'t Tracer,
    open: OpenSpan,
}

impl<'t> TracedCall<'t> {
    /// Begins a span if the call is sampled.
    #[must_use]
    pub fn begin(
        tracer: &'t Tracer,
        headers: &HeaderMap,
        name: &str,
        now: Time,
    ) -> Option<TracedCall<'t>> {
        tracer.begin(headers, name, now).map(|open| TracedCall { tracer, open })
    }

    /// Records a decision that was made in this call between two moments.
    pub fn decided(
        &self,
        request: &RequestView<'_>,
        decided: &Result<Response, DecisionError>,
        (began, ended): (Time, Time),
    ) {
        let open = self.tracer.within(&self.open, DECISION_SPAN_NAME, began);
        let mut attributes = vec![
            text("domain", cut(request.domain)),
            text("request string", written(request)),
            number("evenkeel.descriptors", count(request.descriptors.len())),
        ];
        let fault = match decided {
            Ok(response) => {
                let code = match response.overall_code() {
                    Code::OverLimit => "OVER_LIMIT",
                    Code::Ok => "OK",
                    Code::Unknown => "UNKNOWN",
                };
                attributes.push(text("evenkeel.code", code));
                None
            }
            Err(refusal) => Some(refusal.to_string()),
        };
        self.tracer.end(open, attributes, fault, ended);
    }

    /// Ends the span of a gRPC call with its status code and message.
    pub fn end_grpc(self, method: &str, (code, message): (i64, &str), now: Time) {
        let (service, method) = method.rsplit_once('/').unwrap_or((method, ""));
        let attributes = vec![
            text("rpc.system", "grpc"),
            text("rpc.service", service),
            text("rpc.method", method),
            number("rpc.grpc.status_code", code),
        ];
        self.end(attributes, SERVER_ERROR_CODES.contains(&code).then(|| message.to_owned()), now);
    }

    /// Ends the span of an HTTP call with its status.
    pub fn end_http(self, method: &str, path: &str, status: u16, now: Time) {
        let attributes = vec![
            text("http.request.method", method),
            text("url.path", path),
            number("http.response.status_code", i64::from(status)),
        ];
        self.end(attributes, (status >= 500).then(String::new), now);
    }

    fn end(self, attributes: Vec<KeyValue>, fault: Option<String>, now: Time) {
        self.tracer.end(self.open, attributes, fault, now);
    }
}

/// A request as text, cut to [`REQUEST_BYTES_MAX`].
fn written(request: &RequestView<'_>) -> String {
    let mut all = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = write!(all, "domain:{:?}", cut(request.domain));
    for descriptor in &request.descriptors {
        all.push_str(" descriptors:{");
        for (key, value) in request.entries(descriptor) {
            let (key, value) = (cut(key), cut(value));
            let _ = write!(all, "entries:{{key:{key:?} value:{value:?}}} ");
            if all.len() > REQUEST_BYTES_MAX {
                break;
            }
        }
        all.truncate(all.trim_end().len());
        all.push('}');
        if all.len() > REQUEST_BYTES_MAX {
            all.truncate(all.floor_char_boundary(REQUEST_BYTES_MAX));
            return all + "...";
        }
    }
    if request.hits_addend != 0 {
        let _ = write!(all, " hits_addend:{}", request.hits_addend);
    }
    all
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(PART_BYTES_MAX)]
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
