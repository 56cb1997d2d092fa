//! gRPC's health checking protocol.
//!
//! There are two names. The empty one is the process, which is serving while it answers.
//! `ratelimit` is the service. A watcher of an unknown name gets SERVICE_UNKNOWN and keeps its
//! stream, as the protocol demands. The conditions for a healthy service: `http::RatelimitHealth`.

use crate::wire::health::health_check_response::ServingStatus;
use crate::wire::health::{HealthCheckRequest, HealthCheckResponse, HealthListResponse};
use evenkeel_grpc::body::{GrpcBody, shutting_down, trailers};
use evenkeel_grpc::frames::encode_frame;
use futures_util::stream::unfold;
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;
use tokio::sync::watch::Receiver;
use tonic::Status;

const HEALTH_SERVICE_NAME: &str = "ratelimit";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingState {
    /// The service can be called.
    Serving,
    /// The service should not be called now, for example without rules or without a store.
    NotServing,
    /// The service shuts down and will not be healthy again; streams end.
    Ending,
}

/// The status of a name; `None` if the name is unknown.
fn status(name: &str, state: ServingState) -> Option<ServingStatus> {
    match (name, state) {
        ("", _) | (HEALTH_SERVICE_NAME, ServingState::Serving) => Some(ServingStatus::Serving),
        (HEALTH_SERVICE_NAME, ServingState::NotServing | ServingState::Ending) => {
            Some(ServingStatus::NotServing)
        }
        _ => None,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

/// The service name in a health check message.
pub(super) fn name(message: &[u8]) -> Result<String, Status> {
    let request = HealthCheckRequest::decode(message);
    let wrong = |fault| Status::invalid_argument(format!("not a health check: {fault}"));
    request.map(|request| request.service).map_err(wrong)
}

/// The answer to `CheckSettings`: a status, or NOT_FOUND for an unknown name.
pub(super) fn check(name: &str, state: ServingState) -> Result<HealthCheckResponse, Status> {
    status(name, state).map(response).ok_or_else(|| Status::not_found("unknown service"))
}

/// The answer to `LinkList`: the statuses of all names.
pub(super) fn list(state: ServingState) -> HealthListResponse {
    let one = |name: &str| Some((name.to_owned(), response(status(name, state)?)));
    HealthListResponse { statuses: ["", HEALTH_SERVICE_NAME].into_iter().filter_map(one).collect() }
}

/// The answer to `Watch`: the status at once, and again whenever it changes.
pub(super) fn watch(name: String, state: Receiver<ServingState>) -> GrpcBody {
    let frames = unfold(Some((state, None, name)), async |progress| {
        let (mut state, last, name) = progress?;
        loop {
            let current = *state.borrow_and_update();
            let status = status(&name, current).unwrap_or(ServingStatus::ServiceUnknown);
            if last != Some(status) {
                let frame = Frame::data(encode_frame(&response(status)));
                return Some((Ok(frame), Some((state, Some(status), name))));
            }
            if current == ServingState::Ending || state.changed().await.is_err() {
                return Some((Ok(Frame::trailers(trailers(&shutting_down()))), None));
            }
        }
    });
    GrpcBody::stream(StreamBody::new(frames))
}
