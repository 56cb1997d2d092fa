//! gRPC's health checking protocol.
//!
//! There are two names. The empty one is the process, which is serving while it answers.
//! `ratelimit` is the service. A watcher of an unknown name gets SERVICE_UNKNOWN and keeps its
//! stream, as the protocol demands. The conditions for a healthy service: `http::RatelimitHealth`.

use super::quota_stream::{shutting_down, trailers};
use crate::wire::encode_frame;
use crate::wire::health::health_check_response::ServingStatus;
use crate::wire::health::{HealthCheckRequest, HealthCheckResponse, HealthListResponse};
use bytes::Bytes;
use http_body::{Body, Frame};
use prost::Message;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::watch::Receiver;
use tonic::Status;

/// The name of the service in health checks.
const HEALTH_SERVICE_NAME: &str = "ratelimit";

/// The health of the service.
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
pub struct HealthWatch {
    name: String,
    last_sent: Option<ServingStatus>,
    state: WatchProgress,
    /// Whether the trailers have been sent.
    closed: bool,
}

type Changed = Pin<Box<dyn Future<Output = Option<Receiver<ServingState>>> + Send>>;

enum WatchProgress {
    At(Receiver<ServingState>),
    Waiting(Changed),
    /// The last status has been sent.
    Ended,
}

impl HealthWatch {
    /// Watches the status of the service `name`; the first status is sent at once.
    pub(super) fn new(name: String, state: Receiver<ServingState>) -> HealthWatch {
        HealthWatch { name, last_sent: None, state: WatchProgress::At(state), closed: false }
    }

    /// The next status; `None` if no further one will follow.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<ServingStatus>> {
        loop {
            self.state = match &mut self.state {
                WatchProgress::Ended => return Poll::Ready(None),
                WatchProgress::Waiting(changed) => ready!(changed.as_mut().poll(cx))
                    .map_or(WatchProgress::Ended, WatchProgress::At),
                WatchProgress::At(receiver) => {
                    let state = *receiver.borrow_and_update();
                    let status = status(&self.name, state).unwrap_or(ServingStatus::ServiceUnknown);
                    if self.last_sent != Some(status) {
                        self.last_sent = Some(status);
                        return Poll::Ready(Some(status));
                    }
                    match state {
                        ServingState::Ending => WatchProgress::Ended,
                        _ => WatchProgress::Waiting(Box::pin(changed(receiver.clone()))),
                    }
                }
            }
        }
    }
}

/// Waits for a new state and returns the receiver; `None` if the sender is gone.
async fn changed(mut receiver: Receiver<ServingState>) -> Option<Receiver<ServingState>> {
    receiver.changed().await.ok().map(|()| receiver)
}

impl Body for HealthWatch {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let watching = self.get_mut();
        if watching.closed {
            return Poll::Ready(None);
        }
        watching.poll(cx).map(|status| {
            watching.closed = status.is_none();
            Some(Ok(match status {
                Some(status) => Frame::data(encode_frame(&response(status))),
                None => Frame::trailers(trailers(&shutting_down())),
            }))
        })
    }
}
