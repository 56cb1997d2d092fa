//! The messages that go back to Envoy.
//!
//! Each message of Envoy gets exactly one of the same kind. What is refused gets an immediate
//! response instead, with the same words as at the other doors.

use super::head::{HEADERS_MAX, MessageHead};
use super::wire::body_mutation::Mutation;
use super::wire::header_value_option::AppendAction;
use super::wire::processing_response::Response;
use super::wire::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeaderValue, HeaderValueOption,
    HeadersResponse, HttpBody, HttpStatus, ImmediateResponse, ProcessingResponse,
    StreamedBodyResponse,
};
use bytes::Bytes;
use evenkeel_engine::{Quota, RequestRefusal};
use evenkeel_grpc::frames::encode_frame;
use evenkeel_identity::answer::{self, AnswerFormat};
use evenkeel_usage::Dialect;
use http::{HeaderMap, HeaderName, HeaderValue as HttpHeaderValue, StatusCode};
use prost_types::value::Kind;
use prost_types::{Duration as WireDuration, Struct, Value};
use std::time::Duration;

/// A message to Envoy.
#[derive(Clone, Debug, PartialEq)]
pub enum EnvoyAnswer {
    /// One that changes nothing, in its gRPC frame.
    Fixed(&'static [u8]),
    Changing(Box<ProcessingResponse>),
}

impl EnvoyAnswer {
    /// The message in its gRPC frame.
    pub fn into_frame(self) -> Bytes {
        match self {
            EnvoyAnswer::Fixed(frame) => Bytes::from_static(frame),
            EnvoyAnswer::Changing(message) => encode_frame(&*message),
        }
    }
}

/// The gRPC frame of a message that contains nothing but an empty field of this number.
macro_rules! empty {
    ($field:literal) => {
        EnvoyAnswer::Fixed(&[0, 0, 0, 0, 2, $field << 3 | 2, 0])
    };
}

fn message(response: Response) -> EnvoyAnswer {
    let message = ProcessingResponse { response: Some(response), ..Default::default() };
    EnvoyAnswer::Changing(Box::new(message))
}

/// How the head of a request or a response changes on its way.
#[derive(Debug, Default)]
pub struct HeadChange {
    /// Headers that replace those of the same name.
    pub set: HeaderMap,
    /// A header that is removed.
    pub remove: Option<String>,
    /// The backend that the request goes to, if it is named to Envoy.
    pub endpoint: Option<HttpHeaderValue>,
}

/// The header that names the backend of a request to Envoy, and the key of the same value in the
/// dynamic metadata of [`ENDPOINT_NAMESPACE`]. Both are those of the endpoint picker protocol.
const ENDPOINT: &str = "x-gateway-destination-endpoint";
const ENDPOINT_NAMESPACE: &str = "envoy.lb";

impl HeadChange {
    /// Sets these headers.
    pub fn setting(set: HeaderMap) -> HeadChange {
        HeadChange { set, ..HeadChange::default() }
    }

    /// Removes what the client wrote where the backend is named.
    pub fn remove_endpoint(&mut self) {
        self.remove = Some(ENDPOINT.to_owned());
    }

    /// Sets the headers of these names as they are in `from`.
    pub fn copy(&mut self, names: impl Iterator<Item = HeaderName>, from: &HeaderMap) {
        for name in names {
            if let Some(value) = from.get(&name) {
                self.set.insert(name, value.clone());
            }
        }
    }

    /// Envoy fails a request that has more headers than it accepts after a change, even if the
    /// change adds none. Leaves out what would be too much for a request with this head. Returns
    /// whether the backend is named nevertheless, if there is one.
    pub fn keep_within(&mut self, head: &MessageHead) -> bool {
        let has = |name: &HeaderName| head.headers.contains_key(name);
        let adds = |set: &HeaderMap| set.keys().filter(|name| !has(name)).count();
        let named = usize::from(self.endpoint.is_some() && !head.headers.contains_key(ENDPOINT));
        if head.count + adds(&self.set) + named <= HEADERS_MAX {
            return true;
        }
        if !head.may_change() {
            *self = HeadChange {
                remove: self.remove.take().filter(|name| head.headers.contains_key(name)),
                ..HeadChange::default()
            };
            return false;
        }
        let set = std::mem::take(&mut self.set);
        self.set = set.iter().filter(|(name, _)| has(name)).map(owned).collect();
        let fits = head.count + named <= HEADERS_MAX;
        self.endpoint = self.endpoint.take().filter(|_| fits);
        fits
    }

    fn into_response(self) -> Option<CommonResponse> {
        let HeadChange { set, remove, endpoint } = self;
        let set = set.iter().map(|(name, value)| set_header(name.as_str(), value.as_bytes()));
        let named = endpoint.iter().map(|endpoint| set_header(ENDPOINT, endpoint.as_bytes()));
        let mutation = HeaderMutation {
            set_headers: set.chain(named).collect(),
            remove_headers: remove.into_iter().collect(),
        };
        (mutation != HeaderMutation::default()).then(|| CommonResponse {
            header_mutation: Some(mutation),
            // A route may depend on whether the header exists.
            clear_route_cache: endpoint.is_some(),
            ..CommonResponse::default()
        })
    }

    /// The dynamic metadata that say the same as the headers.
    fn metadata(&self) -> Option<Struct> {
        let text = self.endpoint.as_ref()?.to_str().ok()?.to_owned();
        let of = |key: &str, kind: Kind| Struct {
            fields: [(key.to_owned(), Value { kind: Some(kind) })].into(),
        };
        let inner = of(ENDPOINT, Kind::StringValue(text));
        Some(of(ENDPOINT_NAMESPACE, Kind::StructValue(inner)))
    }
}

fn owned((name, value): (&HeaderName, &HttpHeaderValue)) -> (HeaderName, HttpHeaderValue) {
    (name.clone(), value.clone())
}

fn set_header(key: &str, value: &[u8]) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: key.to_owned(),
            raw_value: Bytes::copy_from_slice(value),
            ..HeaderValue::default()
        }),
        append_action: AppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

/// Lets the head of a request go on to the backend.
pub fn pass_request(change: HeadChange) -> EnvoyAnswer {
    let dynamic_metadata = change.metadata();
    let Some(response) = change.into_response() else { return empty!(1) };
    let response = HeadersResponse { response: Some(response) };
    with_metadata(Response::RequestHeaders(response), dynamic_metadata)
}

fn with_metadata(response: Response, dynamic_metadata: Option<Struct>) -> EnvoyAnswer {
    let response = Some(response);
    let message = ProcessingResponse { response, dynamic_metadata, ..Default::default() };
    EnvoyAnswer::Changing(Box::new(message))
}

/// Lets a request go on to the backend that Envoy has buffered with its body, or with `other` in
/// its place.
pub fn pass_buffered_request(change: HeadChange, other: Option<Bytes>) -> EnvoyAnswer {
    let dynamic_metadata = change.metadata();
    let mut response = change.into_response();
    if let Some(body) = other {
        response.get_or_insert_default().body_mutation = replaced(Mutation::Body(body));
    }
    with_metadata(Response::RequestBody(BodyResponse { response }), dynamic_metadata)
}

/// Lets the head of a response go on to the client.
pub fn pass_response(change: HeadChange) -> EnvoyAnswer {
    let Some(response) = change.into_response() else { return empty!(2) };
    message(Response::ResponseHeaders(HeadersResponse { response: Some(response) }))
}

fn replaced(mutation: Mutation) -> Option<BodyMutation> {
    Some(BodyMutation { mutation: Some(mutation) })
}

/// How a piece of a body continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PiecePassage {
    /// As Envoy has it.
    Same,
    /// As it is in the answer, in place of what Envoy has.
    Other,
    /// As it is in the answer: Envoy keeps nothing (`FULL_DUPLEX_STREAMED`).
    Back,
}

/// How a piece changes; `None` if it does not.
fn pass_body(body: HttpBody, passage: PiecePassage) -> Option<BodyResponse> {
    let HttpBody { body, end_of_stream } = body;
    let mutation = match passage {
        PiecePassage::Same => return None,
        PiecePassage::Other if body.is_empty() => Mutation::ClearBody(true),
        PiecePassage::Other => Mutation::Body(body),
        PiecePassage::Back => {
            Mutation::StreamedResponse(StreamedBodyResponse { body, end_of_stream })
        }
    };
    let body_mutation = replaced(mutation);
    let response = Some(CommonResponse { body_mutation, ..CommonResponse::default() });
    Some(BodyResponse { response })
}

pub fn pass_request_body(body: HttpBody, passage: PiecePassage) -> EnvoyAnswer {
    pass_body(body, passage).map_or(empty!(3), |response| message(Response::RequestBody(response)))
}

pub fn pass_response_body(body: HttpBody, passage: PiecePassage) -> EnvoyAnswer {
    pass_body(body, passage).map_or(empty!(4), |response| message(Response::ResponseBody(response)))
}

pub fn pass_request_trailers() -> EnvoyAnswer {
    empty!(5)
}

pub fn pass_response_trailers() -> EnvoyAnswer {
    empty!(6)
}

/// Asks Envoy to wait for this long for the next message. It has no effect unless Envoy's
/// `max_message_timeout` allows for it.
pub fn wait_for(time: Duration) -> EnvoyAnswer {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    // The fraction of a second is below 10^9.
    let timeout = WireDuration { seconds, nanos: time.subsec_nanos() as i32 };
    let override_message_timeout = Some(timeout);
    let message = ProcessingResponse { override_message_timeout, ..Default::default() };
    EnvoyAnswer::Changing(Box::new(message))
}

/// The headers of a refusal.
pub fn refusal_headers(
    refusal: &RequestRefusal,
    format: AnswerFormat,
) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let seconds = Some(refusal.retry_after_secs).filter(|seconds| *seconds > 0);
    let after = seconds.map(|seconds| ("retry-after", seconds.to_string().into_bytes()));
    let always = [
        ("content-type", format.content_type().as_bytes().to_vec()),
        ("cache-control", b"no-store".to_vec()),
        ("x-evenkeel-limit", refusal.limit.as_bytes().to_vec()),
    ];
    always.into_iter().chain(after)
}

/// Refuses a request of a client that accepts answers of this format.
pub fn refuse(refusal: &RequestRefusal, format: AnswerFormat) -> EnvoyAnswer {
    let status = answer::refused(refusal.kind);
    let headers = refusal_headers(refusal, format);
    let set_headers = headers.map(|(name, value)| set_header(name, &value)).collect();
    let body = format.refusal(status, &refusal.limit, refusal.retry_after_secs);
    immediate(status, set_headers, body.into(), of_limit(refusal))
}

/// Refuses a request to a language model, in the form of its API. `quotas`: the state of limits.
pub fn refuse_model(dialect: Dialect, refusal: &RequestRefusal, quotas: &[Quota]) -> EnvoyAnswer {
    let mut response = evenkeel_models::answer::refused(dialect, refusal);
    evenkeel_models::answer::set_quotas(response.headers_mut(), quotas);
    let (head, body) = response.into_parts();
    let set = head.headers.iter();
    let set = set.map(|(name, value)| set_header(name.as_str(), value.as_bytes())).collect();
    immediate(head.status, set, body, of_limit(refusal))
}

/// Refuses a request for which none of the backends that Envoy allows is known, as the endpoint
/// picker protocol wants it.
pub fn no_backend(dialect: Option<Dialect>) -> EnvoyAnswer {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let (headers, body) = match dialect {
        Some(dialect) => {
            let (head, body) = evenkeel_models::answer::fault(dialect, status).into_parts();
            (head.headers, body)
        }
        None => (HeaderMap::new(), Bytes::from_static(b"no backend\n")),
    };
    let set = headers.iter().map(|(name, value)| set_header(name.as_str(), value.as_bytes()));
    let details = "evenkeel: none of the backends that Envoy allows is known".to_owned();
    immediate(status, set.collect(), body, details)
}

fn of_limit(refusal: &RequestRefusal) -> String {
    format!("evenkeel: over the limit {}", refusal.limit)
}

fn immediate(
    status: StatusCode,
    set_headers: Vec<HeaderValueOption>,
    body: Bytes,
    details: String,
) -> EnvoyAnswer {
    message(Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code: status.as_u16().into() }),
        headers: Some(HeaderMutation { set_headers, ..HeaderMutation::default() }),
        body,
        details,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::wire::TrailersResponse;
    use super::*;
    use http::header;

    #[test]
    fn no_change_makes_a_request_have_more_headers_than_envoy_accepts() {
        let change = || HeadChange {
            set: [(header::ACCEPT_ENCODING, HttpHeaderValue::from_static("identity"))]
                .into_iter()
                .collect(),
            remove: Some(ENDPOINT.to_owned()),
            endpoint: Some(HttpHeaderValue::from_static("10.0.0.1:80")),
        };
        // The number of headers, and whether they are changed: set, removed, the backend named.
        for (count, set, remove, named) in [
            (98, true, true, true),
            (99, false, true, true),
            (100, false, true, false),
            (101, false, false, false),
        ] {
            let (mut change, head) = (change(), MessageHead { count, ..MessageHead::default() });
            assert_eq!(change.keep_within(&head), named, "{count}");
            let is = (!change.set.is_empty(), change.remove.is_some(), change.endpoint.is_some());
            assert_eq!(is, (set, remove, named), "{count}");
        }
        let mut head = MessageHead { count: 100, ..MessageHead::default() };
        head.headers.insert(header::ACCEPT_ENCODING, HttpHeaderValue::from_static("gzip"));
        let mut change = change();
        assert!(!change.keep_within(&head));
        assert_eq!(change.set.len(), 1, "it replaces one that is there");
    }

    #[test]
    fn messages_that_change_nothing_are_encoded_as_others_are() {
        let (head, body) = (HeadersResponse::default(), BodyResponse::default());
        let same = |answer: fn(HttpBody, PiecePassage) -> EnvoyAnswer| {
            answer(HttpBody::default(), PiecePassage::Same)
        };
        let answers = [
            (pass_request(HeadChange::default()), Response::RequestHeaders(head.clone())),
            (pass_response(HeadChange::default()), Response::ResponseHeaders(head)),
            (same(pass_request_body), Response::RequestBody(body.clone())),
            (same(pass_response_body), Response::ResponseBody(body)),
            (pass_request_trailers(), Response::RequestTrailers(TrailersResponse {})),
            (pass_response_trailers(), Response::ResponseTrailers(TrailersResponse {})),
        ];
        for (answer, response) in answers {
            assert!(matches!(answer, EnvoyAnswer::Fixed(_)));
            assert_eq!(answer.into_frame(), message(response).into_frame());
        }
    }
}
