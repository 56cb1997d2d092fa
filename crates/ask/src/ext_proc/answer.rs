//! The messages that go back to Envoy.
//!
//! Each message of Envoy gets exactly one of the same kind. What is refused gets an immediate
//! response instead, with the same words as at the other doors.

use super::wire::body_mutation::Mutation;
use super::wire::header_value_option::AppendAction;
use super::wire::processing_response::Response;
use super::wire::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeaderValue, HeaderValueOption,
    HeadersResponse, HttpBody, HttpStatus, ImmediateResponse, ProcessingResponse,
    StreamedBodyResponse, TrailersResponse,
};
use bytes::Bytes;
use evenkeel_engine::{Quota, RequestRefusal};
use evenkeel_identity::answer::{self, AnswerFormat};
use evenkeel_usage::Dialect;
use http::{HeaderMap, HeaderName, HeaderValue as HttpHeaderValue, StatusCode};
use prost_types::value::Kind;
use prost_types::{Duration as WireDuration, Struct, Value};
use std::time::Duration;

fn message(response: Response) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
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
            // A route may depend on whether the header is there.
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
pub fn pass_request(change: HeadChange) -> ProcessingResponse {
    let dynamic_metadata = change.metadata();
    let response = HeadersResponse { response: change.into_response() };
    let message = message(Response::RequestHeaders(response));
    ProcessingResponse { dynamic_metadata, ..message }
}

/// Lets a request go on to the backend that Envoy has buffered with its body, or with `other` in
/// its place.
pub fn pass_buffered_request(change: HeadChange, other: Option<Bytes>) -> ProcessingResponse {
    let dynamic_metadata = change.metadata();
    let mut response = change.into_response();
    if let Some(body) = other {
        response.get_or_insert_default().body_mutation = replaced(Mutation::Body(body));
    }
    let response = BodyResponse { response };
    let message = message(Response::RequestBody(response));
    ProcessingResponse { dynamic_metadata, ..message }
}

/// Lets the head of a response go on to the client.
pub fn pass_response(change: HeadChange) -> ProcessingResponse {
    message(Response::ResponseHeaders(HeadersResponse { response: change.into_response() }))
}

fn replaced(mutation: Mutation) -> Option<BodyMutation> {
    Some(BodyMutation { mutation: Some(mutation) })
}

/// How a piece of a body goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PiecePassage {
    /// As Envoy has it.
    Same,
    /// As it is in the answer, in place of what Envoy has.
    Other,
    /// As it is in the answer: Envoy keeps nothing (`FULL_DUPLEX_STREAMED`).
    Back,
}

fn pass_body(body: HttpBody, passage: PiecePassage) -> BodyResponse {
    let HttpBody { body, end_of_stream } = body;
    let mutation = match passage {
        PiecePassage::Same => return BodyResponse::default(),
        PiecePassage::Other if body.is_empty() => Mutation::ClearBody(true),
        PiecePassage::Other => Mutation::Body(body),
        PiecePassage::Back => {
            Mutation::StreamedResponse(StreamedBodyResponse { body, end_of_stream })
        }
    };
    let body_mutation = replaced(mutation);
    BodyResponse { response: Some(CommonResponse { body_mutation, ..CommonResponse::default() }) }
}

pub fn pass_request_body(body: HttpBody, passage: PiecePassage) -> ProcessingResponse {
    message(Response::RequestBody(pass_body(body, passage)))
}

pub fn pass_response_body(body: HttpBody, passage: PiecePassage) -> ProcessingResponse {
    message(Response::ResponseBody(pass_body(body, passage)))
}

pub fn pass_request_trailers() -> ProcessingResponse {
    message(Response::RequestTrailers(TrailersResponse::default()))
}

pub fn pass_response_trailers() -> ProcessingResponse {
    message(Response::ResponseTrailers(TrailersResponse::default()))
}

/// Asks Envoy to wait for this long for the next message. It has no effect unless Envoy's
/// `max_message_timeout` allows for it.
pub fn wait_for(time: Duration) -> ProcessingResponse {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    // The fraction of a second is below 10^9.
    let timeout = WireDuration { seconds, nanos: time.subsec_nanos() as i32 };
    ProcessingResponse { override_message_timeout: Some(timeout), ..ProcessingResponse::default() }
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

/// Refuses a request whose client accepts answers of this format.
pub fn refuse(refusal: &RequestRefusal, format: AnswerFormat) -> ProcessingResponse {
    let status = answer::refused(refusal.kind);
    let headers = refusal_headers(refusal, format);
    let set_headers = headers.map(|(name, value)| set_header(name, &value)).collect();
    let body = format.refusal(status, &refusal.limit, refusal.retry_after_secs);
    immediate(status, set_headers, body.into(), refusal)
}

/// Refuses a request to a language model, in the form of its API. `quotas`: the state of limits.
pub fn refuse_model(
    dialect: Dialect,
    refusal: &RequestRefusal,
    quotas: &[Quota],
) -> ProcessingResponse {
    let mut response = evenkeel_models::answer::refused(dialect, refusal);
    evenkeel_models::answer::set_quotas(response.headers_mut(), quotas);
    let (head, body) = response.into_parts();
    let set = head.headers.iter();
    let set = set.map(|(name, value)| set_header(name.as_str(), value.as_bytes())).collect();
    immediate(head.status, set, body, refusal)
}

fn immediate(
    status: StatusCode,
    set_headers: Vec<HeaderValueOption>,
    body: Bytes,
    refusal: &RequestRefusal,
) -> ProcessingResponse {
    message(Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code: status.as_u16().into() }),
        headers: Some(HeaderMutation { set_headers, ..HeaderMutation::default() }),
        body,
        details: format!("evenkeel: over the limit {}", refusal.limit),
    }))
}
