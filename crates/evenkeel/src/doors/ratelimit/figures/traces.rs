//! What a traced call of the service is told as: a span of the call, and one of the decision in it.
//!
//! The call's is named and described as OpenTelemetry's conventions have it for servers; the
//! decision's has the name and the attributes that the reference gives it. Values of descriptors
//! are in it, as they are there: who traces sees them. Where nothing is traced, nothing of this
//! runs. Where spans go: `watch::otlp`.

use crate::doors::ratelimit::decide::Refusal;
use crate::doors::ratelimit::wire::view::View;
use crate::doors::ratelimit::wire::{Code, Response};
use crate::watch::otlp::trace::{Open, Tracer};
use crate::watch::otlp::wire::{KeyValue, number, text};
use evenkeel_core::units::Time;
use http::HeaderMap;
use std::fmt::Write;

/// The name of the decision's span.
const DECISION: &str = "ShouldRateLimit Execution";
/// The longest text of a request, in bytes; what is longer is cut,
const REQUEST_BYTES_MAX: usize = 1_024;
/// and so is each of its names and values.
const PART_BYTES_MAX: usize = 256;
/// gRPC's numbers for what is a server's fault.
const OURS: [i64; 6] = [2, 4, 12, 13, 14, 15];

/// A call that is traced.
pub struct Call<'t> {
    tracer: &'t Tracer,
    open: Open,
}

impl<'t> Call<'t> {
    /// Begins one, if it is to be traced.
    #[must_use]
    pub fn begin(
        tracer: &'t Tracer,
        headers: &HeaderMap,
        name: &str,
        now: Time,
    ) -> Option<Call<'t>> {
        tracer.begin(headers, name, now).map(|open| Call { tracer, open })
    }

    /// A decision was made in it, between two moments.
    pub fn decided(
        &self,
        request: &View<'_>,
        decided: &Result<Response, Refusal>,
        (began, ended): (Time, Time),
    ) {
        let open = self.tracer.within(&self.open, DECISION, began);
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

    /// The call ended with one of gRPC's numbers.
    pub fn end_grpc(self, method: &str, (code, message): (i64, &str), now: Time) {
        let (service, method) = method.rsplit_once('/').unwrap_or((method, ""));
        let attributes = vec![
            text("rpc.system", "grpc"),
            text("rpc.service", service),
            text("rpc.method", method),
            number("rpc.grpc.status_code", code),
        ];
        self.end(attributes, OURS.contains(&code).then(|| message.to_owned()), now);
    }

    /// The call ended with a status of HTTP.
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

/// A request as text, cut where it is too long.
fn written(request: &View<'_>) -> String {
    let mut all = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = write!(all, "domain:{:?}", cut(request.domain));
    for descriptor in &request.descriptors {
        all.push_str(" descriptors:{");
        for (key, value) in descriptor.entries.as_slice() {
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
