//! The messages that go back to Envoy.
//!
//! Each message of Envoy gets exactly one of the same kind. What is refused gets an immediate
//! response instead, with the same words as at the other doors. A body passes unchanged.

use super::wire::body_mutation::Mutation;
use super::wire::header_value_option::AppendAction;
use super::wire::processing_response::Response;
use super::wire::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeaderValue, HeaderValueOption,
    HeadersResponse, HttpBody, HttpStatus, ImmediateResponse, ProcessingResponse,
    StreamedBodyResponse, TrailersResponse,
};
use evenkeel_engine::RequestRefusal;
use evenkeel_identity::answer::{self, AnswerFormat};
use prost_types::Duration as WireDuration;
use std::time::Duration;

fn message(response: Response) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
}

/// Lets a request go on to the backend.
pub fn pass_request() -> ProcessingResponse {
    message(Response::RequestHeaders(HeadersResponse::default()))
}

/// Lets the head of a response go on to the client, without the header `remove`.
pub fn pass_response(remove: Option<String>) -> ProcessingResponse {
    let response = remove.map(|name| CommonResponse {
        header_mutation: Some(HeaderMutation {
            remove_headers: vec![name],
            ..HeaderMutation::default()
        }),
        ..CommonResponse::default()
    });
    message(Response::ResponseHeaders(HeadersResponse { response }))
}

/// Lets a piece of a body go on. `is_duplex`: Envoy sends what it gets back.
fn pass_body(body: HttpBody, is_duplex: bool) -> BodyResponse {
    let HttpBody { body, end_of_stream } = body;
    let same = Mutation::StreamedResponse(StreamedBodyResponse { body, end_of_stream });
    let response = is_duplex.then(|| CommonResponse {
        body_mutation: Some(BodyMutation { mutation: Some(same) }),
        ..CommonResponse::default()
    });
    BodyResponse { response }
}

pub fn pass_request_body(body: HttpBody, is_duplex: bool) -> ProcessingResponse {
    message(Response::RequestBody(pass_body(body, is_duplex)))
}

pub fn pass_response_body(body: HttpBody, is_duplex: bool) -> ProcessingResponse {
    message(Response::ResponseBody(pass_body(body, is_duplex)))
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
    ProcessingResponse { response: None, override_message_timeout: Some(timeout) }
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
    let set = |(key, value): (&str, Vec<u8>)| HeaderValueOption {
        header: Some(HeaderValue {
            key: key.to_owned(),
            raw_value: value.into(),
            ..HeaderValue::default()
        }),
        append_action: AppendAction::OverwriteIfExistsOrAdd.into(),
    };
    let set_headers = refusal_headers(refusal, format).map(set).collect();
    message(Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code: status.as_u16().into() }),
        headers: Some(HeaderMutation { set_headers, ..HeaderMutation::default() }),
        body: format.refusal(status, &refusal.limit, refusal.retry_after_secs).into(),
        details: format!("evenkeel: over the limit {}", refusal.limit),
    }))
}
